"""The operations on the history: queries, verification and limits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from lightagentd import api
from lightagentd.control.authz import Caller
from lightagentd.control.operations.access import Access, check_limit
from lightagentd.control.operations.declared import Operations, method
from lightagentd.control.operations.events import stored
from lightagentd.control.presentation import shown
from lightagentd.errors import InvalidArgument, TimedOut
from lightagentd.events.audit.signing import fingerprint, parsed_public
from lightagentd.events.audit.verification import Terms, known_event, verify
from lightagentd.events.filter import Filter
from lightagentd.events.history import History as Store
from lightagentd.events.model import Event
from lightagentd.events.queries import check_bytes
from lightagentd.events.store.layout import BATCH_BYTES
from lightagentd.events.store.search import LAST_SEQ
from lightagentd.limits import MAX_MESSAGE_BYTES
from lightagentd.policy.operation import Operation

if TYPE_CHECKING:
    from lightagentd.daemon.runtime import Now
    from lightagentd.daemon.upkeep import Upkeep

QUERY_S = 20.0
"""How long a query may look for its events."""
PAGE_S = 2.0
"""How long a page looks for its events; what it has not found then is for the next one."""
PAGE_BYTES = 2 << 20
"""When its events have so many bytes, a page ends."""


class History(Operations, interface="org.lightagent1.History"):
    """What was stored. The parameters that say which events are meant are those of Events."""

    def __init__(self, access: Access, history: Store, upkeep: Upkeep, now: Now) -> None:
        self._access, self._history, self._upkeep, self._now = access, history, upkeep, now

    @method("Query", returns="events", first="agent session topic trace since_us limit")
    async def query(self, caller: Caller, wanted: Filter, limit: int = 50) -> list[api.StoredEvent]:
        """The newest events that fit, oldest of them first; 50 unless limit says otherwise. Fails with
        TimedOut when they cannot be found soon: Page gives what was found so far, and goes on.
        """
        wanted = await self._what_may_be_seen(caller, wanted, limit)
        found, next_seq = await self._search(wanted, LAST_SEQ, limit, within_s=QUERY_S, backwards=True)
        if next_seq and len(found) < limit:
            raise TimedOut(
                f"Only {len(found)} such events were found in {QUERY_S:g} s.",
                suggestion="Say more about what you look for, such as its session or time, or read by pages.",
            )
        return [stored(event) for event in reversed(found)]

    @method("Page", returns="page")
    async def page(
        self,
        caller: Caller,
        wanted: Filter,
        *,
        from_seq: int | None = None,
        to_seq: int | None = None,
        oldest_first: bool = False,
        limit: int = 50,
    ) -> api.EventPage:
        """The newest events that fit and have numbers from from_seq to to_seq, or with oldest_first the
        oldest; 50 unless limit says otherwise, fewer when they are large or hard to find. next_seq is where
        to go on, as to_seq, or with oldest_first as from_seq; it is 0 when there is no more.
        """
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
        events = [stored(event) for event in found if low <= event.seq <= high]
        return api.EventPage(events=events if oldest_first else events[::-1], next_seq=next_seq)

    @method("Records", returns="page")
    async def records(
        self, caller: Caller, *, from_seq: int, kinds: list[str] | None = None
    ) -> api.RecordPage:
        """What is stored from a number on, as it is stored, for programs that follow all that happens; for
        administrators. kinds: these alone, each a topic with what is below it, or a TOPIC/TYPE. It waits for
        nothing: go on at next_seq, later when that is behind head_seq.
        """
        await self._access.admit(caller, Operation.ADMINISTER)
        if not 1 <= from_seq < LAST_SEQ:
            raise InvalidArgument("from_seq is out of range.", field="from_seq")
        return await asyncio.to_thread(self._records, from_seq, kinds or ())

    def _records(self, from_seq: int, kinds: Sequence[str]) -> api.RecordPage:
        """Runs in a thread."""
        queries, head_seq, until_s = self._history.queries, self._history.head_seq, time.monotonic() + PAGE_S
        missed, behind = queries.removed(from_seq)
        before, position, found, room = 0, max(from_seq, behind), list[bytes](), PAGE_BYTES
        while room > 0 and before != position and time.monotonic() < until_s:
            before = position
            rows, position = queries.records(kinds, position, head_seq, limit_bytes=room)
            found += rows
            room -= sum(map(len, rows))
        text = b"".join(row + b"\n" for row in found).decode("utf-8", "replace")
        return api.RecordPage(records=text, next_seq=position, head_seq=head_seq, missed=missed)

    async def _what_may_be_seen(self, caller: Caller, wanted: Filter, limit: int) -> Filter:
        """The filter, narrowed to what the caller may see. Raises PermissionDenied, InvalidArgument,
        AgentNotFound.
        """
        caller = await self._access.admit(caller, Operation.INSPECT, agent=wanted.agent, viewing=True)
        check_limit(limit)
        await self._access.check_known(wanted)
        agents = await self._access.readable(caller, wanted.agent)
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
        """Up to `limit` matching events, in the order of the search, and the position to continue from, 0 for
        the end.

        Each slice runs in a thread of its own, so that the search ends when the caller hangs up. Ends early
        when the time is over, and once it has `most_bytes`; without that limit, raises MessageTooLarge for
        too much.
        """
        until_s = asyncio.get_running_loop().time() + within_s
        found: list[Event] = []
        size_bytes = 0
        while position and len(found) < limit:
            part = await asyncio.to_thread(
                self._history.queries.slice,
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

    @method("Prune", returns="pruned")
    async def prune(self, caller: Caller, *, dry_run: bool = False) -> api.Pruned:
        """Remove what the limits of the configuration ([history]) do not let stay, now; for administrators.
        With dry_run say what would go, about, and remove nothing.
        """
        await self._access.admit(caller, Operation.ADMINISTER)
        return await (self._upkeep.forecast() if dry_run else self._upkeep.prune(caller.uid))

    @method("Compact", returns="compacted")
    async def compact(self, caller: Caller) -> api.Compacted:
        """Write the file of the history anew, without its free pages; for administrators."""
        await self._access.admit(caller, Operation.ADMINISTER)
        return await self._upkeep.compact()

    @method("Verify", returns="verification")
    async def verify(
        self,
        caller: Caller,
        *,
        since_seq: int = 0,
        since_us: int = 0,
        indexes: bool = False,
        public_keys: list[str] | None = None,
        expect: list[str] | None = None,
    ) -> api.Verification:
        """Walk the hash chain, or with since_seq or since_us the part of it from the newest checkpoint before
        that event or time on. With indexes each entry of each index is looked at, too. public_keys (PEM or
        Base64) are trusted in place of the daemon's own; expect has the hashes of events that were kept
        elsewhere, each as SEQ:HASH.
        """
        await self._access.admit(caller, Operation.INSPECT)
        for name, value in (("since_seq", since_seq), ("since_us", since_us)):
            if not 0 <= value < LAST_SEQ:
                raise InvalidArgument(f"{name} is out of range.", field=name)
        given = [parsed_public(one.encode(), "What is given as public_keys") for one in public_keys or ()]
        checkpoints = self._now.checkpoints
        own = [checkpoints.key.public] if checkpoints is not None else []
        terms = Terms(
            keys={fingerprint(key): key for key in given or own} or None,
            expected=dict([self._history.head, *(known_event(one) for one in expect or ())]),
            since_seq=since_seq,
            since_us=since_us,
            indexes=indexes,
        )
        found = await asyncio.to_thread(verify, self._history.environment, terms)
        removals = [shown(api.Removal, one, states=[*one.states]) for one in found.removals]
        return shown(api.Verification, found, removals=removals)
