"""The unit that holds the private keys, as systemd runs it: who reaches it, what it keeps, what it can do."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from .machine import Machine
from .product import UNIT, lactl, lactl_json_lines, new_uid

pytestmark = pytest.mark.e2e

SERVICE, SOCKET = "lightagent-keys.service", "lightagent-keys.socket"
PATH = "/run/lightagent-workers/keys.sock"
STORE = "/var/lib/lightagent-keys"
WRAP = "/etc/credstore/lightagent-keys.wrap"
RULES = "/etc/lightagentd/policy.d/e2e-keys.toml"
SIGNER, USER = "/etc/lightagentd/agent/signer", "e2e-signer"
EXPOSURE = 0.2
"""The highest figure of systemd-analyze(1) security that is accepted."""


@pytest.fixture(scope="module")
def keys(service: Machine) -> Iterator[Machine]:
    """The machine with the key store, whose keys root's rule lets ops use, but not the agent signer."""
    service.run(["systemctl", "start", SOCKET])
    rule = 'name = "e2e"\ndecision = "allow"\nagent = "ops"\ntool = "crypto"\neven_if_tainted = true\n'
    service.write(RULES, f"[[rule]]\n{rule}")
    service.write(f"{SIGNER}/AGENT.md", "---\ndescription: Signs.\n---\nSign things.\n")
    service.run(["useradd", new_uid(), "--groups", "lightagent", USER])
    service.run(["systemctl", "reload", UNIT])
    service.run(["systemctl", "start", "lightagent-approver.service"])
    yield service
    service.run(["systemctl", "stop", SOCKET, SERVICE], check=False)
    service.run(["rm", "-rf", WRAP, STORE, RULES, SIGNER])
    service.run(["userdel", USER])
    service.run(["systemctl", "reload", UNIT])


def call(machine: Machine, action: str, **args: Any) -> dict[str, Any]:
    events = lactl_json_lines(machine, "tools", "call", "ops", f"crypto.{action}", "--args", json.dumps(args))
    (result,) = [event for event in events if event["type"] == "tool_result"]
    assert result["result"] == "ok", result
    metadata: dict[str, Any] = result["metadata"]
    return metadata


def active(machine: Machine, unit: str) -> bool:
    return machine.run(["systemctl", "is-active", unit], check=False).stdout.strip() == "active"


def main_pid(machine: Machine) -> str:
    return machine.run(["systemctl", "show", "--value", "--property=MainPID", SERVICE]).stdout.strip()


def test_systemd_finds_nothing_wrong_with_the_units(keys: Machine) -> None:
    verified = keys.run(["systemd-analyze", "verify", SERVICE, SOCKET])
    assert (verified.stdout, verified.stderr) == ("", "")


def test_exposure_is_low(keys: Machine) -> None:
    said = keys.run(["systemd-analyze", "security", "--no-pager", SERVICE], check=False).stdout
    found = re.search(r"Overall exposure level for \S+: ([0-9.]+)", said)
    assert found, said
    print(f"exposure of {SERVICE}: {found[1]}")
    assert float(found[1]) <= EXPOSURE, said


def test_the_store_is_closed_to_all_but_its_user(keys: Machine) -> None:
    call(keys, "generate_key")
    found = keys.run(["find", f"{STORE}/", "-printf", "%U %m %y\n"]).stdout.split("\n")
    uid = keys.run(["id", "-u", "lightagent-keys"]).stdout.strip()
    assert {line for line in found if line} == {f"{uid} 700 d", f"{uid} 600 f"}
    for user in ("lightagent", "lightagent-w02", "lightagent-w07", "nobody"):
        assert keys.run(["cat", f"{STORE}/master.key"], user=user, check=False).status != 0
        connected = keys.run(["test", "-w", PATH], user=user, check=False).status == 0
        assert connected == (user == "lightagent")


def test_a_shell_that_observes_sees_neither_store_nor_socket(keys: Machine) -> None:
    command = f"ls -A {STORE} {PATH}; cat {STORE}/master.key; cat /proc/{main_pid(keys)}/environ; true"
    args = json.dumps({"command": command, "effect": "observe"})
    done = lactl(keys, "tools", "call", "ops", "bash.exec", "--args", args, check=False)
    assert "key_" not in done.stdout
    for name in (STORE, PATH):
        assert re.search(f"{name}.*(Permission denied|No such file)", done.stdout), done.stdout + done.stderr


def test_the_unit_has_no_network_no_privileges_and_starts_nothing(keys: Machine) -> None:
    call(keys, "list_keys")
    pid = main_pid(keys)
    status = keys.run(["cat", f"/proc/{pid}/status"]).stdout
    assert re.search(r"CapPrm:\s+0+\nCapEff:\s+0+\nCapBnd:\s+0+\nCapAmb:\s+0+\n", status)
    assert re.search(r"NoNewPrivs:\s+1\nSeccomp:\s+2", status)
    links = keys.run(["nsenter", "-t", pid, "-n", "ip", "-o", "link"]).stdout.splitlines()
    assert [line.split(": ")[1] for line in links] == ["lo"]


AS_DAEMON = """
import asyncio, json, sys
from pathlib import Path
from lightagentd.errors import LightagentError
from lightagentd.varlink.server import VarlinkConnection

async def main():
    connection = await VarlinkConnection.connect(Path("/run/lightagent-workers/keys.sock"))
    try:
        given = {"call": json.loads(sys.argv[1]), "context": {}}
        async for reply in connection.stream("org.lightagent1.Worker.Call", **given):
            print(json.dumps(reply))
    except LightagentError as err:
        print(err.code)

asyncio.run(main())
"""
"""What somebody can do who runs code as the daemon's user."""


def test_a_taken_over_daemon_signs_with_nobodys_key(keys: Machine) -> None:
    """Whoever it says that the call is for, and whatever it says of it."""
    handle = user_call(keys, "generate_key")["handle"]
    uid = int(keys.run(["id", "-u", USER]).stdout)
    for changes, code in (
        ({}, "approval_required"),
        ({"effect": "change"}, "approval_required"),
        ({"signed": {"grant": "{}", "signature": ""}}, "approval_mismatch"),
        ({"kit": "/dev/shm/kit"}, "permission_denied"),
    ):
        asked = {
            "call_id": "call_0123456789abcdef", "tool": "crypto", "action": "sign", "agent": "signer",
            "session": "", "effect": "observe", "timeout_s": 5.0, "owner": uid,
            "args": {"handle": handle, "text": "x"},
            "terms": {"confirm_within_s": 0, "check": "", "inverse": ""}, **changes,
        }  # fmt: skip
        said = keys.run(["python3", "-I", "-c", AS_DAEMON, json.dumps(asked)], user="lightagent").stdout
        assert said.strip() == code, (changes, said)


def test_a_key_is_used_when_its_owner_allows_it(keys: Machine) -> None:
    """Who types the call allows it at the approver, if they may: of a key of theirs they may."""
    handle = user_call(keys, "generate_key")["handle"]
    assert user_call(keys, "sign", handle=handle, text="x")["base64"]
    uid = keys.run(["id", "-u", USER]).stdout.strip()
    said = [str(entry["MESSAGE"]) for entry in keys.journal("--unit", SERVICE)]
    line = f"crypto.sign with {handle} of agent signer and user {uid}, allowed by user {uid}"
    assert [one for one in said if one.endswith(line)]


def user_call(machine: Machine, action: str, **args: Any) -> dict[str, Any]:
    """As `call`, of the agent that no rule is about and of a user."""
    argv = ["--json", "tools", "call", "signer", f"crypto.{action}", "--args", json.dumps(args)]
    events = [json.loads(line) for line in lactl(machine, *argv, user=USER).stdout.splitlines()]
    (result,) = [event for event in events if event["type"] == "tool_result"]
    metadata: dict[str, Any] = result["metadata"]
    return metadata


def test_keys_are_wrapped_with_a_credential_where_there_is_one(keys: Machine) -> None:
    before = call(keys, "generate_key")["handle"]
    keys.run(["mkdir", "-p", "-m", "0700", "/etc/credstore"])
    keys.write(WRAP, base64.b64encode(b"w" * 40).decode(), 0o600)
    keys.run(["systemctl", "stop", SERVICE])
    after = call(keys, "generate_key")["handle"]
    for handle in (before, after):
        assert call(keys, "sign", handle=handle, text="x")
    assert keys.run(["test", "-e", f"{STORE}/wrapped-by-credential"], check=False).status == 0
    keys.run(["rm", WRAP])
    keys.run(["systemctl", "stop", SERVICE])
    args = json.dumps({"handle": after, "text": "x"})
    done = lactl(keys, "tools", "call", "ops", "crypto.sign", "--args", args, check=False)
    assert "credential lightagent-keys.wrap is missing" in done.stdout + done.stderr
    assert call(keys, "sign", handle=before, text="x")
