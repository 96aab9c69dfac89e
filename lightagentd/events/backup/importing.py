"""Makes a new store from a whole export (see `portable`), which is input from outside.

Header and data of each event are encoded as by `model.encode`, and must match the hashes in its line. Each
event must follow the one before. The error names the first bad line and the reason. Lines are read one by one
and stored by the thousand, so memory does not grow with the file. At the end the whole new store is verified,
including the events before the anchor that retention kept.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import lmdb

from lightagentd.errors import HistoryDamaged
from lightagentd.events.backup import installing
from lightagentd.events.backup.backup import copy_error
from lightagentd.events.backup.export_lines import MAX_NUMBER, ExportLines, is_hash, is_number
from lightagentd.events.backup.portable import FIRST, FORMAT, LAST
from lightagentd.events.model import GENESIS, HEADER, Event, dump_json, is_topic
from lightagentd.events.store import clock, records
from lightagentd.events.store.layout import SCHEMA_VERSION, STATES, Environment, written
from lightagentd.events.store.states import entry
from lightagentd.events.types.history import HistoryMigrated

_BATCH, _BATCH_BYTES = 5000, 16 << 20
"""How much is stored in one transaction."""
_MAX_KEY_BYTES = 511
"""What LMDB takes."""
_TEXTS = ("topic", "type", "source", "agent", "session", "request_id", "trace_id", "correlation_id")
_VALUES: tuple[tuple[tuple[str, ...], str, Callable[[Any], bool]], ...] = (
    ((*_TEXTS, "data_text"), "text", lambda value: isinstance(value, str)),
    (("data_sha256", "prev", "hash"), "hash", is_hash),
    (("owner", "caller"), "uid", lambda value: value is None or is_number(value)),
    (("seq",), "number of an event", lambda value: is_number(value, lowest=1)),
    (("time",), "time in microseconds", lambda value: is_number(value, lowest=-MAX_NUMBER)),
    (("data",), "object", lambda value: isinstance(value, dict | None)),
)
"""What the fields of an event's line must be, and how a message calls that."""
_EVENT_KEYS = frozenset((*HEADER, "data", "hash"))


def install_export(state: str, fd: int, name: str, by: int, force: bool) -> Iterator[dict[str, Any]]:
    """Put the store from an export in place, as `installing.install_backup` does with a backup.

    `force` also allows an export that was cut off at its end, as far as it goes, and one that does not
    verify, such as the readable part of a damaged store. Raises ImportInvalid, Conflict, StorageError,
    HistoryDamaged; the present store is unchanged then.
    """

    def make(folder: Path) -> None:
        with os.fdopen(os.dup(fd), "rb", buffering=1 << 20) as file:
            _Import(file, name, cut_allowed=force).store_in(folder)

    yield from installing.install(Path(state), "import", by, make, name, force=force)


class _Import:
    """One run of an import. It knows the current line."""

    def __init__(self, file: BinaryIO, name: str, *, cut_allowed: bool) -> None:
        self._lines = ExportLines(file, name, cut_allowed=cut_allowed)
        self._cut_allowed = cut_allowed
        self._first: dict[str, Any] = {}
        self._head = (0, GENESIS)
        self._last_kept = 0
        self._last_state = (-1, b"")
        self._events = self._states = 0
        self._ended = False

    def store_in(self, folder: Path) -> None:
        """Write data.mdb in a folder. Raises ImportInvalid, StorageError."""
        lines = iter(self._lines)
        self._take_first(next(lines, None))
        environment = Environment(folder)
        try:
            if self._head[0]:
                with environment.env.begin(write=True) as txn:
                    environment.set_anchor(txn, *self._head)
            waiting = _Waiting(environment)
            for fields in lines:
                self._take(fields, waiting)
            waiting.store()
            self._owe_migration(environment)
        finally:
            environment.close()
        if not self._ended and not self._cut_allowed:
            self._lines.wrong(
                "is missing: the file ends without the last line of an export, so it was cut off"
            )

    def _owe_migration(self, environment: Environment) -> None:
        """The rows of an older schema were not listed."""
        version = self._first["schema_version"] or 1
        if version < SCHEMA_VERSION:
            migrated = HistoryMigrated(from_version=version, to_version=SCHEMA_VERSION)
            with environment.env.begin(write=True) as txn:
                environment.owe(txn, migrated.event())

    def _take_first(self, fields: dict[str, Any] | None) -> None:
        if fields is None:
            self._lines.wrong("is missing: the file is empty")
        if fields.get(FIRST) != FORMAT:
            self._lines.wrong(f"does not begin an export of this kind, with {FIRST} {FORMAT}")
        self._lines.check_keys(fields, {FIRST, "schema_version", "anchor", "events", "time"}, {"whole"})
        if fields.get("whole", True) is not True:
            self._lines.wrong("says that this is an export of a part, which cannot be imported as a history")
        version = fields["schema_version"]
        if version is not None and not (is_number(version) and version >= 1):
            self._lines.wrong("has no schema_version")
        if version is not None and version > SCHEMA_VERSION:
            self._lines.wrong(f"says schema version {version}, newer than this program knows")
        self._head = self._position(fields["anchor"], "anchor")
        self._last_kept = 0
        self._first = fields

    def _take(self, fields: dict[str, Any], waiting: _Waiting) -> None:
        if self._ended:
            self._lines.wrong("follows the last line of the export")
        if LAST in fields:
            self._take_last(fields)
        elif "state" in fields:
            waiting.add_state(*self._state(fields))
            self._states += 1
        elif self._states:
            self._lines.wrong("is no entry of state, and stands behind one")
        else:
            waiting.add_event(*self._event(fields))
            self._events += 1

    def _take_last(self, fields: dict[str, Any]) -> None:
        self._lines.check_keys(fields, {LAST, "events", "states", "head"})
        self._ended = True
        for what, said, there in (
            ("events", fields["events"], self._events),
            ("events", self._first["events"], self._events),
            ("entries of state", fields["states"], self._states),
        ):
            if said is not None and said != there:
                self._lines.wrong(f"comes after {there} {what}, and the export says {said}")
        if self._position(fields["head"], "head") != self._head:
            self._lines.wrong(f"says another head than event {self._head[0]} with {self._head[1]}")

    def _state(self, fields: dict[str, Any]) -> tuple[str, bytes, bytes]:
        self._lines.check_keys(fields, {"state", "key", "value"})
        name, key, value = fields["state"], fields["key"], fields["value"]
        if name not in STATES:
            self._lines.wrong(f"is about an unknown state {str(name)[:60]!r}")
        if not isinstance(key, str) or not isinstance(value, dict):
            self._lines.wrong("has no key, or no object as value")
        try:
            stored_key = key.encode()
        except UnicodeEncodeError:
            self._lines.wrong("has a key that is no text")
        if not 0 < len(stored_key) <= _MAX_KEY_BYTES:
            self._lines.wrong(f"has a key of {len(stored_key)} bytes")
        position = STATES.index(name), stored_key
        if position <= self._last_state:
            self._lines.wrong(f"has the {name} entry {key[:60]!r} twice, or out of order")
        self._last_state = position
        stored = dump_json(value)
        try:
            entry(name, stored_key, stored)
        except HistoryDamaged as err:
            self._lines.wrong(f"has what is no entry of {name}: {err.__cause__}")
        return name, stored_key, stored

    def _event(self, fields: dict[str, Any]) -> tuple[bytes, Event]:
        self._lines.check_keys(fields, _EVENT_KEYS, {"data_text"})
        self._check_types(fields)
        self._check_place(fields)
        data = self._data(fields)
        header = {name: fields[name] for name in HEADER}
        lines = [dump_json(header)]
        if header["caller"] is None:  # events of schema version 1 have none
            del header["caller"]
            lines.append(dump_json(header))
        line = next((one for one in lines if hashlib.sha256(one).hexdigest() == fields["hash"]), None)
        if line is None:
            self._lines.wrong(
                f"has not the header of event {fields['seq']} as it was stored: its hash is another"
            )
        values = {name: fields[name] for name in HEADER if name != "time"}
        event = Event(time_us=fields["time"], data=fields["data"], hash=fields["hash"], **values)
        if event.seq > self._head[0]:
            self._head = (event.seq, event.hash)
        else:
            self._last_kept = event.seq
        return line + b"\n" + data, event

    def _data(self, fields: dict[str, Any]) -> bytes:
        """The stored bytes of an event's data; none for an erased one."""
        body = fields["data"]
        if body is None:
            return b""
        data = dump_json(body)
        if isinstance(text := fields.get("data_text"), str):
            try:
                data = text.encode()
                alike = json.loads(text) == body
            except (ValueError, RecursionError):
                alike = False
            if not alike:
                self._lines.wrong("has a data_text that does not say what its data say")
        if hashlib.sha256(data).hexdigest() != fields["data_sha256"]:
            self._lines.wrong(
                f"has not the data of event {fields['seq']} as they were stored: their hash is another"
            )
        return data

    def _check_place(self, fields: dict[str, Any]) -> None:
        """Check the order: an event of the chain follows the one before; events that retention kept come
        first.
        """
        seq, (head, head_hash) = fields["seq"], self._head
        anchor = self._first["anchor"][0]
        if seq <= anchor and head == anchor:
            if seq <= self._last_kept:
                self._lines.wrong(f"has event {seq} behind event {self._last_kept}")
            return
        if seq <= head:
            self._lines.wrong(
                f"has event {seq}, which should stand before event {head}, or stands there already"
            )
        if seq > head + 1:
            self._lines.wrong(f"has event {seq}, and event {head + 1} is missing before it")
        if fields["prev"] != head_hash:
            self._lines.wrong(f"has an event {seq} that does not follow the event {head} of this export")

    def _check_types(self, fields: dict[str, Any]) -> None:
        for names, what, fits in _VALUES:
            for name in names:
                if not fits(fields.get(name, "")):  # only `data_text` is optional
                    self._lines.wrong(f"has no {what} as {name}")
        if not is_topic(fields["topic"]):
            self._lines.wrong(f"has no topic: {fields['topic'][:60]!r}")

    def _position(self, value: Any, what: str) -> tuple[int, str]:
        if not isinstance(value, list) or len(value) != 2 or not is_number(value[0]) or not is_hash(value[1]):
            self._lines.wrong(f"has no number and hash as {what}")
        if value[0] == 0 and value[1] != GENESIS:
            self._lines.wrong(f"has a {what} before the first event with the hash of another")
        return value[0], value[1]


class _Waiting:
    """Items that were read and are not stored yet."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._events: list[tuple[bytes, Event]] = []
        self._states: list[tuple[str, bytes, bytes]] = []
        self._size_bytes = 0

    def add_event(self, record: bytes, event: Event) -> None:
        self._events.append((record, event))
        self._added(len(record))

    def add_state(self, name: str, key: bytes, value: bytes) -> None:
        self._states.append((name, key, value))
        self._added(len(value))

    def _added(self, size_bytes: int) -> None:
        self._size_bytes += size_bytes
        if self._size_bytes >= _BATCH_BYTES or len(self._events) + len(self._states) >= _BATCH:
            self.store()

    def store(self) -> None:
        """Raises StorageError."""
        try:
            written(self._environment, self._write)
        except lmdb.Error as err:
            raise copy_error(err) from err
        self._events, self._states, self._size_bytes = [], [], 0

    def _write(self, txn: Any) -> None:
        times = clock.load(self._environment, txn)
        puts = records.Puts(self._environment, txn)
        for record, event in self._events:
            puts.add(record, event)
        puts.flush()
        clock.note(self._environment, txn, times, (event.time_us for _, event in self._events))
        for name, key, value in self._states:
            txn.put(key, value, db=self._environment.db[name])
