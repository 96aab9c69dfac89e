"""How the history lies in LMDB: databases, keys, and opening the environment.

One environment in `<state>/history`. `events` maps an 8-byte big-endian seq to the stored bytes of an
event (see `model`). The indexes map a prefix, a zero byte and the seq to the event's topic, so that a
session's messages are found without reading its other events; `by_time` has 8 bytes of microseconds
as its prefix and no zero byte. STATES are what events change, by key; `meta` has the schema's version.
Schema version 1: a store that was made before a state existed gets it when it is opened to write.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lmdb

from lightagentd.errors import HistoryDamaged, StorageError
from lightagentd.events.model import Event

SCHEMA_VERSION = 1
EVENTS = "events"
INDEXES = ("by_session", "by_agent", "by_topic", "by_time", "by_trace")
STATES = (
    "sessions",
    "turns",
    "agents",
    "approvals",
    "undo",
    "watches",
    "current",
    "plans",
    "inputs",
    "compactions",
    "usage",
    "memories",
    "profiles",
)
META = "meta"
INITIAL_MAP_BYTES = 64 << 20
_LOCK_BYTES = 8192
"""What LMDB's lock file takes for as many readers as are allowed here."""
_DISK_FULL_BYTES = 1 << 20
"""A disk with less room than this counts as full."""
RESERVE_BYTES = 16 << 20
"""Always allocated beyond the used part of the file, so that a full disk does not stop the history."""

BATCH = 256
"""Records that are read in one transaction while walking a range."""
BATCH_BYTES = 4 << 20
"""When the records of a batch have reached this size, the batch ends early."""


def seq_key(seq: int) -> bytes:
    return seq.to_bytes(8, "big")


def index_prefix(value: str) -> bytes:
    """The prefix of a value's keys. No value's prefix begins another's: 0xff, which UTF-8 does not have,
    stands for a zero byte. Values that differ after 256 bytes share one, so a reader compares the event too.
    """
    return value.encode("utf-8", "replace")[:256].replace(b"\0", b"\xff") + b"\0"


def index_keys(event: Event) -> Iterator[tuple[str, bytes]]:
    """Name of the index and key, for each index that the event belongs to."""
    seq = seq_key(event.seq)
    for name, value in (
        ("by_session", event.session),
        ("by_agent", event.agent),
        ("by_topic", event.topic),
        ("by_trace", event.trace_id),
    ):
        if value:
            yield name, index_prefix(value) + seq
    yield "by_time", seq_key(max(0, event.time_us)) + seq


def bounded(rows: Iterable[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
    """The first of some rows (key, record): as many as BATCH_BYTES allows, and at least one."""
    size_bytes = 0
    for row in rows:
        yield row
        size_bytes += len(row[1])
        if size_bytes >= BATCH_BYTES:
            return


class Environment:
    """The opened LMDB environment. Its owner closes it; readers and the one writer share it.

    Growing the map needs that no transaction of this process is open: `reading` holds a lock that `grow`
    takes, and the one writer calls `grow` between its transactions. A process can open the same folder once.
    """

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        """Raises StorageError, HistoryDamaged."""
        self.path = path
        self.read_only = read_only
        self._data_file = path / "data.mdb"
        self._gate = threading.Lock()
        self.env = self._open()
        with contextlib.ExitStack() as on_failure:
            on_failure.callback(self.env.close)
            self._check_size()
            names = (EVENTS, *INDEXES, *STATES, META)
            try:
                # A handle from a read transaction would end with it; a new store pays for one commit only.
                with contextlib.nullcontext() if read_only else self.env.begin(write=True) as txn:
                    self.db: dict[str, Any] = {}
                    for name in names:
                        with contextlib.suppress(lmdb.NotFoundError):  # a state that is newer than the store
                            self.db[name] = self.env.open_db(name.encode(), txn=txn, create=not read_only)
            except lmdb.Error as err:
                raise _as_storage_error(path, err) from err
            self._check_version()
            on_failure.pop_all()

    def _open(self) -> Any:
        try:
            if not self.read_only:
                self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._allocate_lock_file()
            return lmdb.open(
                os.fspath(self.path),
                map_size=0 if self.read_only else INITIAL_MAP_BYTES,
                max_dbs=32,
                max_readers=126,
                readonly=self.read_only,
                create=not self.read_only,
                mode=0o600,
                readahead=False,
            )
        except (lmdb.Error, OSError) as err:
            raise _as_storage_error(self.path, err) from err

    def _allocate_lock_file(self) -> None:
        """LMDB maps this file without asking for its blocks: on a full disk touching it would end the process
        with SIGBUS (mmap(2)). Raises OSError.
        """
        fd = os.open(self.path / "lock.mdb", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, _LOCK_BYTES)
        finally:
            os.close(fd)

    def _check_size(self) -> None:
        """Reading a page that was cut off would end the process with SIGBUS (mmap(2)), so look first."""
        used_bytes, size_bytes = self._used_bytes(), self._data_file.stat().st_size
        if size_bytes < used_bytes:
            raise HistoryDamaged(
                f"The history in {self.path} is truncated: {size_bytes} bytes of {used_bytes} are left.",
                suggestion=_RESTORE,
            )

    def _used_bytes(self) -> int:
        return int((self.env.info()["last_pgno"] + 1) * self.env.stat()["psize"])

    def _check_version(self) -> None:
        with self.reading() as txn:
            found = txn.get(b"schema_version", db=self.db[META])
        if found is None and not self.read_only:
            with self.env.begin(write=True) as txn:
                txn.put(b"schema_version", str(SCHEMA_VERSION).encode(), db=self.db[META])
        elif found is not None and int(found) > SCHEMA_VERSION:
            raise StorageError(
                f"The history in {self.path} has schema version {int(found)}, newer than this program knows.",
                suggestion="Install the version of lightagentd that wrote it.",
            )

    @contextmanager
    def reading(self) -> Iterator[Any]:
        """A read transaction: short, and never kept across an await."""
        with self._gate:
            try:
                with self._begin() as txn:
                    yield txn
            except lmdb.Error as err:
                raise _as_storage_error(self.path, err) from err

    def _begin(self) -> Any:
        try:
            return self.env.begin(buffers=False)
        except lmdb.MapResizedError:  # the daemon has grown the map
            self.env.set_mapsize(0)
            return self.env.begin(buffers=False)

    def grow(self) -> None:
        """Double the map."""
        with self._gate:
            self.env.set_mapsize(self.env.info()["map_size"] * 2)

    def reserve(self) -> bool:
        """Keep RESERVE_BYTES allocated beyond what is used; False when the disk is too full for that, or when
        the reserve is all that is left of it.
        """
        used_bytes = self._used_bytes()
        try:
            if self._data_file.stat().st_blocks * 512 < used_bytes + RESERVE_BYTES // 2:
                fd = os.open(self._data_file, os.O_RDWR | os.O_CLOEXEC)
                try:
                    os.posix_fallocate(fd, 0, used_bytes + RESERVE_BYTES)
                finally:
                    os.close(fd)
            disk = os.statvfs(self.path)
        except OSError:
            return False
        return disk.f_bavail * disk.f_frsize >= _DISK_FULL_BYTES

    def close(self) -> None:
        self.env.close()


_RESTORE = "Nothing was changed. Move the folder away and restore a backup."


def _as_storage_error(path: Path, err: Exception) -> StorageError:
    damaged = (lmdb.CorruptedError, lmdb.InvalidError, lmdb.PageNotFoundError, lmdb.VersionMismatchError)
    if isinstance(err, damaged):
        return HistoryDamaged(
            f"The history in {path} is damaged: {err}",
            suggestion=_RESTORE,
        )
    return StorageError(
        f"The history in {path} cannot be used: {err}.", suggestion="Look at the disk and its mount."
    )
