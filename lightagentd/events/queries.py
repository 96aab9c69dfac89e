"""Reading the history: ranges, indexes, stored state, and the verification of the chain.

`Queries` needs an open `Environment`, which a running daemon's `History` has and which `open_read_only`
opens beside it or without it. Every read is one short transaction.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from lightagentd.errors import HistoryDamaged, NotFound
from lightagentd.events.layout import EVENTS, Environment, index_prefix, seq_key
from lightagentd.events.model import GENESIS, Event, decode

BATCH = 256
"""Events that are read in one transaction while walking a range."""


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

    def wants(self, event: Event) -> bool:
        return (
            (not self.agent or event.agent == self.agent)
            and (not self.session or event.session == self.session)
            and (not self.topic or event.topic == self.topic or event.topic.startswith(self.topic + "."))
            and (not self.trace or event.trace_id == self.trace)
            and event.time_us >= self.since_us
            and (self.viewer is None or event.owner is None or event.owner == self.viewer)
        )


@dataclass(frozen=True, kw_only=True)
class Verification:
    """What `verify` found: `ok`, or the first record that is not what it was."""

    ok: bool
    events: int
    first_bad_seq: int = 0
    reason: str = ""
    head_hash: str = GENESIS


class Queries:
    """The reading half of the history."""

    environment: Environment

    def last(self) -> Event | None:
        """The newest event."""
        with self.environment.reading() as txn, txn.cursor(self.environment.db[EVENTS]) as cursor:
            return decode_stored(cursor.value()) if cursor.last() else None

    def range(self, from_seq: int = 1, limit: int = BATCH) -> list[Event]:
        """Up to `limit` events from a number on, oldest first."""
        with self.environment.reading() as txn, txn.cursor(self.environment.db[EVENTS]) as cursor:
            if not cursor.set_range(seq_key(from_seq)):
                return []
            return [decode_stored(value) for _, value in islice(cursor, limit)]

    def select(self, wanted: Filter, *, from_seq: int = 1, limit: int = 100) -> list[Event]:
        """The first `limit` events from a number on that fit, oldest first."""
        return list(islice(filter(wanted.wants, self._candidates(wanted, from_seq)), limit))

    def newest(self, wanted: Filter, limit: int = 100) -> list[Event]:
        """The newest `limit` events that fit, oldest of them first."""
        found = list(islice(filter(wanted.wants, self._backwards(wanted)), limit))
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

    def _candidates(self, wanted: Filter, from_seq: int) -> Iterator[Event]:
        index = self._index(wanted)
        while True:
            if index is not None:
                found = self._by_index(*index, from_seq=from_seq, limit=BATCH)
            else:
                found = self.range(from_seq, BATCH)
            yield from found
            if len(found) < BATCH:
                return
            from_seq = found[-1].seq + 1

    def _backwards(self, wanted: Filter) -> Iterator[Event]:
        index = self._index(wanted)
        db = self.environment.db[index[0] if index else EVENTS]
        prefix = index_prefix(index[1]) if index else b""
        upper = prefix + b"\xff" * 8
        while True:
            with self.environment.reading() as txn, txn.cursor(db) as cursor:
                placed = cursor.set_range(upper)
                placed = cursor.prev() if placed else cursor.last()
                keys: list[bytes] = []
                while placed and cursor.key().startswith(prefix) and len(keys) < BATCH:
                    keys.append(cursor.key())
                    placed = cursor.prev()
                events = self._load(txn, (key[-8:] for key in keys))
            yield from events
            if len(keys) < BATCH or events[-1].time_us < wanted.since_us - 3_600_000_000:
                return
            upper = keys[-1]

    def _by_index(self, name: str, value: str, *, from_seq: int, limit: int) -> list[Event]:
        prefix = index_prefix(value)
        with self.environment.reading() as txn, txn.cursor(self.environment.db[name]) as cursor:
            seqs: list[bytes] = []
            placed = cursor.set_range(prefix + seq_key(from_seq))
            while placed and cursor.key().startswith(prefix) and len(seqs) < limit:
                seqs.append(cursor.key()[-8:])
                placed = cursor.next()
            return self._load(txn, seqs)

    def messages(self, session: str) -> list[Event]:
        """The `agent.message` events of a session, oldest first: its conversation."""
        prefix = index_prefix(session)
        with self.environment.reading() as txn, txn.cursor(self.environment.db["by_session"]) as cursor:
            seqs: list[bytes] = []
            placed = cursor.set_range(prefix)
            while placed and cursor.key().startswith(prefix):
                if cursor.value() == b"agent.message":
                    seqs.append(cursor.key()[-8:])
                placed = cursor.next()
            return [event for event in self._load(txn, seqs) if event.data is not None]

    def _load(self, txn: Any, seqs: Iterable[bytes]) -> list[Event]:
        records = (txn.get(seq, db=self.environment.db[EVENTS]) for seq in seqs)
        return [decode_stored(record) for record in records if record is not None]

    def state(self, name: str) -> dict[str, dict[str, Any]]:
        """All of one kind of state, by key."""
        with self.environment.reading() as txn, txn.cursor(self.environment.db[name]) as cursor:
            return {key.decode(): json.loads(value) for key, value in cursor}

    def state_of(self, name: str, key: str) -> dict[str, Any]:
        """One state by its key. Raises NotFound."""
        with self.environment.reading() as txn:
            found = txn.get(key.encode(), db=self.environment.db[name])
        if found is None:
            raise NotFound(f"There is no {name} entry {key!r}.")
        value: dict[str, Any] = json.loads(found)
        return value

    def verify(self) -> Verification:
        """Walk the whole chain and name the first record that was altered, dropped, swapped or inserted."""
        prev, expected, count = GENESIS, 1, 0
        key = seq_key(0)
        while True:
            with self.environment.reading() as txn, txn.cursor(self.environment.db[EVENTS]) as cursor:
                rows = list(islice(cursor, BATCH)) if cursor.set_range(key) else []
            for found, record in rows:
                bad_seq, reason = _problem(found, record, expected, prev)
                if reason:
                    return Verification(
                        ok=False, events=count, first_bad_seq=bad_seq, reason=reason, head_hash=prev
                    )
                prev = hashlib.sha256(record.partition(b"\n")[0]).hexdigest()
                expected += 1
                count += 1
            if len(rows) < BATCH:
                return Verification(ok=True, events=count, head_hash=prev)
            key = seq_key(expected)


def _problem(key: bytes, record: bytes, expected: int, prev: str) -> tuple[int, str]:
    """The number of the record that is wrong and why; an empty reason when nothing is."""
    seq = int.from_bytes(key, "big")
    if seq != expected:
        return expected, f"event {expected} is missing: the next stored one is {seq}"
    line, _, data = record.partition(b"\n")
    try:
        header = json.loads(line)
        if header["seq"] != expected:
            return expected, f"the record at {expected} says that it is event {header['seq']}"
        if header["prev"] != prev:
            before = max(1, expected - 1)
            return before, f"event {before} was altered or replaced: event {expected} does not follow it"
        if data and hashlib.sha256(data).hexdigest() != header["data_sha256"]:
            return expected, f"the data of event {expected} was altered"
    except (ValueError, TypeError, KeyError) as err:
        return expected, f"the record at {expected} is not an event: {err}"
    return expected, ""


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
