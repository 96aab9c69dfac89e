"""How the history lies in LMDB: databases, keys, and opening the environment.

One environment in `<state>/history`. `events` maps an 8-byte big-endian seq to the stored bytes of an
event (see `model`). The indexes map a prefix, a zero byte and the seq to the event's topic, so that a
session's messages are found without reading its other events; `by_time` has 8 bytes of microseconds
as its prefix and no zero byte. `sessions`, `turns` and `agents` are the state that events change, `meta`
has the schema's version. Schema version 1.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lmdb

from lightagentd.errors import HistoryDamaged, StorageError
from lightagentd.events.model import Event

SCHEMA_VERSION = 1
EVENTS = "events"
INDEXES = ("by_session", "by_agent", "by_topic", "by_time", "by_trace")
STATES = ("sessions", "turns", "agents", "approvals", "undo")
META = "meta"
INITIAL_MAP_BYTES = 64 << 20
RESERVE_BYTES = 16 << 20
"""Always allocated beyond the used part of the file, so that a full disk does not stop the history."""


def seq_key(seq: int) -> bytes:
    return seq.to_bytes(8, "big")


def index_prefix(value: str) -> bytes:
    return value.encode("utf-8", "replace")[:256] + b"\0"


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


class Environment:
    """The opened LMDB environment. Its owner closes it; readers and the one writer share it.

    Growing the map needs that no transaction of this process is open: `reading()` and `writing()` keep
    that count, so that `grow` can wait for it.
    """

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.path = path
        self.read_only = read_only
        self._gate = threading.Lock()
        try:
            if not read_only:
                path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.env = lmdb.open(
                os.fspath(path),
                map_size=INITIAL_MAP_BYTES if not read_only else 0,
                max_dbs=16,
                max_readers=126,
                readonly=read_only,
                create=not read_only,
                mode=0o600,
                readahead=False,
            )
            names = (EVENTS, *INDEXES, *STATES, META)
            self.db: dict[str, Any] = {
                name: self.env.open_db(name.encode(), create=not read_only) for name in names
            }
        except lmdb.Error as err:
            raise _as_storage_error(path, err) from err
        self._check_version()

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
                txn = self.env.begin(buffers=False)
            except lmdb.MapResizedError:
                self.env.set_mapsize(0)
                txn = self.env.begin(buffers=False)
            try:
                yield txn
            except lmdb.Error as err:
                raise _as_storage_error(self.path, err) from err
            finally:
                txn.abort()

    def grow(self) -> None:
        """Double the map."""
        with self._gate:
            self.env.set_mapsize(self.env.info()["map_size"] * 2)

    def reserve(self) -> bool:
        """Keep RESERVE_BYTES allocated beyond what is used; False when the disk is too full for that."""
        used = (self.env.info()["last_pgno"] + 1) * self.env.stat()["psize"]
        data_file = self.path / "data.mdb"
        if data_file.stat().st_blocks * 512 >= used + RESERVE_BYTES // 2:
            return True
        fd = os.open(data_file, os.O_RDWR | os.O_CLOEXEC)
        try:
            os.posix_fallocate(fd, 0, used + RESERVE_BYTES)
        except OSError:
            return False
        finally:
            os.close(fd)
        return True

    def close(self) -> None:
        self.env.close()


def _as_storage_error(path: Path, err: lmdb.Error) -> StorageError:
    damaged = (lmdb.CorruptedError, lmdb.InvalidError, lmdb.PageNotFoundError, lmdb.VersionMismatchError)
    if isinstance(err, damaged):
        return HistoryDamaged(
            f"The history in {path} is damaged: {err}",
            suggestion="Nothing was changed. Move the folder away and restore a backup.",
        )
    return StorageError(
        f"The history in {path} cannot be used: {err}", suggestion="Look at the disk and its mount."
    )
