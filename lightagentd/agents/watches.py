"""Keeps the watches of agents across restarts, and stores the watchers' events in the history.

The daemon makes one `Watches`; the registry starts and closes it. A watch lives in its agent's watcher, a
worker of the place WATCHER, which publishes `watch_started`, `watch_stopped` and the events themselves. The
pool reports each call to a watcher (`Pool.on_watch`); from then on the watcher is followed as long as it
holds a watch. Each watch is stored as state `watches` together with its first event. So a watch that was lost
with its worker or with the daemon is made again, and a `gap` event gives the unwatched time. Files changed in
that time are found by their modification time and reported; deleted files are not.

A watcher's events are checked: they must belong to watches that its agent's calls made. Agent, session, owner
and trace of an event come from the daemon's record of that call.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from lightagentd.agents.content import Content
from lightagentd.errors import (
    LightagentError,
    OutcomeUnknown,
    StorageError,
    Unavailable,
    WorkerUnavailable,
)
from lightagentd.events.context import EventContext, current_context, new_id, own_task, using
from lightagentd.events.history import Change, History, NewEvent
from lightagentd.events.store.states import checked, decoding
from lightagentd.events.types.event_type import EventType
from lightagentd.events.types.tool import (
    CHANGES,
    EMITTED_TOPIC,
    INVOCATION,
    WATCHES,
    ChangesLost,
    FilesChanged,
    WatchGap,
    WatchStarted,
    WatchStopped,
    emitted,
)
from lightagentd.host.users import called
from lightagentd.policy.decide import PERSON, Decision, Policy, PolicyCall
from lightagentd.tool import Effect, Place
from lightagentd.worker.pool import Call, Pool

_log = logging.getLogger(__name__)

TOPIC, EVENT_TOPIC = WATCHES, CHANGES
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
"""Before a lost watcher is started again; doubled until it has stayed for STEADY_S."""
STEADY_S = 60.0
UNSENT_US = 65_000_000
"""How long a change may wait in the watcher before it is published (`toolkit.watching.outbox`)."""
AGAIN_TIMEOUT_S = 120.0
_CALLS_KNOWN = 256
_OF_CALL = ("agent", "session", "owner", "caller", "trace_id", "request_id", "correlation_id")
"""What a watch keeps of the context of the call that made it."""
CHANGES_KINDS: Mapping[str, type[EventType]] = {"fs_event": FilesChanged, "overflow": ChangesLost}
"""What a watcher says of a watch that stands, by type."""


@dataclass(frozen=True, kw_only=True)
class WatchRecord:
    """The stored record of a watch. `root` is the watched folder, `only` the one name in it or empty."""

    watch: str
    agent: str
    session: str
    owner: int
    caller: int | None = None
    """On whose word it watches; older versions did not keep that."""
    trace_id: str
    request_id: str
    correlation_id: str
    args: dict[str, Any]
    path: str
    root: str
    only: str
    seen_us: int
    """Everything up to then is in the history."""

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> WatchRecord:
        """The record that was stored. Raises HistoryDamaged."""
        texts = ("watch", "agent", "session", "trace_id", "request_id", "correlation_id", "path", "root")
        with decoding("watches", str(value.get("watch"))):
            checked(value, args=dict, only=str, owner=int, seen_us=int, caller=(int, type(None)))
            return cls(**checked(value, **dict.fromkeys(texts, str)))

    def context(self) -> EventContext:
        return EventContext(**{name: getattr(self, name) for name in _OF_CALL})

    def change(self) -> Change:
        return Change(state="watches", key=self.watch, value=asdict(self))

    def event(self, kind: type[EventType], data: Mapping[str, Any]) -> NewEvent:
        """An event about this watch; the watcher's claim about its owner is ignored.

        Raises ValueError for data that does not fit the kind.
        """
        own = {"watch": self.watch, "session": self.session, "owner": self.owner}
        return kind.model_validate({**data, **own}).event(context=self.context())


class Watches:
    """All watches of the daemon's agents. Start with `start()`, end with `close()`."""

    def __init__(self, history: History, pool: Pool, content: Content, policy: Policy) -> None:
        self.records: dict[str, WatchRecord] = {}
        self.history = history
        self.pool = pool
        self._content = content
        self._policy = policy
        self.alive_us = 0
        """When the daemon was last known to run, before this start."""
        self._followers: dict[tuple[str, int], Follower] = {}
        """By agent and owner, who have a watcher of their own."""
        self._calls: OrderedDict[str, EventContext] = OrderedDict()
        """Who made the last calls to watchers."""
        self._closed = False

    def start(self) -> None:
        """Read the stored watches, and listen for new ones."""
        last = self.history.queries.last()
        self.alive_us = last.time_us if last is not None else 0
        sessions = self.history.queries.state("sessions")
        for value in self.history.queries.state("watches").values():
            record = WatchRecord.from_dict(value)
            if not record.session or record.session in sessions:
                self.records[record.watch] = record
        self.pool.on_watch = self._called

    async def close(self) -> None:
        """Stop following. The watches stay stored, and are made again after the next start."""
        self._closed = True
        self.pool.on_watch = None
        await asyncio.gather(*(follower.end() for follower in self._followers.values()))
        self._followers.clear()

    def problems(self) -> list[str]:
        """The agents whose watches are not active now, as sentences."""
        return [
            f"The watches of the agent {agent} for {called(owner)} do not stand: {follower.problem}"
            for (agent, owner), follower in self._followers.items()
            if follower.problem
        ]

    def of(self, agent: str, owner: int | None = None) -> list[WatchRecord]:
        """The watches of an agent, or only those of one owner."""
        own = [record for record in self.records.values() if record.agent == agent]
        return [record for record in own if owner is None or record.owner == owner]

    def agent_started(self, agent: str) -> None:
        """Restore the watches that the agent had when the daemon stopped."""
        for owner in {record.owner for record in self.of(agent)}:
            self._follow(agent, owner)

    async def agent_stopped(self, agent: str) -> None:
        """End the watches of an agent, unless the whole daemon stops. Raises StorageError."""
        if self._closed:
            return
        for key in [one for one in self._followers if one[0] == agent]:
            await self._followers.pop(key).end()
        await self.pool.end_watchers(agent)
        for record in self.of(agent):
            await self.ended(record, "the agent was stopped")

    async def end_session(self, session: str) -> None:
        """End the watches of a session that is deleted. Raises StorageError."""
        for record in [one for one in self.records.values() if one.session == session]:
            await self.ended(record, "the session was deleted")
            call = call_of(record, "stop", {"watch": record.watch}, {})
            with contextlib.suppress(LightagentError):  # it is gone already, or its worker is
                await result_of(self.pool, call)

    def renew(self) -> None:
        """After a reload: restart each watcher with the current files."""
        for follower in self._followers.values():
            follower.renew()

    async def ended(self, record: WatchRecord, reason: str) -> None:
        """Store the end of a watch. Raises StorageError."""
        self.records.pop(record.watch, None)
        stopped = record.event(WatchStopped, {"path": record.path, "reason": reason})
        await self.history.append(stopped, changes=(Change(state="watches", key=record.watch, value=None),))

    def context_of(self, call_id: str, agent: str, owner: int) -> EventContext | None:
        """The context of a call, if this agent made it for this owner."""
        found = self._calls.get(call_id)
        return found if found is not None and (found.agent, found.owner) == (agent, owner) else None

    def may_watch(self, record: WatchRecord) -> bool:
        """Whether a lost watch may be restored: policy must allow it as a new one without asking."""
        definition = self._content.definitions.agents.get(record.agent)
        if definition is None:
            return False
        front = definition.front
        call = PolicyCall(
            agent=record.agent,
            tool="inotify",
            action="watch",
            args=dict(record.args),
            effect=Effect.OBSERVE,
            agent_effects=tuple(front.effects),
            offered=definition.offers("inotify", "watch"),
            agent_skills=None if front.skills is None else tuple(front.skills),
            caller=record.owner,
            trigger=PERSON,
            tainted=False,
            host="",
            known_host=False,
            change_enabled=self.pool.has_change(record.agent),
            plan="",
        )
        return self._policy.decide(call).decision is Decision.ALLOW

    def _called(self, call: Call) -> None:
        """Called when a call goes to a watcher; runs in the caller's context."""
        if self._closed or "watch_again" in call.expected:
            return
        self._calls[call.call_id] = replace(
            current_context(), agent=call.agent, session=call.session, owner=call.owner
        )
        while len(self._calls) > _CALLS_KNOWN:
            self._calls.popitem(last=False)
        self._follow(call.agent, call.owner).keep_for(call.timeout_s + STEADY_S)

    def _follow(self, agent: str, owner: int) -> Follower:
        follower = self._followers.get((agent, owner))
        if follower is None or follower.task.done():
            follower = self._followers[agent, owner] = Follower(agent, owner, self)
        return follower


class Follower:
    """Follows an owner's watcher in a task of its own, until it holds no watch; `Watches` owns it."""

    def __init__(self, agent: str, owner: int, watches: Watches) -> None:
        self.problem = ""
        """Why the watches do not stand just now."""
        self._agent, self._owner = agent, owner
        self._watches = watches
        self._until = 0.0
        self._changed = asyncio.Event()
        self._outdated = False
        self._ending = False
        self._alive_us = watches.alive_us
        """When the watcher was last known to be followed."""
        self._why = "the daemon was not running"
        self._unstored = 0
        self.task = own_task(self._run(), name=f"watches-{agent}-{owner}")

    def keep_for(self, seconds: float) -> None:
        """Keep following for this long even without a watch: a call may be making one."""
        self._until = max(self._until, time.monotonic() + seconds)
        self._changed.set()

    def renew(self) -> None:
        self._outdated = True
        self._changed.set()

    async def end(self) -> None:
        """Stop following. The task is not cancelled, because it must end a worker that is being started."""
        self._ending = True
        self._changed.set()
        await asyncio.wait([self.task])

    @property
    def _needed(self) -> bool:
        if self._ending:
            return False
        return bool(self._own()) or time.monotonic() < self._until

    def _own(self) -> list[WatchRecord]:
        return self._watches.of(self._agent, self._owner)

    async def _run(self) -> None:
        pause_s = FIRST_PAUSE_S
        await asyncio.sleep(0)  # whoever made this says first for how long it is needed
        while self._needed:
            began = time.monotonic()
            self._outdated = False
            lost = False
            try:
                await self._hold()
                self._why = "the files of the tools were read again"
            except* (LightagentError, OSError) as group:
                first = group.exceptions[0]
                self._why = "the worker was lost"
                self.problem = getattr(first, "message", str(first))
                _log.warning("the watcher of %s: %s", self._agent, self.problem)
                lost = True
            self._alive_us = time.time_ns() // 1000
            if lost and self._needed:
                pause_s = FIRST_PAUSE_S if time.monotonic() - began > STEADY_S else pause_s
                await self._pause(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not self._ending:
                    self._changed.clear()
                    await self._changed.wait()

    async def _hold(self) -> None:
        """Follow one watcher until it is not needed or is outdated; raises a group when it is lost."""
        async with asyncio.TaskGroup() as tasks:
            listening = tasks.create_task(self._listen())
            making = tasks.create_task(self._make_again())
            while self._needed and not self._outdated:
                self._changed.clear()
                left = None if self._own() else max(0.0, self._until - time.monotonic())
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(left):
                        await self._changed.wait()
            listening.cancel()
            making.cancel()

    async def _listen(self) -> None:
        async with contextlib.aclosing(self._watches.pool.follow(self._agent, self._owner)) as events:
            async for event in events:
                try:
                    await self._heard(event)
                except StorageError as err:
                    self._unstored += 1
                    _log.error("an event of the watcher of %s was not stored: %s", self._agent, err)
                except (ValueError, TypeError, KeyError) as err:
                    _log.error("the watcher of %s sent an invalid event: %s", self._agent, err)
        raise WorkerUnavailable(f"The watcher of {self._agent} ended.")

    async def _make_again(self) -> None:
        """Make the stored watches in the watcher; it keeps those that it has."""
        for record in self._own():
            if not self._watches.may_watch(record):
                await self._watches.ended(record, "policy does not allow it without a question any more")
                continue
            since_us = max(record.seen_us, self._alive_us - UNSENT_US)
            expected = {
                "watch": record.watch,
                "since_us": since_us,
                "root": record.root,
                "only": record.only,
            }
            call = call_of(record, "watch", record.args, {"watch_again": expected})
            try:
                with using(record.context()):
                    made = await result_of(self._watches.pool, call)
            except (Unavailable, OutcomeUnknown, StorageError):
                raise  # it is tried again
            except LightagentError as err:
                await self._watches.ended(record, err.message)
                continue
            if made.get("fresh"):
                gap = {
                    "path": record.path,
                    "why": self._why,
                    "from_us": since_us,
                    "to_us": time.time_ns() // 1000,
                    "found": made.get("found_in_gap", 0),
                    "not_known": "what was deleted or moved away meanwhile",
                }
                await self._watches.history.append(record.event(WatchGap, gap))
        self.problem = ""
        self._changed.set()

    # What the watcher says

    async def _heard(self, event: dict[str, Any]) -> None:
        """Store one published event. Raises StorageError; ValueError and the like for an invalid one."""
        history = self._watches.history
        context = EventContext(agent=self._agent)
        if self._unstored:
            lost, self._unstored = self._unstored, 0
            await history.append(ChangesLost(where="history", lost=lost).event(context=context))
        if event["kind"] == "lost":
            lost = int(event["count"])
            await history.append(ChangesLost(where="worker", lost=lost).event(context=context))
            return
        topic, event_type, data = str(event["topic"]), str(event["type"]), dict(event["data"])
        if EMITTED_TOPIC.fullmatch(topic) and event_type != INVOCATION:
            await history.append(emitted(topic, event_type, data, context=context))
        elif (topic, event_type) == (TOPIC, "watch_started"):
            await self._started(data)
        elif (record := self._record(data)) is None:
            _log.warning("the watcher of %s spoke for a watch that it does not have", self._agent)
        elif (topic, event_type) == (TOPIC, "watch_stopped"):
            self._changed.set()
            await self._watches.ended(record, str(data.get("reason", "")))
        elif topic == EVENT_TOPIC and event_type in CHANGES_KINDS:
            until_us = min(int(data.pop("until_us", record.seen_us)), time.time_ns() // 1000)
            seen = replace(record, seen_us=max(record.seen_us, until_us))
            self._watches.records[record.watch] = seen
            await history.append(record.event(CHANGES_KINDS[event_type], data), changes=(seen.change(),))
        else:
            raise ValueError(f"{topic} {event_type}"[:200])

    def _record(self, data: Mapping[str, Any]) -> WatchRecord | None:
        record = self._watches.records.get(str(data["watch"]))
        return record if record is not None and record in self._own() else None

    async def _started(self, data: dict[str, Any]) -> None:
        record = self._record(data)
        if record is None:
            context = self._watches.context_of(str(data["call_id"]), self._agent, self._owner)
            if context is None or str(data["watch"]) in self._watches.records:
                _log.warning("the watcher of %s began a watch that no call asked for", self._agent)
                return
            record = WatchRecord(
                **{**{name: getattr(context, name) for name in _OF_CALL}, "owner": context.owner or 0},
                watch=str(data["watch"]),
                args=dict(data["args"]),
                path=str(data["path"]),
                root=str(data["root"]),
                only=str(data["only"]),
                seen_us=time.time_ns() // 1000,
            )
            self._watches.records[record.watch] = record
            self._changed.set()
        await self._watches.history.append(record.event(WatchStarted, data), changes=(record.change(),))


def call_of(record: WatchRecord, action: str, args: dict[str, Any], expected: dict[str, Any]) -> Call:
    """A call made by the daemon itself on behalf of the watch's maker."""
    return Call(
        call_id=new_id("call"),
        tool="inotify",
        action=action,
        args=args,
        agent=record.agent,
        session=record.session,
        effect=Effect.OBSERVE,
        timeout_s=AGAIN_TIMEOUT_S,
        owner=record.owner,
        place=Place.WATCHER,
        expected=expected,
    )


async def result_of(pool: Pool, call: Call) -> dict[str, Any]:
    """The metadata of a call's result. Raises what the call raises."""
    async with contextlib.aclosing(pool.call(call)) as events:
        async for event in events:
            if event["kind"] == "result":
                metadata: dict[str, Any] = event["metadata"]
                return metadata
    raise OutcomeUnknown(f"The worker gave no result for {call.tool}.{call.action}.")
