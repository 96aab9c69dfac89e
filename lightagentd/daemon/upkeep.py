"""Keeps the history within its limits: retention by age, size and session, and compaction of the file; and
stores the state of the machine once a day.

The daemon owns one `Upkeep`. It runs some time after the start, then every hour, and whenever an
administrator asks. It works in short transactions with pauses between them, so that nobody waits long for the
writer. The order: sessions unused for too long; events kept for sessions and turns that are gone; events that
are too old; and, when the history is still too large, idle sessions of a user who has more than all others
together, the oldest events, and then the sessions that are idle longest. Approvals, changes and rules have a
budget of their own (`retention.evidence_from`). A session stays while it has an open
turn, a plan at work or a watch, or waits for a person. When an administrator asks on a full disk, about a
tenth of the history goes, whatever the limits say.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from lightagentd import api
from lightagentd.agents import snapshots
from lightagentd.agents.sessions.deletion import Deletion
from lightagentd.errors import (
    Conflict,
    LightagentError,
    NotFound,
    SessionNotFound,
    ShuttingDown,
    StorageError,
)
from lightagentd.events.store import compacting, retention
from lightagentd.events.store.layout import RESERVE_BYTES
from lightagentd.events.store.retention import Bounds, Part
from lightagentd.host import process

if TYPE_CHECKING:
    from lightagentd.agents.agent import Agent
    from lightagentd.agents.registry import Registry
    from lightagentd.agents.sessions.session import Session
    from lightagentd.daemon.runtime import Now
    from lightagentd.events.history import History

_log = logging.getLogger(__name__)

FIRST_S = 60.0
"""How long after the start the first look is: a start has enough to do."""
PERIOD_S = 3600.0
PAUSE_S = 0.02
"""Between two transactions; each takes about half of that."""
GOAL = 0.9
"""The part of the size limit that is left when the history was larger than the limit."""
IDLE_S = 3600.0
"""A session that was used since is not deleted, however large the history is."""
COMPACT_BYTES = 256 << 20
"""A file that is larger than this, and more than half empty, is compacted by itself."""
_TOO_LARGE = "The history is too large."
_COPY_LIMIT_S = 3600.0
_DAY_US = 86_400_000_000


class Upkeep:
    """Start with `start()`, end with `close()`."""

    def __init__(self, now: Now, history: History, registry: Registry, deletion: Deletion) -> None:
        self._now, self._history, self._registry, self._deletion = now, history, registry, deletion
        self._settings = now.config.history
        self._working = asyncio.Lock()
        """Held by whoever prunes or compacts: one at a time."""
        self._task: asyncio.Task[None] | None = None
        self._last_deletion = -1
        """The newest deletion of a session whose kept events were looked through."""
        self._evidence_from = retention.NO_EVIDENCE
        """From here on approvals, changes and rules stay; as of the last look."""
        self._by: int | None = None
        """The uid of who asked for what runs now."""
        self.problem = ""
        """Why the last look came to no end, as a sentence."""

    def start(self) -> None:
        self._task = asyncio.create_task(self._look_now_and_then(), name="upkeep")

    async def close(self) -> None:
        """End the running work, between two transactions."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None

    async def _look_now_and_then(self) -> None:
        await asyncio.sleep(FIRST_S)
        while True:
            try:
                async with self._working:
                    await self._prune()
                self.problem = ""
            except LightagentError as err:
                _log.error("upkeep of the history: %s", err.message)
                self.problem = err.message
            await asyncio.sleep(PERIOD_S)
            if self._settings.snapshots:
                own = self._registry.shared.content.own  # whose files could have their worker say anything
                agents = sorted(self._registry.agents.values(), key=lambda one: one.name in own)
                await snapshots.once_a_day(self._history, agents)

    async def prune(self, by: int) -> api.Pruned:
        """Apply the limits now, since a uid asked for it. Raises Conflict when a run is under way already,
        StorageError, HistoryDamaged.
        """
        async with self._alone():
            self._by = by
            try:
                return await self._prune(asked=True)
            finally:
                self._by = None

    async def compact(self) -> api.Compacted:
        """Rewrite the file without its free pages. Raises Conflict, StorageError, HistoryDamaged."""
        async with self._alone():
            return await self._compact()

    @contextlib.asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        if self._working.locked():
            raise Conflict(
                "The history is pruned or compacted just now.", suggestion="Try again when that is done."
            )
        async with self._working:
            yield

    async def forecast(self) -> api.Pruned:
        """Estimate what `prune` would remove now; changes nothing. Raises StorageError, HistoryDamaged."""
        history = self._history
        await self._weigh_evidence()
        age = retention.Forecast()
        if (of_age := self._age_bounds()) is not None:
            age = await asyncio.to_thread(retention.forecast, history.environment, of_age)
        sessions = [session for _, session in self._idle(self._idle_limit_us())]
        removed, freed = age.removed, age.size_bytes
        live = await self._live()
        goal = self._goal(live, asked=True)
        over = live - goal if goal else 0
        if over > freed:
            bounds = self._bounds("size")
            find = partial(retention.forecast, history.environment, bounds, enough_bytes=over)
            size = await asyncio.to_thread(find)
            removed, freed = max(removed, size.removed), max(freed, size.size_bytes)
        return api.Pruned(
            removed=removed,
            sessions=[session.id for session in sessions],
            freed_bytes=freed,
            live_bytes=live,
            first_seq=history.environment.anchor()[0] + 1,
            compacted=False,
            dry_run=True,
        )

    async def _prune(self, *, asked: bool = False) -> api.Pruned:
        environment = self._history.environment
        before = await self._live()
        await asyncio.to_thread(environment.forget_dead_readers)
        await self._weigh_evidence()
        sessions = [
            session.id
            for agent, session in self._idle(self._idle_limit_us())
            if await self._delete(agent, session, _idle_reason(session))
        ]
        removed = await self._sweep()
        if (bounds := self._age_bounds()) is not None:
            removed += await self._passes(bounds, 0)
        if goal := self._goal(await self._live(), asked=asked):
            of_size, gone = await self._to_size(goal)
            removed, sessions = removed + of_size, sessions + gone
        compacted = await self._compact_if_worth_it()
        live = await self._live()
        return api.Pruned(
            removed=removed,
            sessions=sessions,
            freed_bytes=max(0, before - live),
            live_bytes=live,
            first_seq=environment.anchor()[0] + 1,
            compacted=compacted,
            dry_run=False,
        )

    async def _weigh_evidence(self) -> None:
        bounds = self._age_bounds()
        find = partial(
            retention.evidence_from,
            self._history.environment,
            most_bytes=self._settings.max_bytes,
            before_us=bounds.before_us if bounds else 0,
        )
        self._evidence_from = await asyncio.to_thread(find)

    def _bounds(self, reason: str, before_us: int = 0) -> Bounds:
        last = max(0, self._history.head_seq - retention.NEWEST)
        return Bounds(
            reason=reason,
            to_seq=last,
            before_us=before_us,
            evidence_from=self._evidence_from,
            by=self._by,
        )

    def _age_bounds(self) -> Bounds | None:
        if not self._settings.max_age_days:
            return None
        before_us = time.time_ns() // 1000 - round(self._settings.max_age_days * _DAY_US)
        return self._bounds("age", max(1, before_us))

    def _idle_limit_us(self) -> int:
        """Sessions last used before this time are deleted; 0 when there is no such limit."""
        days = self._settings.session_max_idle_days
        return time.time_ns() // 1000 - round(days * _DAY_US) if days else 0

    async def _live(self) -> int:
        return await asyncio.to_thread(self._history.environment.live_bytes)

    def _goal(self, live: int, *, asked: bool) -> int:
        """The size in bytes that the history should have after `live`; 0 when it may stay as it is."""
        most = self._settings.max_bytes
        goal = round(most * GOAL) if most and live > most else 0
        if asked and self._history.disk_low:
            room = max(live // 2, min(round(live * GOAL), live - RESERVE_BYTES))
            goal = min(goal or room, room)
        return goal

    async def _passes(self, bounds: Bounds, goal_bytes: int) -> int:
        """Remove all that may go, or until the history is no larger than `goal_bytes`. Returns the count."""
        history, removed = self._history, 0
        while True:
            events = await history.appending(partial(retention.prune, history.environment, bounds))
            if not events:
                return removed
            removed += int((events[0].data or {})["removed"])
            if goal_bytes and await self._live() <= goal_bytes:
                return removed
            await self._pause()

    async def _pause(self) -> None:
        """Raises ShuttingDown."""
        await asyncio.sleep(PAUSE_S)
        if self._now.draining:
            raise ShuttingDown("The daemon is stopping; the history is pruned further after its next start.")

    async def _sweep(self) -> int:
        """Remove events kept for sessions and turns that are gone. Returns the count."""
        environment, removed = self._history.environment, 0
        deletion = await asyncio.to_thread(retention.last_deletion, environment)
        for part in retention.parts(await asyncio.to_thread(self._history.queries.state, "prunings")):
            if not part.others and deletion == self._last_deletion:
                continue
            removed += await self._sweep_part(part)
        self._last_deletion = deletion
        return removed

    async def _sweep_part(self, part: Part) -> int:
        history, removed, since = self._history, 0, self._evidence_from
        now: Part | None = part
        while now is not None:
            if not await asyncio.to_thread(retention.needs_sweep, history.environment, now, since):
                break
            work = partial(retention.sweep, history.environment, now, since, by=self._by)
            events = await history.appending(work)
            if not events:
                break
            removed += int((events[0].data or {})["removed"])
            now = await asyncio.to_thread(_part, history, part.first_seq)
            await self._pause()
        return removed

    async def _to_size(self, goal: int) -> tuple[int, list[str]]:
        """Remove events, and then sessions, until the history has no more than `goal` bytes."""
        gone = await self._of_the_largest(goal)
        removed = 0
        if await self._live() > goal:
            removed = await self._passes(self._bounds("size"), goal)
        while await self._live() > goal:
            idle = self._idle(time.time_ns() // 1000 - round(IDLE_S * 1e6))
            if not idle or not await self._delete(*idle[0], _TOO_LARGE):
                break
            gone.append(idle[0][1].id)
            removed += await self._sweep() + await self._passes(self._bounds("size"), goal)
        return removed, gone

    async def _of_the_largest(self, goal: int) -> list[str]:
        """Delete idle sessions of a user whose sessions hold more than all others together. So nobody
        has events of others removed by storing much.
        """
        idle = self._idle(time.time_ns() // 1000 - round(IDLE_S * 1e6))
        sizes: Counter[int] = Counter()
        size_of: dict[str, int] = {}
        for agent in self._registry.agents.values():
            for session in list(agent.sessions.values()):
                measure = partial(retention.session_bytes, self._history.environment, session.id)
                size_of[session.id] = await asyncio.to_thread(measure)
                sizes[session.record.owner] += size_of[session.id]
        gone: list[str] = []
        if len(sizes) < 2:
            return gone
        owner = max(sizes, key=lambda one: sizes[one])
        for agent, session in idle:
            if sizes[owner] * 2 <= sizes.total() or await self._live() <= goal:
                break
            if session.record.owner == owner and await self._delete(agent, session, _TOO_LARGE):
                gone.append(session.id)
                sizes[owner] -= size_of.get(session.id, 0)
        return gone

    def _idle(self, before_us: int) -> list[tuple[Agent, Session]]:
        """Sessions unused since this time, without work under way; idle longest first."""
        registry = self._registry
        busy = {str(turn["session"]) for turn in self._history.queries.state("turns").values()}
        busy |= {record.session for record in registry.shared.watches.records.values()}
        found = [
            (agent, session)
            for agent in registry.agents.values()
            for session in agent.sessions.values()
            if session.record.updated_us < before_us
            and session.id not in busy
            and session.at_rest
            and not (session.deleted or session.queue or session.record.parent)
        ]
        return sorted(found, key=lambda one: one[1].record.updated_us)

    async def _delete(self, agent: Agent, session: Session, why: str) -> bool:
        """Delete a session as its owner would; False when something began in it meanwhile."""
        if session.deleted or not session.at_rest or session.queue:
            return False
        try:
            await self._deletion.delete(agent, session, by=os.getuid(), reason=why)
        except SessionNotFound:  # its owner deleted it first
            return False
        await self._pause()
        return True

    async def _compact_if_worth_it(self) -> bool:
        environment = self._history.environment
        used, live = await asyncio.to_thread(environment.used_bytes), await self._live()
        if used <= COMPACT_BYTES or live * 2 > used:
            return False
        try:
            await self._compact()
        except StorageError as err:  # there may be no room for it now; the free pages are used all the same
            _log.warning("the history is not compacted: %s", err.message)
            return False
        return True

    async def _compact(self) -> api.Compacted:
        done = await compacting.compact(self._history, _copy)
        return api.Compacted(bytes_before=done.bytes_before, bytes_after=done.bytes_after)


def _part(history: History, first_seq: int) -> Part | None:
    key = f"{first_seq:020d}"
    with contextlib.suppress(NotFound):
        return retention.parts({key: history.queries.state_of("prunings", key)})[0]
    return None


def _idle_reason(session: Session) -> str:
    days = (time.time_ns() // 1000 - session.record.updated_us) // _DAY_US
    return f"Nobody used it for {days} days."


async def _copy(source: Path, target: Path) -> None:
    """`compacting.copy_store` in a process of its own, so that a damaged file crashes only that process."""
    module = "lightagentd.events.store.compacting"
    argv = [sys.executable, "-m", module, os.fspath(source), os.fspath(target), str(os.getpid())]
    done = await process.run(argv, timeout_s=_COPY_LIMIT_S, cwd=Path("/"))
    if done.status != 0:
        said = done.stderr.text().strip() or done.signal or f"exit status {done.status}"
        raise StorageError(
            f"The history in {source} could not be copied: {said}", suggestion="Run: lactl audit verify"
        )
