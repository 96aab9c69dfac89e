"""What one does with sessions, on D-Bus: the same operations, errors by name, objects that come and go."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from lightagentd.bus.connection import Bus, Variant, connect
from lightagentd.control.dbus.changes import Changes
from lightagentd.control.dbus.views import SESSION as SESSION_KIND
from lightagentd.control.dbus.views import Key, Views
from lightagentd.daemon.daemon import Daemon
from lightagentd.errors import (
    ConfirmationRequired,
    ImportInvalid,
    LightagentError,
    SessionNotFound,
    SessionNotPaused,
    SessionPaused,
)
from lightagentd.events.audit.verification import verify
from lightagentd.host.paths import Paths
from tests.control.dbus.on_the_bus import (
    GET_ALL,
    MANAGER,
    ROOT,
    SESSION,
    UNKNOWN_OBJECT,
    serving,
    session_path,
)
from tests.control.dbus.test_streams import NOBODY, needs_root, open_stream, until_ended
from tests.dbus_client import BusClient
from tests.scripted_model import say

NAME = "org.lightagent1"


@pytest.fixture
async def bus(paths: Paths) -> AsyncIterator[tuple[Daemon, Bus]]:
    """A daemon on a private bus with the agent talker, and a connection of a client."""
    async with serving(paths, [say("the answer")]) as (daemon, address), connect(address) as client:
        yield daemon, client


async def call(client: Bus, member: str, signature: str, *args: Any) -> Any:
    found = await client.call(NAME, ROOT, f"{NAME}.Sessions", member, signature, args, 60.0)
    return found[0] if found else None


async def refused(client: Bus, error: type[LightagentError], member: str, signature: str, *args: Any) -> str:
    with pytest.raises(error) as caught:
        await call(client, member, signature, *args)
    return str(caught.value)


async def test_every_operation_is_there_with_its_errors(bus: tuple[Daemon, Bus]) -> None:
    daemon, client = bus
    await client.call(NAME, ROOT, MANAGER, "Ask", "ssa{sv}", ("talker", "hello", {}), 60.0)
    one = (await call(client, "List", "a{sv}", {}))[0]["id"]
    assert (await call(client, "Rename", "ss", one, "Größe"))["title"] == "Größe"
    await refused(client, SessionNotPaused, "Resume", "s", one)
    assert (await call(client, "Pause", "s", one))["paused"]
    with pytest.raises(SessionPaused):
        await client.call(NAME, ROOT, MANAGER, "Ask", "ssa{sv}", ("talker", "hello", {}), 60.0)
    assert not (await call(client, "Resume", "s", one))["paused"]
    fork = await call(client, "Fork", "sa{sv}", one, {"title": Variant("s", "a fork")})
    assert (fork["forked_from"], fork["current"]) == (one, True)
    assert (await call(client, "Switch", "s", one))["current"]
    assert (await call(client, "Wait", "sa{sv}", one, {"timeout_s": Variant("d", 60.0)}))["state"] == "idle"
    export = await call(client, "Export", "sa{sv}", one, {"format": Variant("s", "jsonl")})
    taken = await call(client, "Import", "ssa{sv}", "talker", export["text"], {})
    assert len(daemon.history.queries.messages(taken["id"])) == 2
    assert "line 1" in await refused(client, ImportInvalid, "Import", "ssa{sv}", "talker", "{", {})
    await refused(client, ConfirmationRequired, "Delete", "sa{sv}", one, {})
    await call(client, "Delete", "sa{sv}", one, {"confirmed": Variant("b", True)})
    await refused(client, SessionNotFound, "Delete", "sa{sv}", one, {"confirmed": Variant("b", True)})
    assert verify(daemon.history.environment).ok


async def test_watching_ends_with_the_session(bus: tuple[Daemon, Bus]) -> None:
    _, client = bus
    made = await call(client, "Create", "sa{sv}", "talker", {})
    async with client.signals() as signals:
        path = await open_stream(client, "Sessions", "Watch", "s", made["id"])
        await call(client, "Rename", "ss", made["id"], "seen")
        await call(client, "Delete", "sa{sv}", made["id"], {})
        items, ended = await until_ended(signals, path)
    events = [item.get("event", item) for item in items]
    titles = [event["session_info"]["title"] for event in events if event and event.get("session_info")]
    assert titles[-1] == "seen"
    assert ended == ["", "", ""]


async def test_a_session_that_is_not_the_current_one_any_more_is_looked_at(bus: tuple[Daemon, Bus]) -> None:
    daemon, client = bus
    made = [await call(client, "Create", "sa{sv}", "talker", {}) for _ in range(2)]
    changes = Changes(Views(daemon.service, daemon.registry), daemon.subscriptions, lambda _: None)
    former, current = (Key(SESSION_KIND, one["id"]) for one in made)
    changes.known = {current: await daemon.service.sessions.get(Views.of_all(), current.name)}
    await call(client, "Switch", "s", former.name)
    switched = daemon.history.queries.last()
    assert switched is not None
    assert switched.topic == "session.switched"
    assert {former, current} <= changes._touched(switched)


@needs_root
async def test_the_object_changes_with_its_session_and_goes_with_it(bus: tuple[Daemon, Bus]) -> None:
    _, client = bus
    made = await call(client, "Create", "sa{sv}", "talker", {})
    path = session_path(made["id"])
    async with BusClient(client._address, 0) as root, BusClient(client._address, NOBODY) as nobody:
        await root.call(ROOT, f"{MANAGER}.Subscribe")
        await nobody.call(ROOT, f"{MANAGER}.Subscribe")
        await call(client, "Pause", "s", made["id"])
        told = await root.do("wait", "PropertiesChanged", path, 1)
        assert "Paused" in str(told)
        other = await call(client, "Create", "sa{sv}", "talker", {})
        told = await root.do("wait", "PropertiesChanged", path, 2)
        assert [one for one in told if one[0] == path and "Current" in str(one)]
        await call(client, "Delete", "sa{sv}", other["id"], {})
        hidden = await nobody.call(ROOT, f"{NAME}.Sessions.Delete", "sa{sv}", made["id"], {})
        assert hidden["error"][0] == f"{NAME}.Error.SessionNotFound"
        await call(client, "Delete", "sa{sv}", made["id"], {})
        await root.do("wait", "InterfacesRemoved", path, 1)
        assert (await root.call(path, GET_ALL, "s", SESSION))["error"][0] == UNKNOWN_OBJECT
        assert made["id"] not in str(await nobody.do("signals"))
