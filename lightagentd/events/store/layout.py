"""The LMDB layout of the history: databases, keys, and opening the environment.

One environment in `<state>/history`. `events` maps an 8-byte big-endian seq to the stored bytes of an event
(see `model`). The indexes map a prefix, a zero byte and the seq to the event's topic, so that a session's
messages are found without reading its other events; `by_time` has 8 bytes of microseconds as its prefix and
no zero byte, and `by_field` has prefixes such as `tool=bash`. STATES hold the state that events change, by
key. `meta` has the schema's version; the anchor, which is the number and hash of the event before the first
of the chain, if that is not event 1; and the owed events (`Environment.owe`).
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import lmdb

from lightagentd.errors import HistoryDamaged, StorageError
from lightagentd.events.model import FROM_TOOL, GENESIS, Event, NewEvent
from lightagentd.events.store.states import decoding

_T = TypeVar("_T")

SCHEMA_VERSION = 3
EVENTS = "events"
INDEXES = ("by_session", "by_agent", "by_topic", "by_time", "by_trace", "by_field")
FIELDS = ("type", "caller", "request", "tool", "effect", "decision")
"""What `by_field` is about. The last three are in the data of events that the daemon itself makes."""
CHANGED = "changed"
"""The rows of the other states that changed since the newest checkpoint, see `rows`."""
STATES = (
    *("sessions", "turns", "agents", "approvals", "undo", "watches", "current", "plans", "inputs"),
    *("compactions", "usage", "memories", "profiles", "triggers"),
    *("flow_runs", "flow_steps", "flow_definitions", "evals", "ratings", "tokens"),
    *("prunings", "mail", "confirmations", CHANGED),
)
META = "meta"
_ANCHOR = b"anchor"
_VERSION = b"schema_version"
OWED = b"owed"
INITIAL_MAP_BYTES = 64 << 20
_LOCK_BYTES = 8192
"""What LMDB's lock file takes for as many readers as are allowed here."""
_DISK_FULL_BYTES = 1 << 20
"""A disk with less room than this counts as full."""
RESERVE_BYTES = 16 << 20
"""Always allocated beyond the used part of the file, so that a full disk does not stop the history."""

KEPT_BYTES = 4 << 20
"""The part of the reserve that is left for making room: retention, deletions and compaction."""

_OPENING_TRIES = 10

BATCH = 256
"""Records that are read in one transaction while walking a range."""
BATCH_BYTES = 4 << 20
"""When the records of a batch have reached this size, the batch ends early."""


def seq_key(seq: int) -> bytes:
    return seq.to_bytes(8, "big")


@lru_cache(maxsize=2048)
def _prefix(value: str) -> bytes:
    return value.encode("utf-8", "replace")[:256].replace(b"\0", b"\xff") + b"\0"


def index_prefix(value: str) -> bytes:
    """The prefix of a value's keys. No prefix begins another one: a zero byte is replaced by 0xff, which
    UTF-8 does not have. Values that differ only after 256 bytes share a prefix, so a reader compares the
    event too.
    """
    return _prefix(value[:256])


@lru_cache(maxsize=2048)
def _field_prefix(field: str, value: str) -> bytes:
    return index_prefix(f"{field}={value}")


def field_prefix(field: str, value: str) -> bytes:
    """The prefix in `by_field` of a value of one of FIELDS."""
    return _field_prefix(field, value[:256])


def index_keys(event: Event) -> list[tuple[str, bytes]]:
    """Name of the index and key, for each index that the event belongs to."""
    seq = event.seq.to_bytes(8, "big")
    keys = [
        ("by_topic", _prefix(event.topic[:256]) + seq),
        ("by_time", max(0, event.time_us).to_bytes(8, "big") + seq),
    ]
    for name, value in (
        ("by_session", event.session),
        ("by_agent", event.agent),
        ("by_trace", event.trace_id),
    ):
        if value:
            keys.append((name, _prefix(value[:256]) + seq))
    for field, value in indexed_fields(event):
        keys.append(("by_field", _field_prefix(field, value[:256]) + seq))
    return keys


def indexed_fields(event: Event) -> list[tuple[str, str]]:
    """Each of FIELDS that an event has, with its value as text."""
    found = [("type", event.type)]
    if event.caller is not None:
        found.append(("caller", str(event.caller)))
    if event.request_id:
        found.append(("request", event.request_id))
    data = event.data
    if data and event.source != FROM_TOOL:
        for field in ("tool", "effect", "decision"):
            value = data.get(field)
            if value and isinstance(value, str):
                found.append((field, value))
    return found


def bounded(rows: Iterable[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
    """The first of some rows (key, record): as many as fit into BATCH_BYTES, and at least one."""
    size_bytes = 0
    for row in rows:
        yield row
        size_bytes += len(row[1])
        if size_bytes >= BATCH_BYTES:
            return


def ascending(txn: Any, db: Any, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The entries whose keys begin with a prefix, in the caller's transaction."""
    with txn.cursor(db) as cursor:
        placed = cursor.set_range(prefix)
        while placed and cursor.key().startswith(prefix):
            yield cursor.item()
            placed = cursor.next()


def descending(
    txn: Any, db: Any, prefix: bytes, before: bytes = b"\xff" * 8
) -> Iterator[tuple[bytes, bytes]]:
    """Like `ascending`, in reverse order; with `before`, only keys before the prefix with it."""
    with txn.cursor(db) as cursor:
        placed = cursor.prev() if cursor.set_range(prefix + before) else cursor.last()
        while placed and cursor.key().startswith(prefix):
            yield cursor.item()
            placed = cursor.prev()


class Environment:
    """The opened LMDB environment. Its owner closes it; readers and the one writer share it.

    Growing the map and exchanging the file need that no transaction of this process is open: `reading` holds
    a lock that `grow` and `reopen` take, and the one writer calls these between its transactions. A process
    can open the same folder only once. A value of `db` is valid for one transaction; `reopen` replaces it.
    """

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        """Raises StorageError, HistoryDamaged."""
        self.path = path
        self.read_only = read_only
        self.version = SCHEMA_VERSION
        """The schema's version as it is stored. Of version 1, when only read, `db` has no `by_field`."""
        self.full = False
        """Whether less than KEPT_BYTES are left, on the disk and in the file, as of the last `reserve`."""
        self.holds_reserve = True
        """False while a copy of the store may need the room of the reserve."""
        self.doubtful = False
        """Whether a read failed, so that the file should be examined."""
        self.data_file = path / "data.mdb"
        """The file that is mapped."""
        self._gate = threading.Lock()
        self.db: dict[str, Any] = {}
        self.env: Any = None
        self._attach()

    def _attach(self) -> None:
        self.env = self._open()
        with contextlib.ExitStack() as on_failure:
            on_failure.callback(self.env.close)
            self._check_size()
            try:
                # A handle from a read transaction would end with it; a new store pays for one commit only.
                with contextlib.nullcontext() if self.read_only else self.env.begin(write=True) as txn:
                    found: dict[str, Any] = {}
                    for name in (EVENTS, *INDEXES, *STATES, META):
                        with contextlib.suppress(lmdb.NotFoundError):  # a state that is newer than the store
                            found[name] = self.env.open_db(name.encode(), txn=txn, create=not self.read_only)
                self.db.update(found)  # who looks whether there is one finds it, also while it is reopened
                self._check_version()
            except lmdb.Error as err:
                raise as_storage_error(self.path, err) from err
            on_failure.pop_all()

    def _open(self) -> Any:
        for _ in range(_OPENING_TRIES):
            try:
                if not self.read_only:
                    self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
                    _allocate_lock_file(self.path / "lock.mdb")
                folder = self.path.stat().st_ino
                opened = lmdb.open(
                    os.fspath(self.path),
                    map_size=0 if self.read_only else _map_bytes(self.data_file),
                    max_dbs=32,
                    max_readers=126,
                    readonly=self.read_only,
                    create=not self.read_only,
                    lock=not self.read_only or _is_allocated(self.path / "lock.mdb"),
                    mode=0o600,
                    readahead=False,
                )
            except (lmdb.Error, OSError) as err:
                raise as_storage_error(self.path, err) from err
            # The daemon exchanges the folder when it compacts; the lock file of one store and the data of
            # another would show an old state of that as if it were the present one.
            with contextlib.suppress(OSError):
                if self.path.stat().st_ino == folder:
                    return opened
            opened.close()
        raise StorageError(f"The history in {self.path} cannot be opened: it is exchanged all the time.")

    def _check_size(self) -> None:
        """Reading a page that was cut off would end the process with SIGBUS (mmap(2)), so look first."""
        used_bytes, size_bytes = self.used_bytes(), self.data_file.stat().st_size
        if size_bytes < used_bytes:
            raise HistoryDamaged(
                f"The history in {self.path} is truncated: {size_bytes} bytes of {used_bytes} are left.",
                suggestion=_RESTORE,
            )

    def used_bytes(self) -> int:
        """How far the file is in use, including free pages."""
        return int((self.env.info()["last_pgno"] + 1) * self.env.stat()["psize"])

    def live_bytes(self) -> int:
        """The size of the used pages, without the free ones. Raises StorageError."""
        pages = 2 + len(self.db)
        with self.reading() as txn:
            for database in self.db.values():
                stat = txn.stat(database)
                pages += stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]
            return int(pages * self.env.stat()["psize"])

    def entries(self, name: str = EVENTS) -> int:
        """How many entries a database has. Raises StorageError."""
        with self.reading() as txn:
            return int(txn.stat(self.db[name])["entries"])

    def newest_seq(self) -> int:
        """The number of the newest event; 0 when there is none. Raises StorageError."""
        with self.reading() as txn, txn.cursor(self.db[EVENTS]) as cursor:
            return int.from_bytes(cursor.key()[:8]) if cursor.last() else 0

    def _check_version(self) -> None:
        with self._begin() as txn:
            found = txn.get(_VERSION, db=self.db[META])
        if found is None:
            if not self.read_only:
                with self.env.begin(write=True) as txn:
                    self.set_version(txn, SCHEMA_VERSION)
            return
        with decoding("meta", "schema_version"):
            self.version = int(found)
        if self.version > SCHEMA_VERSION:
            raise StorageError(
                f"The history in {self.path} has schema version {self.version}, newer than this program"
                " knows.",
                suggestion="Install the version of lightagentd that wrote it.",
            )
        if self.read_only and self.version < 2:
            self.db.pop("by_field", None)  # a migration did not finish

    def set_version(self, txn: Any, version: int) -> None:
        """Store the schema's version, in the caller's transaction."""
        txn.put(_VERSION, str(version).encode(), db=self.db[META])
        self.version = version

    @contextmanager
    def reading(self) -> Iterator[Any]:
        """A read transaction: short, and never kept across an await."""
        with self._gate:
            try:
                with self._begin() as txn:
                    yield txn
            except lmdb.Error as err:
                self.doubtful = True
                raise as_storage_error(self.path, err) from err
            except HistoryDamaged:
                self.doubtful = True
                raise

    def _begin(self) -> Any:
        try:
            return self.env.begin(buffers=False)
        except lmdb.MapResizedError:  # the daemon has grown the map
            self.env.set_mapsize(0)
            return self.env.begin(buffers=False)

    def get_meta(self, key: bytes) -> Any:
        """The JSON value of an entry of `meta`, or None."""
        with self.reading() as txn:
            found = txn.get(key, db=self.db[META])
        with decoding("meta", repr(key)):
            return None if found is None else json.loads(found)

    def set_meta(self, txn: Any, key: bytes, value: Any) -> None:
        """Store an entry of `meta`, in the caller's transaction; None removes it."""
        if value is None:
            txn.delete(key, db=self.db[META])
        else:
            txn.put(key, json.dumps(value).encode(), db=self.db[META])

    def anchor(self) -> tuple[int, str]:
        """Number and hash of the event before the first of the chain: (0, GENESIS) when nothing was removed.

        Events stored before it are those that retention kept (`types.history.HistoryPruned`).
        """
        with self.reading() as txn:
            return self.anchor_in(txn)

    def anchor_in(self, txn: Any) -> tuple[int, str]:
        """Like `anchor`, in the caller's transaction."""
        found = txn.get(_ANCHOR, db=self.db[META])
        with decoding("meta", "anchor"):
            seq, anchor_hash = json.loads(found) if found is not None else (0, GENESIS)
            if type(seq) is not int or not 0 <= seq < 1 << 63:
                raise ValueError("it names no event")
            return seq, str(anchor_hash)

    def set_anchor(self, txn: Any, seq: int, anchor_hash: str) -> None:
        """Make the chain begin after an event, in the caller's transaction."""
        self.set_meta(txn, _ANCHOR, [seq, anchor_hash])

    def owe(self, txn: Any, event: NewEvent) -> None:
        """Make the daemon's next start append an event about a change of the store: a migration, or an
        administrator's change while no daemon ran. In the caller's transaction.
        """
        found = txn.get(OWED, db=self.db[META])
        owed = [*(json.loads(found) if found else []), [event.topic, event.type, dict(event.data)]]
        self.set_meta(txn, OWED, owed)

    def owed(self) -> list[tuple[str, str, dict[str, Any]]]:
        """Topic, type and data of the owed events, see `owe`."""
        stored = self.get_meta(OWED) or ()
        with decoding("meta", "owed"):
            return [(str(topic), str(event_type), dict(data)) for topic, event_type, data in stored]

    def settle(self, txn: Any) -> None:
        """Clear the owed events, in the caller's transaction, which stores them."""
        self.set_meta(txn, OWED, None)

    def reopen(self, exchange: Callable[[], None] | None = None) -> None:
        """Close the file and open it again: after an error that LMDB does not recover from, or because
        `exchange` puts another file in its place. If it cannot be opened for writing, it is opened for
        reading.

        If `exchange` raises, the file is open as before. Raises StorageError; then no file is open.
        """
        with self._gate:
            self.env.close()
            self.read_only = False
            try:
                if exchange is not None:
                    exchange()
            finally:
                try:
                    self._attach()
                except StorageError:
                    self.read_only = True
                    self._attach()

    def grow(self) -> None:
        """Double the map."""
        with self._gate:
            self.env.set_mapsize(self.env.info()["map_size"] * 2)

    def forget_dead_readers(self) -> int:
        """Release the pages held by killed readers; returns their number."""
        with self._gate:
            return int(self.env.reader_check())

    def reserve(self) -> bool:
        """Keep RESERVE_BYTES allocated beyond the used part; False when the disk is too full for that, or
        when only the reserve is left. Then `full` says whether the most of that is used, too.
        """
        used_bytes, self.full = self.used_bytes(), False
        try:
            allocated_bytes = self.data_file.stat().st_blocks * 512
            if self.holds_reserve and allocated_bytes < used_bytes + RESERVE_BYTES // 2:
                fd = os.open(self.data_file, os.O_RDWR | os.O_CLOEXEC)
                try:
                    os.posix_fallocate(fd, 0, used_bytes + RESERVE_BYTES)
                finally:
                    os.close(fd)
            if free_bytes(self.path) >= _DISK_FULL_BYTES:
                return True
        except OSError:
            pass
        with contextlib.suppress(OSError, StorageError):  # the next append says what is wrong with the disk
            allocated_bytes = self.data_file.stat().st_blocks * 512
            room_bytes = free_bytes(self.path) + allocated_bytes - self.live_bytes()
            self.full = room_bytes < KEPT_BYTES
        return False

    def close(self) -> None:
        self.env.close()


def written(environment: Environment, write: Callable[[Any], _T]) -> _T:
    """The result of `write` in one write transaction. `write` runs again when the map was too small."""
    while True:
        try:
            with environment.env.begin(write=True) as txn:
                return write(txn)
        except lmdb.MapFullError:
            environment.grow()


def _map_bytes(data_file: Path) -> int:
    """More room than is used: without free room not even a new database could be made."""
    with contextlib.suppress(FileNotFoundError):
        return max(INITIAL_MAP_BYTES, 2 * data_file.stat().st_size)
    return INITIAL_MAP_BYTES


def _allocate_lock_file(path: Path) -> None:
    """LMDB maps this file without asking for its blocks: on a full disk touching it would end the process
    with SIGBUS (mmap(2)). Raises OSError.
    """
    if _is_allocated(path):
        return
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(fd, 0, _LOCK_BYTES)
    finally:
        os.close(fd)


def free_bytes(path: Path) -> int:
    """The room that the disk with this path has for this process. Raises OSError."""
    disk = os.statvfs(path)
    return disk.f_bavail * disk.f_frsize


def _is_allocated(lock_file: Path) -> bool:
    with contextlib.suppress(OSError):
        return lock_file.stat().st_blocks * 512 >= _LOCK_BYTES
    return False


_LOOK = "Look at the disk and its mount."
_RESTORE = "Nothing was changed. Move the folder away and restore a backup."


def as_storage_error(path: Path, err: Exception) -> StorageError:
    damaged = (lmdb.CorruptedError, lmdb.InvalidError, lmdb.PageNotFoundError, lmdb.VersionMismatchError)
    if isinstance(err, damaged):
        return HistoryDamaged(
            f"The history in {path} is damaged: {err}",
            suggestion=_RESTORE,
        )
    why = getattr(err, "strerror", None) or err
    return StorageError(f"The history in {path} cannot be used: {why}.", suggestion=_LOOK)
