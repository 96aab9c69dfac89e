"""What an administrator types after `apt install`, word for word; and other clients of the bus."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from .machine import Completed, Machine
from .product import UNIT, eventually, lactl, lactl_json, new_uid, show

pytestmark = pytest.mark.e2e

NAME, PATH = "org.lightagent1", "/org/lightagent1"


@pytest.fixture
def frank(service: Machine) -> Iterator[str]:
    """An ordinary user, in no group that matters."""
    service.run(["useradd", new_uid(), "--create-home", "frank"])
    yield "frank"
    service.run(["userdel", "--remove", "frank"])


def shell(machine: Machine, line: str, user: str | None = None, *, check: bool = True) -> Completed:
    """A line as it is typed."""
    return machine.run(["bash", "-c", line], user=user, check=check, timeout_s=60)


def gdbus(machine: Machine, method: str, *args: str, path: str = PATH, check: bool = True) -> Completed:
    return machine.run(
        ["gdbus", "call", "--system", "--dest", NAME, "--object-path", path, "--method", method, *args],
        check=check,
        timeout_s=60,
    )


def test_prompt_with_lactl(service: Machine) -> None:
    said = shell(service, 'lactl prompt ops "check disk"')
    assert re.search(r"^\| / \| \d+ % \|", said.stdout, re.MULTILINE)


def test_ask_with_busctl(service: Machine) -> None:
    line = f"busctl call {NAME} {PATH} {NAME}.Manager Ask 'ssa{{sv}}' ops \"check disk\" 0"
    said = shell(service, line)
    assert said.stdout.startswith('s "')
    assert re.search(r"\| / \| \d+ % \|", said.stdout)
    assert said.stderr == ""


def test_the_journal_knows_which_tool_was_called(service: Machine) -> None:
    call = json.dumps({"command": "echo a-call-of-the-shell", "effect": "observe"})
    lactl(service, "tools", "call", "ops", "bash.exec", "--args", call)
    service.run(["journalctl", "--sync"])
    lines = shell(service, "journalctl -u lightagentd LIGHTAGENT_TOOL=bash -o json").stdout.splitlines()
    entries = [json.loads(line) for line in lines]
    [entry] = [one for one in entries if one["LIGHTAGENT_TYPE"] == "invocation"][-1:]
    assert entry["LIGHTAGENT_ACTION"] == "exec"
    assert entry["LIGHTAGENT_EFFECT"] == "observe"
    assert entry["LIGHTAGENT_RESULT"] == "ok"
    assert entry["_SYSTEMD_UNIT"] == UNIT


def test_ask_with_gdbus(service: Machine) -> None:
    said = gdbus(service, f"{NAME}.Manager.Ask", "ops", "check memory", "{'new': <true>}").stdout
    assert "memory" in said.lower()


def test_properties_and_objects_with_gdbus(service: Machine) -> None:
    asked = gdbus(service, "org.freedesktop.DBus.Properties.Get", f"{NAME}.Manager", "Version")
    assert lactl_json(service, "status")["version"] in asked.stdout
    objects = gdbus(service, "org.freedesktop.DBus.ObjectManager.GetManagedObjects").stdout
    assert f"'{PATH}/agents/ops'" in objects


def test_busctl_introspects_the_tree(service: Machine) -> None:
    tree = service.run(["busctl", "tree", "--list", NAME]).stdout.split()
    assert f"{PATH}/agents/ops" in tree
    shown = service.run(["busctl", "introspect", NAME, f"{PATH}/agents/ops", f"{NAME}.Agent"]).stdout
    assert re.search(r"^\.State\s+property\s+s\s+\"running\"\s+emits-change", shown, re.MULTILINE)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((PATH, f"{NAME}.Manager", "Ask", "s", "ops"), "ssa{sv}"),
        ((PATH, f"{NAME}.Manager", "NoSuchMethod"), "NoSuchMethod"),
        ((f"{PATH}/agents/nobody", f"{NAME}.Agent", "Start"), "nobody"),
        ((PATH, f"{NAME}.Manager", "Ask", "ssa{sv}", "nobody", "hello", "0"), "nobody"),
        ((PATH, f"{NAME}.Manager", "Ask", "ssa{sv}", "ops", "hello", "1", "colour", "s", "red"), "colour"),
    ],
)
def test_a_wrong_call_gets_a_sentence(service: Machine, arguments: tuple[str, ...], said: str) -> None:
    refused = service.run(["busctl", "call", NAME, *arguments], check=False)
    assert refused.status != 0
    assert said in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_user_of_no_group_may_not_ask_over_the_bus(service: Machine, frank: str) -> None:
    line = f"busctl call {NAME} {PATH} {NAME}.Manager Ask 'ssa{{sv}}' ops 'check disk' 0"
    refused = shell(service, line, user=frank, check=False)
    assert refused.status != 0
    assert "%" not in refused.stdout


def test_the_bus_restarts_and_the_daemon_is_there_again(service: Machine) -> None:
    """No distribution does that on a running system, and still nothing may be lost."""
    pid = show(service, "MainPID")["MainPID"]
    service.run(["systemctl", "start", "lightagent-approver"])
    service.run(["systemctl", "restart", "dbus.service"], timeout_s=60)

    def answers() -> bool:
        asked = gdbus(service, f"{NAME}.Manager.GetStatus", check=False)
        return asked.status == 0

    eventually(answers, "the daemon answers on the new bus")
    assert show(service, "MainPID")["MainPID"] == pid
    eventually(lambda: lactl_json(service, "status")["problems"] == [], "no problem is left")
    assert "memory" in lactl(service, "prompt", "ops", "check memory").stdout
    owned = ["busctl", "--acquired", "list"]
    eventually(lambda: f"{NAME}.Approver" in service.run(owned).stdout, "the approver is there again")
    # logind stays on the old bus, and a login or apt would then wait 25 s for it in each test that follows.
    service.run(["systemctl", "restart", "systemd-logind.service"], timeout_s=60)
    service.run(["loginctl", "list-sessions"])
