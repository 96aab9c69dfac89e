"""The daemon's internal bus: delivers stored events to subscribers, in the loop's thread.

`Subscriptions` belongs to the daemon. The history's thread calls `publish` once for each commit, which
crosses to the loop once. A `Subscription` is about one topic, all topics below one, one session, or
everything, and its queue is bounded in events and in bytes. The subscriber chooses what happens when the
queue is full (`Overflow`), and lost events are counted: a slow subscriber delays neither others nor the
history. A subscriber that must not lose events reads the history from `lost_from` on (see `feed`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from enum import StrEnum
from typing import Any

from lightagentd.events.model import Event

LIMIT = 128
LIMIT_BYTES = 128 << 10
"""What a subscription holds unless it says otherwise; bytes are those of the text in the events' data."""
_EVENT_BYTES = 512
"""What an event counts for beside its data."""


class Overflow(StrEnum):
    """What happens to an event that does not fit into a queue."""

    DROP_NEWEST = "drop_newest"
    """It is lost: for who wants to know how something began."""
    DROP_OLDEST = "drop_oldest"
    """It takes the place of the oldest: for who wants to know how things are now."""
    MARK = "mark"
    """It and all after it are lost, until the subscriber has read the history and says so (`resume`)."""


class Subscription:
    """One subscriber's queue. Iterate over it, or `wait` and `take`; `close` it at the end."""

    def __init__(
        self,
        owner: Subscriptions,
        place: tuple[str, str],
        fits: Callable[[Event], bool] | None,
        limit: int,
        limit_bytes: int,
        overflow: Overflow,
    ) -> None:
        self.overflow = overflow
        self.dropped = 0
        """How many events it has lost."""
        self.lost_from = 0
        """The number of the first event that it has lost since `resume`; 0 for none."""
        self.closed = False
        self._owner, self.place, self._fits = owner, place, fits
        self._limit, self._limit_bytes = limit, limit_bytes
        self._queue: deque[tuple[Event, int]] = deque()
        self._size_bytes = 0
        self._changed = asyncio.Event()

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Take no more events. A waiting reader gets the queued events, and then the end."""
        self.closed = True
        self._owner.remove(self)
        self._changed.set()

    def __len__(self) -> int:
        return len(self._queue)

    def offer(self, event: Event, size_bytes: int) -> None:
        """Queue an event, if it is wanted and there is room."""
        if self._fits is not None and not self._fits(event):
            return
        if self._is_marked:
            self._lose(event)
            return
        while self._is_full(size_bytes):
            if self.overflow is not Overflow.DROP_OLDEST:
                self._lose(event)
                return
            oldest, oldest_bytes = self._queue.popleft()
            self._size_bytes -= oldest_bytes
            self._lose(oldest)
        self._queue.append((event, size_bytes))
        self._size_bytes += size_bytes
        self._changed.set()

    def _is_full(self, size_bytes: int) -> bool:
        if len(self._queue) >= self._limit:
            return True
        may_be_alone = self.overflow is not Overflow.MARK and not self._queue
        return self._size_bytes + size_bytes > self._limit_bytes and not may_be_alone

    def _lose(self, event: Event) -> None:
        self.dropped += 1
        self._owner.dropped += 1
        self.lost_from = self.lost_from or event.seq
        self._changed.set()

    def resume(self) -> int:
        """Queue events again. Returns the number of the first event lost meanwhile, 0 for none."""
        lost_from, self.lost_from = self.lost_from, 0
        return lost_from

    def take(self) -> Event | None:
        """The oldest event in the queue."""
        if not self._queue:
            return None
        event, size_bytes = self._queue.popleft()
        self._size_bytes -= size_bytes
        return event

    async def wait(self) -> None:
        """Wait until there is an event to take, an event was lost with MARK, or it is closed."""
        while not self._queue and not self.closed and not self._is_marked:
            self._changed.clear()
            await self._changed.wait()

    @property
    def _is_marked(self) -> bool:
        return self.overflow is Overflow.MARK and bool(self.lost_from)

    async def __aiter__(self) -> AsyncIterator[Event]:
        """The events as they come, until it is closed, or with MARK until an event is lost."""
        while True:
            await self.wait()
            event = self.take()
            if event is None:
                return
            yield event


class Subscriptions:
    """All subscriptions. Made in the loop that delivers."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.dropped = 0
        """How many events all subscriptions together have lost, those that were resumed too."""
        self.closed = False
        self._loop = loop
        self._by_place: dict[tuple[str, str], dict[Subscription, None]] = {}

    def subscribe(
        self,
        *,
        topic: str = "",
        prefix: str = "",
        session: str = "",
        fits: Callable[[Event], bool] | None = None,
        limit: int = LIMIT,
        limit_bytes: int = LIMIT_BYTES,
        overflow: Overflow = Overflow.DROP_OLDEST,
    ) -> Subscription:
        """Queue events from now on: all, or those of exactly this `topic`, of the topic `prefix` and those
        below it, or of a session; `fits` narrows them further. An event larger than `limit_bytes` fits into
        an empty queue, but with MARK it is lost, since it can be read from the history.
        """
        place = _place(topic, prefix, session)
        found = Subscription(self, place, fits, limit, limit_bytes, overflow)
        if self.closed:
            found.closed = True
        else:
            self._by_place.setdefault(place, {})[found] = None
        return found

    def remove(self, subscription: Subscription) -> None:
        there = self._by_place.get(subscription.place, {})
        there.pop(subscription, None)
        if not there:
            self._by_place.pop(subscription.place, None)

    def __len__(self) -> int:
        return sum(map(len, self._by_place.values()))

    def __iter__(self) -> Iterator[Subscription]:
        return iter([one for there in self._by_place.values() for one in there])

    def publish(self, events: Sequence[Event]) -> None:
        """Deliver newly stored events. May be called in any thread."""
        # A subscriber that comes after this check reads the history later, and finds the events there.
        if self._by_place:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                self._loop.call_soon_threadsafe(self._deliver, events)

    def _deliver(self, events: Sequence[Event]) -> None:
        for event in events:
            wanting = [there for place in _places(event) if (there := self._by_place.get(place))]
            if wanting:
                size_bytes = _EVENT_BYTES + _text_bytes(event.data)
                for there in wanting:
                    for subscription in there:
                        subscription.offer(event, size_bytes)

    def close(self) -> None:
        """End all subscriptions, after their queued events."""
        self.closed = True
        for there in list(self._by_place.values()):
            for subscription in list(there):
                subscription.close()


def _place(topic: str, prefix: str, session: str) -> tuple[str, str]:
    for kind, name in (("session", session), ("topic", topic)):
        if name:
            return kind, name
    return "prefix", prefix


def _places(event: Event) -> Iterator[tuple[str, str]]:
    """All keys under which subscribers of an event are registered."""
    yield "prefix", ""
    yield "topic", event.topic
    if event.session:
        yield "session", event.session
    end = len(event.topic)
    while end > 0:
        yield "prefix", event.topic[:end]
        end = event.topic.rfind(".", 0, end)


def _text_bytes(value: Any) -> int:
    """About how much memory a value of JSON takes."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(len(key) + 64 + _text_bytes(inner) for key, inner in value.items())
    if isinstance(value, list | tuple):
        return sum(16 + _text_bytes(inner) for inner in value)
    return 16
