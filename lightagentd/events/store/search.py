"""Finds the events that match a filter, by the indexes, a slice at a time.

Each index that the filter names gives an ascending list of event numbers (a topic with its subtopics: several
lists, merged). Their intersection is found by a leapfrog join (Veldhuizen, arXiv:1210.0481): each list is
asked in turn for its next number that is not before the largest seen so far, until all agree. So the shortest
list bounds the work, and no list is read whole. Where no index helps (a text, a store without `by_field`),
records are read one by one and their bytes are tested first.

Events are ordered by number and not by time, because a clock may be set back. `clock` knows the largest step
back, and derives the possible numbers of a time from it.

A slice holds the store's gate and a read transaction for some milliseconds, reads a bounded number of bytes,
and returns the position of the next slice, however little it found.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from lightagentd.errors import HistoryDamaged
from lightagentd.events.filter import Filter
from lightagentd.events.model import Event, decode
from lightagentd.events.store import clock
from lightagentd.events.store.clock import LAST_SEQ
from lightagentd.events.store.layout import (
    BATCH_BYTES,
    EVENTS,
    Environment,
    field_prefix,
    index_prefix,
    seq_key,
)

SLICE_S = 0.008
"""How long a slice reads."""
_LOOK_EVERY = 64
"""How many steps are made between two looks at the clock."""
_MOST_TOPICS = 256
"""When more topics are below a wanted one (tools make some of their own), their index does not help."""
_NAMED_BYTES = 256
"""So much of a value is in an index key (`layout.index_prefix`)."""
_NONE = -1


@dataclass(frozen=True, kw_only=True)
class Slice:
    """Events with the sizes of their records, in the order of the search, and the next position, 0 for the
    end.
    """

    events: list[tuple[Event, int]]
    next_seq: int


class _List:
    """The ascending numbers under one prefix of an index, or of all records."""

    def __init__(self, cursor: Any, prefix: bytes, *, backwards: bool) -> None:
        self.cursor, self._prefix, self._backwards = cursor, prefix, backwards
        self._at = _NONE

    def seek(self, seq: int) -> int:
        """The first number that is not before `seq` in the direction of the search; _NONE when there is none.

        Successive calls must go on in that direction.
        """
        if self._backwards:
            if _NONE < self._at <= seq:
                return self._at
            placed = (self._at != _NONE and self._step(self.cursor.prev(), seq)) or self._down(seq)
        else:
            if self._at >= seq:
                return self._at
            placed = (self._at != _NONE and self._step(self.cursor.next(), seq)) or self.cursor.set_range(
                self._prefix + seq_key(seq)
            )
        key = self.cursor.key() if placed else b""
        self._at = int.from_bytes(key[-8:]) if placed and key.startswith(self._prefix) else _NONE
        return self._at

    def _step(self, placed: bool, seq: int) -> bool:
        """Whether the neighbour is the wanted entry, which is cheaper than a search in the tree."""
        if not placed or not (key := self.cursor.key()).startswith(self._prefix):
            return False
        found = int.from_bytes(key[-8:])
        return found <= seq if self._backwards else found >= seq

    def _down(self, seq: int) -> bool:
        if self.cursor.set_range(self._prefix + seq_key(seq)):
            return self.cursor.key() == self._prefix + seq_key(seq) or bool(self.cursor.prev())
        return bool(self.cursor.last())


class _Union:
    """Several lists as one."""

    def __init__(self, lists: Sequence[_List], *, backwards: bool) -> None:
        self._lists, self._best = lists, max if backwards else min

    def seek(self, seq: int) -> int:
        return self._best((at for one in self._lists if (at := one.seek(seq)) != _NONE), default=_NONE)


class _Budget:
    """How long a slice may go on."""

    def __init__(self) -> None:
        self._until_s = time.monotonic() + SLICE_S
        self._steps = 0
        self.size_bytes = 0

    def is_spent(self) -> bool:
        """Called at each step."""
        self._steps += 1
        if self.size_bytes >= BATCH_BYTES:
            return True
        return self._steps % _LOOK_EVERY == 0 and time.monotonic() >= self._until_s


def read_slice(
    environment: Environment,
    wanted: Filter,
    from_seq: int,
    *,
    limit: int,
    limit_bytes: int = BATCH_BYTES,
    backwards: bool = False,
) -> Slice:
    """Up to `limit` matching events from a number on, upwards or backwards, and no more once they have
    `limit_bytes`. Each call advances, even if it finds nothing.
    """
    test = wanted.byte_test()
    rows: list[bytes] = []
    size_bytes = 0
    with environment.reading() as txn:
        low, high = clock.bounds(environment, txn, wanted.since_us, wanted.until_us)
        at = min(from_seq, high) if backwards else max(from_seq, low, 1)
        terms = _terms(environment, txn, wanted, backwards=backwards)
        budget = _Budget()
        next_seq = 0
        while low <= at <= high and at > 0:
            found, agreed = _leap(terms, at, budget)
            if found == _NONE or not low <= found <= high:
                break
            at = found
            if agreed:
                record = txn.get(seq_key(found), db=environment.db[EVENTS])
                at = found - 1 if backwards else found + 1
                if record is not None:  # retention may have removed it
                    budget.size_bytes += len(record)
                    if test(record):
                        rows.append(record)
                        size_bytes += len(record)
            if len(rows) >= limit or size_bytes >= limit_bytes or budget.is_spent() or not agreed:
                next_seq = at if low <= at <= high else 0
                break
    decoded = [(decode_stored(record), len(record)) for record in rows]
    return Slice(events=[row for row in decoded if wanted.wants(row[0])], next_seq=next_seq)


def read_records(
    environment: Environment, kinds: Collection[str], from_seq: int, last_seq: int, *, limit_bytes: int
) -> tuple[list[bytes], int]:
    """The stored bytes of some events from a number on: of all, or of these kinds, each a topic with what is
    below it, or such a TOPIC/TYPE. And the number after the last one that was looked at, which is `from_seq`
    at the end.

    Nothing is decoded, and the records are read in their order: for a reader of most of what happens that
    costs less than the indexes.
    """
    wanted = _beginning(kinds)
    rows: list[bytes] = []
    seq, size_bytes, budget = from_seq - 1, 0, _Budget()
    with environment.reading() as txn, txn.cursor(environment.db[EVENTS]) as cursor:
        placed = cursor.set_range(seq_key(from_seq))
        while placed and size_bytes < limit_bytes and not budget.is_spent():
            key, record = cursor.item()
            if (found := int.from_bytes(key)) > last_seq:
                break
            if wanted.match(record):
                rows.append(record)
                size_bytes += len(record)
            seq, placed = found, cursor.next()
    return rows, seq + 1


def _beginning(kinds: Collection[str]) -> re.Pattern[bytes]:
    """What a record of these kinds begins with: the layout of a header is fixed."""
    told = []
    for kind in kinds:
        topic, _, of_type = map(re.escape, kind.partition("/"))
        told.append(f'{topic}(?:[.][^"]*)?"' + (f',"type":"{of_type}"' if of_type else ""))
    return re.compile(rf'{{"seq":\d+,"time":-?\d+,"topic":"(?:{"|".join(told)})'.encode() if told else b"")


def _leap(terms: Sequence[_List | _Union], at: int, budget: _Budget) -> tuple[int, bool]:
    """The next number on which all lists agree; or the position reached, and False."""
    agreed = turn = 0
    while True:
        found = terms[turn].seek(at)
        if found == _NONE:
            return _NONE, False
        agreed = agreed + 1 if found == at else 1
        at = found
        if agreed == len(terms):
            return at, True
        turn = (turn + 1) % len(terms)
        if turn == 0 and budget.is_spent():
            return at, False


def _terms(
    environment: Environment, txn: Any, wanted: Filter, *, backwards: bool
) -> Sequence[_List | _Union]:
    """The lists whose intersection has all matching events."""

    def reader(name: str, prefix: bytes) -> _List:
        return _List(txn.cursor(environment.db[name]), prefix, backwards=backwards)

    fields = wanted.fields() if "by_field" in environment.db else {}
    if wanted.trace:
        return [reader("by_trace", index_prefix(wanted.trace))]
    if "request" in fields:
        return [reader("by_field", field_prefix("request", wanted.request))]
    terms: list[_List | _Union] = []
    if wanted.session:
        terms.append(reader("by_session", index_prefix(wanted.session)))
    elif wanted.agent:
        terms.append(reader("by_agent", index_prefix(wanted.agent)))
    terms += [reader("by_field", field_prefix(field, value)) for field, value in fields.items()]
    if wanted.topic:
        prefixes = _topic_prefixes(txn.cursor(environment.db["by_topic"]), wanted.topics())
        if prefixes is not None:
            lists = [reader("by_topic", prefix) for prefix in prefixes]
            terms.append(lists[0] if len(lists) == 1 else _Union(lists, backwards=backwards))
    return terms or [reader(EVENTS, b"")]


def _topic_prefixes(cursor: Any, topics: Sequence[str]) -> list[bytes] | None:
    """The prefixes in `by_topic` of some topics and their subtopics; None for too many."""
    found: dict[bytes, None] = {}
    for topic in topics:
        whole = index_prefix(topic)
        found[whole] = None
        if len(whole) > _NAMED_BYTES:
            continue  # what is below it begins alike, so it has the same keys
        below = whole[:-1] + b"."
        placed = cursor.set_range(below)
        while placed and cursor.key().startswith(below):
            name = cursor.key()[:-9]  # without the zero byte and the number
            found[name + b"\0"] = None
            if len(found) > _MOST_TOPICS:
                return None
            placed = cursor.set_range(name + b"\x01")  # behind all of this topic
    return list(found)


def decode_stored(record: bytes) -> Event:
    """Like `decode`, for bytes that this program stored. Raises HistoryDamaged."""
    try:
        return decode(record)
    except ValueError as err:
        raise HistoryDamaged(
            f"A stored event cannot be read: {err}", suggestion="Run: lactl audit verify"
        ) from err


__all__ = ["LAST_SEQ", "Slice", "decode_stored", "read_records", "read_slice"]
