"""Two users who may prompt and one who may nothing: what none of them gets over the bus or the socket."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from .calls import call as call_tool
from .machine import Completed, Machine
from .product import eventually, lactl, lactl_json, lactl_json_lines, new_uid

pytestmark = pytest.mark.e2e

NAME, PATH = "org.lightagent1", "/org/lightagent1"
OWNER, OTHER, STRANGER = "henrik", "ida", "jonas"
BUS = ("org.freedesktop.DBus", "/org/freedesktop/DBus")


@pytest.fixture(scope="module")
def users(service: Machine) -> Iterator[Machine]:
    """The running service; `OWNER` and `OTHER` are in its group, `STRANGER` is in none."""
    service.run(["useradd", new_uid(), "--create-home", "--groups", "lightagent", OWNER])
    service.run(["useradd", new_uid(), "--create-home", "--groups", "lightagent", OTHER])
    service.run(["useradd", new_uid(), "--create-home", STRANGER])
    yield service
    for user in (OWNER, OTHER, STRANGER):
        service.run(["userdel", "--remove", user])


@pytest.fixture(scope="module")
def session(users: Machine) -> str:
    """A session of the owner's."""
    lactl(users, "prompt", "ops", "check memory", user=OWNER)
    [found] = lactl_json(users, "sessions", "list", user=OWNER)
    return str(found["id"])


def busctl(machine: Machine, user: str, *args: str) -> Completed:
    return machine.run(["busctl", "--timeout=20", "call", *args], user=user, check=False, timeout_s=60)


def escaped(name: str) -> str:
    """The name as the last element of an object path."""
    return name.replace("_", "_5f")


@pytest.mark.parametrize(
    "args",
    [
        (*BUS, BUS[0], "RequestName", "su", NAME, "7"),
        (*BUS, BUS[0], "AddMatch", "s", f"type=signal,sender={NAME},eavesdrop=true"),
        (*BUS, f"{BUS[0]}.Monitoring", "BecomeMonitor", "asu", "0", "0"),
    ],
)
@pytest.mark.parametrize("user", [OWNER, STRANGER])
def test_nobody_takes_the_name_or_listens_in(users: Machine, user: str, args: tuple[str, ...]) -> None:
    refused = busctl(users, user, *args)
    assert refused.status != 0
    assert "denied" in refused.stderr.lower() or "not allowed" in refused.stderr or "eject" in refused.stderr


def test_another_user_gets_the_words_of_what_never_was(users: Machine, session: str) -> None:
    guessed = "ses_0123456789abcdef"
    for method in ("Get", "Cancel"):
        asked = [
            busctl(users, OTHER, NAME, PATH, f"{NAME}.Sessions", method, "s", one)
            for one in (session, guessed)
        ]
        assert all(answer.status != 0 for answer in asked)
        assert asked[0].stderr.replace(session, guessed) == asked[1].stderr
    for user in (OTHER, STRANGER):
        paths = [f"{PATH}/sessions/{escaped(one)}" for one in (session, guessed)]
        get_all = ("org.freedesktop.DBus.Properties", "GetAll", "s", "")
        seen = [busctl(users, user, NAME, path, *get_all) for path in paths]
        assert all(answer.status != 0 for answer in seen)
        assert seen[0].stderr.replace(paths[0], paths[1]) == seen[1].stderr
    everything = busctl(users, OTHER, NAME, PATH, "org.freedesktop.DBus.ObjectManager", "GetManagedObjects")
    assert "/agents/ops" in everything.stdout
    assert escaped(session) not in everything.stdout


def test_the_owner_sees_it_on_both_planes(users: Machine, session: str) -> None:
    assert lactl_json(users, "sessions", "show", session, user=OWNER)
    path = f"{PATH}/sessions/{escaped(session)}"
    shown = busctl(users, OWNER, NAME, path, "org.freedesktop.DBus.Properties", "GetAll", "s", "")
    assert shown.status == 0


CALL = json.dumps({"command": "touch /root/approved", "effect": "change"})


@pytest.fixture
def asked(users: Machine) -> Iterator[str]:
    """The approval that a call of the owner's waits for, which would make /root/approved."""
    users.run(["systemctl", "enable", "--now", "lightagent-change@ops.socket"])
    try:
        asking = f"lactl tools call ops bash.exec --args '{CALL}' </dev/null >/dev/null 2>&1 &"
        users.run(["bash", "-c", asking], user=OWNER)
        eventually(lambda: lactl_json(users, "approvals", "list"), "the call waits for an approval")
        [approval] = lactl_json(users, "approvals", "list")
        yield str(approval["id"])
    finally:
        users.run(["rm", "-f", "/root/approved"])
        users.run(["systemctl", "disable", "--now", "lightagent-change@ops.socket"])


def test_a_change_waits_for_somebody_who_may_approve_it(users: Machine, asked: str) -> None:
    for user in (OWNER, OTHER):
        assert lactl(users, "approve", asked, user=user, check=False).status != 0
    assert lactl_json(users, "approvals", "list", user=OTHER) == []
    assert lactl(users, "deny", asked, user=OTHER, check=False).status != 0
    assert lactl_json(users, "approvals", "list")[0]["state"] == "waiting"
    lactl(users, "deny", asked, user=OWNER)
    assert users.run(["test", "-e", "/root/approved"], check=False).status != 0


def test_an_approved_command_is_no_person(users: Machine, asked: str) -> None:
    """Else one yes would be a yes to all that follows, and the history would say that a person gave it."""
    path = f"{PATH}/approvals/{escaped(asked)}"
    said = (
        f"lactl approve {asked}",
        "lactl panic --off",
        "lactl reload",
    )
    for command in said:
        done = call_tool(users, "bash.exec", command=f"{command} 2>&1", effect="change")
        assert "lightagent-change@ops.service" in done["text"], command
        assert "needs a person" in done["text"], command
    over_bus = f"busctl --timeout=20 call {NAME} {path} {NAME}.Approval Approve 'a{{sv}}' 0 2>&1"
    assert "waits at the approver" in call_tool(users, "bash.exec", command=over_bus, effect="change")["text"]
    waits = "until [ $(lactl approvals | wc -l) = 2 ]; do test -e /root/approved && exit; done; kill %1"
    own = f"lactl tools call ops bash.exec --args '{CALL}' & {waits}"
    call_tool(users, "bash.exec", command=own, effect="change")
    assert users.run(["test", "-e", "/root/approved"], check=False).status != 0
    lactl(users, "approve", asked)
    eventually(lambda: users.run(["test", "-e", "/root/approved"], check=False).status == 0, "it ran")
    granted = [
        event["data"]
        for event in lactl_json_lines(users, "events", "--topic", "approval.granted")
        if event["data"]["approval"] == asked
    ]
    assert [one["answered_by"] for one in granted] == [0]
    assert not granted[0].get("unit", "").startswith("lightagent")
