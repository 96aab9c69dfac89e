"""Reads the history: ranges, indexes and stored state.

`Queries` reads an open `Environment`: that of a running daemon's `History`, or of a `StoredHistory`, with or
without a running daemon. Every read is one short transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from lightagentd.errors import MessageTooLarge, NotFound
from lightagentd.events.filter import Filter
from lightagentd.events.model import Event
from lightagentd.events.store import clock, states
from lightagentd.events.store.layout import (
    BATCH,
    BATCH_BYTES,
    EVENTS,
    Environment,
    ascending,
    bounded,
    descending,
    index_prefix,
    seq_key,
)
from lightagentd.events.store.search import LAST_SEQ, Slice, decode_stored, read_records, read_slice

_STEPS = 20_000
"""Keys of an index that are looked at in one transaction, about 10 ms."""


class Queries:
    """Reads an environment at any time, in any thread; whoever opened the environment closes it."""

    def __init__(self, environment: Environment) -> None:
        self.environment = environment

    def last(self) -> Event | None:
        """The newest event."""
        with self.environment.reading() as txn, txn.cursor(self.environment.db[EVENTS]) as cursor:
            return decode_stored(cursor.value()) if cursor.last() else None

    def stored_head(self) -> tuple[int, str]:
        """Number and hash of the newest event of the chain, or of the anchor when the chain is empty."""
        last, anchor = self.last(), self.environment.anchor()
        return (last.seq, last.hash) if last is not None and last.seq > anchor[0] else anchor

    def agents(self) -> list[str]:
        """Every agent that has events."""
        found: list[str] = []
        with self.environment.reading() as txn, txn.cursor(self.environment.db["by_agent"]) as cursor:
            placed = cursor.first()
            while placed:
                name = cursor.key()[:-9]  # without the zero byte and the number
                found.append(name.decode("utf-8", "replace"))
                placed = cursor.set_range(name + b"\x01")  # after all of this agent's entries
        return found

    def range(self, from_seq: int = 1, limit: int = BATCH) -> list[Event]:
        """Up to `limit` events from a number on, oldest first; fewer when they are large. An empty list means
        the end.
        """
        with self.environment.reading() as txn, txn.cursor(self.environment.db[EVENTS]) as cursor:
            if not cursor.set_range(seq_key(from_seq)):
                return []
            return [decode_stored(value) for _, value in bounded(islice(cursor, limit))]

    def select(self, wanted: Filter, *, from_seq: int = 1, limit: int = 100) -> list[Event]:
        """The first `limit` matching events from a number on, oldest first."""
        found = self._all(wanted, from_seq, limit, backwards=False)
        return [event for event, _ in islice(found, limit)]

    def newest(self, wanted: Filter, limit: int = 100, *, most_bytes: int = 0) -> list[Event]:
        """The newest `limit` matching events, oldest of them first.

        Raises MessageTooLarge when they have more than `most_bytes`, if that is given.
        """
        found: list[Event] = []
        size_bytes = 0
        for event, event_bytes in islice(self._all(wanted, LAST_SEQ, limit, backwards=True), limit):
            size_bytes += event_bytes
            check_bytes("The events", size_bytes, most_bytes)
            found.append(event)
        found.reverse()
        return found

    def slice(
        self,
        wanted: Filter,
        from_seq: int,
        *,
        limit: int = BATCH,
        limit_bytes: int = BATCH_BYTES,
        backwards: bool = False,
    ) -> Slice:
        """Some matching events from a number on, upwards or backwards, in a bounded time."""
        return read_slice(
            self.environment, wanted, from_seq, limit=limit, limit_bytes=limit_bytes, backwards=backwards
        )

    def records(
        self, kinds: Collection[str], from_seq: int, last_seq: int, *, limit_bytes: int
    ) -> tuple[list[bytes], int]:
        """The stored bytes of some events of these kinds, and the next number: `search.read_records`."""
        return read_records(self.environment, kinds, from_seq, last_seq, limit_bytes=limit_bytes)

    def removed(self, first_seq: int) -> tuple[int, int]:
        """How many events from a number on retention has removed, and the first number behind them: (0, 0)
        for none.
        """
        anchor_seq, _ = self.environment.anchor()
        if first_seq > anchor_seq:
            return 0, 0
        return anchor_seq + 1 - first_seq - self.count(first_seq, anchor_seq), anchor_seq + 1

    def first_seq(self, wanted: Filter) -> int:
        """The first number that an event of that time can have; 0 if unknown."""
        with self.environment.reading() as txn:
            return clock.bounds(self.environment, txn, wanted.since_us, 0)[0]

    def count(self, first_seq: int, last_seq: int) -> int:
        """How many of these numbers have a stored event."""
        count, position = 0, first_seq
        while position <= last_seq:
            with self.environment.reading() as txn, txn.cursor(self.environment.db[EVENTS]) as cursor:
                found = cursor.set_range(seq_key(position))
                keys = list(islice(cursor.iternext(values=False), _STEPS)) if found else []
            count += sum(int.from_bytes(key) <= last_seq for key in keys)
            position = int.from_bytes(keys[-1]) + 1 if keys else last_seq + 1
        return count

    def _all(
        self, wanted: Filter, position: int, limit: int, *, backwards: bool
    ) -> Iterator[tuple[Event, int]]:
        """Each matching event with the size of its record; `limit` is the probable number of requested
        events.
        """
        batch = min(BATCH, max(16, limit))
        while position:
            found = self.slice(wanted, position, limit=batch, backwards=backwards)
            yield from found.events
            position = found.next_seq

    def of_topic(self, topic: str, wanted: Filter, limit: int) -> list[Event]:
        """The newest matching events of exactly this topic, newest first."""
        return list(islice(filter(wanted.wants, self._topic_backwards(topic)), limit))

    def find_in_topic(self, topic: str, fits: Callable[[Event], bool]) -> Event | None:
        """The newest matching event of exactly this topic, however old it is."""
        return next(filter(fits, self._topic_backwards(topic)), None)

    def _topic_backwards(self, topic: str) -> Iterator[Event]:
        db, before = self.environment.db, b"\xff" * 8
        while before:
            with self.environment.reading() as txn:
                keys = descending(txn, db["by_topic"], index_prefix(topic), before)
                records = ((key[-8:], txn.get(key[-8:], db=db[EVENTS])) for key, _ in keys)
                rows = list(bounded(islice((row for row in records if row[1] is not None), BATCH)))
            yield from (decode_stored(record) for _, record in rows)
            before = rows[-1][0] if rows else b""

    def messages(
        self, session: str, from_seq: int = 0, *, to_seq: int = LAST_SEQ, most_bytes: int = 0
    ) -> list[Event]:
        """The `agent.message` events of a session from a number on, oldest first: its conversation.

        Raises MessageTooLarge when they have more than `most_bytes`, if that is given. They are read in
        batches, since a read blocks others.
        """
        found: list[Event] = []
        size_bytes, position, last = 0, seq_key(from_seq), seq_key(to_seq)
        while position and position <= last:
            records, position = self._some_messages(index_prefix(session), position, last)
            size_bytes += sum(map(len, records))
            check_bytes(f"The messages of the session {session}", size_bytes, most_bytes)
            found += map(decode_stored, records)
        return [event for event in found if event.session == session and event.data is not None]

    def _some_messages(self, prefix: bytes, position: bytes, last: bytes) -> tuple[list[bytes], bytes]:
        """A batch of message records, and the next position, which is empty at the end."""
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
        """The newest of a session's messages, oldest of them first; older ones are not read.

        Raises MessageTooLarge when they have more than `most_bytes`, if that is given.
        """
        db, found, size_bytes = self.environment.db, list[Event](), 0
        with self.environment.reading() as txn:
            for key, topic in descending(txn, db["by_session"], index_prefix(session)):
                if len(found) >= limit:
                    break
                if topic != b"agent.message" or (record := txn.get(key[-8:], db=db[EVENTS])) is None:
                    continue
                size_bytes += len(record)
                check_bytes(f"The messages of the session {session}", size_bytes, most_bytes)
                event = decode_stored(record)
                if event.session == session and event.data is not None:
                    found.append(event)
        found.reverse()
        return found

    def state(self, name: str, prefix: str = "") -> dict[str, dict[str, Any]]:
        """The entries of one kind of state whose keys begin with a prefix, by key."""
        if name not in self.environment.db:
            return {}
        with self.environment.reading() as txn:
            found = list(ascending(txn, self.environment.db[name], prefix.encode()))
        return dict(states.entry(name, key, value) for key, value in found)

    def state_of(self, name: str, key: str) -> dict[str, Any]:
        """One state by its key. Raises NotFound."""
        found = None
        if key and name in self.environment.db:
            with self.environment.reading() as txn:
                found = txn.get(key.encode(), db=self.environment.db[name])
        if found is None:
            raise NotFound(f"There is no {name} entry {key!r}.")
        return states.entry(name, key.encode(), found)[1]


def check_bytes(what: str, size_bytes: int, most_bytes: int) -> None:
    """Raises MessageTooLarge; `most_bytes` 0 allows any size."""
    if most_bytes and size_bytes > most_bytes:
        raise MessageTooLarge(
            f"{what} have more than {most_bytes >> 20} MiB.",
            suggestion="Ask for fewer of them at once, or fork a part of the session.",
        )


class StoredHistory:
    """A read-only history, with or without a running daemon."""

    def __init__(self, path: Path) -> None:
        self.environment = Environment(path, read_only=True)
        self.queries = Queries(self.environment)

    def close(self) -> None:
        self.environment.close()


__all__ = ["Filter", "Queries", "StoredHistory", "decode_stored"]
