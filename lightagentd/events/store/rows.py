"""The digests of the rows of state, by which checkpoints cover them.

Each row has a digest: SHA-256 over its state, its key and its stored bytes. A checkpoint has, in its event
`rows`, the digests of the rows that changed since the one before, and the sum over all rows. So verification
adds up the rows that are stored, and only if the sums differ reads the lists, to name the row.

The sum is that of AdHash (Bellare and Micciancio, "A New Paradigm for Collision-Free Hashing", 1997): each
digest is expanded to 2048 bits by SHAKE256, and these numbers are added modulo 2^2048. It does not depend on
the order, and a change costs the same in a store of any size. With 256 bits somebody who may choose thousands
of rows could find others with the same sum (Wagner, "A Generalized Birthday Problem", 2002).

The state CHANGED has an entry for each row that changed since the newest list, written in the transaction of
the change, with the digest before and the one now. So a kill loses nothing of this. Whatever writes a row of
state uses `put` and `delete`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from lightagentd.errors import HistoryDamaged
from lightagentd.events.model import FROM_TOOL, Event, NewEvent, decode
from lightagentd.events.store.layout import (
    CHANGED,
    EVENTS,
    META,
    OWED,
    STATES,
    Environment,
    ascending,
    descending,
    field_prefix,
)
from lightagentd.events.store.states import decoding
from lightagentd.events.types.history import (
    CheckpointRows,
    HistoryInstalled,
    HistoryMigrated,
    HistorySetAside,
)

MODULUS = 1 << 2048
TOPIC, TYPE = CheckpointRows.topic, CheckpointRows.type
_EXPANDED_BYTES = 256
_MOST_LISTED = 2000
"""So many rows stand in one event."""
_MAX_KEY_BYTES = 511
"""What LMDB takes."""
_HASHED = "sha256:"
_NOTED = re.compile(rb'\{"old":"([0-9a-f]{64}|)","new":"(?:[0-9a-f]{64}|)"\}')
_SINCE_VERSION = 3
"""The version of the schema that has CHANGED."""
_ELSEWHERE = (HistoryMigrated.type, HistoryInstalled.type, HistorySetAside.type)
_COVERED = tuple(state for state in STATES if state != CHANGED)
Row = tuple[str, str]
"""State and key."""


@dataclass(frozen=True, kw_only=True)
class Covered:
    """What the newest event `rows` says of all rows."""

    seq: int
    count: int
    total: int


@dataclass(frozen=True, kw_only=True)
class Changed:
    """An entry of CHANGED: a row's digest in the newest list, and now; empty where there is no row."""

    old: str
    new: str


def digest(state: str, key: bytes, value: bytes | None) -> str:
    """The digest of a row, in hexadecimal; empty for a row that is not there."""
    if value is None:
        return ""
    return hashlib.sha256(b"%b\0%d\0%b%b" % (state.encode(), len(key), key, value)).hexdigest()


def expanded(row: str) -> int:
    """What a row with this digest adds to the sum."""
    return int.from_bytes(hashlib.shake_256(bytes.fromhex(row)).digest(_EXPANDED_BYTES)) if row else 0


def put(environment: Environment, txn: Any, state: str, key: bytes, value: bytes) -> None:
    """Store a row, in the caller's transaction."""
    _change(environment, txn, state, key, value)
    txn.put(key, value, db=environment.db[state])


def delete(environment: Environment, txn: Any, state: str, key: bytes) -> None:
    """Remove a row, if it is there, in the caller's transaction."""
    _change(environment, txn, state, key, None)
    txn.delete(key, db=environment.db[state])


def _change(environment: Environment, txn: Any, state: str, key: bytes, value: bytes | None) -> None:
    db, name = environment.db, _name(state, key)
    old = _old_in(txn.get(name, db=db[CHANGED]))
    if old is None:
        before = txn.get(key, db=db[state])
        if before == value:
            return
        old = digest(state, key, before)
    _note(environment, txn, name, old, digest(state, key, value))


def _old_in(entry: bytes | None) -> str | None:
    """As `_changed`, the digest before, in a tenth of the time for an entry as `_note` writes it."""
    if entry is not None and (found := _NOTED.fullmatch(entry)) is not None:
        return found[1].decode()
    return None


def _note(environment: Environment, txn: Any, name: bytes, old: str, new: str) -> None:
    txn.put(name, b'{"old":"%b","new":"%b"}' % (old.encode(), new.encode()), db=environment.db[CHANGED])


def _name(state: str, key: bytes) -> bytes:
    """The key of a row in CHANGED."""
    name = state.encode() + b"/" + key
    if len(name) <= _MAX_KEY_BYTES:
        return name
    return (state + "/" + _HASHED + hashlib.sha256(key).hexdigest()).encode()


def _changed(value: bytes | None) -> Changed | None:
    """None also for an entry that is invalid: then its row differs from the list, or it says nothing."""
    try:
        return None if value is None else changed_in("", json.loads(value))
    except (ValueError, TypeError, RecursionError, HistoryDamaged):
        return None


def changed_in(key: str, value: dict[str, Any]) -> Changed:
    """An entry of CHANGED. Raises HistoryDamaged."""
    with decoding(CHANGED, key):
        found = Changed(**value)
        bytes.fromhex(found.old + found.new)
        if {len(found.old), len(found.new)} - {0, 64}:
            raise ValueError("it has no digest")
        return found


def text_of(key: bytes) -> str:
    """A key as text; what is no UTF-8, and so was not written by the daemon, is escaped."""
    return key.decode("utf-8", "backslashreplace")


def changes(environment: Environment, txn: Any) -> dict[Row, Changed]:
    """The rows that changed since the newest list. A long key is hashed."""
    found: dict[Row, Changed] = {}
    for name, value in ascending(txn, environment.db[CHANGED], b""):
        state, _, key = text_of(name).partition("/")
        if (one := _changed(value)) is not None:
            found[state, key] = one
    return found


def stored(environment: Environment, txn: Any) -> Iterator[tuple[str, bytes, bytes]]:
    """State, key and bytes of each row that checkpoints cover."""
    for state in _COVERED:
        if state in environment.db:
            with txn.cursor(environment.db[state]) as cursor:
                for key, value in cursor:
                    yield state, key, value


def covered(environment: Environment, txn: Any) -> Covered | None:
    """What the newest event `rows` says; a new store has no rows before the first. None in a store of an
    older version until it has one, and in a store that did not verify and was put in place all the same.
    Raises HistoryDamaged.
    """
    if environment.version < _SINCE_VERSION:
        return None
    said = newest(environment, txn)
    if said is None:
        return None if _began_elsewhere(environment, txn) else Covered(seq=0, count=0, total=0)
    if _was_forced(environment, txn, said.seq):
        return None
    with decoding(EVENTS, str(said.seq)):
        data = said.data or {}
        return Covered(seq=said.seq, count=int(data["count"]), total=int(data["total"], 16))


def newest(environment: Environment, txn: Any) -> Event | None:
    """The newest event `rows`. Raises HistoryDamaged."""
    return next(lists(environment, txn), None)


def lists(environment: Environment, txn: Any) -> Iterator[Event]:
    """The events `rows`, the newest first. Raises HistoryDamaged."""
    yield from _of_type(environment, txn, TOPIC, TYPE)


def _of_type(environment: Environment, txn: Any, topic: str, event_type: str) -> Iterator[Event]:
    if "by_field" not in environment.db:
        return
    prefix = field_prefix("type", event_type)
    for key, of_topic in descending(txn, environment.db["by_field"], prefix):
        record = txn.get(key[-8:], db=environment.db[EVENTS]) if of_topic == topic.encode() else None
        if record is None:
            continue
        with decoding(EVENTS, str(int.from_bytes(key[-8:]))):
            event = decode(record)
        if event.data is not None and event.source != FROM_TOOL:
            yield event


def _owed(environment: Environment, txn: Any) -> list[tuple[str, dict[str, Any]]]:
    with decoding(META, "owed"):
        stored = json.loads(txn.get(OWED, db=environment.db[META]) or b"[]")
        return [(str(event_type), dict(data)) for _, event_type, data in stored]


def _began_elsewhere(environment: Environment, txn: Any) -> bool:
    """Whether a store without an event `rows` may have rows from before there were such events."""
    owed = {event_type for event_type, _ in _owed(environment, txn)}
    topic = HistoryInstalled.topic
    return any(one in owed or any(_of_type(environment, txn, topic, one)) for one in _ELSEWHERE)


def _was_forced(environment: Environment, txn: Any, seq: int) -> bool:
    """Whether a store that does not verify was put in place after an event."""
    topic, event_type = HistoryInstalled.topic, HistoryInstalled.type
    for owed, data in _owed(environment, txn):
        if owed == event_type and not data.get("verified"):
            return True
    for event in _of_type(environment, txn, topic, event_type):
        return event.seq > seq and not (event.data or {}).get("verified")
    return False


def listing(
    environment: Environment, shown: Callable[[str], str], txn: Any, _: int, *, whole: bool = False
) -> list[NewEvent]:
    """The events `rows` that a checkpoint covers, made in its transaction (`History.appending`): none when no
    row changed. The first ones of a store list each row, and so do those that are `whole`.

    A key that `shown`, which takes secrets out, would change is listed by its hash. Raises HistoryDamaged.
    """
    before = None if whole else covered(environment, txn)
    begins = before is None or not before.seq
    if before is None:
        found = [
            (state, text_of(key), digest(state, key, value)) for state, key, value in stored(environment, txn)
        ]
        total, count = sum(expanded(row) for _, _, row in found), len(found)
    else:
        changed = changes(environment, txn)
        found = [(state, key, one.new) for (state, key), one in changed.items()]
        total, count = before.total, before.count
        for one in changed.values():
            total += expanded(one.new) - expanded(one.old)
            count += bool(one.new) - bool(one.old)
    if not found and not whole:
        return []
    txn.drop(environment.db[CHANGED], delete=False)
    rows = [(state, listed_key(key, shown), row) for state, key, row in found]
    return _events(rows, total % MODULUS, count, begins=begins)


def _events(rows: list[tuple[str, str, str]], total: int, count: int, *, begins: bool) -> list[NewEvent]:
    in_hex = f"{total:0512x}"
    rows_sha256 = hashlib.sha256(in_hex.encode()).hexdigest()
    waiting = iter(rows)
    events: list[NewEvent] = []
    while (part := list(islice(waiting, _MOST_LISTED))) or not events:
        event = CheckpointRows(rows=part, total=in_hex, count=count, rows_sha256=rows_sha256).event()
        if begins and not events:
            event = replace(event, data={**event.data, "whole": True})
        events.append(event)
    return events


def listed_key(key: str, shown: Callable[[str], str] = str) -> str:
    """A key as events list it."""
    if len(key.encode()) <= _MAX_KEY_BYTES - 64 and shown(key) == key:
        return key
    return hashed_key(key)


def hashed_key(key: str) -> str:
    """The other form of a key in a list."""
    return key if key.startswith(_HASHED) else _HASHED + hashlib.sha256(key.encode()).hexdigest()


def relist(environment: Environment, txn: Any, event: Event) -> None:
    """Before an event `rows` is removed: the rows that are as it says are listed again by the next one."""
    if (event.topic, event.type) != (TOPIC, TYPE) or event.data is None or event.source == FROM_TOOL:
        return
    for state, key, row in event.data["rows"]:
        name = _name(state, key.encode())
        if not row or key.startswith(_HASHED) or txn.get(name, db=environment.db[CHANGED]) is not None:
            continue
        if digest(state, key.encode(), txn.get(key.encode(), db=environment.db[state])) == row:
            _note(environment, txn, name, row, row)


def removed(environment: Environment, txn: Any, gone: list[tuple[str, str]]) -> dict[str, int]:
    """How many of some rows are there, by state: for the note about their removal."""
    found: dict[str, int] = {}
    for state, key in gone:
        if txn.get(key.encode(), db=environment.db[state]) is not None:
            found[state] = found.get(state, 0) + 1
    return found
