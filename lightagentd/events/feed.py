"""Follows the history: stored events from a number on, then each new one, without gaps or duplicates.

A follower holds a position. It reads the store from there, by the indexes, until it has seen all events; then
it takes new events from its subscription, already decoded, without reading the store. A follower that falls
behind that bounded queue goes back to the store. So a slow follower costs little memory and delays nobody. It
misses only events that retention removed meanwhile, and those that `max_lag` lets it skip; a `Missed` gives
their number.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from lightagentd.events.filter import Filter
from lightagentd.events.history import History
from lightagentd.events.model import Event
from lightagentd.events.store.search import Slice
from lightagentd.events.subscriptions import Overflow, Subscription, Subscriptions

_SLICE = 128
_SLICE_BYTES = 256 << 10
"""What a follower holds of the store at once."""


@dataclass(frozen=True, kw_only=True)
class Missed:
    """Events that a follower did not get: `count` of those from `first_seq` on. Delivery continues at
    `from_seq`. They are counted even if they would not have matched its filter.
    """

    count: int
    first_seq: int
    from_seq: int


class Feed:
    """Follows the events of `subscriptions`. The daemon has one."""

    def __init__(self, subscriptions: Subscriptions) -> None:
        self._subscriptions = subscriptions
        self.followers = 0

    def close(self) -> None:
        """End every `follow`, after the stored events."""
        self._subscriptions.close()

    async def follow(
        self,
        history: History,
        wanted: Filter,
        from_seq: int,
        last_seq: int | None = None,
        *,
        max_lag: int = 0,
    ) -> AsyncGenerator[Event | Missed, None]:
        """The stored events from a number on that match, up to `last_seq`; without it each new one too, until
        the feed is closed. With `max_lag`, a follower that is more than so many events behind skips to half
        as many before the newest.
        """
        follower = _Follower(history, wanted, from_seq, last_seq, max_lag)
        self.followers += 1
        try:
            with self._subscribe(wanted) as live:
                while True:
                    ended = live.closed or last_seq is not None
                    lost_from = live.resume()
                    if not live.closed:  # otherwise older events of that queue were not taken
                        follower.position = max(follower.position, lost_from)
                    async for item in follower.stored():
                        yield item
                    if ended:
                        return
                    async for item in follower.live(live):
                        yield item
        finally:
            self.followers -= 1

    def _subscribe(self, wanted: Filter) -> Subscription:
        topics = wanted.topics()
        prefix = topics[0] if len(topics) == 1 else ""
        return self._subscriptions.subscribe(
            session=wanted.session, prefix=prefix, fits=wanted.wants, overflow=Overflow.MARK
        )


class _Follower:
    """One follower. `position` is the first number that it has not seen."""

    def __init__(
        self, history: History, wanted: Filter, from_seq: int, last_seq: int | None, max_lag: int
    ) -> None:
        self.position = max(1, from_seq)
        self._history, self._wanted, self._last_seq, self._max_lag = history, wanted, last_seq, max_lag
        self._notified_seq = 0
        """It was told of what retention removed up to here."""

    async def stored(self) -> AsyncGenerator[Event | Missed, None]:
        """Stored events, until the end of the store."""
        while self._last_seq is None or self.position <= self._last_seq:
            if (late := self._late()) is not None:
                yield late
            head_seq = self._history.head_seq
            missed, found = await asyncio.to_thread(self._read)
            if missed is not None:
                self._notified_seq = missed.from_seq - 1
                yield missed
            waiting = deque(event for event, _ in found.events)
            del found.events[:]
            while waiting:
                event = waiting.popleft()
                if self._last_seq is not None and event.seq > self._last_seq:
                    return
                if (late := self._late(event.seq)) is not None:
                    yield late
                    break
                self.position = event.seq + 1
                yield event
            else:
                self.position = max(self.position, found.next_seq or head_seq + 1)
                if not found.next_seq:
                    return

    async def live(self, subscription: Subscription) -> AsyncGenerator[Event | Missed, None]:
        """New events, until the store must be read again."""
        while True:
            await subscription.wait()
            event = subscription.take()
            if event is None or subscription.closed:
                return
            if event.seq < self.position:
                continue
            if (late := self._late(event.seq)) is not None:
                yield late
                continue
            self.position = event.seq + 1
            yield event

    def _late(self, seq: int = 0) -> Missed | None:
        """The skipped events, from the position or a later number on."""
        first_seq = max(self.position, seq)
        head_seq = self._history.head_seq
        if not self._max_lag or head_seq - first_seq < self._max_lag:
            return None
        self.position = head_seq + 1 - (self._max_lag + 1) // 2
        return Missed(count=self.position - first_seq, first_seq=first_seq, from_seq=self.position)

    def _read(self) -> tuple[Missed | None, Slice]:
        """Read some stored events, and find those that retention removed before them. Runs in a thread."""
        self.position = max(self.position, self._history.queries.first_seq(self._wanted))
        first_seq = max(self.position, self._notified_seq + 1)
        missed = None
        removed, from_seq = self._history.queries.removed(first_seq)
        if from_seq:
            missed = Missed(count=removed, first_seq=first_seq, from_seq=from_seq)
        found = self._history.queries.slice(
            self._wanted, self.position, limit=_SLICE, limit_bytes=_SLICE_BYTES
        )
        return missed, found
