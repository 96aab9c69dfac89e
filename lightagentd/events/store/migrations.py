"""Migrates a store of an older schema to the present one, when the daemon opens it.

Each migration has the number of the version that it leads to; they run in that order. A migration works in
small transactions and stores its progress in each, so a start continues after a kill; a repeated step does no
harm. The version changes in its last transaction, which also owes the history the event `migrated`
(`Environment.owe`). Stored bytes of events never change: their hashes are in the chain.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

import lmdb

from lightagentd.errors import HistoryDamaged
from lightagentd.events.model import decode
from lightagentd.events.store import clock
from lightagentd.events.store.layout import (
    EVENTS,
    SCHEMA_VERSION,
    Environment,
    as_storage_error,
    bounded,
    seq_key,
    written,
)
from lightagentd.events.store.records import index_fields
from lightagentd.events.types.history import HistoryMigrated

Progress = Callable[[str], object]
_POSITION = b"migrating"
BATCH = 1000
"""Events of one transaction."""


def migrate(environment: Environment, progress: Progress | None = None) -> None:
    """Run the missing migrations, before anybody else uses the store. `progress` receives a sentence now and
    then.

    Raises StorageError, HistoryDamaged; another start can try again.
    """
    before = environment.version
    if before >= SCHEMA_VERSION:
        return
    for version in range(before + 1, SCHEMA_VERSION + 1):
        step = MIGRATIONS[version]
        while (position := _position(environment, version)) is not None:
            if progress is not None:
                whole = max(1, environment.entries())
                progress(
                    f"bringing the history to schema version {version}: event {position} of about {whole}"
                )
            _transaction(environment, version, step, before)
    for count in clock.measure(environment):  # without it, searches by time are slow
        if progress is not None:
            progress(f"looking at the times in the history: {count} events of about {environment.entries()}")


Step = Callable[[Environment, Any, int], int | None]
"""One transaction's work of a migration, from a position on; gives the next position, or None at the end."""


def _fill_by_field(environment: Environment, txn: Any, position: int) -> int | None:
    """Version 2 has the index `by_field`."""
    with txn.cursor(environment.db[EVENTS]) as cursor:
        found = cursor.set_range(seq_key(position))
        rows = list(bounded(islice(cursor, BATCH))) if found else []
    for key, record in rows:
        try:
            event = decode(record)
        except ValueError as err:
            number = int.from_bytes(key, "big")
            raise HistoryDamaged(
                f"The stored event {number} cannot be read, so the history in {environment.path} cannot be"
                f" brought to schema version 2: {err}",
                suggestion="Nothing was lost. Run: lactl audit verify",
            ) from err
        index_fields(environment, txn, event)
    return int.from_bytes(rows[-1][0], "big") + 1 if rows else None


def _nothing(_: Environment, __: Any, ___: int) -> None:
    """Version 3 has the state `changed`: a program that does not write it must not write the store. The
    first checkpoint lists all rows.
    """


MIGRATIONS: dict[int, Step] = {2: _fill_by_field, 3: _nothing}


def _position(environment: Environment, version: int) -> int | None:
    """The position where the migration to a version continues; None when it is done."""
    if environment.version >= version:
        return None
    found = environment.get_meta(_POSITION)
    return int(found[1]) if found is not None and found[0] == version else 0


def _transaction(environment: Environment, version: int, step: Step, before: int) -> None:
    position = _position(environment, version) or 0

    def write(txn: Any) -> None:
        reached = step(environment, txn, position)
        if reached is not None:
            environment.set_meta(txn, _POSITION, [version, reached])
            return
        environment.set_meta(txn, _POSITION, None)
        if version == SCHEMA_VERSION:
            environment.owe(txn, HistoryMigrated(from_version=before, to_version=version).event())
        environment.set_version(txn, version)

    try:
        written(environment, write)
    except lmdb.Error as err:
        environment.version = version - 1
        raise as_storage_error(environment.path, err) from err
