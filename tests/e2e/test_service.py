"""The daemon as systemd runs it: the unit and its users, reports, reload and crash.

`test_stopped.py` has its stop, `test_service_journal.py` what journald gets, `test_varlinkctl.py` the control
socket as others see it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from .calls import bus_unit, worker_unit
from .machine import Completed, Machine
from .product import (
    UNIT,
    eventually,
    is_up_again,
    lactl,
    lactl_json,
    lactl_json_lines,
    new_uid,
    show,
)

pytestmark = pytest.mark.e2e

USER = "lightagent"
AGENTS = "/etc/lightagentd/agent"
CONFIG = "/etc/lightagentd/lightagentd.toml"
EFFECTS = ("observe", "reach")


def observe(machine: Machine, command: str) -> Completed:
    """Run a shell command as the agent ops would, with the effect observe."""
    call = json.dumps({"command": command, "effect": "observe"})
    return lactl(machine, "tools", "call", "ops", "bash.exec", "--args", call, check=False)


def status(machine: Machine) -> str:
    return show(machine, "StatusText")["StatusText"]


def main_pid(machine: Machine) -> int:
    return int(show(machine, "MainPID")["MainPID"])


@pytest.fixture(scope="module")
def people(service: Machine) -> Iterator[None]:
    """carol and dave are in the group lightagent, eve is not."""
    for name, groups in (("carol", USER), ("dave", USER), ("eve", "")):
        service.run(["useradd", new_uid(), "--create-home", f"--groups={groups}", name])
    yield
    for name in ("carol", "dave", "eve"):
        service.run(["userdel", "--remove", name])


@pytest.fixture
def etc(service: Machine) -> Iterator[Machine]:
    """The machine; the agent scout and the configuration that a test writes are gone afterwards. The daemon
    reads that when the next test has it read its files, and at its start after the last of them.
    """
    yield service
    service.run(["rm", "-rf", f"{AGENTS}/scout", CONFIG])


# The unit


def test_systemd_finds_nothing_wrong_with_the_unit(service: Machine) -> None:
    verified = service.run(["systemd-analyze", "verify", UNIT])
    assert (verified.stdout, verified.stderr) == ("", "")


def test_unit_is_active_and_told_systemd_that_it_is_ready(service: Machine) -> None:
    wanted = {"Type": "notify-reload", "ActiveState": "active", "SubState": "running", "NotifyAccess": "main"}
    assert show(service, *wanted) == wanted
    assert show(service, "StatusText")["StatusText"].startswith("serving ")


def test_a_panic_is_in_the_status(service: Machine) -> None:
    lactl(service, "panic")
    try:
        eventually(lambda: status(service).startswith("stopped by an administrator"), "the status says so")
    finally:
        lactl(service, "panic", "--off")
    eventually(lambda: status(service).startswith("serving "), "it serves again")


def test_bus_filter_says_itself_that_it_listens(service: Machine) -> None:
    unit = bus_unit(worker_unit(service))
    shown = service.run(["systemctl", "show", "--property=Type,ActiveState,MainPID", unit]).stdout
    fields = dict(line.split("=", 1) for line in shown.splitlines())
    assert (fields["Type"], fields["ActiveState"]) == ("notify", "active")
    name = service.run(["cat", f"/proc/{fields['MainPID']}/comm"]).stdout.strip()
    assert name == "xdg-dbus-proxy"
    children = ["pgrep", "--parent", fields["MainPID"]]
    eventually(lambda: not service.run(children, check=False).stdout, "what told systemd is gone")


def test_main_process_is_the_daemon_without_any_privilege(service: Machine) -> None:
    pid = main_pid(service)
    assert lactl_json(service, "status")["pid"] == pid
    status = service.run(["cat", f"/proc/{pid}/status"]).stdout
    fields = {key: value.split() for key, _, value in (line.partition(":") for line in status.splitlines())}
    assert fields["Name"] == ["lightagentd"]
    assert fields["Uid"] == [str(service.account(USER).pw_uid)] * 4
    assert {int(fields[name][0], 16) for name in ("CapEff", "CapPrm", "CapBnd", "CapAmb")} == {0}
    assert fields["NoNewPrivs"] == ["1"]


def test_state_and_socket_are_closed_to_others(service: Machine) -> None:
    paths = ["/var/lib/lightagentd", "/run/lightagentd", "/run/lightagentd/control.sock"]
    assert service.run(["stat", "-c", "%a %U %G", *paths]).stdout.splitlines() == [
        "700 lightagent lightagent",
        "755 lightagent lightagent",
        "660 lightagent lightagent",
    ]


def test_workers_are_sandboxed_inside_the_unit(service: Machine) -> None:
    observe(service, "true")
    status = lactl_json(service, "status")
    assert [worker["enforced"] for worker in status["workers"] if worker["effect"] == "observe"] == [True]
    assert "sandbox" not in "\n".join(status["problems"])


def test_observing_command_cannot_write_or_reach_the_daemon(service: Machine) -> None:
    pid = main_pid(service)
    commands = {
        "write": "touch /tmp/written-by-a-worker",
        "state": "ls /var/lib/lightagentd/history/data.mdb",
        "signal": f"kill -0 {pid}",
        "memory": f"head -c 1 /proc/{pid}/environ",
        "socket": "lactl status",
    }
    for what, command in commands.items():
        done = observe(service, f"if {command}; then echo it worked; fi")
        assert done.status == 0, (what, done.stderr)
        assert "it worked" not in done.stdout, what
    assert service.run(["ls", "/tmp/written-by-a-worker"], check=False).status != 0


# Who may talk to it


def test_root_gets_a_report_of_the_disks_without_a_network(service: Machine) -> None:
    report = lactl(service, "prompt", "ops", "check disk")
    assert re.search(r"^\| / \| \d+ % \|", report.stdout, re.MULTILINE)
    assert report.stderr == ""


@pytest.mark.usefixtures("people")
def test_member_of_the_group_sees_his_own_session_only(service: Machine) -> None:
    lactl(service, "prompt", "ops", "check memory")
    assert "memory" in lactl(service, "prompt", "ops", "check memory", user="carol").stdout
    sessions = lactl_json(service, "sessions", "list", user="carol")  # her uid's: other tests may have had it
    assert {session["owner"] for session in sessions} == {service.account("carol").pw_uid}
    seen = lactl_json(service, "sessions", "list", user="dave")
    assert {session["owner"] for session in seen} <= {service.account("dave").pw_uid}
    session = sessions[0]
    refused = lactl(service, "sessions", "show", session["id"], user="dave", check=False)
    assert (refused.status, refused.stdout) == (66, "")
    assert "There is no session" in refused.stderr


@pytest.mark.usefixtures("people")
def test_member_of_the_group_may_not_reload(service: Machine) -> None:
    refused = lactl(service, "reload", user="carol", check=False)
    assert (refused.status, refused.stdout) == (77, "")
    assert "org.lightagent1.administer" in refused.stderr


@pytest.mark.usefixtures("people")
def test_user_outside_of_the_group_is_refused_with_a_sentence(service: Machine) -> None:
    refused = lactl(service, "prompt", "ops", "check disk", user="eve", check=False)
    assert (refused.status, refused.stdout) == (77, "")
    assert "You may not connect to /run/lightagentd/control.sock." in refused.stderr
    assert "usermod -aG lightagent eve" in refused.stderr


# What a worker can find out


@pytest.fixture
def failed_unit(service: Machine) -> Iterator[str]:
    """A unit that has failed."""
    name = "e2e-broken.service"
    service.write(f"/run/systemd/system/{name}", "[Service]\nType=oneshot\nExecStart=/bin/false\n")
    service.run(["systemctl", "daemon-reload"])
    assert service.run(["systemctl", "start", name], check=False).status != 0
    yield name
    service.run(["rm", f"/run/systemd/system/{name}"])
    service.run(["systemctl", "reset-failed", name])
    service.run(["systemctl", "daemon-reload"])


def test_report_names_a_service_that_failed(service: Machine, failed_unit: str) -> None:
    assert failed_unit in lactl(service, "prompt", "ops", "which services failed").stdout


def test_tool_lists_a_unit_that_failed(service: Machine, failed_unit: str) -> None:
    assert failed_unit in lactl(service, "tools", "call", "ops", "systemd.list", "state=failed").stdout


def test_report_shows_an_error_that_was_logged(service: Machine) -> None:
    line = "the flux capacitor lost its charge"
    service.run(["logger", "--priority=user.err", line])
    service.run(["journalctl", "--sync"])
    assert line in lactl(service, "prompt", "ops", "any errors since this morning").stdout


# Reload and crash


def test_a_reload_of_broken_rules_fails_and_the_next_picks_up_a_new_agent(etc: Machine) -> None:
    pid = main_pid(etc)
    etc.write("/etc/lightagentd/policy.d/broken.toml", "[[rule]\n")
    try:
        assert etc.run(["systemctl", "reload", UNIT], check=False).status == 1
        assert lactl(etc, "reload", check=False).status == 78
        eventually(lambda: "policy.d are still the old ones" in status(etc), "the status says so")
        assert show(etc, "ActiveState") == {"ActiveState": "active"}
    finally:
        etc.run(["rm", "/etc/lightagentd/policy.d/broken.toml"])
    etc.write(f"{AGENTS}/scout/AGENT.md", "---\ndescription: Looks around.\n---\nLook around.\n")
    etc.run(["systemctl", "reload", UNIT])
    eventually(lambda: status(etc).startswith("serving "), "it serves again")
    assert show(etc, "ActiveState", "SubState") == {"ActiveState": "active", "SubState": "running"}
    assert main_pid(etc) == pid
    agents = {agent["name"]: agent["state"] for agent in lactl_json(etc, "agents", "list")}
    assert agents == {"ops": "running", "scout": "running"}


def test_broken_agent_is_shown_and_stops_nothing(etc: Machine) -> None:
    etc.write(
        f"{AGENTS}/scout/AGENT.md", "---\ndescription: Looks around.\nwrong_key: 1\n---\nLook around.\n"
    )
    etc.run(["systemctl", "reload", UNIT])
    status = lactl(etc, "status").stdout
    assert re.search(r"problem\s.*scout.*wrong_key", status)
    assert "memory" in lactl(etc, "prompt", "ops", "check memory").stdout


def test_broken_configuration_fails_the_start_and_is_not_tried_again(etc: Machine) -> None:
    etc.write(CONFIG, "[limits]\nmax_stepps = 3\n")
    assert etc.run(["systemctl", "restart", UNIT], check=False).status != 0
    wanted = {"ActiveState": "failed", "Result": "exit-code", "ExecMainStatus": "78"}
    assert show(etc, *wanted) == wanted
    said = [str(entry["MESSAGE"]) for entry in etc.journal("--unit", UNIT, "--lines=20")]
    assert any(f"{CONFIG}:2" in line and "max_steps" in line for line in said)
    etc.run(["systemctl", "reset-failed", UNIT])


def test_without_a_sandbox_reports_go_on_and_status_says_so(etc: Machine) -> None:
    etc.write(CONFIG, '[worker]\nsandbox = "none"\n')
    etc.run(["systemctl", "restart", UNIT])
    assert "sandbox = none" in "\n".join(lactl_json(etc, "status")["problems"])
    assert "memory" in lactl(etc, "prompt", "ops", "check memory").stdout


def test_killed_daemon_is_started_again_with_its_sessions(service: Machine) -> None:
    session = lactl_json_lines(service, "prompt", "ops", "--new", "check memory")[-1]["session"]
    before = lactl_json(service, "sessions", "show", session)
    pid = main_pid(service)
    service.run(["kill", "-9", str(pid)])
    eventually(lambda: is_up_again(service, pid), f"{UNIT} is active with another main process")
    assert lactl(service, "audit", "verify").status == 0
    assert lactl_json(service, "sessions", "show", session)["messages"] == before["messages"]
    assert "memory" in lactl(service, "prompt", "ops", f"--session={session}", "check memory").stdout
