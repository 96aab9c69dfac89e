"""Paths that callers choose by a handle_token, and turns that are still there after their end."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest

from lightagentd.agents import ended_turns
from lightagentd.bus.connection import Bus, Signals, Variant, connect
from lightagentd.control.dbus.types import handle_path
from lightagentd.daemon.daemon import Daemon
from lightagentd.errors import Conflict, InvalidArgument, LightagentError
from lightagentd.host.paths import Paths
from tests.agents.scripted import until
from tests.control.dbus.on_the_bus import GET_ALL, MANAGER, ROOT, TURN, UNKNOWN_OBJECT, serving
from tests.control.dbus.test_streams import STREAM, bus, until_ended
from tests.dbus_client import BusClient
from tests.scripted_model import Fault, Stream, say

__all__ = ["bus"]  # a fixture
NAME = "org.lightagent1"
PROPERTIES = "org.freedesktop.DBus.Properties"
INTROSPECT = ("org.freedesktop.DBus.Introspectable", "Introspect")


def token(name: str) -> dict[str, Variant]:
    return {"handle_token": Variant("s", name)}


async def prompt(client: Bus, name: str, text: str = "hello") -> str:
    """Prompt with a token; gives the turn's path."""
    args = ["talker", text, token(name)]
    _, turn = await client.call(NAME, ROOT, MANAGER, "Prompt", "ssa{sv}", args, 60.0)
    return str(turn)


async def turn_events(signals: Signals, path: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    async for signal in signals:
        if signal.path == path and signal.member == "Event":
            found.append(signal.args[1])
            if signal.args[0] in ("done", "error"):
                return found
    raise AssertionError("the connection ended")


async def properties(client: Bus, path: str) -> dict[str, Any]:
    [found] = await client.call(NAME, path, PROPERTIES, "GetAll", "s", [TURN])
    return dict(found)


async def test_the_caller_knows_the_path_before_the_call(bus: tuple[Daemon, Bus]) -> None:
    _, client = bus
    path = f"{ROOT}/turns/{client.unique_name[1:].replace('.', '_')}/my_1"
    assert path == handle_path("turns", client.unique_name, "my_1")
    [xml] = await client.call(NAME, path, *INTROSPECT)
    assert '<signal name="Event">' in xml
    with pytest.raises(LightagentError, match="There is no object"):
        await properties(client, path)
    async with client.signals(sender=NAME) as signals:
        assert await prompt(client, "my_1") == path
        events = await turn_events(signals, path)
        assert [event["type"] for event in events[:2]] == ["queued", "started"]
        over = await properties(client, path)
        assert (over["Id"], over["State"], over["Answer"]) == (events[0]["trace_id"], "done", "the answer")
    assert await properties(client, f"{ROOT}/turns/{over['Id'].replace('_', '_5f')}") == over
    async with connect(client._address) as other:
        with pytest.raises(LightagentError, match="There is no object"):
            await properties(other, path)
        with pytest.raises(LightagentError, match="There is no object"):
            await other.call(NAME, path, *INTROSPECT)


async def test_every_stream_has_it_and_needs_no_options(bus: tuple[Daemon, Bus]) -> None:
    _, client = bus
    stat = Variant("a{sv}", {"path": Variant("s", "/etc/hostname")})
    call_tool = ("talker", "file", "stat", stat)
    path = handle_path("streams", client.unique_name, "t")
    [xml] = await client.call(NAME, path, *INTROSPECT)
    assert '<signal name="Ended">' in xml
    async with client.signals(sender=NAME, interface=STREAM) as signals:
        for signature, args, expected in (
            ("sssva{sv}", (*call_tool, token("t")), path),
            ("sssva{sv}", (*call_tool, {}), f"{ROOT}/streams/1"),
            ("sssv", call_tool, f"{ROOT}/streams/2"),
        ):
            found = await client.call(NAME, ROOT, f"{NAME}.Tools", "Call", signature, args, 60.0)
            assert found == [expected]
            items, ended = await until_ended(signals, expected)
            assert (items[-1]["type"], ended) == ("done", ["", "", ""])


async def test_a_token_that_is_invalid_or_in_use_is_refused(bus: tuple[Daemon, Bus]) -> None:
    daemon, client = bus

    async def subscribe(name: str) -> None:
        await client.call(NAME, ROOT, f"{NAME}.Events", "Subscribe", "a{sv}", [token(name)])

    for wrong in ("a/b", "../x", "x" * 65, "ä", "a-b", "a\n"):
        with pytest.raises(InvalidArgument, match="handle_token"):
            await subscribe(wrong)
    await subscribe("one")
    with pytest.raises(Conflict, match="in use"):
        await subscribe("one")
    path = handle_path("streams", client.unique_name, "one")
    [xml] = await client.call(NAME, path.rpartition("/")[0], *INTROSPECT)
    assert '<node name="one"' in xml
    await client.call(NAME, path, STREAM, "Close")
    await until(lambda: not daemon.dbus._streams())
    await subscribe("one")


async def test_a_turn_is_there_for_a_minute_after_its_end(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    script: list[Fault | Stream] = [say("42"), Fault(status=400, body=b"{}"), Stream(pieces=[], hang=True)]
    async with serving(paths, script) as (daemon, address), BusClient(address, os.geteuid()) as me:
        await me.call(ROOT, f"{MANAGER}.Subscribe")
        turns = []
        for state, last, count in (("done", "done", 1), ("failed", "error", 1), ("cancelled", "error", 2)):
            options = {"handle_token": ["s", "mine"]} if state == "cancelled" else {}
            session, turn = await me.call(ROOT, f"{MANAGER}.Prompt", "ssa{sv}", "talker", state, options)
            turns.append(turn)
            if state == "cancelled":
                await until(lambda: daemon.registry.get("talker").turns_running == 1)
                await me.do("wait", "InterfacesAdded", TURN, 3)
                await me.call(session, "org.lightagent1.Session.Cancel")
            await me.do("wait", "Event", f'["{last}", ', count)
        assert turns[2].endswith("/mine")
        await me.do("wait", "PropertiesChanged", turns[2], 1)
        done, failed, cancelled = [(await me.call(turn, GET_ALL, "s", TURN))[0] for turn in turns]
        assert (done["State"], done["Answer"], done["Error"]) == ("done", "42", "")
        assert (failed["State"], failed["Answer"]) == ("failed", "")
        assert failed["Error"]
        assert failed["Message"].endswith(".")
        assert (cancelled["State"], cancelled["Error"]) == ("failed", "cancelled")
        later = time.monotonic() + ended_turns.KEPT_S
        monkeypatch.setattr(daemon.registry.shared.ended_turns, "_clock", lambda: later)
        gone = await me.call(turns[0], GET_ALL, "s", TURN)
        assert gone["error"][0] == UNKNOWN_OBJECT
        await me.do("wait", "InterfacesRemoved", turns[0], 1)
