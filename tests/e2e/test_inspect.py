"""The unit that looks into processes and folders, as systemd runs it: what it answers and what it can do."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from .machine import Machine
from .product import eventually, lactl, lactl_json_lines, new_uid

pytestmark = pytest.mark.e2e

SERVICE, SOCKET = "lightagent-inspect.service", "lightagent-inspect.socket"
PATH = "/run/lightagent-workers/inspect.sock"
EXPOSURE = 1.8
"""The highest figure of systemd-analyze(1) security that is accepted; most of it are the two capabilities."""
CLOSED = "/root/closed"


@pytest.fixture(scope="module")
def inspect(service: Machine) -> Iterator[Machine]:
    service.run(["systemctl", "start", SOCKET])
    service.run(["mkdir", "-p", "-m", "0700", f"{CLOSED}/inner"])
    service.run(["dd", "if=/dev/zero", f"of={CLOSED}/inner/diary", "bs=1M", "count=3", "status=none"])
    yield service
    service.run(["rm", "-rf", CLOSED])


def call(machine: Machine, action: str, **args: Any) -> tuple[str, dict[str, Any]]:
    """The text and the data of one call."""
    events = lactl_json_lines(machine, "tools", "call", "ops", action, "--args", json.dumps(args))
    (result,) = [event for event in events if event["type"] == "tool_result"]
    assert result["result"] == "ok", result
    return result["text"], result["metadata"]


def main_pid(machine: Machine, unit: str = SERVICE) -> str:
    return machine.run(["systemctl", "show", "--value", "--property=MainPID", unit]).stdout.strip()


def test_systemd_finds_nothing_wrong_with_the_units(inspect: Machine) -> None:
    verified = inspect.run(["systemd-analyze", "verify", SERVICE, SOCKET])
    assert (verified.stdout, verified.stderr) == ("", "")


def test_exposure_is_low(inspect: Machine) -> None:
    said = inspect.run(["systemd-analyze", "security", "--no-pager", SERVICE], check=False).stdout
    found = re.search(r"Overall exposure level for \S+: ([0-9.]+)", said)
    assert found, said
    print(f"exposure of {SERVICE}: {found[1]}")
    assert float(found[1]) <= EXPOSURE, said


def test_it_looks_into_the_processes_of_root(inspect: Machine) -> None:
    pid = main_pid(inspect, "systemd-journald.service")
    text, data = call(inspect, "proc.info", pid=int(pid))
    assert data["open_files"]["count"] > 0, text
    assert "INVOCATION_ID" in data["environment_names"]
    assert data["hidden"] == {}
    value = inspect.run(
        ["systemctl", "show", "--value", "--property=InvocationID", "systemd-journald.service"]
    )
    assert value.stdout.strip() not in text


def test_it_names_the_owners_of_sockets(inspect: Machine) -> None:
    _, data = call(inspect, "net.connections", kind="unix", limit=1000)
    owners = {row["process"] for row in data["connections"] if row["local"] == "/run/systemd/private"}
    assert owners == {"systemd"}


def test_it_adds_up_a_closed_folder_and_names_no_file(inspect: Machine) -> None:
    text, data = call(inspect, "file.usage", path="/root", depth=3)
    assert data["size_bytes"] >= 3 << 20
    assert f"{CLOSED}/inner" in text
    assert "diary" not in text
    _, whole = call(inspect, "file.usage", path="/var")
    assert whole["not_entered"] <= 2, whole  # what the unit's file hides
    assert all("history" not in row["path"] for row in whole["folders"])


def test_the_real_tmp_and_home_are_seen(inspect: Machine) -> None:
    inspect.run(["mkdir", "-p", "/tmp/seen-by-inspect", "/home/seen-by-inspect"])
    for folder in ("/tmp", "/home"):
        text, _ = call(inspect, "file.usage", path=folder)
        assert f"{folder}/seen-by-inspect" in text


def test_it_is_its_own_user_with_two_capabilities_and_a_filter(inspect: Machine) -> None:
    call(inspect, "net.connections")
    status = inspect.run(["cat", f"/proc/{main_pid(inspect)}/status"]).stdout
    uid = inspect.run(["id", "-u", "lightagent-inspect"]).stdout.strip()
    assert re.search(rf"^Uid:\t{uid}\t{uid}\t{uid}\t{uid}$", status, re.M)
    assert re.search(r"CapPrm:\s+0*80004\nCapEff:\s+0*80004\nCapBnd:\s+0*80004\nCapAmb:\s+0*80004\n", status)
    assert re.search(r"NoNewPrivs:\s+1\nSeccomp:\s+2", status)


def test_only_the_daemon_reaches_it(inspect: Machine) -> None:
    for user in ("lightagent", "lightagent-w02", "lightagent-w07", "nobody"):
        writable = inspect.run(["test", "-w", PATH], user=user, check=False).status == 0
        assert writable == (user == "lightagent")
    command = json.dumps({"command": f"ls {PATH}; kill -9 {main_pid(inspect)}; true", "effect": "observe"})
    lactl(inspect, "tools", "call", "ops", "bash.exec", "--args", command, check=False)
    assert main_pid(inspect) != "0"


def test_without_it_the_worker_of_the_effect_answers_and_says_what_it_missed(inspect: Machine) -> None:
    inspect.run(["systemctl", "stop", SOCKET, SERVICE])
    try:
        _, data = call(inspect, "proc.info", pid=int(main_pid(inspect, "systemd-journald.service")))
        assert data["hidden"]["open_files"] == "permission denied"
    finally:
        inspect.run(["systemctl", "start", SOCKET])


def test_a_skill_names_the_unit_behind_a_socket_and_says_when_it_cannot(inspect: Machine) -> None:
    server = "import socket, time; s = socket.create_server(('127.0.0.1', 7077)); time.sleep(600)"
    inspect.run(["systemd-run", "--unit=seen-server", "-p", "User=nobody", "python3", "-c", server])
    try:
        eventually(lambda: ":1BA5 " in inspect.run(["cat", "/proc/net/tcp"]).stdout, "it listens")
        for given, named in ((SOCKET, True), ("", False)):
            if not given:
                inspect.run(["systemctl", "stop", SOCKET, SERVICE])
            said = skill(inspect, "listening-ports", port="7077")
            assert "only this machine can reach it" in said
            assert ("of seen-server.service listens" in said) is named
            assert ("hold open could not be seen" in said) is not named
    finally:
        inspect.run(["systemctl", "start", SOCKET])
        inspect.run(["systemctl", "stop", "seen-server"])


def skill(machine: Machine, name: str, **args: str) -> str:
    return call(machine, "skill.run", name=name, args=args)[0]


def test_a_skill_is_added_with_modes_that_let_it_see_all_processes(inspect: Machine) -> None:
    """Files out of git are often group-writable, and administrators have their own umask."""
    script = (
        'grep -o \'"left_out": 0\' "$LIGHTAGENT_SURVEY"; stat -c %a "$LIGHTAGENT_SURVEY"; ls -ld "$TMPDIR"'
    )
    for path, text in (
        ("SKILL.md", "---\nname: seeing\ndescription: Sees.\n---\nx\n"),
        ("runbook.yaml", "script: scripts/x.sh\nsees: processes\n"),
        ("scripts/x.sh", script),
    ):
        inspect.write(f"/root/given/{path}", text)
    folder = "/etc/lightagentd/skills/seeing"
    for umask in ("0000", "0002", "0077"):
        inspect.run(["chmod", "-R", "a+rwX", "/root/given"])
        inspect.run(["sh", "-c", f"umask {umask}; lactl skills add --force /root/given"])
        wrong = inspect.run(["find", folder, "(", "-perm", "/022", "-o", "!", "-perm", "-044", ")"])
        assert wrong.stdout == ""
        report, _ = call(inspect, "skill.run", name="seeing")
        assert report.startswith('"left_out": 0\n'), report
    inspect.run(["chmod", "g+w", f"{folder}/runbook.yaml"])
    checked = inspect.run(["lactl", "skills", "check", "seeing"])
    assert f"{folder}/runbook.yaml: others can write it" in checked.stderr
    events = lactl_json_lines(inspect, "tools", "call", "ops", "skill.run", "--args", '{"name": "seeing"}')
    assert '"left_out"' not in str(events)
    inspect.run(["lactl", "skills", "remove", "seeing"])


def test_names_of_a_person_below_run_are_for_that_person_and_root(inspect: Machine) -> None:
    """The unit sees a /run of its own."""
    inspect.run(["useradd", new_uid(), "--groups=lightagent", "curious"])
    script = "mkdir -m 700 /run/own; mkdir /run/own/diary; chown -R 12345 /run/own; cd /run/own/diary; "
    inspect.run(
        ["systemd-run", "--unit=keeps-diary", "sh", "-c", f"{script} exec setpriv --reuid 12345 sleep 600"]
    )
    inspect.run(["sh", "-c", "until test -d /run/own/diary; do sleep 0.1; done"])
    pid = int(main_pid(inspect, "keeps-diary.service"))
    asked = json.dumps({"pid": pid})
    told = call(inspect, "proc.info", pid=pid)[0]
    assert "cwd: /run/own/diary" in told, told
    argv = ["lactl", "--json", "tools", "call", "ops", "proc.info", "--args", asked]
    other = inspect.run(argv, user="curious")
    assert "cwd: /run/own/..." in other.stdout, other.stdout
    inspect.run(["systemctl", "stop", "keeps-diary.service"])


def test_it_says_itself_what_it_is_asked_and_for_whom(inspect: Machine) -> None:
    call(inspect, "proc.info", pid=1)
    said = [str(entry["MESSAGE"]) for entry in inspect.journal("--unit", SERVICE)]
    assert [line for line in said if "proc.info, for agent ops and user 0 by the word of the daemon" in line]
