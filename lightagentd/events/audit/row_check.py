"""Compares the rows of state with what the newest checkpoint says of them, and names each one that differs.

The sum over all rows decides (see `store.rows`). Only where it differs the lists of the checkpoints are read.
Rows that changed after the newest checkpoint, as the state `changed` says, are what a killed daemon had not
signed; they are taken at their word, as the events of that time are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from lightagentd.events.store import rows
from lightagentd.events.store.layout import CHANGED, Environment
from lightagentd.events.store.rows import Changed, Row

_MOST = 10_000
"""So many rows are named."""


@dataclass(frozen=True, kw_only=True)
class BadRow:
    """A row that is not as the daemon stored it. `value` is None for one that is missing."""

    state: str
    key: str
    """As text; the hash of a long one that is missing."""
    raw_key: bytes
    value: bytes | None
    why: str
    """What is wrong, as the end of a sentence about it."""
    seq: int
    """The event that lists it, or the newest list."""

    @property
    def sentence(self) -> str:
        """Without a full stop."""
        return f"the row {self.key[:100]!r} of {self.state} {self.why}"


@dataclass(frozen=True, kw_only=True)
class RowsFound:
    """The result of `compare`."""

    count: int = 0
    """How many rows were compared; 0 where no checkpoint covers any."""
    covered_seq: int = -1
    """The event that covers them: 0 in a new store, and -1 where there is none."""
    unsigned: int = 0
    """How many of them changed after that."""
    bad: tuple[BadRow, ...] = ()
    unnamed: bool = False
    """The rows differ, and none can be named: the list with it was removed by retention."""

    @property
    def ok(self) -> bool:
        return not self.bad and not self.unnamed


def compare(environment: Environment) -> RowsFound:
    """Look at every row, in one transaction. Raises StorageError, HistoryDamaged."""
    if CHANGED not in environment.db:
        return RowsFound()
    with environment.reading() as txn:
        covered = rows.covered(environment, txn)
        if covered is None:
            return RowsFound()
        changed = rows.changes(environment, txn)
        wanted, total, count = covered.count, covered.total, 0
        for one in changed.values():
            wanted += bool(one.new) - bool(one.old)
            total += rows.expanded(one.new) - rows.expanded(one.old)
        for row in rows.stored(environment, txn):
            count += 1
            total -= rows.expanded(rows.digest(*row))
        unsigned = sum(one.old != one.new for one in changed.values())
        found = RowsFound(count=count, covered_seq=covered.seq, unsigned=unsigned)
        if count == wanted and not total % rows.MODULUS:
            return found
        bad = tuple(islice(_named(environment, txn, covered.seq, changed), _MOST))
    return replace(found, bad=bad, unnamed=not bad)


def _named(environment: Environment, txn: Any, newest: int, changed: dict[Row, Changed]) -> Iterator[BadRow]:
    listed = _listed(environment, txn)
    seen: set[Row] = set()
    for state, raw_key, value in rows.stored(environment, txn):
        key, now = rows.text_of(raw_key), rows.digest(state, raw_key, value)
        row = next((one for one in _names(state, key) if one in listed or one in changed), (state, key))
        seen.add(row)
        wanted, seq = listed.get(row, ("", newest))
        one = changed.get(row)
        if one is not None and now == one.new and one.old in (wanted, one.new):
            continue
        if one is not None and one.old == wanted and now != wanted:
            why = "was altered: it is not as the daemon stored it last"
            yield BadRow(state=state, key=key, raw_key=raw_key, value=value, why=why, seq=newest)
        elif now != wanted:
            why = (
                f"was altered: it is not the one that event {seq} lists"
                if wanted
                else "was inserted: no event lists it"
            )
            yield BadRow(state=state, key=key, raw_key=raw_key, value=value, why=why, seq=seq)
        elif one is not None:
            yield _forged(row, one, newest)
    for row, (wanted, seq) in listed.items():
        one = changed.get(row)
        gone = one is not None and one.old == wanted and not one.new
        if wanted and not gone and row not in seen:
            state, key = row
            why = f"is missing: event {seq} lists it"
            yield BadRow(state=state, key=key, raw_key=key.encode(), value=None, why=why, seq=seq)
    for row, one in changed.items():
        if row not in seen and one.old != listed.get(row, ("", 0))[0]:
            yield _forged(row, one, newest)


def _forged(row: Row, one: Changed, newest: int) -> BadRow:
    """An entry of CHANGED that no change made."""
    key = "/".join(row)
    why = f"was forged: it says that a row changed from {one.old[:16] or 'none'} to {one.new[:16] or 'none'}"
    return BadRow(state=CHANGED, key=key, raw_key=key.encode(), value=b"", why=why, seq=newest)


def _names(state: str, key: str) -> tuple[Row, Row]:
    """How lists may call a row."""
    return (state, key), (state, rows.hashed_key(key))


def _listed(environment: Environment, txn: Any) -> dict[Row, tuple[str, int]]:
    """The digest of each listed row, and the event that lists it."""
    found: dict[Row, tuple[str, int]] = {}
    for event in rows.lists(environment, txn):
        data = event.data or {}
        for state, key, row in data["rows"]:
            found.setdefault((state, key), (row, event.seq))
        if data.get("whole"):
            break
    return found
