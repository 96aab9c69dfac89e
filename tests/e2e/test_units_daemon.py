"""The daemon's unit when something goes wrong, and the two ways in which others start it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from .calls import main_pid, shell, worker_unit
from .dropins import edited, in_background, let_it_end, slow_report, slow_turn
from .machine import Machine
from .product import UNIT, eventually, is_up_again, lactl, lactl_json, show, start_service

pytestmark = pytest.mark.e2e

SOCKET = "lightagentd.socket"
OWN_UNITS = (
    UNIT,
    SOCKET,
    "lightagent-triage@dbus.service.service",
    "lightagent-prompt@daily.service",
    "lightagent-prompt@daily.timer",
    "lightagent-triggers.service",
    "lightagent-triggers.path",
    "lightagent-telemetry.service",
    "lightagent-away.service",
    "lightagent-gateway.service",
    "lightagent-gateway.socket",
)
EXPOSURE = {
    UNIT: 1.3,
    "lightagent-triage@dbus.service.service": 1.0,
    "lightagent-prompt@daily.service": 2.5,
    "lightagent-triggers.service": 2.6,
    "lightagent-telemetry.service": 2.6,
    "lightagent-away.service": 2.6,
    "lightagent-gateway.service": 1.5,
}
HANGING = """
import asyncio, signal, time
from lightagentd.daemon import serving as daemon
serve = daemon.serve

def hang_here():
    time.sleep(600)

async def hanging(paths):
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR2, hang_here)
    await serve(paths)

daemon.serve = hanging
daemon.main()
"""


def said(machine: Machine, unit: str = UNIT) -> str:
    return "\n".join(str(entry.get("MESSAGE")) for entry in machine.journal("--unit", unit, "--lines=300"))


def status_text(machine: Machine) -> str:
    return show(machine, "StatusText")["StatusText"]


# The units


@pytest.mark.parametrize("unit", OWN_UNITS)
def test_systemd_finds_nothing_wrong_with_a_unit(service: Machine, unit: str) -> None:
    verified = service.run(["systemd-analyze", "verify", unit])
    assert (verified.stdout, verified.stderr) == ("", "")


@pytest.mark.parametrize("unit", EXPOSURE)
def test_exposure_stays_low(service: Machine, unit: str) -> None:
    out = service.run(["systemd-analyze", "security", "--no-pager", unit]).stdout
    figure = re.search(r"Overall exposure level for \S+: ([0-9.]+)", out)
    assert figure is not None, out
    print(f"{unit}: exposure {figure[1]}")
    assert float(figure[1]) <= EXPOSURE[unit], out


def test_unit_promises_what_an_administrator_relies_on(service: Machine) -> None:
    wanted = {
        "WatchdogUSec": "30s",
        "OOMPolicy": "continue",
        "TimeoutStopUSec": "1min",
        "Restart": "on-failure",
        "NRestarts": "0",
    }
    assert show(service, *wanted) == wanted


# What hangs, breaks and is slow


@pytest.fixture(scope="module")
def slow(service: Machine) -> Iterator[None]:
    """The prompt "make the slow report" takes until `let_it_end`."""
    with slow_report(service):
        yield


def test_reload_under_load_loses_no_turn_and_the_status_tells_what_is_wrong(service: Machine) -> None:
    """And when it is right again."""
    assert re.fullmatch(r"serving \d+ agents?", status_text(service))
    pid = main_pid(service, UNIT)
    script = (
        "for i in 1 2 3 4; do lactl prompt ops --new 'check memory' > /dev/null & pids=\"$pids $!\"; done; "
    )
    script += "for p in $pids; do wait $p || exit 2; done"
    with ThreadPoolExecutor(1) as pool:
        load = pool.submit(service.run, ["sh", "-c", script], check=False, timeout_s=120)
        eventually(lambda: lactl_json(service, "status")["turns_running"] or load.done(), "turns run")
        service.write("/etc/lightagentd/agent/broken/AGENT.md", "---\nwrong_key: 1\n---\nx\n")
        try:
            service.run(["systemctl", "reload", UNIT])
            eventually(lambda: "broken is disabled" in status_text(service), "the status names the agent")
            status = service.run(["systemctl", "status", "--no-pager", "--lines=0", UNIT]).stdout
            assert re.search(r"Status: \"serving .*wrong_key", status)
        finally:
            service.run(["rm", "-r", "/etc/lightagentd/agent/broken"])
            for _ in range(2):
                service.run(["systemctl", "reload", UNIT])
    eventually(lambda: "disabled" not in status_text(service), "the status is fine again")
    assert load.result().status == 0, load.result().explain()
    assert main_pid(service, UNIT) == pid


@pytest.mark.usefixtures("slow")
def test_stop_waits_for_a_turn_longer_than_the_unit_says(service: Machine) -> None:
    """drain_timeout_s of the configuration is longer than TimeoutStopSec= here, and counts."""
    with edited(service, UNIT, "[Service]\nTimeoutStopSec=1\n"):
        assert show(service, "TimeoutStopUSec")["TimeoutStopUSec"] == "1s"  # of the daemon that runs, too
        slow_turn(service)
        service.run(["systemctl", "stop", "--no-block", UNIT])
        eventually(lambda: "waiting for running turns" in status_text(service), "the daemon drains")
        service.run(["sleep", "2"])  # twice the unit's own time: nothing else tells that it was not the end
        assert show(service, "ActiveState")["ActiveState"] == "deactivating"
        let_it_end(service)
        eventually(lambda: show(service, "ActiveState")["ActiveState"] == "inactive", "it stopped")
        assert show(service, "Result")["Result"] == "success"
    answer = "\n".join(str(entry["MESSAGE"]) for entry in service.journal("--unit", "e2e-slow"))
    assert "the slow report is done" in answer
    service.run(["systemctl", "stop", "e2e-slow"], check=False)


@pytest.fixture
def credentials(service: Machine) -> Iterator[None]:
    """One that is the daemon's by its name, and one that is not: the unit has them from the next start on."""
    service.write("/etc/credstore/lightagentd.e2e", "sk-e2e-key\n", 0o600)
    service.write("/etc/credstore/other.e2e", "not for it\n", 0o600)
    yield
    service.run(["rm", "/etc/credstore/lightagentd.e2e", "/etc/credstore/other.e2e"])


@pytest.mark.usefixtures("credentials", "slow")
def test_loop_that_hangs_is_killed_and_what_it_had_is_there_again(service: Machine) -> None:
    """What `api_key_file = "lightagentd.e2e"` reads is a credential; the embedded model needs none."""
    service.write("/usr/local/lib/e2e-hanging.py", HANGING)
    drop_in = (
        "[Service]\nWatchdogSec=3\nExecStart=\nExecStart=/usr/bin/python3 -I /usr/local/lib/e2e-hanging.py\n"
    )
    with edited(service, UNIT, drop_in):
        service.run(["systemctl", "restart", UNIT])  # or the first start after the test before
        lactl(service, "prompt", "ops", "--new", "check memory")
        session = lactl_json(service, "sessions", "list")[0]["id"]
        interrupted = slow_turn(service)
        pid = main_pid(service, UNIT)
        service.run(["kill", "-USR2", str(pid)])
        eventually(lambda: is_up_again(service, pid), f"{UNIT} is active again")
    service.run(["systemctl", "stop", "e2e-slow"], check=False)
    service.run(["systemctl", "reset-failed", "e2e-slow"], check=False)
    log = said(service)
    assert "Watchdog timeout" in log
    assert "Fatal Python error: Aborted" in log
    assert "in hang_here" in log
    assert session in {one["id"] for one in lactl_json(service, "sessions", "list")}
    folder = f"/run/credentials/{UNIT}"
    assert service.run(["ls", folder]).stdout == "lightagentd.e2e\n"
    assert service.run(["cat", f"{folder}/lightagentd.e2e"], user="lightagent").stdout == "sk-e2e-key\n"
    # The turn that ran is told of, and its session goes on.
    shown = lactl_json(service, "sessions", "show", interrupted)
    assert shown["state"] == "idle"
    assert "outcome_unknown" in str(shown["messages"])
    assert "interrupted" in lactl(service, "--json", "history", "--session", interrupted).stdout
    assert lactl(service, "audit", "verify").status == 0
    assert "memory" in lactl(service, "prompt", "ops", f"--session={interrupted}", "check memory").stdout


# What an administrator edits


def test_observe_worker_that_was_narrowed_reads_less(service: Machine) -> None:
    service.write("/srv/e2e-secret/file", "seen\n")
    unit = "lightagent-observe@.service"
    assert shell(service, "cat /srv/e2e-secret/file") == "seen\n"
    with edited(service, unit, "[Service]\nInaccessiblePaths=/srv/e2e-secret\nProtectHome=yes\n"):
        service.run(["systemctl", "stop", worker_unit(service)])
        assert "seen" not in shell(service, "cat /srv/e2e-secret/file || echo not seen here | tr e E")
        assert shell(service, "ls /home /root 2>&1 | wc -l; df / > /dev/null && echo works").endswith(
            "works\n"
        )
        assert lactl_json(service, "status")["sandbox"] == "systemd"
    service.run(["systemctl", "stop", worker_unit(service)])
    assert shell(service, "cat /srv/e2e-secret/file") == "seen\n"
    service.run(["rm", "-r", "/srv/e2e-secret"])


BROKEN = """[Service]
User=root
NoNewPrivileges=no
ProtectSystem=no
AmbientCapabilities=CAP_NET_RAW
CapabilityBoundingSet=~
"""


def test_override_that_breaks_the_sandbox_is_told_and_a_reload_ends_a_worker_older_than_the_daemon(
    service: Machine,
) -> None:
    """The broken worker observes nothing."""
    worker = worker_unit(service)
    with edited(service, "lightagent-observe@.service", BROKEN):
        service.run(["systemctl", "restart", UNIT])
        eventually(lambda: "shell commands" in status_text(service), "systemctl status tells")
        problems = "\n".join(lactl_json(service, "status")["problems"])
        assert "observe" in problems or "sandbox" in problems.lower()
        doctor = lactl(service, "doctor", check=False)
        assert doctor.status != 0
        done = lactl(
            service, "tools", "call", "ops", "bash.exec", "command=id", "effect=observe", check=False
        )
        assert done.status != 0, done.explain()
    service.run(["systemctl", "start", worker])
    service.run(["systemctl", "restart", UNIT])
    assert lactl_json(service, "status")["problems"] == []
    # systemd starts a running worker again with the daemon, and before it: it has the files of that time.
    pid = main_pid(service, worker)
    assert pid
    service.run(["systemctl", "reload", UNIT])
    assert main_pid(service, worker) != pid
    assert shell(service, "echo as before") == "as before\n"


@pytest.fixture
def small_state(service: Machine) -> Iterator[str]:
    """A state folder on a file system of its own that is full; what was there comes back."""
    service.run(["systemctl", "stop", UNIT])
    folder = "/var/lib/lightagentd"
    owner = service.account("lightagent")
    options = f"size=24M,mode=0700,uid={owner.pw_uid},gid={owner.pw_gid}"
    service.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder])
    yield folder
    service.run(["systemctl", "stop", UNIT])
    service.run(["umount", folder])


def test_start_with_a_full_disk_says_so_and_loses_nothing(service: Machine, small_state: str) -> None:
    fill = ["sh", "-c", f"cat /dev/zero > {small_state}/ballast || true"]
    service.run(fill)
    assert service.run(["systemctl", "start", UNIT], check=False, timeout_s=60).status != 0
    eventually(lambda: "No space left" in status_text(service), "the status says why it did not start")
    service.run(["rm", f"{small_state}/ballast"])
    eventually(lambda: show(service, "ActiveState")["ActiveState"] == "active", "it starts by itself")

    lactl(service, "prompt", "ops", "check memory")
    before = lactl_json(service, "sessions", "list")[0]["id"]
    service.run(["systemctl", "stop", UNIT])
    service.run(fill)
    start_service(service)  # with a history it has its reserve

    def told() -> bool:
        assert "memory" in lactl(service, "prompt", "ops", "check memory").stdout
        return "nearly full" in "\n".join(lactl_json(service, "status")["problems"])

    eventually(told, "the disk is told of, and reports go on")
    eventually(lambda: "nearly full" in status_text(service), "systemctl status tells, too")
    service.run(["rm", f"{small_state}/ballast"])
    service.run(["systemctl", "restart", UNIT])
    assert before in {one["id"] for one in lactl_json(service, "sessions", "list")}
    assert lactl(service, "audit", "verify", "--no-journal").status == 0
    other = lactl(service, "audit", "verify", check=False)  # the journal knows what lies below the small disk
    assert (other.status, "exchanged" in other.stderr) == (74, True), other.explain()


# Who starts it

BUS_CALL = ("busctl", "--no-pager", "call", "org.lightagent1", "/", "org.freedesktop.DBus.Peer", "Ping")
# No client is refused while the daemon restarts.
ASKING = """
import os, time
from lightagentd.client import Client
open("/run/e2e-asking", "w").close()
while os.path.exists("/run/e2e-asking"):
    with Client() as client:
        client.agents_list()
    time.sleep(0.02)
"""


@pytest.fixture
def stopped(service: Machine) -> Machine:
    """The machine with the daemon stopped."""
    service.run(["systemctl", "stop", UNIT])
    return service


@pytest.fixture
def nothing_enabled(stopped: Machine) -> Iterator[None]:
    """Afterwards nothing is."""
    yield
    stopped.run(["systemctl", "stop", SOCKET])
    stopped.run(["systemctl", "disable", SOCKET, UNIT])
    stopped.run(["systemctl", "reset-failed", UNIT], check=False)


def test_stopped_is_stopped_while_nothing_is_enabled(stopped: Machine) -> None:
    refused = lactl(stopped, "status", check=False)
    assert refused.status == 69
    assert stopped.run(BUS_CALL, check=False).status != 0
    assert show(stopped, "ActiveState")["ActiveState"] == "inactive"


@pytest.mark.usefixtures("nothing_enabled")
def test_the_first_client_of_a_socket_unit_starts_the_daemon_and_a_call_on_the_bus_one_that_is_enabled(
    stopped: Machine,
) -> None:
    """When the socket's unit is gone, the daemon makes a socket of its own again."""
    stopped.run(["systemctl", "enable", "--now", SOCKET])
    path = "/run/lightagentd/control.sock"
    assert stopped.run(["stat", "-L", "-c", "%a %U %G", path]).stdout == "660 root lightagent\n"
    assert stopped.run(["stat", "-c", "%a %U %G", "/run/lightagentd-control"]).stdout == "755 root root\n"
    assert "memory" in lactl(stopped, "prompt", "ops", "check memory").stdout
    assert show(stopped, "ActiveState")["ActiveState"] == "active"

    stopped.run(["systemctl", "stop", UNIT])
    assert show(stopped, "ActiveState")["ActiveState"] == "inactive"
    in_background(stopped, "e2e-asking", "python3", "-c", ASKING)
    eventually(lambda: show(stopped, "ActiveState")["ActiveState"] == "active", "who asks has started it")
    stopped.run(["systemctl", "restart", UNIT])
    stopped.run(["rm", "/run/e2e-asking"])
    state = ["systemctl", "show", "--property=SubState,Result", "e2e-asking"]
    eventually(lambda: "SubState=running" not in stopped.run(state).stdout, "it has ended")
    assert "Result=success" in stopped.run(state).stdout, said(stopped, "e2e-asking")
    stopped.run(["systemctl", "stop", "e2e-asking"])

    stopped.run(["systemctl", "disable", "--now", SOCKET])  # no daemon is left that nobody reaches
    assert show(stopped, "ActiveState")["ActiveState"] == "inactive"
    assert stopped.run(["test", "-L", path], check=False).status != 0
    assert lactl(stopped, "status", check=False).status == 69

    stopped.run(["systemctl", "enable", UNIT])
    done = stopped.run(BUS_CALL, check=False, timeout_s=60)
    assert done.status == 0, done.explain()
    assert show(stopped, "ActiveState")["ActiveState"] == "active"
    assert stopped.run(["stat", "-c", "%a %U %G", path]).stdout == "660 lightagent lightagent\n"
