"""What one peer is told when the changes of an object, its questions and the bus come between each other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from lightagentd.control.dbus import watchers
from lightagentd.control.dbus.changes import Change
from lightagentd.control.dbus.views import AGENT, SESSION, Key
from lightagentd.control.dbus.watchers import Watcher
from lightagentd.errors import TimedOut
from lightagentd.host.paths import Paths
from tests.agents.scripted import ME, until
from tests.control.dbus.on_the_bus import MANAGER, ROOT, objects_of, serving, session_path
from tests.dbus_client import BusClient
from tests.scripted_model import say

STATE = frozenset({"state"})
FIRST = Change(key=Key(AGENT, "talker"), owner=None, agent="talker", names=STATE)


class Bus:
    """Where a watcher's signals go; it may be full."""

    def __init__(self) -> None:
        self.signals: list[tuple[str, str]] = []
        """Member and path."""
        self.has_room = asyncio.Event()
        self.fails = False
        self.waiting = 0

    async def emit(
        self, _to: str, path: str, _interface: str, member: str, _sig: str, args: list[Any]
    ) -> None:
        self.waiting += 1
        await self.has_room.wait()
        self.waiting -= 1
        if self.fails:
            self.fails = False
            raise TimedOut("The bus took no signal.")
        self.signals.append((member, path if member == "PropertiesChanged" else args[0]))


class Watched:
    """A watcher, the bus that it tells, and the change that a session is new."""

    def __init__(self, watcher: Watcher, known: dict[Key, Any], bus: Bus, new: Change) -> None:
        self.watcher, self.known, self.bus, self.new = watcher, known, bus, new
        self.added = ("InterfacesAdded", session_path(new.key.name))

    async def hold(self, *changes: Change) -> None:
        """Let the first of these wait for the bus, and the others behind it."""
        self.bus.has_room.clear()
        for change in changes:
            self.watcher.note(change)
        await until(lambda: self.bus.waiting == 1)

    async def told(self, count: int) -> list[tuple[str, str]]:
        """The signals, as soon as there are so many."""
        self.bus.has_room.set()
        await until(lambda: len(self.bus.signals) >= count)
        return self.bus.signals


@pytest.fixture
async def watched(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Watched]:
    monkeypatch.setattr(watchers, "RIGHTS_S", 0.0)
    async with serving(paths, [say("x")]) as (daemon, address), BusClient(address, ME.uid) as me:
        await me.call(ROOT, f"{MANAGER}.Ask", "ssa{sv}", "talker", "hello", {})
        objects, bus = objects_of(daemon), Bus()
        known: dict[Key, Any] = dict(await objects._views.everything(ME))
        [key] = [key for key in known if key.kind is SESSION]
        watcher = Watcher(ME, known, objects._views, daemon.authority, bus.emit)
        task = asyncio.create_task(watcher.run())
        new = Change(key=key, owner=ME.uid, agent="talker", existed=False)
        try:
            yield Watched(watcher, known, bus, new)
        finally:
            task.cancel()
            await asyncio.wait([task])


async def test_rights_that_are_checked_meanwhile_lose_no_change(watched: Watched) -> None:
    await watched.hold(FIRST, watched.new)
    await watched.watcher.check_rights()  # as each question of the peer does
    assert (await watched.told(2))[1:] == [watched.added]


async def test_a_new_object_that_changes_during_a_question_is_told_as_new(watched: Watched) -> None:
    await watched.hold(FIRST, watched.new)
    watched.watcher.note(replace(watched.new, existed=True, names=STATE))
    watched.watcher.asks()
    await watched.told(1)
    watched.watcher.answered()
    assert (await watched.told(2))[1:] == [watched.added]


async def test_a_new_object_that_changes_while_the_bus_takes_nothing_is_told_as_new(watched: Watched) -> None:
    watched.watcher.left_out.add(watched.new.key)
    await watched.hold(replace(watched.new, existed=True, names=STATE))
    watched.watcher.note(replace(watched.new, existed=True, names=STATE))
    watched.bus.fails = True
    assert await watched.told(1) == [watched.added]


async def test_an_object_that_an_answer_may_have_listed_is_told_to_be_gone(watched: Watched) -> None:
    await watched.hold(FIRST)
    watched.watcher.note(watched.new)
    del watched.known[watched.new.key]
    watched.watcher.note(replace(watched.new, existed=True, exists=False))
    assert (await watched.told(2))[1:] == [("InterfacesRemoved", session_path(watched.new.key.name))]


async def test_what_is_counted_during_a_question_is_told_after_the_answer(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    counting, counted = asyncio.Event(), asyncio.Event()

    async def get(*_: object) -> Any:
        counting.set()
        await counted.wait()
        return watched.known[FIRST.key]

    monkeypatch.setattr(watched.watcher._views, "get", get)
    watched.bus.has_room.set()
    watched.watcher.note(replace(FIRST, names=AGENT.counts))
    await counting.wait()
    watched.watcher.asks()
    counted.set()
    watched.watcher.note(watched.new)
    await asyncio.sleep(0.05)
    assert watched.bus.signals == []
    watched.watcher.answered()
    assert sorted(await watched.told(2)) == [watched.added, ("PropertiesChanged", FIRST.key.path)]
