"""The worker units: that they are in force, what works inside, who may start them, and how they end.

What they keep a command from is in `test_units_held.py`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from .calls import call, main_pid, shell, worker_unit
from .machine import Completed, Machine
from .product import UNIT, eventually, lactl, lactl_json, new_uid

pytestmark = pytest.mark.e2e

EXPOSURE = {
    "lightagentd.service": 1.3,
    "lightagent-observe@07.service": 1.5,
    "lightagent-reach@07.service": 1.8,
    "lightagent-bus@07.service": 0.5,
    "lightagent-inspect.service": 1.8,
    "lightagent-keys.service": 0.2,
    "lightagent-approver.service": 0.5,
}
UNITS = (*EXPOSURE, "lightagent-change@ops.service")
SOCKETS = "/run/lightagent-workers"


@pytest.fixture(scope="module", autouse=True)
def fixer(service: Machine) -> Iterator[None]:
    """An agent that may change things, once an administrator gives it a worker for that."""
    folder = "/etc/lightagentd/agent/fixer"
    service.write(
        f"{folder}/AGENT.md", "---\ndescription: Mends.\neffects: [observe, change]\n---\nMend things.\n"
    )
    service.run(["systemctl", "reload", UNIT])
    yield
    service.run(["systemctl", "disable", "--now", "lightagent-change@fixer.socket"])
    service.run(["rm", "-r", folder])


# That they are in force


@pytest.mark.parametrize("unit", [*UNITS, *(unit.replace(".service", ".socket") for unit in UNITS[1:3])])
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


def test_status_names_units_as_what_holds_the_workers(service: Machine) -> None:
    for effect in ("observe", "reach"):
        shell(service, "true", effect)
    status = lactl_json(service, "status")
    assert status["sandbox"] == "systemd"
    seen = {worker["effect"]: worker for worker in status["workers"] if worker["agent"] == "ops"}
    for effect in ("observe", "reach"):
        assert (seen[effect]["backend"], seen[effect]["enforced"]) == ("systemd", True)
        assert seen[effect]["pid"] == main_pid(service, seen[effect]["unit"])


def test_worker_of_each_effect_is_a_user_of_its_own_and_observe_alone_reads_logs(service: Machine) -> None:
    users = set()
    for effect, logs in (("observe", {"adm", "systemd-journal"}), ("reach", set())):
        *groups, user = shell(service, "id -nG; id -un", effect).split()
        assert re.fullmatch(r"lightagent-w\d\d", user)
        assert set(groups) == {"lightagent-worker", f"lightagent-{effect}"} | logs
        users.add(user)
        assert service.run(["id", "-nG", user]).stdout.split() == ["lightagent-worker"]
    assert len(users) == 2


# What works inside

WORKS = {
    "addresses": ("ip -br address", r"^lo +UNKNOWN +127\.0\.0\.1/8"),
    "disks": ("df /", r" /$"),
    "all processes": ("ps -eo user,args", r"^root .*init|systemd$"),
    "processes of the daemon": ("ps -eo user,args", r"^lightag\S* \S+ -I /usr/bin/lightagentd"),
    "units": ("systemctl status --no-pager dbus.service", r"Active: active \(running\)"),
    "the bus": ("busctl --no-pager get-property org.freedesktop.hostname1 /org/freedesktop/hostname1"
                " org.freedesktop.hostname1 Hostname", r'^s "debian13"'),
    "the journal": ("journalctl --no-pager -n 1 -u lightagentd", r"lightagentd\["),
    "python": ("python3 -c 'print(6 * 7)'", r"^42$"),
    "its scratch folder": ('echo kept > "$TMPDIR/file" && cat "$TMPDIR/file"', r"^kept$"),
    "temporary files of others": ("ls /tmp", r"^of-root$"),
    "pipes and subshells": ("echo $(seq 3 | tail -1)", r"^3$"),
    "pseudo devices": ("echo gone > /dev/null && head -c 4 /dev/zero | wc -c", r"^4$"),
}  # fmt: skip


CLOSED_TO_REACH = ("the journal", "all processes", "processes of the daemon")
"""It could send them."""


@pytest.mark.parametrize("effect", ["observe", "reach"])
def test_works_inside(service: Machine, effect: str) -> None:
    service.run(["touch", "/tmp/of-root"])
    script = "\n".join(f"printf '\\001{what}\\n'\n{command}" for what, (command, _) in WORKS.items())
    parts = shell(service, script, effect).split("\1")[1:]
    assert len(parts) == len(WORKS)
    for part, (what, (_, expected)) in zip(parts, WORKS.items(), strict=True):
        found = re.search(expected, part.removeprefix(f"{what}\n"), re.MULTILINE)
        assert bool(found) != (what in CLOSED_TO_REACH and effect == "reach"), part


def test_ping_works_in_reach(service: Machine) -> None:
    for address in ("127.0.0.1", "::1"):
        assert " 0% packet loss" in shell(service, f"ping -c 1 -W 5 {address}", "reach")


NAME_SERVER = """
import socket
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sock.bind(("127.0.0.1", 53))
while True:
    asked, peer = sock.recvfrom(512)
    question = asked[12 : asked.index(0, 12) + 5]
    found = question[-4:-2] == bytes((0, 1))
    answer = bytes.fromhex("c00c00010001000000010004") + bytes((192, 0, 2, 7)) if found else b""
    head = asked[:2] + bytes((0x81, 0x80, 0, 1, 0, int(found), 0, 0, 0, 0))
    sock.sendto(head + question + answer, peer)
"""


def test_names_are_resolved_in_reach_and_not_in_observe(service: Machine) -> None:
    service.run(["systemd-run", "--unit=e2e-names", "--collect", "python3", "-c", NAME_SERVER])
    service.write("/etc/resolv.conf", "nameserver 127.0.0.1\noptions timeout:1 attempts:3\n")
    look = "python3 -c 'import socket; print(socket.gethostbyname(\"names.example.org\"))'"
    try:
        eventually(lambda: "192.0.2.7" in shell(service, look, "reach"), "reach resolves a name")
        assert "192.0.2.7" not in shell(service, look, "observe")
    finally:
        service.run(["systemctl", "stop", "e2e-names.service"])
        service.write("/etc/resolv.conf", "")


TOOLS: dict[str, tuple[dict[str, Any], str]] = {
    "systemd.list": ({"pattern": "dbus*"}, "dbus.service"),
    "systemd.status": ({"unit": "dbus.service"}, "active"),
    "systemd.logs": ({"unit": "lightagentd.service"}, "lightagentd["),
    "dbus.list": ({}, "org.lightagent1  pid "),  # which the filter shows, and lets nobody ask
    "net.list_interfaces": ({}, "lo"),
    "net.connections": ({}, ""),
    "net.routes": ({}, ""),
    "proc.list": ({}, "systemd"),
    "proc.info": ({"pid": 1}, "systemd"),
    "udev.list": ({}, ""),
    "journal.query": ({"units": ["lightagentd.service"]}, "ops:"),
    "file.read": ({"path": "/etc/hostname"}, "debian13"),
    "file.list": ({"path": "/etc"}, "hostname"),
    "crypto.sha256": ({"text": "abc"}, "ba7816bf"),
    "inotify.list": ({}, ""),
}


@pytest.mark.parametrize("tool", TOOLS)
def test_tool_works_in_its_unit(service: Machine, tool: str) -> None:
    args, expected = TOOLS[tool]
    end = call(service, tool, **args)
    assert (end["type"], end.get("result")) == ("tool_result", "ok"), end
    assert expected in end["text"]


def test_two_calls_run_at_once_and_end_alone(service: Machine) -> None:
    """One worker runs both; whoever gives one up ends what that one has started, and nothing else."""
    marks = ("1234561", "1234562")
    cut = ["timeout", "--signal=KILL", "3"]
    for mark, prefix in zip(marks, (cut, []), strict=True):
        command = f"setsid sleep {mark} & until test -e /tmp/e2e-go; do sleep 0.1; done"
        args = json.dumps({"command": command, "effect": "observe"})
        argv = [*prefix, "lactl", "tools", "call", "ops", "bash.exec", "--args", args]
        service.run(["systemd-run", f"--unit=e2e-call-{mark}", "--collect", *argv])
    try:
        eventually(lambda: all(_running(service, mark) for mark in marks), "both calls run")
        cgroups = {_cgroup_of(service, mark) for mark in marks}
        assert len(cgroups) == 2
        [unit] = {cgroup.rpartition("/")[0] for cgroup in cgroups}
        assert re.fullmatch(
            r"/system\.slice/system-lightagent\\x2dobserve\.slice/lightagent-observe@\d\d\.service", unit
        )
        eventually(lambda: not _running(service, marks[0]), "the call that was given up ends")
        assert _running(service, marks[1])
    finally:
        service.run(["touch", "/tmp/e2e-go"])
    eventually(lambda: not _running(service, marks[1]), "the other call ends what it started")
    service.run(["rm", "/tmp/e2e-go"])


def _running(machine: Machine, mark: str) -> list[str]:
    return machine.run(["pgrep", "-fx", f"sleep {mark}"], check=False).stdout.split()


def _cgroup_of(machine: Machine, mark: str) -> str:
    [pid] = _running(machine, mark)
    return machine.run(["cat", f"/proc/{pid}/cgroup"]).stdout.strip().rpartition("0::")[2]


# Change


def test_change_is_refused_until_an_administrator_enables_it(service: Machine) -> None:
    refused = call(service, "bash.exec", agent="fixer", command="touch /root/changed", effect="change")
    assert refused["type"] == "error"
    assert "systemctl enable --now lightagent-change@fixer.socket" in json.dumps(refused)
    service.run(["systemctl", "enable", "--now", "lightagent-change@fixer.socket"])
    assert shell(service, "id -u; touch /root/changed", "change", agent="fixer").startswith("0\n")
    service.run(["rm", "/root/changed"])
    assert (
        call(service, "file.write", agent="fixer", path="/root/new", content="new\n")["type"] == "tool_result"
    )
    assert service.run(["cat", "/root/new"]).stdout == "new\n"
    kept = service.run(["find", "/var/lib/lightagent-change/fixer", "-name", "*.json"]).stdout
    assert kept.startswith("/var/lib/lightagent-change/fixer/")
    refused = call(service, "bash.exec", command="id -u", effect="change")
    assert refused["type"] == "error"


# Who may start them

ALLOWED = (
    "start lightagent-observe@30.socket",
    "kill lightagent-observe@30.service",
    "stop lightagent-observe@30.socket",
    "stop lightagent-change@fixer.service",
    "kill --signal=KILL lightagent-change@fixer.service",
)
REFUSED = (
    "start lightagent-change@ops.socket",
    "start lightagent-change@fixer.service",
    "restart lightagent-change@fixer.service",
    "try-restart lightagent-change@fixer.service",
    "reload-or-restart lightagent-change@fixer.service",
    "clean --what=state lightagent-change@fixer.service",
    "stop lightagent-change@fixer.socket",
    "kill lightagent-change@fixer.socket",
    "kill lightagent-observe@07.socket",
    "kill lightagentd.service",
    "kill lightagent-bus@07.service",
    "stop lightagent-keys.service",
    "restart lightagent-observe@30.socket",
    "start lightagent-observe@30.timer",
    "start lightagent-observe@tester.socket",
    "start lightagent-observe@x.service/../dbus.service",
    r"start lightagent-observe@x\x2f..\x2fdbus.service",
    "start lightagent-observe@007.socket",
    "start lightagent-keys.socket",
    "start lightagent-bus@07.service",
    "stop lightagent-bus@07.service",
    "stop lightagentd.service",
    "start e2e-lightagent-observe@30.socket",
    "stop dbus.service",
    "start systemd-networkd.service",
    "edit lightagent-observe@07.service",
    "enable lightagent-change@ops.socket",
    "set-property lightagent-observe@07.service CPUWeight=1",
    "daemon-reload",
)


def _as_daemon(machine: Machine, command: str) -> Completed:
    return machine.run(["systemctl", "--no-ask-password", *command.split()], user="lightagent", check=False)


def test_daemons_user_may_start_and_stop_workers(service: Machine) -> None:
    for command in ALLOWED:
        done = _as_daemon(service, command)
        assert done.status == 0, done.explain()


@pytest.mark.parametrize("command", REFUSED)
def test_daemons_user_may_do_nothing_else(service: Machine, command: str) -> None:
    before = _listed(service)
    done = _as_daemon(service, command)
    assert done.status != 0, done.explain()
    assert before - _listed(service) == set()


def _listed(machine: Machine) -> set[str]:
    """What runs, except what ends by itself when nobody asks it any more."""
    lines = machine.run(["systemctl", "list-units", "--no-legend", "--plain"]).stdout.splitlines()
    return {line for line in lines if not re.match(r"systemd-(hostnamed|localed|timedated)\.", line)}


def test_other_users_may_start_no_worker(service: Machine) -> None:
    for user in ("lightagent-w02", "lightagent-w03", "nobody"):
        argv = ["systemctl", "--no-ask-password", "start", "lightagent-observe@30.socket"]
        assert service.run(argv, user=user, check=False).status != 0


def test_sockets_are_the_daemons_in_a_folder_of_roots(service: Machine) -> None:
    name = worker_unit(service).replace("lightagent-", "").replace(".service", ".sock")
    said = service.run(["stat", "-c", "%a %U %F", SOCKETS, f"{SOCKETS}/{name}"]).stdout.splitlines()
    assert said == ["755 root directory", "600 lightagent socket"]


# How they end


def test_killed_worker_is_started_again_by_the_next_call(service: Machine) -> None:
    unit = worker_unit(service)
    pid = main_pid(service, unit)
    assert pid
    service.run(["kill", "-KILL", str(pid)])
    # A killed process may take a moment to go, and a call that runs in it then has an unknown outcome.
    eventually(lambda: main_pid(service, unit) != pid, "it ends")
    assert lactl_json(service, "status")["state"] == "running"
    assert shell(service, "echo again") == "again\n"
    assert main_pid(service, unit) not in (0, pid)


def test_call_whose_worker_is_killed_has_an_unknown_outcome(service: Machine) -> None:
    worker = worker_unit(service)
    args = json.dumps({"command": "sleep 1234563", "effect": "observe"})
    argv = ["lactl", "--json", "tools", "call", "ops", "bash.exec", "--args", args]
    out = "/run/e2e-lost"
    unit = ["systemd-run", "--unit=e2e-lost", f"--property=StandardOutput=file:{out}", *argv]
    service.run(unit)
    eventually(lambda: _running(service, "1234563"), "the call runs")
    service.run(["systemctl", "kill", "--signal=KILL", "--kill-whom=main", worker])
    eventually(lambda: "outcome_unknown" in service.run(["cat", out]).stdout, "the call has ended")
    eventually(lambda: not _running(service, "1234563"), "its command is gone")
    service.run(["systemctl", "reset-failed", "e2e-lost.service"], check=False)
    assert shell(service, "echo again") == "again\n"


def test_reload_starts_workers_with_the_current_files(service: Machine) -> None:
    before = main_pid(service, worker_unit(service))
    service.run(["systemctl", "reload", UNIT])
    assert shell(service, "echo again") == "again\n"
    assert main_pid(service, worker_unit(service)) not in (0, before)


def test_agent_that_stops_takes_its_units_along(service: Machine) -> None:
    worker = worker_unit(service, agent="fixer")
    assert main_pid(service, worker)
    lactl(service, "agents", "stop", "fixer")
    for unit in (worker, worker.replace(".service", ".socket")):
        assert service.run(["systemctl", "is-active", unit], check=False).stdout.strip() == "inactive"
    lactl(service, "agents", "start", "fixer")
    assert shell(service, "echo back", agent="fixer") == "back\n"


@pytest.fixture
def few(service: Machine) -> Iterator[str]:
    """Two workers for each person from the next start on, a third agent, and a person."""
    config, folder = "/etc/lightagentd/lightagentd.toml.d/few.toml", "/etc/lightagentd/agent/third"
    service.write(config, "[worker]\nmax_workers = 4\n")
    service.write(f"{folder}/AGENT.md", "---\ndescription: Looks on.\n---\nLook.\n")
    service.run(["useradd", new_uid(), "--groups=lightagent", "hugo"])
    yield "hugo"
    service.run(["rm", "-r", config, folder])
    service.run(["userdel", "hugo"])


def test_a_restart_uses_the_units_again_and_at_the_limit_one_goes_to_another_agent_of_its_person(
    service: Machine, few: str
) -> None:
    shell(service, "true")
    service.run(["systemctl", "restart", UNIT], timeout_s=60)
    assert shell(service, "echo again") == "again\n"
    assert lactl_json(service, "status")["sandbox"] == "systemd"
    lactl(service, "agents", "stop", "ops")  # and with it root's workers
    lactl(service, "agents", "start", "ops")

    def units() -> dict[str, str]:
        return {one["agent"]: one["unit"] for one in lactl_json(service, "status")["workers"]}

    def call_of(agent: str) -> None:
        lactl(service, "tools", "call", agent, "file.stat", "path=/etc/hostname", user=few)

    call_of("ops")
    call_of("fixer")
    before = units()
    pids = {unit: main_pid(service, unit) for unit in before.values()}
    call_of("third")
    assert units() == {"third": before["ops"], "fixer": before["fixer"]}
    call_of("ops")
    assert units() == {"third": before["ops"], "ops": before["fixer"]}
    assert {unit: main_pid(service, unit) for unit in before.values()} == pids, "none was started for it"
    lactl(service, "agents", "stop", "third")
    assert units() == {"ops": before["fixer"]}
    states = service.run(["systemctl", "is-active", before["ops"], before["fixer"]], check=False).stdout
    assert states.split() == ["inactive", "active"]
    call_of("fixer")
    assert set(units()) == {"ops", "fixer"}


def test_stop_of_the_daemon_leaves_no_worker(service: Machine) -> None:
    for effect in ("observe", "reach"):
        shell(service, "true", effect)
    service.run(["systemctl", "stop", UNIT], timeout_s=60)
    # systemctl waits for the daemon, and what belongs to it ends after it.
    eventually(lambda: not _active(service), "nothing of it runs or listens")
    assert service.run(["pgrep", "-u", "lightagent"], check=False).stdout == ""
    assert service.run(["pgrep", "-G", "lightagent-worker"], check=False).stdout == ""
    assert service.run(["ls", SOCKETS]).stdout == ""


def _active(machine: Machine) -> list[str]:
    """But for the approver, which outlives the daemon."""
    states = ["--state=active,activating,deactivating"]
    listed = machine.run(["systemctl", "list-units", "--no-legend", "--plain", *states, "lightagent*"]).stdout
    return [line for line in listed.splitlines() if not line.startswith("lightagent-approver")]


def test_units_that_are_missing_fail_the_start_and_opened_ones_are_not_said_to_enforce_anything(
    service: Machine,
) -> None:
    """What is in force is tried, and not read from the configuration."""
    config = "/etc/lightagentd/lightagentd.toml"
    unit = "/usr/lib/systemd/system/lightagent-reach@.service"
    folder = "/etc/systemd/system/lightagent-observe@.service.d"
    service.write(config, '[worker]\nsandbox = "systemd"\n')
    service.run(["mv", unit, f"{unit}.away"])
    try:
        service.run(["systemctl", "daemon-reload"])
        assert service.run(["systemctl", "restart", UNIT], check=False, timeout_s=60).status != 0
        said = [str(entry["MESSAGE"]) for entry in service.journal("--unit", UNIT, "--lines=20")]
        assert any("lightagent-reach@01.service" in line for line in said), said
    finally:
        service.run(["mv", f"{unit}.away", unit])
        service.run(["rm", config])
        service.run(["systemctl", "daemon-reload"])
        service.run(["systemctl", "reset-failed", UNIT], check=False)
    opened = "CapabilityBoundingSet=CAP_NET_RAW\nAmbientCapabilities=CAP_NET_RAW\n"
    service.write(f"{folder}/open.conf", f"[Service]\n{opened}")
    try:
        service.run(["systemctl", "daemon-reload"])
        service.run(["systemctl", "restart", UNIT], timeout_s=60)
        status = lactl_json(service, "status")
        assert status["sandbox"] != "systemd"
        assert any("can hold capabilities" in problem for problem in status["problems"])
        assert call(service, "bash.exec", command="true", effect="observe")["type"] == "error"
    finally:
        service.run(["rm", "-r", folder])
        service.run(["systemctl", "daemon-reload"])
        service.run(["systemctl", "restart", UNIT], timeout_s=60)
    assert lactl_json(service, "status")["sandbox"] == "systemd"
