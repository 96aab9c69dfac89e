"""Two users on one bus: of each other's sessions, turns and approvals they can learn nothing at all."""

from __future__ import annotations

import json
import os
import pwd
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from lightagentd.control.authz import Caller
from lightagentd.control.dbus import watchers as dbus_watchers
from lightagentd.daemon.daemon import Daemon
from lightagentd.host.paths import Paths
from lightagentd.policy.operation import Operation
from tests.agents.asking import FRONT, PROBE, add
from tests.agents.scripted import until
from tests.conftest import write
from tests.control.dbus.on_the_bus import (
    AGENT,
    APPROVAL,
    GET,
    GET_ALL,
    INTROSPECT,
    MANAGED,
    MANAGER,
    ROOT,
    SESSION,
    SET,
    TURN,
    UNKNOWN_OBJECT,
    objects_of,
    serving,
)
from tests.dbus_client import BusClient
from tests.scripted_model import call, say

NOBODY, SOMEBODY = 65534, pwd.getpwnam("daemon").pw_uid
"""Users that exist: a bus takes no others."""
SECRET = "marmot-4711"
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")


@dataclass(kw_only=True)
class Two:
    """Somebody has a session with a turn that waits for an approval; nobody would like to know of it."""

    daemon: Daemon
    address: str
    somebody: BusClient
    nobody: BusClient
    session: str
    turn: str
    approval: str


class Anyone:
    """Decides that everybody may do this, and what else is in `also`."""

    def __init__(self, *operations: Operation) -> None:
        self.operations = set(operations)

    async def allows(self, caller: Caller, operation: Operation, *, agent: str, ask: bool) -> bool:
        return operation in self.operations


@pytest.fixture
async def two(paths: Paths) -> AsyncIterator[Two]:
    write(paths.config / "tools" / "probe.py", PROBE)
    script = [call("probe_add", add(paths.state.parent / SECRET)), say(SECRET)]
    toml = '[worker]\nchange_agents = ["talker"]\n'
    async with (
        serving(paths, script, toml=toml, extra=f"{FRONT}\n") as (daemon, address),
        BusClient(address, SOMEBODY) as somebody,
        BusClient(address, NOBODY) as nobody,
    ):
        assert len((await nobody.call(ROOT, MANAGED))[0]) == 2
        await somebody.call(ROOT, f"{MANAGER}.Subscribe")
        begun = await somebody.call(ROOT, f"{MANAGER}.Prompt", "ssa{sv}", "talker", f"know {SECRET}", {})
        asked = await somebody.do("wait", "InterfacesAdded", APPROVAL, 1)
        [approval] = [one[3][0] for one in asked if one[2] == "InterfacesAdded" and APPROVAL in str(one)]
        yield Two(
            daemon=daemon,
            address=address,
            somebody=somebody,
            nobody=nobody,
            session=begun[0],
            turn=begun[1],
            approval=approval,
        )


def made_up(path: str) -> str:
    """A path that names nothing, and looks the same."""
    return path[:-16] + "0123456789abcdef"


CALLS: list[tuple[str, tuple[Any, ...]]] = [
    *[
        (interface, command)
        for interface in (SESSION, TURN, APPROVAL)
        for command in (
            (GET, "ss", interface, "Owner"),
            (GET, "ss", interface, "NoSuchThing"),
            (GET, "ss", "org.example.Other", "Owner"),
            (GET, "s", interface),
            (GET_ALL, "s", interface),
            (GET_ALL, "s", ""),
            (GET_ALL, "s", "org.example.Other"),
            (SET, "ssv", interface, "Owner", ["x", 1]),
            (SET, "ssv", interface, "NoSuchThing", ["x", 1]),
            (INTROSPECT,),
            (MANAGED,),
            (f"{interface}.NoSuchMethod",),
            ("org.example.Other.NoSuchMethod",),
            ("org.freedesktop.DBus.Peer.Ping",),
        )
    ],
    (SESSION, (f"{SESSION}.Prompt", "sa{sv}", "hello", {})),
    (SESSION, (f"{SESSION}.Prompt", "s", "hello")),
    (SESSION, (f"{SESSION}.Prompt", "sa{sv}", "", {})),
    (SESSION, (f"{SESSION}.Messages", "a{sv}", {})),
    (SESSION, (f"{SESSION}.Messages", "a{sv}", {"limit": ["x", 0]})),
    (SESSION, (f"{SESSION}.Messages", "a{sv}", {"limits": ["x", 0]})),
    (SESSION, (f"{SESSION}.Cancel",)),
    (SESSION, (f"{SESSION}.Cancel", "s", "now")),
    (APPROVAL, (f"{APPROVAL}.Approve", "a{sv}", {})),
    (APPROVAL, (f"{APPROVAL}.Approve", "a{sv}", {"note": ["s", "x" * 2000]})),
    (APPROVAL, (f"{APPROVAL}.Deny", "a{sv}", {"note": ["s", "no"]})),
    (APPROVAL, (f"{APPROVAL}.Deny", "a{sv}", {"note": ["x", 1]})),
]


async def test_what_is_anothers_is_as_if_it_never_was(two: Two) -> None:
    paths = {SESSION: two.session, TURN: two.turn, APPROVAL: two.approval}
    for interface, command in CALLS:
        path = paths[interface]
        taken = await two.nobody.call(path, *command)
        free = await two.nobody.call(made_up(path), *command)
        if not command[0].endswith("Ping"):
            assert "error" in taken, command
        assert json.dumps(taken).replace(path, made_up(path)) == json.dumps(free), command
        assert SECRET not in json.dumps(taken)
        if len(command) == 1 or command[1] == "a{sv}" or command[0] == GET_ALL:
            name = taken["error"][0] if isinstance(taken, dict) else UNKNOWN_OBJECT
            assert name in (UNKNOWN_OBJECT, "org.lightagent1.Error.InvalidArgument"), command
    assert await two.somebody.get(two.session, SESSION, "State") == "waiting"
    assert await two.somebody.get(two.approval, APPROVAL, "State") == "waiting"
    await no_list_shows_it(two)
    await without_rights_nothing_is_seen(two)


async def no_list_shows_it(two: Two) -> None:
    answers = [
        await two.nobody.call(ROOT, MANAGED),
        await two.nobody.call(ROOT, GET_ALL, "s", MANAGER),
        await two.nobody.call(f"{ROOT}/agents/talker", GET_ALL, "s", AGENT),
        *[
            await two.nobody.call(f"{ROOT}/{folder}", INTROSPECT)
            for folder in ("sessions", "turns", "approvals", "agents")
        ],
        await two.nobody.call(ROOT, INTROSPECT),
    ]
    assert not [one for one in answers if isinstance(one, dict)]
    told = json.dumps(answers)
    for path in (two.session, two.turn, two.approval):
        assert path.rpartition("/")[2] not in told
    assert SECRET not in told
    assert answers[1][0]["Sessions"] == answers[2][0]["Sessions"] == 0
    [mine] = await two.somebody.call(ROOT, MANAGED)
    assert {two.session, two.turn, two.approval} <= mine.keys()
    assert mine[two.approval][APPROVAL]["MayAnswer"] is False
    refused = await two.somebody.call(two.approval, f"{APPROVAL}.Approve", "a{sv}", {})
    assert refused["error"][0] == "org.lightagent1.Error.PermissionDenied"
    for folder, path in (("sessions", two.session), ("turns", two.turn), ("approvals", two.approval)):
        assert path.rpartition("/")[2] in (await two.somebody.call(f"{ROOT}/{folder}", INTROSPECT))[0]


async def test_no_signal_about_what_is_anothers_reaches_others(two: Two) -> None:
    for rule in ("type='signal'", "eavesdrop='true'", "eavesdrop='true',type='method_return'"):
        await two.nobody.do("match", rule)
    assert "error" in await two.nobody.do("monitor")
    begun = len(await two.nobody.do("signals"))
    async with BusClient(two.address, 0) as root:
        await deny_it_while_root_looks(two, root)
    # What nobody is told himself comes after all that he could have been told meanwhile.
    await two.nobody.call(
        ROOT, "org.lightagent1.Sessions.Create", "sa{sv}", "talker", {"title": ["s", "own"]}
    )
    seen = await two.nobody.do("wait", "InterfacesAdded", '"own"', 1)
    for path, _, _, args in seen[begun:]:
        text = json.dumps([path, args])
        assert SECRET not in text
        assert not [one for one in (two.session, two.turn, two.approval) if one.rpartition("/")[2] in text]
        if path == f"{ROOT}/agents/talker":
            assert args[1] == {"Sessions": 1}
    assert SECRET in json.dumps(await two.somebody.do("signals"))


async def deny_it_while_root_looks(two: Two, root: BusClient) -> None:
    [all_of_it] = await root.call(ROOT, MANAGED)
    assert {two.session, two.turn, two.approval} <= all_of_it.keys()
    assert all_of_it[two.approval][APPROVAL]["MayAnswer"] is True
    [answered] = await two.somebody.call(two.approval, f"{APPROVAL}.Deny", "a{sv}", {"note": ["s", "no"]})
    assert answered["state"] == "denied"
    await two.somebody.do("wait", "PropertiesChanged", '"State": "done"', 1)
    await two.somebody.do("wait", "PropertiesChanged", '"State": "idle"', 1)
    await root.do("wait", "InterfacesRemoved", two.approval, 1)
    await root.do("wait", "PropertiesChanged", '"State": "done"', 1)


async def without_rights_nothing_is_seen(two: Two) -> None:
    two.daemon.authority._deciders = (Anyone(),)
    for path in (ROOT, f"{ROOT}/agents/talker", two.session, made_up(two.session), f"{ROOT}/agents/none"):
        answer = await two.nobody.call(path, GET_ALL, "s", "")
        assert answer["error"][0] == "org.lightagent1.Error.PermissionDenied", path
    for path in (f"{ROOT}/sessions", f"{ROOT}/agents", two.session, made_up(two.session), two.turn):
        answer = await two.nobody.call(path, INTROSPECT)
        assert answer["error"][0] == "org.lightagent1.Error.PermissionDenied", path
    for method in (MANAGED, f"{MANAGER}.Subscribe"):
        answer = await two.nobody.call(ROOT, method)
        assert answer["error"][0] == "org.lightagent1.Error.PermissionDenied"


@pytest.fixture
def looked_at_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rights are looked at for each change; first of all, since those of a watcher count for a second."""
    monkeypatch.setattr(dbus_watchers, "RIGHTS_S", 0.0)


async def test_who_lost_his_rights_is_told_no_more(looked_at_each_time: None, two: Two) -> None:
    watchers = objects_of(two.daemon).watchers
    async with BusClient(two.address, NOBODY) as other:
        await other.call(ROOT, f"{MANAGER}.Subscribe")
        assert len(watchers.names) == 3
        two.daemon.authority._deciders = (Anyone(),)
        async with BusClient(two.address, 0) as root:
            await root.call(ROOT, "org.lightagent1.Agents.Stop", "s", "talker")
            await until(lambda: not watchers.names)
        assert "stopped" not in json.dumps(await other.do("signals"))


async def test_who_may_administer_is_told_of_all_until_he_may_not(
    looked_at_each_time: None, two: Two
) -> None:
    everything = Anyone(*Operation)
    two.daemon.authority._deciders = (everything,)
    async with BusClient(two.address, NOBODY) as admin:
        [seen] = await admin.call(ROOT, MANAGED)
        assert two.session in seen
        everything.operations = {Operation.INSPECT, Operation.PROMPT}
        [less] = await admin.call(ROOT, MANAGED)
        assert two.session not in less
        begun = len(await admin.do("signals"))
        await two.somebody.call(two.approval, f"{APPROVAL}.Deny", "a{sv}", {})
        await two.somebody.do("wait", "PropertiesChanged", '"State": "idle"', 1)
        await admin.call(ROOT, "org.lightagent1.Sessions.Create", "sa{sv}", "talker", {"title": ["s", "own"]})
        told = await admin.do("wait", "InterfacesAdded", '"own"', 1)
        assert two.session.rpartition("/")[2] not in json.dumps(told[begun:])
