"""The operations on what was stored, a part of `Service`: the event stream, queries, verification."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import asdict, replace

from lightagentd import api
from lightagentd.control.authz import Caller, Operation
from lightagentd.control.operations.checks import Operations, check_limit
from lightagentd.control.presentation import stored_event
from lightagentd.control.sight import Sight
from lightagentd.errors import InvalidArgument, TimedOut
from lightagentd.events.audit.signing import fingerprint, parsed_public
from lightagentd.events.audit.verification import Terms, known_event, verify
from lightagentd.events.feed import Feed, Missed
from lightagentd.events.filter import Filter
from lightagentd.events.model import Event
from lightagentd.events.queries import check_bytes
from lightagentd.events.store.layout import BATCH_BYTES
from lightagentd.events.store.search import LAST_SEQ
from lightagentd.limits import MAX_MESSAGE_BYTES

QUERY_S = 20.0
"""How long a query may look for its events."""
PAGE_S = 2.0
"""How long a page looks for its events; what it has not found then is for the next one."""
PAGE_BYTES = 2 << 20
"""When its events have so many bytes, a page ends."""


class HistoryOperations(Operations):
    """Events and history."""

    _feed: Feed

    async def subscribe(
        self, caller: Caller, wanted: Filter, from_seq: int | None, *, follow: bool, max_lag: int = 0
    ) -> AsyncGenerator[api.StoredEvent | api.Missed, None]:
        caller = await self._admit(caller, Operation.INSPECT, agent=wanted.agent)
        sight = Sight(self._daemon.authority, caller, wanted.agent)
        for name, value in (("from_seq", from_seq or 0), ("max_lag", max_lag)):
            if value < 0:
                raise InvalidArgument(f"{name} must not be negative.", field=name)
        wanted = replace(wanted, viewer=caller.viewer)
        now = 1 if wanted.since_us else self._history.head_seq + 1
        first = now if from_seq is None else max(1, from_seq)
        last = None if follow else self._history.head_seq
        follower = self._feed.follow(self._history, wanted, first, last, max_lag=max_lag)
        async with aclosing(follower) as items:
            async for item in items:
                if isinstance(item, Missed):
                    yield api.Missed(**asdict(item))
                elif await sight.sees(item):
                    yield stored_event(item)

    async def query(self, caller: Caller, wanted: Filter, limit: int) -> list[api.StoredEvent]:
        wanted = await self._what_may_be_seen(caller, wanted, limit)
        found, next_seq = await self._search(wanted, LAST_SEQ, limit, within_s=QUERY_S, backwards=True)
        if next_seq and len(found) < limit:
            raise TimedOut(
                f"Only {len(found)} such events were found in {QUERY_S:g} s.",
                suggestion="Say more about what you look for, such as its session or time, or read by pages.",
            )
        return [stored_event(event) for event in reversed(found)]

    async def page(
        self,
        caller: Caller,
        wanted: Filter,
        *,
        from_seq: int | None,
        to_seq: int | None,
        oldest_first: bool,
        limit: int,
    ) -> api.EventPage:
        wanted = await self._what_may_be_seen(caller, wanted, limit)
        low = max(1, from_seq or 1)
        high = LAST_SEQ if to_seq is None else min(to_seq, LAST_SEQ)
        if low > high:
            return api.EventPage(events=[], next_seq=0)
        found, next_seq = await self._search(
            wanted,
            low if oldest_first else high,
            limit,
            within_s=PAGE_S,
            backwards=not oldest_first,
            most_bytes=PAGE_BYTES,
        )
        if not low <= next_seq <= high:
            next_seq = 0
        events = [stored_event(event) for event in found if low <= event.seq <= high]
        return api.EventPage(events=events if oldest_first else events[::-1], next_seq=next_seq)

    async def _what_may_be_seen(self, caller: Caller, wanted: Filter, limit: int) -> Filter:
        """The filter, narrowed to that. Raises PermissionDenied, InvalidArgument."""
        caller = await self._admit(caller, Operation.INSPECT, agent=wanted.agent)
        check_limit(limit)
        agents = await self._readable(caller, wanted.agent)
        return replace(wanted, viewer=caller.viewer, agents=agents)

    async def _search(
        self,
        wanted: Filter,
        position: int,
        limit: int,
        *,
        within_s: float,
        backwards: bool,
        most_bytes: int = 0,
    ) -> tuple[list[Event], int]:
        """Up to `limit` events that fit, in the order of the search, and where to go on, 0 for the end.

        Each slice runs in a thread of its own, so that who hangs up ends the search. Ends early when the time
        is over, and once `most_bytes` are found; without that, raises MessageTooLarge for too much.
        """
        until_s = asyncio.get_running_loop().time() + within_s
        found: list[Event] = []
        size_bytes = 0
        while position and len(found) < limit:
            part = await asyncio.to_thread(
                self._history.slice,
                wanted,
                position,
                limit=limit - len(found),
                limit_bytes=most_bytes or BATCH_BYTES,
                backwards=backwards,
            )
            found += [event for event, _ in part.events]
            size_bytes += sum(event_bytes for _, event_bytes in part.events)
            position = part.next_seq
            if not most_bytes:
                check_bytes("The events", size_bytes, 4 * MAX_MESSAGE_BYTES)
            elif size_bytes >= most_bytes:
                break
            if asyncio.get_running_loop().time() >= until_s:
                break
        return found, position

    async def prune(self, caller: Caller, *, dry_run: bool) -> api.Pruned:
        """Apply the limits of the configuration now, or say what that would do."""
        await self._admit(caller, Operation.ADMINISTER)
        return await (self._daemon.upkeep.forecast() if dry_run else self._daemon.upkeep.prune())

    async def compact(self, caller: Caller) -> api.Compacted:
        await self._admit(caller, Operation.ADMINISTER)
        return await self._daemon.upkeep.compact()

    async def verify(
        self,
        caller: Caller,
        *,
        since_seq: int = 0,
        since_us: int = 0,
        indexes: bool = False,
        public_keys: Sequence[str] = (),
        expect: Sequence[str] = (),
    ) -> api.Verification:
        """Walk the chain; what the daemon itself knows of the newest event is expected, too."""
        await self._admit(caller, Operation.INSPECT)
        for name, value in (("since_seq", since_seq), ("since_us", since_us)):
            if not 0 <= value < LAST_SEQ:
                raise InvalidArgument(f"{name} is out of range.", field=name)
        given = [parsed_public(one.encode(), "What is given as public_keys") for one in public_keys]
        checkpoints = self._daemon.checkpoints
        own = [checkpoints.key.public] if checkpoints is not None else []
        terms = Terms(
            keys={fingerprint(key): key for key in given or own} or None,
            expected=dict([self._history.head, *(known_event(one) for one in expect)]),
            since_seq=since_seq,
            since_us=since_us,
            indexes=indexes,
        )
        found = await asyncio.to_thread(verify, self._history.environment, terms)
        return api.Verification(**{**asdict(found), "notes": list(found.notes)})
