"""The history as lines of JSON, which any program can read, and from which `importing` makes a store again.

    {"lightagentd_export": 1, "schema_version": 2, "whole": true, "anchor": [0, "0…"], "events": 7, "time": …}
    {"seq": 1, "time": 1763768400000000, "topic": "daemon.state", …, "data": {…}, "hash": "…"}
    {"state": "sessions", "key": "ses_…", "value": {…}}
    {"lightagentd_export_end": 1, "events": 7, "states": 1, "head": [7, "…"]}

An event is a line as `lactl history --json` prints it: header, `data` (null when it was deleted) and `hash`.
Where the stored bytes of the data cannot be had from `data` again, because an object in it has a name twice,
`data_text` holds them. The anchor is number and hash of the event before the chain; lines up to it are events
that retention kept. A whole export has every event and all state. `time` is that of the newest event, so that
the export of the same store has the same bytes. The last line shows that nothing was cut off. A salvage that
could not read all ends with a line of its own, the number of missing events and their ranges:

    {"lightagentd_export_missing": 3, "ranges": [[5, 6], [9, 9]]}
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lightagentd.events.backup.backup import PIECE_BYTES, open_stored
from lightagentd.events.model import Event, dump_json
from lightagentd.events.queries import Filter, StoredHistory, decode_stored
from lightagentd.events.store.layout import EVENTS, STATES, seq_key
from lightagentd.events.store.states import entry
from lightagentd.events.types.registry import check_topics

FORMAT = 1
FIRST, LAST = "lightagentd_export", "lightagentd_export_end"
MISSING = "lightagentd_export_missing"
_TO_ESCAPE = re.compile("[\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_PAGE = 256


def line(value: Any) -> bytes:
    """A value as one line; control characters are escaped, as in lactl's own output."""
    text = json.dumps(value, ensure_ascii=False)
    return _TO_ESCAPE.sub(lambda match: f"\\u{ord(match[0]):04x}", text).encode() + b"\n"


def event_line(record: bytes) -> bytes:
    """The line of a stored event. Raises HistoryDamaged."""
    return line(event_fields(decode_stored(record), record.partition(b"\n")[2]))


def event_fields(event: Event, data: bytes) -> dict[str, Any]:
    """The fields in the line of an event with these stored bytes of data."""
    found = event.to_dict()
    if event.data is not None and dump_json(event.data) != data:
        found["data_text"] = data.decode("utf-8", "replace")
    return found


def first_line(
    version: int, anchor: tuple[int, str], *, whole: bool, events: int | None, time_us: int
) -> bytes:
    """The first line of an export; `events` is None when the number is not known yet."""
    return line(
        {
            FIRST: FORMAT,
            "schema_version": version,
            "whole": whole,
            "anchor": list(anchor),
            "events": events,
            "time": time_us,
        }
    )


def missing_line(missing: int, ranges: Sequence[tuple[int, int]]) -> bytes:
    """The last line of an export that lacks events."""
    return line({MISSING: missing, "ranges": ranges})


def state_line(name: str, key: str, value: Any) -> bytes:
    return line({"state": name, "key": key, "value": value})


def last_line(events: int, states: int, head: tuple[int, str]) -> bytes:
    return line({LAST: 1, "events": events, "states": states, "head": list(head)})


def export(history: str, wanted: dict[str, Any], state: bool | None) -> Iterator[bytes | dict[str, Any]]:
    """A stored history as lines, in batches; for `run_as_owner`.

    `wanted` are the fields of a `Filter`; without any, the export is one snapshot of every event. `state`
    adds the entries of state, which a whole export has unless it is False. At the end come `events`,
    `states`, `whole`, and `seq` and `hash` of the last event. Raises NotFound, StorageError, HistoryDamaged.
    """
    stored = open_stored(Path(history))
    try:
        done: dict[str, Any] = {}
        if wanted:
            only = Filter(**wanted)
            check_topics(only.topics())
            lines = _part(stored, done, only, bool(state))
        else:
            lines = _all(stored, done, state)
        waiting = bytearray()
        for one in lines:
            waiting += one
            if len(waiting) >= PIECE_BYTES:
                yield bytes(waiting)
                waiting.clear()
        yield bytes(waiting)
        yield done
    finally:
        stored.close()


def _all(stored: StoredHistory, done: dict[str, Any], state: bool | None) -> Iterator[bytes]:
    environment, with_state = stored.environment, state is not False
    db, states = environment.db, 0
    with environment.reading() as txn:  # one snapshot of everything, which retention cannot change meanwhile
        anchor = head = environment.anchor_in(txn)
        count, time_us = int(txn.stat(db[EVENTS])["entries"]), 0
        with txn.cursor(db[EVENTS]) as cursor:
            if cursor.last():
                newest = decode_stored(cursor.value())
                head, time_us = max(head, (newest.seq, newest.hash)), newest.time_us
            yield first_line(environment.version, anchor, whole=with_state, events=count, time_us=time_us)
            if cursor.first():
                for _, record in cursor:
                    yield event_line(record)
        if with_state:
            for one in _states(txn, db):
                yield one
                states += 1
    yield last_line(count, states, head)
    done.update(events=count, states=states, whole=with_state, seq=head[0], hash=head[1])


def _part(stored: StoredHistory, done: dict[str, Any], wanted: Filter, state: bool) -> Iterator[bytes]:
    environment = stored.environment
    anchor = head = environment.anchor()
    last = stored.queries.last()
    time_us = last.time_us if last is not None else 0
    yield first_line(environment.version, anchor, whole=False, events=None, time_us=time_us)
    count = states = 0
    for record in _records(stored, wanted, last.seq if last is not None else 0):
        event = decode_stored(record)
        yield event_line(record)
        count, head = count + 1, (event.seq, event.hash)
    if state:
        with environment.reading() as txn:
            for one in _states(txn, environment.db):
                yield one
                states += 1
    yield last_line(count, states, head)
    done.update(events=count, states=states, whole=False, seq=head[0], hash=head[1])


def _records(stored: StoredHistory, wanted: Filter, last_seq: int) -> Iterator[bytes]:
    """The stored bytes of the matching events up to a number, oldest first."""
    from_seq = 1
    while found := stored.queries.select(wanted, from_seq=from_seq, limit=_PAGE):
        for event in found:
            if event.seq > last_seq:
                return
            with stored.environment.reading() as txn:
                record = txn.get(seq_key(event.seq), db=stored.environment.db[EVENTS])
            if record is not None:  # retention may have removed it meanwhile
                yield record
        from_seq = found[-1].seq + 1


def _states(txn: Any, db: dict[str, Any]) -> Iterator[bytes]:
    """The line of each entry of state."""
    for name in STATES:
        if name not in db:  # a kind of state that is newer than the store
            continue
        with txn.cursor(db[name]) as cursor:
            for key, value in cursor:
                yield state_line(name, *entry(name, key, value))
