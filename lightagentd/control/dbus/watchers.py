"""The peers that receive changes of the objects on D-Bus, each by signals to it alone.

A peer receives the changes of the objects that it may see, from its first question until it leaves the bus or
unsubscribes. Its rights are checked again before signals are sent. `Objects` (objects.py) owns the
`Watchers`. Each `Watcher` has a task of its own that sends, so a slow peer, or a slow check of its rights,
delays no other. A waiting watcher holds one record for each changed object, however often the object changed.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from lightagentd.control.authz import INTERACTION, Authority, Caller
from lightagentd.control.dbus.changes import Change
from lightagentd.control.dbus.properties import INTERFACE as PROPERTIES
from lightagentd.control.dbus.properties import values
from lightagentd.control.dbus.types import ROOT
from lightagentd.control.dbus.views import APPROVAL, MANAGER, Key, View, Views
from lightagentd.errors import LightagentError, LimitExceeded, NotFound, PermissionDenied, TimedOut
from lightagentd.host.users import called
from lightagentd.policy.operation import Operation

OBJECT_MANAGER = "org.freedesktop.DBus.ObjectManager"
FOR_UID, IN_ALL = 16, 128
"""How many peers of one user are told, and of all users together, administrators not counted."""
RIGHTS_S = 1.0
"""How long a peer's rights are taken for what they were."""

Emit = Callable[[str, str, str, str, str, list[Any]], Awaitable[None]]
"""Sends a signal: destination, path, interface, member, signature, arguments."""

_log = logging.getLogger(__name__)


class Watchers:
    """End with `close()`."""

    def __init__(self, views: Views, authority: Authority, emit: Emit, emptied: Callable[[], None]) -> None:
        """`emptied` is called when no watcher is left."""
        self._views, self._authority, self._emit, self._emptied = views, authority, emit, emptied
        self._watchers: dict[str, Watcher] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def names(self) -> list[str]:
        """The unique names of the watching peers."""
        return list(self._watchers)

    def get(self, name: str) -> Watcher | None:
        return self._watchers.get(name)

    def check_room(self, caller: Caller) -> None:
        """Raises LimitExceeded when there is no room for another peer of this user."""
        others = [one.caller for one in self._watchers.values()]
        of_uid = sum(one.uid == caller.uid for one in others)
        in_all = sum(not one.is_administrator for one in others)
        if of_uid >= FOR_UID or (in_all >= IN_ALL and not caller.is_administrator):
            raise LimitExceeded(
                f"{of_uid} programs of {called(caller.uid)} are told of changes already, "
                f"and {in_all} of all users.",
                suggestion="End some of them; Get and GetAll answer all the same.",
            )

    def add(self, caller: Caller, known: Mapping[Key, View]) -> Watcher:
        """Begin to watch for a new peer. `known` holds the present state of the objects, and is kept up to
        date.
        """
        made = Watcher(caller, known, self._views, self._authority, self._emit)
        self._watchers[caller.bus_name] = made
        made.task = asyncio.create_task(self._serve(made), name=f"dbus-watcher {caller.bus_name}")
        self._tasks.add(made.task)
        made.task.add_done_callback(self._tasks.discard)
        return made

    def remove(self, name: str) -> None:
        """Send this peer nothing more."""
        watcher = self._watchers.pop(name, None)
        if watcher is not None and watcher.task is not None:
            watcher.task.cancel()
            if not self._watchers:
                self._emptied()

    def clear(self) -> None:
        for name in list(self._watchers):
            self.remove(name)

    def tell(self, change: Change) -> None:
        for watcher in self._watchers.values():
            watcher.note(change)

    async def close(self) -> None:
        self.clear()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _serve(self, watcher: Watcher) -> None:
        """Runs until the peer is removed, loses its rights, or the bus is gone."""
        try:
            await watcher.run()
        except LightagentError as err:
            _log.info("%s is told of no more changes: %s", watcher.caller.bus_name, err.message)
        except Exception:  # noqa: BLE001 - the boundary of what is done for one peer
            _log.exception("%s is told of no more changes", watcher.caller.bus_name)
        finally:
            if self._watchers.get(watcher.caller.bus_name) is watcher:
                self.remove(watcher.caller.bus_name)


class Watcher:
    """One watching peer. `Watchers` makes it and runs it."""

    def __init__(
        self, caller: Caller, known: Mapping[Key, View], views: Views, authority: Authority, emit: Emit
    ) -> None:
        self.caller = caller
        self.task: asyncio.Task[None] | None = None
        self.left_out: set[Key] = set()
        """Objects that its list left out: it hears of them as new ones when they change."""
        self._known, self._views, self._authority, self._emit = known, views, authority, emit
        self._pending: dict[Key, Change] = {}
        self._wake = asyncio.Event()
        self._rights_until_s = 0.0
        self._asking = 0
        self._agents: dict[str, bool] = {}
        """Which agents it may look at, of those that there was something to tell of."""

    def note(self, change: Change) -> None:
        """Send this change later, together with further changes of the object until then."""
        if not self._may_see(change):
            return
        before = self._pending.get(change.key)
        self._pending[change.key] = change if before is None else _together(before, change)
        self._wake.set()

    def _put_back(self, change: Change) -> None:
        """Send later what could not be sent now. What was noted of the object meanwhile is newer."""
        newer = self._pending.get(change.key)
        self._pending[change.key] = change if newer is None else _together(change, newer)
        self._wake.set()

    def asks(self) -> None:
        """The peer asked for the present state: no signal may overtake the answer before `answered`."""
        self._asking += 1

    def answered(self) -> None:
        """The answer has been sent, or there is none."""
        self._asking -= 1
        self._wake.set()

    async def check_rights(self) -> None:
        """Raises PermissionDenied when the peer may no longer receive anything."""
        now_s = asyncio.get_running_loop().time()
        if now_s < self._rights_until_s:
            return
        if not await self._authority.may(self.caller, Operation.INSPECT):
            raise PermissionDenied(
                f"{called(self.caller.uid)} may not be told of changes.",
                suggestion="It needs org.lightagent1.inspect without a question each time.",
            )
        sees_all = await self._authority.may(self.caller, Operation.ADMINISTER)
        self._agents.clear()
        self.caller = dataclasses.replace(self.caller, sees_all=sees_all)
        self._rights_until_s = now_s + RIGHTS_S

    async def run(self) -> None:
        """Raises PermissionDenied when its rights are gone, Unavailable when it or the bus is, LimitExceeded
        when it does not read.
        """
        INTERACTION.set(False)  # in this task: the call that began it may have allowed a question
        await self.check_rights()
        while True:
            await self._wake.wait()
            self._wake.clear()
            if not self._pending or self._is_asking():
                continue
            await self.check_rights()
            pending, self._pending = self._pending, {}
            await self._look_at({change.agent for change in pending.values()})
            for change in pending.values():
                await self._look_at({change.agent})  # a question may have checked its rights meanwhile
                if self._is_asking():  # the answer may be older than this change: send it afterwards
                    self._put_back(change)
                else:
                    await self._tell(change)

    async def _look_at(self, agents: set[str]) -> None:
        """Find out whether the peer may inspect these agents. The result holds until the next check of its
        rights.
        """
        new = agents - self._agents.keys() - {""}
        if not new:
            return
        seen = await self._authority.may_each(self.caller, Operation.INSPECT, new)
        self._agents |= {agent: agent in seen for agent in new}

    async def _tell(self, change: Change) -> None:
        if not self._may_see(change) or not self._agents.get(change.agent, not change.agent):
            return
        try:
            await self._send(change)
        except TimedOut:  # the bus takes nothing now
            self._put_back(change)

    async def _send(self, change: Change) -> None:
        key = change.key
        peer, interface = self.caller.bus_name, key.kind.interface
        view = self._known.get(key) if change.exists else None
        if view is None:  # told also of one that came and went meanwhile: an answer may have listed it
            self.left_out.discard(key)
            await self._emit(peer, ROOT, OBJECT_MANAGER, "InterfacesRemoved", "oas", [key.path, [interface]])
            return
        is_new = not change.existed or key in self.left_out
        names = change.names | ({"may_answer", "must_authenticate"} if key.kind is APPROVAL else set())
        depends = key.kind.counts | ({"problems"} if key == MANAGER else set())
        if key.kind is APPROVAL or (depends and (is_new or names & depends)):
            try:
                view = await self._views.get(self.caller, key)
            except (NotFound, PermissionDenied):
                return  # it is gone meanwhile, and the peer hears of that next; or the rights are gone
            if self._is_asking():
                self._put_back(change)
                return
        if is_new:
            added = [key.path, {interface: values(key, view)}]
            await self._emit(peer, ROOT, OBJECT_MANAGER, "InterfacesAdded", "oa{sa{sv}}", added)
            self.left_out.discard(key)
        else:
            changed = [interface, values(key, view, names), []]
            await self._emit(peer, key.path, PROPERTIES, "PropertiesChanged", "sa{sv}as", changed)

    def _is_asking(self) -> bool:
        return self._asking > 0

    def _may_see(self, change: Change) -> bool:
        viewer = self.caller.viewer
        return change.owner is None or viewer is None or change.owner == viewer


def _together(older: Change, newer: Change) -> Change:
    """Two changes of one object as one."""
    names = older.names | newer.names
    if not older.exists and newer.exists:  # another one with the same name
        names = frozenset(field.name for field in dataclasses.fields(newer.key.kind.view))
    return dataclasses.replace(newer, names=names, existed=older.existed)
