"""Detects changes of the objects on D-Bus while at least one peer watches them.

`Changes` subscribes to the events. An event marks the objects that it may have changed. Some milliseconds
later all marked objects are compared with their last views; after lost events all objects are compared. Some
changes follow an event without having one of their own: a session is at rest only after the event that ends
its turn, and a question runs out of time. These are found by checking, at growing intervals, the objects that
changed lately and those that are not at rest. So the last change is never missed, and idle objects cost
nothing.

`Objects` (objects.py) owns the `Changes`, which holds one view of each object while it runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace

from lightagentd import api
from lightagentd.control.dbus.views import (
    AGENT,
    APPROVAL,
    MANAGER,
    RUN,
    SESSION,
    TURN,
    Key,
    View,
    Views,
    agent_of,
    is_at_rest,
    owner_of,
)
from lightagentd.events.model import Event
from lightagentd.events.subscriptions import Overflow, Subscriptions

COALESCE_S = 0.03
"""What changes within this time is told at once."""
LOOK_AGAIN_S, LOOK_AGAIN_MAX_S = 0.1, 5.0
"""When to look again after an event; each time four times as late, up to the maximum."""
_CHOOSING = ("agent.prompt", "session.created", "session.forked", "session.imported", "session.switched")
_ABOUT_MANAGER = ("daemon.", "session.", "approval.", "input.", "agent.prompt", "agent.error")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Change:
    """One object's change. `owner` is the only uid that hears of it, None for all uids. A peer must be
    allowed to inspect `agent` to hear of it. `names` are the changed fields; `existed` and `exists` tell new
    and removed objects.
    """

    key: Key
    owner: int | None
    agent: str = ""
    names: frozenset[str] = frozenset()
    existed: bool = True
    exists: bool = True


class Changes:
    """Start with `start()` and end with `stop()`, any number of times. `tell` receives each change."""

    def __init__(self, views: Views, subscriptions: Subscriptions, tell: Callable[[Change], None]) -> None:
        self._views, self._subscriptions, self._tell = views, subscriptions, tell
        self.known: dict[Key, View] = {}
        """How each object was when it was looked at last."""
        self.looks = 0
        """How many objects were looked at since the start."""
        self._due: dict[Key, tuple[float, float]] = {}
        """What is to be looked at, when, and how long to wait for the time after that."""
        self._marked = asyncio.Event()
        self._ready = asyncio.Event()
        self._running: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._running is None:
            self._ready.clear()
            self._running = asyncio.create_task(self._run(), name="dbus-changes")

    async def ready(self) -> None:
        """Wait until no further change can be missed."""
        await self._ready.wait()

    async def stop(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            running.cancel()
            await asyncio.wait([running])
        self.known.clear()
        self._due.clear()
        self.looks = 0

    async def _run(self) -> None:
        """Runs on after any failure: then it compares all objects."""
        while True:
            try:
                async with asyncio.TaskGroup() as tasks:
                    looking = tasks.create_task(self._look(), name="dbus-changes-look")
                    await self._follow()
                    looking.cancel()
            except* Exception:  # noqa: BLE001 - no caller is there to be told: the journal has it
                _log.exception("what changed of the objects on D-Bus could not be found out")
            else:
                return  # no events come any more: the daemon stops
            finally:
                self._ready.set()
            await asyncio.sleep(LOOK_AGAIN_MAX_S)

    async def _follow(self) -> None:
        with self._subscriptions.subscribe(overflow=Overflow.MARK) as events:
            while not events.closed:
                events.resume()
                await self._compare_all()
                self._ready.set()
                async for event in events:  # until an event is lost: then all objects are compared
                    self._mark(self._touched(event))

    async def _compare_all(self) -> None:
        everything = await self._views.everything(self._views.of_all(), limit=None)
        if (manager := await self._views.find(MANAGER)) is not None:
            everything[MANAGER] = manager
        if not self.known:
            self.known.update(everything)
        self._mark(key for key in {*self.known, *everything} if not self._settled(key, everything.get(key)))

    def _settled(self, key: Key, view: View | None) -> bool:
        return is_at_rest(view) and self.known.get(key) == view

    def _mark(self, keys: Iterable[Key]) -> None:
        due_s = asyncio.get_running_loop().time() + COALESCE_S
        for key in keys:
            waiting = self._due.get(key)
            self._due[key] = (min(due_s, waiting[0]) if waiting else due_s, LOOK_AGAIN_S)
        self._marked.set()

    def _touched(self, event: Event) -> set[Key]:
        """The objects that may look different after an event."""
        found: set[Key] = set()
        if event.topic.startswith(_ABOUT_MANAGER):
            found.add(MANAGER)
        if event.topic.startswith("daemon."):
            names = {key.name for key in self.known if key.kind is AGENT}
            found |= {Key(AGENT, name) for name in names.union(self._views.agent_names)}
        if event.session:
            found.add(Key(SESSION, event.session))
            if event.trace_id:
                found.add(Key(TURN, event.trace_id))
            if event.topic.startswith(_CHOOSING):  # another session may now be the current one
                found |= {key for key, view in self.known.items() if _is_current(view, event)}
        if event.topic.startswith("approval.") and event.data:
            found.add(Key(APPROVAL, str(event.data.get("approval", ""))))
        if event.topic.startswith("flow.") and event.data:
            found.add(Key(RUN, str(event.data.get("run", ""))))
        return found

    async def _look(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            next_s = min((due_s for due_s, _ in self._due.values()), default=None)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(next_s):
                    await self._marked.wait()
            self._marked.clear()
            now_s = loop.time()
            for key in [key for key, (due_s, _) in self._due.items() if due_s <= now_s]:
                await self._look_at(key, now_s)

    async def _look_at(self, key: Key, now_s: float) -> None:
        """Compare one object with its last view, and schedule the next look at it."""
        self.looks += 1
        _, pause_s = self._due[key]
        self._due[key] = (now_s + pause_s, min(4 * pause_s, LOOK_AGAIN_MAX_S))
        new = await self._views.find(key)
        self._compare(key, new)
        if pause_s >= LOOK_AGAIN_MAX_S and is_at_rest(new) and self._due[key][1] >= LOOK_AGAIN_MAX_S:
            del self._due[key]

    def _compare(self, key: Key, new: View | None) -> None:
        old = self.known.get(key)
        if new is not None:
            self.known[key] = new
        elif old is not None:
            del self.known[key]
        if old is not None and new is not None:
            if names := _changed(key, old, new):
                self._tell(Change(key=key, owner=owner_of(new), agent=agent_of(key, new), names=names))
            return
        one = old or new
        if one is not None:
            change = Change(key=key, owner=owner_of(one), agent=agent_of(key, one))
            self._tell(replace(change, existed=old is not None, exists=new is not None))
        if isinstance(one, api.Session):
            for counting in (Key(AGENT, one.agent), MANAGER):
                names = counting.kind.counts
                self._tell(Change(key=counting, owner=one.owner, agent=one.agent, names=names))


def _is_current(view: View, event: Event) -> bool:
    """Whether a view is that of the session to which the owner of an event had turned last."""
    return (
        isinstance(view, api.Session)
        and view.current
        and (view.agent, view.owner) == (event.agent, event.owner)
    )


def _changed(key: Key, old: View, new: View) -> frozenset[str]:
    unsaid = key.kind.silent | key.kind.counts
    return frozenset(
        field.name
        for field in fields(old)
        if field.name not in unsaid and getattr(old, field.name) != getattr(new, field.name)
    )
