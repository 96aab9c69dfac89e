"""Checks that the indexes have an entry for each event, and no other entries.

Queries read the indexes: removing an entry hides an event from them, although the chain still verifies.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

from lightagentd.events.audit.record_check import BadRecord
from lightagentd.events.model import decode
from lightagentd.events.store.layout import BATCH, EVENTS, INDEXES, Environment, bounded, index_keys


class IndexCheck:
    """Looks up the index entries of the records of a walk, and at its end finds entries without a record."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._found = dict.fromkeys(INDEXES, 0)

    @property
    def entries(self) -> int:
        """The number of entries found."""
        return sum(self._found.values())

    def look_for(self, txn: Any, rows: list[tuple[bytes, bytes]]) -> None:
        """Raises BadRecord when an index lacks an event of these records."""
        db = self._environment.db
        for _, record in rows:
            try:
                event = decode(record)
            except ValueError:
                return  # the walk reads this record later, and reports it
            topic = event.topic.encode()
            for name, key in index_keys(event):
                if name not in db:
                    continue
                if txn.get(key, db=db[name]) != topic:
                    raise BadRecord(
                        event.seq, f"event {event.seq} is missing in the index {name}: queries do not find it"
                    )
                self._found[name] += 1

    def find_first(self) -> None:
        """Raises BadRecord for the first event that an index lacks; otherwise like `finish`."""
        key = b"\0"
        while True:
            with (
                self._environment.reading() as txn,
                txn.cursor(self._environment.db[EVENTS]) as cursor,
            ):
                rows = list(bounded(islice(cursor, BATCH))) if cursor.set_range(key) else []
                self.look_for(txn, rows)
            if not rows:
                break
            key = rows[-1][0] + b"\0"
        self.finish()

    def finish(self) -> None:
        """Raises BadRecord for an index entry without an event."""
        db = self._environment.db
        with self._environment.reading() as txn:
            beside = [
                name for name in INDEXES if name in db and txn.stat(db[name])["entries"] != self._found[name]
            ]
        for name in beside:  # or the walk was partial, or events were removed meanwhile: not worth a report
            self._walk(name)

    def _walk(self, name: str) -> None:
        key = b"\0"
        while True:
            with (
                self._environment.reading() as txn,
                txn.cursor(self._environment.db[name]) as cursor,
            ):
                keys = list(islice(cursor.iternext(values=False), BATCH)) if cursor.set_range(key) else []
                for key in keys:
                    self._check(txn, name, key)
            if not keys:
                return
            key = keys[-1] + b"\0"

    def _check(self, txn: Any, name: str, key: bytes) -> None:
        seq = int.from_bytes(key[-8:], "big")
        record = txn.get(key[-8:], db=self._environment.db[EVENTS])
        if record is None:
            raise BadRecord(seq, f"event {seq} is missing: the index {name} has an entry for it")
        try:
            if (name, key) in index_keys(decode(record)):
                return
        except ValueError:
            return
        raise BadRecord(seq, f"the index {name} has an entry for event {seq} that this event does not have")
