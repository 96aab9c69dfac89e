"""A single file that holds a store, such as a backup: its content, and whether its chain verifies.

The file is input from outside. It must be examined in a child process (`stored.run_as_owner`), since LMDB can
crash on forged pages.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import lmdb

from lightagentd.errors import HistoryDamaged, InvalidArgument
from lightagentd.events.audit.verification import verify
from lightagentd.events.queries import Queries
from lightagentd.events.store.layout import EVENTS, META, STATES, Environment
from lightagentd.text.reason import reason


class StoreFile(Environment):
    """A single file, opened read-only. There is no lock, so nobody may write it meanwhile."""

    def __init__(self, path: Path, name: str) -> None:
        """`name` is the file's name in messages. Raises InvalidArgument when the file is not a store,
        StorageError, HistoryDamaged.
        """
        self._file = path
        super().__init__(Path(name), read_only=True)

    def _open(self) -> Any:
        self.data_file = self._file
        try:
            if self._file.stat().st_size == 0:
                raise lmdb.InvalidError("empty")
            return lmdb.open(
                os.fspath(self._file),
                subdir=False,
                lock=False,
                map_size=0,
                max_dbs=32,
                readonly=True,
                create=False,
                readahead=True,
            )
        except (lmdb.InvalidError, lmdb.VersionMismatchError) as err:
            raise InvalidArgument(
                f"{self.path} is no backup of a history.",
                suggestion="A backup is what 'lactl history backup' wrote.",
                field="file",
            ) from err
        except (lmdb.Error, OSError) as err:
            raise HistoryDamaged(f"{self.path} cannot be read: {reason(err)}.") from err

    def _check_version(self) -> None:
        if EVENTS not in self.db or META not in self.db:
            raise InvalidArgument(
                f"{self.path} holds no history; another program made it.",
                suggestion="A backup is what 'lactl history backup' wrote.",
                field="file",
            )
        with self._begin() as txn:
            found = txn.get(b"schema_version", db=self.db[META])
        if found is None or not found.isdigit() or len(found) > 9:
            raise HistoryDamaged(f"{self.path} does not say which schema its history has.")
        super()._check_version()

    def size_bytes(self) -> int:
        return self.data_file.stat().st_size


@dataclass(frozen=True, kw_only=True)
class StoreFacts:
    """The facts about a file that holds a store."""

    schema_version: int
    events: int
    """Stored ones."""
    states: int
    """Entries of state: sessions, approvals and the like."""
    seq: int
    hash: str
    """Number and hash of the newest event, or of the one before the first when there is none."""
    time_us: int
    """When the newest was made; 0 when there is none."""
    anchor_seq: int
    """The events up to this one were removed by retention, but for those that it keeps."""
    size_bytes: int
    verified: bool
    """The chain was walked and found intact."""
    problem: str
    """Where it breaks, as a sentence; empty when it does not, or was not looked at."""


def examine(path: str, name: str, verifying: bool = True) -> Iterator[dict[str, Any]]:
    """The facts of a file, as in `StoreFacts`; for `run_as_owner`. Raises the errors of `StoreFile`."""
    yield asdict(facts(Path(path), name, verifying=verifying))


def facts(path: Path, name: str, *, verifying: bool = True) -> StoreFacts:
    """The facts of a file. Raises the errors of `StoreFile`."""
    try:
        store = StoreFile(path, name)
        try:
            return facts_of(store, verifying=verifying)
        finally:
            store.close()
    except HistoryDamaged as err:
        err.suggestion = "Use another backup."
        raise


def facts_of(store: StoreFile, *, verifying: bool = True) -> StoreFacts:
    """The facts of an opened file. Raises StorageError, HistoryDamaged."""
    found = verify(store) if verifying else None
    if verifying:
        _walk(store)
    queries = Queries(store)
    last = queries.last()
    seq, head_hash = queries.stored_head()
    return StoreFacts(
        schema_version=store.version,
        events=store.entries(),
        states=sum(store.entries(name) for name in STATES if name in store.db),
        seq=seq,
        hash=head_hash,
        time_us=last.time_us if last is not None else 0,
        anchor_seq=store.anchor()[0],
        size_bytes=store.size_bytes(),
        verified=found is not None and found.ok,
        problem="" if found is None or found.ok else found.problem,
    )


def _walk(environment: Environment) -> None:
    """Read every page of every index and state, so that LMDB finds unreadable ones. Raises HistoryDamaged."""
    for name, db in environment.db.items():
        count = 0
        with environment.reading() as txn, txn.cursor(db) as cursor:
            last = b""
            for key in cursor.iternext(keys=True, values=False):
                if key <= last:  # pages that lead back to others would never end
                    raise HistoryDamaged(f"{environment.path} is damaged: {name} has keys out of order.")
                count, last = count + 1, key
        said = environment.entries(name)
        if count != said:
            raise HistoryDamaged(f"{environment.path} is damaged: {name} has {count} entries, not {said}.")
