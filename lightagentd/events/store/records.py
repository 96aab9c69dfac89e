"""Stores, erases and removes events in a write transaction, always with their index entries.

The transaction belongs to the caller: the one writer of the store (`history`), or its only user.
"""

from __future__ import annotations

import json
from typing import Any

from lightagentd.errors import HistoryDamaged
from lightagentd.events.model import Event, decode
from lightagentd.events.store.layout import (
    EVENTS,
    INDEXES,
    Environment,
    ascending,
    field_prefix,
    index_keys,
    index_prefix,
    indexed_fields,
    seq_key,
)


class Puts:
    """Events stored after all others, with `flush`: each database gets its entries in their order, which
    takes LMDB half the time.
    """

    def __init__(self, environment: Environment, txn: Any) -> None:
        self._environment = environment
        self._txn = txn
        self._records: list[tuple[bytes, bytes]] = []
        self._entries: dict[str, list[tuple[bytes, bytes]]] = {name: [] for name in INDEXES}

    def add(self, record: bytes, event: Event) -> None:
        self._records.append((seq_key(event.seq), record))
        topic, entries = event.topic.encode(), self._entries
        for name, key in index_keys(event):
            entries[name].append((key, topic))

    def flush(self) -> None:
        """Put the added events into the transaction, before anything else reads it.

        Raises HistoryDamaged when they are not after all others.
        """
        if not self._records:
            return
        with self._txn.cursor(self._environment.db[EVENTS]) as cursor:
            _, added = cursor.putmulti(self._records, append=True)
        if added != len(self._records):
            first = int.from_bytes(self._records[0][0], "big")
            raise HistoryDamaged(
                f"The history has an event {first} already, or one behind it.",
                suggestion="Restart the daemon, and run: lactl audit verify",
            )
        self._records = []
        for name, entries in self._entries.items():
            entries.sort()
            with self._txn.cursor(self._environment.db[name]) as cursor:
                cursor.putmulti(entries)
            entries.clear()


def remove(environment: Environment, txn: Any, event: Event) -> None:
    """Remove an event with its header."""
    db = environment.db
    txn.delete(seq_key(event.seq), db=db[EVENTS])
    for name, key in index_keys(event):
        txn.delete(key, db=db[name])


def index_fields(environment: Environment, txn: Any, event: Event) -> None:
    """Make an event's entries in `by_field`; some may exist already."""
    topic, seq = event.topic.encode(), seq_key(event.seq)
    for field, value in indexed_fields(event):
        txn.put(field_prefix(field, value) + seq, topic, db=environment.db["by_field"])


def erase(environment: Environment, txn: Any, session: str) -> int:
    """Erase the data of a session's events, and their index entries. Gives the number of events."""
    db, prefix = environment.db, index_prefix(session)
    count = 0
    for key in [key[-8:] for key, _ in ascending(txn, db["by_session"], prefix)]:
        record = txn.get(key, db=db[EVENTS])
        line, _, data = (record or b"").partition(b"\n")
        if not data or json.loads(line)["session"] != session:
            continue
        forget_data(environment, txn, record, line + b"\n")
        count += 1
    return count


def forget_data(environment: Environment, txn: Any, record: bytes, left: bytes) -> None:
    """Replace a record by one without data, and remove the index entries of the data."""
    event = decode(record)
    key = seq_key(event.seq)
    for field, value in indexed_fields(event):
        if field in ("tool", "effect", "decision"):
            txn.delete(field_prefix(field, value) + key, db=environment.db["by_field"])
    txn.put(key, left, db=environment.db[EVENTS])
