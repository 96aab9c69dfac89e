"""What a full disk or one that takes no writes means for the store, beside `Environment.reserve`.

The functions that change something are for the one writer, between its transactions.
"""

from __future__ import annotations

import os
from pathlib import Path

import lmdb

from lightagentd.errors import StorageError
from lightagentd.events.store.layout import META, Environment, as_storage_error

_TRIED = b"tried"
"""Written anew by each start, to see whether the disk takes it."""


def try_writing(environment: Environment) -> None:
    """Commit a change of a few bytes. Raises StorageError when the disk does not take it, and when the room
    that is left has to stay for making more.
    """
    try:
        os.close(os.open(environment.path / "data.mdb", os.O_RDWR | os.O_CLOEXEC))
        if environment.read_only:
            environment.reopen()
        environment.reserve()
        if environment.full:
            raise disk_full(environment.path)
        with environment.env.begin(write=True) as txn:
            txn.put(_TRIED, os.urandom(8).hex().encode(), db=environment.db[META])
    except (lmdb.Error, OSError) as err:
        raise as_storage_error(environment.path, err) from err


def give_up_reserve(environment: Environment) -> None:
    """Give the reserve back to the disk, for a copy, until `take_reserve`. Raises OSError."""
    environment.holds_reserve = False
    os.truncate(environment.path / "data.mdb", environment.used_bytes())


def take_reserve(environment: Environment) -> None:
    """Hold the reserve again, as far as the disk has room for it."""
    environment.holds_reserve = True
    environment.reserve()


def disk_full(path: Path) -> StorageError:
    """The error for an event that may not use the last part of the reserve."""
    return StorageError(
        f"The history could not store an event: the disk that holds {path} is full.",
        suggestion="Remove old events with 'lactl history prune', or make room on the disk.",
    )
