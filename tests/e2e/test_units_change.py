"""A worker for change from beginning to end: enabled by an administrator, asked for, approved, taken back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from .calls import call, shell
from .machine import Machine
from .product import UNIT, eventually, lactl, lactl_json, new_uid

pytestmark = pytest.mark.e2e

SOCKET = "lightagent-change@ops.socket"
USER = "e2e-user"
OUT = "/run/e2e-asked"


@pytest.fixture(scope="module", autouse=True)
def user(service: Machine) -> Iterator[None]:
    """Somebody who may talk to agents and not answer for them, and an agent that says what it may do."""
    service.run(["useradd", new_uid(), "--create-home", "--groups", "lightagent", USER])
    folder = "/etc/lightagentd/agent/looker"
    service.write(
        f"{folder}/AGENT.md", "---\ndescription: Looks.\neffects: [observe, reach]\n---\nLook at things.\n"
    )
    service.run(["systemctl", "reload", UNIT])
    yield
    service.run(["systemctl", "disable", "--now", SOCKET, "lightagent-change@looker.socket"])
    service.run(["rm", "-r", folder])
    service.run(["systemctl", "stop", "e2e-asked.service"], check=False)
    service.run(["userdel", "--remove", USER])


def _asked(machine: Machine, *words: str) -> dict[str, Any]:
    """Have the user run lactl in the background; gives the question that came of it."""
    machine.run(["systemctl", "stop", "e2e-asked.service"], check=False)
    argv = ["systemd-run", "--unit=e2e-asked", "--collect", f"--property=User={USER}"]
    machine.run([*argv, f"--property=StandardOutput=truncate:{OUT}", "lactl", "--json", *words])
    eventually(lambda: lactl_json(machine, "approvals"), "there is a question")
    [question] = lactl_json(machine, "approvals")
    return dict(question)


def _ended(machine: Machine) -> str:
    """What the background command printed, when it is over."""

    def over() -> bool:
        state = machine.run(["systemctl", "is-active", "e2e-asked.service"], check=False).stdout.strip()
        return state in ("inactive", "failed")

    eventually(over, "the command has ended")
    return machine.run(["cat", OUT]).stdout


def test_without_the_socket_a_change_is_refused_with_what_to_run(service: Machine) -> None:
    refused = call(service, "file.write", path="/srv/e2e", content="x")
    assert (refused["type"], refused["code"]) == ("error", "change_not_enabled")
    assert f"systemctl enable --now {SOCKET}" in json.dumps(refused)
    service.run(["test", "!", "-e", "/srv/e2e"])


def test_enabling_the_socket_is_enough_for_an_agent_that_does_not_say_what_it_may_do(
    service: Machine,
) -> None:
    service.run(["systemctl", "enable", "--now", SOCKET, "lightagent-change@looker.socket"])
    assert shell(service, "id -u", "change") == "0\n"
    refused = call(service, "bash.exec", agent="looker", command="touch /srv/e2e", effect="change")
    assert (refused["type"], refused["code"]) == ("error", "policy_denied")
    service.run(["test", "!", "-e", "/srv/e2e"])


def test_a_change_waits_for_an_administrator_runs_as_root_and_is_taken_back(service: Machine) -> None:
    service.write("/srv/e2e", "before\n", 0o640)
    service.run(["chgrp", "adm", "/srv/e2e"])  # which the workers that look are in, and the user is not
    question = _asked(service, "tools", "call", "ops", "file.write", "path=/srv/e2e", "content=after")
    assert (question["tool"], question["action"], question["effect"]) == ("file", "write", "change")
    assert "-before\n+after" in question["preview"]
    assert lactl(service, "approve", question["id"], user=USER, check=False).status != 0
    assert service.run(["cat", "/srv/e2e"]).stdout == "before\n"
    lactl(service, "approve", question["id"])
    assert '"result": "ok"' in _ended(service)
    assert service.run(["cat", "/srv/e2e"]).stdout == "after"
    assert service.run(["stat", "-c", "%U %a", "/srv/e2e"]).stdout == "root 640\n"
    assert lactl(service, "approve", question["id"], check=False).status != 0

    question = _asked(service, "undo")
    assert service.run(["cat", "/srv/e2e"]).stdout == "after"
    lactl(service, "approve", question["id"])
    _ended(service)
    assert service.run(["cat", "/srv/e2e"]).stdout == "before\n"
    service.run(["rm", "/srv/e2e"])


def test_a_change_that_is_denied_does_not_run(service: Machine) -> None:
    args = json.dumps({"command": "touch /srv/e2e", "effect": "change"})
    question = _asked(service, "tools", "call", "ops", "bash.exec", "--args", args)
    lactl(service, "deny", question["id"], "--note", "not today")
    assert "not today" in _ended(service)
    service.run(["test", "!", "-e", "/srv/e2e"])


def test_what_an_administrator_takes_away_from_the_unit_is_gone(service: Machine) -> None:
    """By the drop-in that is shipped as an example."""
    folder = "/etc/systemd/system/lightagent-change@ops.service.d"
    examples = "/usr/share/doc/lightagentd/examples/systemd"
    service.run(["cp", "-r", f"{examples}/lightagent-change@ops.service.d", folder])
    try:
        service.run(["systemctl", "daemon-reload"])
        service.run(["systemctl", "stop", "lightagent-change@ops.service"])
        commands = "touch /srv/e2e && echo wrote there; touch /etc/e2e /usr/e2e /root/e2e || echo not there"
        said = shell(service, commands, "change")
        assert "wrote there" in said
        assert "not there" in said
        refused = call(service, "file.write", path="/etc/e2e", content="x")
        assert refused.get("result") != "ok", refused
        assert call(service, "file.write", path="/srv/e2e", content="x")["result"] == "ok"
        for path in ("/etc/e2e", "/usr/e2e", "/root/e2e"):
            service.run(["test", "!", "-e", path])
        assert service.run(["cat", "/srv/e2e"]).stdout == "x"
        [stands] = [one for one in lactl_json(service, "undo", "--list") if one["path"] == "/srv/e2e"][:1]
        lactl(service, "undo", stands["call_id"])  # what it keeps for this is still its to write
    finally:
        service.run(["rm", "-r", folder])
        service.run(["rm", "-f", "/srv/e2e"])
        service.run(["systemctl", "daemon-reload"])
        service.run(["systemctl", "stop", "lightagent-change@ops.service"])
    assert shell(service, "touch /etc/e2e && rm /etc/e2e && echo as before", "change") == "as before\n"
