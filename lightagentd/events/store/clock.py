"""Tracks the largest step back of the clock, to derive the event numbers of a time span.

Event numbers ascend; event times nearly do, because a clock may be set back, and an event is made some time
before it is stored. `Clock` holds the newest time so far and the largest distance by which a later event was
older than an earlier one. The writer updates it with each event and stores it in `meta`, beside the number of
the first event that it covers. From it `bounds` computes the numbers that a time span can have. If it is
unknown (a store written without it), any number is possible.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from lightagentd.errors import HistoryDamaged
from lightagentd.events.store.layout import EVENTS, META, Environment, bounded, seq_key

_KEY = b"clock"
LAST_SEQ = (1 << 64) - 1
_EVENTS = 4096
"""Events that `measure` looks at in one transaction."""


@dataclass(frozen=True, kw_only=True)
class Clock:
    """The state of the clock after an event."""

    newest_us: int = 0
    set_back_us: int = 0

    def after(self, time_us: int) -> Clock:
        """The state after one more event."""
        return Clock(
            newest_us=max(self.newest_us, time_us),
            set_back_us=max(self.set_back_us, self.newest_us - time_us),
        )


def load(environment: Environment, txn: Any) -> Clock | None:
    """The stored clock; None if it does not cover all events. A new store has one at once."""
    found = txn.get(_KEY, db=environment.db[META])
    if found is None:
        return None if txn.stat(environment.db[EVENTS])["entries"] else Clock()
    try:
        set_back_us = int(found)
    except ValueError:  # damaged counts as unknown
        return None
    with txn.cursor(environment.db["by_time"]) as cursor:
        newest_us = int.from_bytes(cursor.key()[:8]) if cursor.last() else 0
    return Clock(newest_us=newest_us, set_back_us=set_back_us)


def note(environment: Environment, txn: Any, before: Clock | None, times_us: Iterable[int]) -> None:
    """Store the clock after some more events, in the transaction that stores them. `before` is the clock
    (`load`) before the first of them.
    """
    if before is None:
        return
    newest_us, set_back_us = before.newest_us, before.set_back_us
    for time_us in times_us:  # as `Clock.after`, without an object for each event
        if time_us < newest_us:
            set_back_us = max(set_back_us, newest_us - time_us)
        else:
            newest_us = time_us
    if set_back_us > before.set_back_us or txn.get(_KEY, db=environment.db[META]) is None:
        txn.put(_KEY, str(set_back_us).encode(), db=environment.db[META])


def measure(environment: Environment) -> Iterator[int]:
    """Compute the missing clock from all events, and store it. Yields the number of read events now and then.

    Nobody else may write meanwhile. Raises HistoryDamaged, StorageError.
    """
    with environment.reading() as txn:
        known = load(environment, txn)
    if known is not None:
        return
    known, position, count = Clock(), 0, 0
    while True:
        with environment.reading() as txn, txn.cursor(environment.db[EVENTS]) as cursor:
            found = cursor.set_range(seq_key(position))
            rows = list(bounded(islice(cursor, _EVENTS))) if found else []
        if not rows:
            break
        for _, record in rows:
            known = known.after(_time_us(record))
        position, count = int.from_bytes(rows[-1][0]) + 1, count + len(rows)
        yield count
    with environment.env.begin(write=True) as txn:  # of a few bytes, for which the map has room
        txn.put(_KEY, str(known.set_back_us).encode(), db=environment.db[META])


def _time_us(record: bytes) -> int:
    """The time in a record. Raises HistoryDamaged."""
    try:
        return int(json.loads(record.partition(b"\n")[0])["time"])
    except (ValueError, TypeError, KeyError, RecursionError) as err:
        raise HistoryDamaged(
            f"A stored event cannot be read: {err}", suggestion="Run: lactl audit verify"
        ) from err


def bounds(environment: Environment, txn: Any, since_us: int, until_us: int) -> tuple[int, int]:
    """The first and the last number that an event between two times can have (`until_us` 0: no end)."""
    low, high = 0, LAST_SEQ
    known = load(environment, txn) if since_us or until_us else None
    if known is None:
        return low, high
    with txn.cursor(environment.db["by_time"]) as cursor:
        # All before an event were made at most `set_back_us` after it, and all after it no more before it.
        if since_us > known.set_back_us:
            placed = cursor.set_range(_time_key(since_us - known.set_back_us))
            if cursor.prev() if placed else cursor.last():
                low = int.from_bytes(cursor.key()[-8:]) + 1
        if until_us and cursor.set_range(_time_key(until_us + known.set_back_us + 1)):
            high = int.from_bytes(cursor.key()[-8:]) - 1
    return low, high


def _time_key(time_us: int) -> bytes:
    """How the keys of `by_time` of events at a time begin; of a time that no event can have, the nearest."""
    return seq_key(min(max(0, time_us), LAST_SEQ))
