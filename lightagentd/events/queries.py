"""Reading the history: ranges, indexes, stored state, and the verification of the chain.

`Queries` needs an open `Environment`, which a running daemon's `History` has and which `open_read_only`
opens beside it or without it. Every read is one short transaction.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from lightagentd.errors import HistoryDamaged, MessageTooLarge, NotFound
from lightagentd.events.layout import BATCH, BATCH_BYTES, EVENTS, Environment, bounded, index_prefix, seq_key
from lightagentd.events.model import Event, decode
from lightagentd.events.verification import Verification, verify

_LAST_SEQ = (1 << 64) - 1
_STEPS = 20_000
"""Keys of an index that are looked at in one transaction, about 10 ms."""
_CLOCK_SKEW_US = 3_600_000_000
"""How far the clock may have been set back for a search back in time not to end too early."""


@dataclass(frozen=True, kw_only=True)
class Filter:
    """Which events a reader wants; empty fields mean all. `topic` is an exact topic or a prefix of it."""

    agent: str = ""
    session: str = ""
    topic: str = ""
    trace: str = ""
    since_us: int = 0
    viewer: int | None = None
    """When set, events of sessions that another uid owns are left out."""
    agents: frozenset[str] | None = None
    """When set, events about other agents are left out."""

    def wants(self, event: Event) -> bool:
        return (
            (not self.agent or event.agent == self.agent)
            and (not self.session or event.session == self.session)
            and (not self.topic or event.topic == self.topic or event.topic.startswith(self.topic + "."))
            and (not self.trace or event.trace_id == self.trace)
            and event.time_us >= self.since_us
            and (self.viewer is None or event.owner is None or event.owner == self.viewer)
            and (self.agents is None or not event.agent or event.agent in self.agents)
        )


class Queries:
    """The reading half of the history."""

    environment: Environment

    def last(self) -> Event | None:
        """The newest event."""
        with self.environment.reading() as txn, txn.cursor(self.environment.db[EVENTS]) as cursor:
            return decode_stored(cursor.value()) if cursor.last() else None

    def agents(self) -> list[str]:
        """Every agent that an event is about."""
        found: list[str] = []
        with self.environment.reading() as txn, txn.cursor(self.environment.db["by_agent"]) as cursor:
            placed = cursor.first()
            while placed:
                name = cursor.key()[:-9]  # without the zero byte and the number
                found.append(name.decode("utf-8", "replace"))
                placed = cursor.set_range(name + b"\x01")  # behind all of this agent's
        return found

    def range(self, from_seq: int = 1, limit: int = BATCH) -> list[Event]:
        """Up to `limit` events from a number on, oldest first; fewer when they are large. None are left when
        the list is empty.
        """
        with self.environment.reading() as txn, txn.cursor(self.environment.db[EVENTS]) as cursor:
            if not cursor.set_range(seq_key(from_seq)):
                return []
            return [decode_stored(value) for _, value in bounded(islice(cursor, limit))]

    def select(self, wanted: Filter, *, from_seq: int = 1, limit: int = 100) -> list[Event]:
        """The first `limit` events from a number on that fit, oldest first."""
        return list(islice(filter(wanted.wants, self._candidates(wanted, from_seq, limit)), limit))

    def newest(self, wanted: Filter, limit: int = 100, *, most_bytes: int = 0) -> list[Event]:
        """The newest `limit` events that fit, oldest of them first.

        Raises MessageTooLarge when they have more than `most_bytes`, if that is given.
        """
        found: list[Event] = []
        size_bytes = 0
        for event, event_bytes in self._backwards(wanted):
            if wanted.wants(event):
                size_bytes += event_bytes
                _check_bytes("The events", size_bytes, most_bytes)
                found.append(event)
                if len(found) >= limit:
                    break
        found.reverse()
        return found

    def _index(self, wanted: Filter) -> tuple[str, str] | None:
        """The narrowest index for a filter and the value to look for; topics are prefixes and have none."""
        for name, value in (
            ("by_trace", wanted.trace),
            ("by_session", wanted.session),
            ("by_agent", wanted.agent),
        ):
            if value:
                return name, value
        return None

    def _candidates(self, wanted: Filter, from_seq: int, limit: int) -> Iterator[Event]:
        index = self._index(wanted)
        batch = min(BATCH, max(16, limit))
        while True:
            if index is not None:
                found = self._by_index(*index, from_seq=from_seq, limit=batch)
            else:
                found = self.range(from_seq, batch)
            if not found:
                return
            yield from found
            from_seq = found[-1].seq + 1

    def _backwards(self, wanted: Filter) -> Iterator[tuple[Event, int]]:
        """Each event with the size of its record."""
        index = self._index(wanted)
        db = self.environment.db[index[0] if index else EVENTS]
        prefix = index_prefix(index[1]) if index else b""
        upper = prefix + b"\xff" * 8
        while True:
            with self.environment.reading() as txn, txn.cursor(db) as cursor:
                placed = cursor.set_range(upper)
                placed = cursor.prev() if placed else cursor.last()
                rows = self._batch(txn, cursor, prefix, placed, cursor.prev, BATCH)
            events = [(decode_stored(record), len(record)) for _, record in rows]
            yield from events
            if not events or events[-1][0].time_us < wanted.since_us - _CLOCK_SKEW_US:
                return
            upper = rows[-1][0]

    def _by_index(self, name: str, value: str, *, from_seq: int, limit: int) -> list[Event]:
        prefix = index_prefix(value)
        with self.environment.reading() as txn, txn.cursor(self.environment.db[name]) as cursor:
            placed = cursor.set_range(prefix + seq_key(from_seq))
            rows = self._batch(txn, cursor, prefix, placed, cursor.next, limit)
        return [decode_stored(record) for _, record in rows]

    def _batch(
        self, txn: Any, cursor: Any, prefix: bytes, placed: bool, move: Callable[[], bool], limit: int
    ) -> list[tuple[bytes, bytes]]:
        """Keys with a prefix and the records that their last 8 bytes name, from where the cursor stands."""

        def rows() -> Iterator[tuple[bytes, bytes]]:
            found = placed
            while found and cursor.key().startswith(prefix):
                record = txn.get(cursor.key()[-8:], db=self.environment.db[EVENTS])
                if record is not None:
                    yield cursor.key(), record
                found = move()

        return list(bounded(islice(rows(), limit)))

    def of_topic(self, topic: str, wanted: Filter, limit: int) -> list[Event]:
        """The newest events of exactly this topic that fit, newest first."""
        return list(islice(filter(wanted.wants, self._topic_backwards(topic)), limit))

    def find_in_topic(self, topic: str, fits: Callable[[Event], bool]) -> Event | None:
        """The newest event of exactly this topic that fits, however old it is."""
        return next(filter(fits, self._topic_backwards(topic)), None)

    def _topic_backwards(self, topic: str) -> Iterator[Event]:
        prefix = index_prefix(topic)
        upper = prefix + b"\xff" * 8
        while True:
            with (
                self.environment.reading() as txn,
                txn.cursor(self.environment.db["by_topic"]) as cursor,
            ):
                placed = cursor.prev() if cursor.set_range(upper) else cursor.last()
                rows = self._batch(txn, cursor, prefix, placed, cursor.prev, BATCH)
            yield from (decode_stored(record) for _, record in rows)
            if not rows:
                return
            upper = rows[-1][0]

    def messages(
        self, session: str, from_seq: int = 0, *, to_seq: int = _LAST_SEQ, most_bytes: int = 0
    ) -> list[Event]:
        """The `agent.message` events of a session from a number on, oldest first: its conversation.

        Raises MessageTooLarge when those have more than `most_bytes`, if that is given. They are read some
        at a time, since whoever reads keeps others from it.
        """
        found: list[Event] = []
        size_bytes, position, last = 0, seq_key(from_seq), seq_key(to_seq)
        while position and position <= last:
            records, position = self._some_messages(index_prefix(session), position, last)
            size_bytes += sum(map(len, records))
            _check_bytes(f"The messages of the session {session}", size_bytes, most_bytes)
            found += map(decode_stored, records)
        return [event for event in found if event.session == session and event.data is not None]

    def _some_messages(self, prefix: bytes, position: bytes, last: bytes) -> tuple[list[bytes], bytes]:
        """Some records of messages, and the position behind them, which is empty when there are no more."""
        end = prefix + last
        records: list[bytes] = []
        size_bytes = 0
        with self.environment.reading() as txn, txn.cursor(self.environment.db["by_session"]) as cursor:
            placed = cursor.set_range(prefix + position)
            for _ in range(_STEPS):
                if not placed or cursor.key() > end:
                    return records, b""
                if cursor.value() == b"agent.message":
                    record = txn.get(cursor.key()[-8:], db=self.environment.db[EVENTS])
                    if record is not None:
                        records.append(record)
                        size_bytes += len(record)
                placed = cursor.next()
                if size_bytes >= BATCH_BYTES:
                    break
            return records, cursor.key()[-8:] if placed and cursor.key() <= end else b""

    def newest_messages(self, session: str, limit: int, *, most_bytes: int = 0) -> list[Event]:
        """The newest of a session's messages, oldest of them first; the others are not read.

        Raises MessageTooLarge when they have more than `most_bytes`, if that is given.
        """
        prefix = index_prefix(session)
        found: list[Event] = []
        size_bytes = 0
        with self.environment.reading() as txn, txn.cursor(self.environment.db["by_session"]) as cursor:
            placed = cursor.prev() if cursor.set_range(prefix + b"\xff" * 8) else cursor.last()
            while placed and len(found) < limit and cursor.key().startswith(prefix):
                if cursor.value() == b"agent.message":
                    record = txn.get(cursor.key()[-8:], db=self.environment.db[EVENTS])
                    size_bytes += len(record or b"")
                    _check_bytes(f"The messages of the session {session}", size_bytes, most_bytes)
                    event = decode_stored(record) if record is not None else None
                    if event is not None and event.session == session and event.data is not None:
                        found.append(event)
                placed = cursor.prev()
        found.reverse()
        return found

    def state(self, name: str) -> dict[str, dict[str, Any]]:
        """All of one kind of state, by key."""
        return self.state_below(name, "")

    def state_below(self, name: str, prefix: str) -> dict[str, dict[str, Any]]:
        """One kind of state, by key, of the keys that begin with a prefix."""
        if name not in self.environment.db:
            return {}
        start = prefix.encode()
        found: list[tuple[bytes, bytes]] = []
        with self.environment.reading() as txn, txn.cursor(self.environment.db[name]) as cursor:
            placed = cursor.set_range(start)
            while placed and cursor.key().startswith(start):
                found.append((cursor.key(), cursor.value()))
                placed = cursor.next()
        return {key.decode(): json.loads(value) for key, value in found}

    def state_of(self, name: str, key: str) -> dict[str, Any]:
        """One state by its key. Raises NotFound."""
        found = None
        if key and name in self.environment.db:
            with self.environment.reading() as txn:
                found = txn.get(key.encode(), db=self.environment.db[name])
        if found is None:
            raise NotFound(f"There is no {name} entry {key!r}.")
        value: dict[str, Any] = json.loads(found)
        return value

    def verify(self) -> Verification:
        """Walk the whole chain and name the first record that was altered, dropped, swapped or inserted."""
        return verify(self.environment)


def _check_bytes(what: str, size_bytes: int, most_bytes: int) -> None:
    if most_bytes and size_bytes > most_bytes:
        raise MessageTooLarge(
            f"{what} have more than {most_bytes >> 20} MiB.",
            suggestion="Ask for fewer of them at once, or fork a part of the session.",
        )


def decode_stored(record: bytes) -> Event:
    """`decode`, for bytes that must be good because this program stored them. Raises HistoryDamaged."""
    try:
        return decode(record)
    except ValueError as err:
        raise HistoryDamaged(
            f"A stored event cannot be read: {err}", suggestion="Run: lactl audit verify"
        ) from err


class StoredHistory(Queries):
    """A history that is only read: beside a running daemon, or while none runs."""

    def __init__(self, path: Path) -> None:
        self.environment = Environment(path, read_only=True)

    def close(self) -> None:
        self.environment.close()
