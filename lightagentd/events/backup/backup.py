"""A consistent copy of the store, made while the daemon runs or is stopped.

LMDB copies one snapshot, as one read transaction sees it, without free pages. Pages of the snapshot are not
reused during the copy, so the store of a busy daemon grows meanwhile. Functions that read the store run in
`stored.run_as_owner`.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lmdb

from lightagentd.errors import HistoryDamaged, LightagentError, NotFound, StorageError
from lightagentd.events.queries import StoredHistory
from lightagentd.events.store.layout import Environment

PIECE_BYTES = 1 << 20


def open_stored(history: Path) -> StoredHistory:
    """Open a store for reading. Raises NotFound, StorageError, HistoryDamaged."""
    if not (history / "data.mdb").exists():
        raise NotFound(f"There is no history in {history}.", suggestion="It begins when the daemon starts.")
    return StoredHistory(history)


def copy_store(history: str) -> Iterator[bytes | dict[str, Any]]:
    """Yield a snapshot piece by piece, then the facts of the store just before; the snapshot has at least
    that.

    The caller writes the pieces to a file. The child that reads the store never has that file, since a forged
    store might take the child over. Raises NotFound, StorageError, HistoryDamaged.
    """
    stored = open_stored(Path(history))
    try:
        seq, head_hash = stored.queries.stored_head()
        events = stored.environment.entries()
        yield from _pieces(stored.environment)
    finally:
        stored.close()
    yield {"events": events, "seq": seq, "hash": head_hash}


def _pieces(environment: Environment) -> Iterator[bytes]:
    reading, writing = os.pipe()
    failed: list[BaseException] = []

    def copy() -> None:
        try:
            _copy(environment, writing)
        except BaseException as err:  # noqa: BLE001 - whoever reads the pieces raises it
            failed.append(err)
        finally:
            os.close(writing)

    copying = threading.Thread(target=copy, name="backup", daemon=True)  # LMDB writes only to a descriptor
    with os.fdopen(reading, "rb") as pipe:
        copying.start()
        while piece := pipe.read(PIECE_BYTES):
            yield piece
    copying.join()
    if failed:
        raise failed[0]


def _copy(environment: Environment, fd: int) -> None:
    for _ in range(100):
        try:
            environment.env.copyfd(fd, compact=True)
        except lmdb.MapResizedError:  # the daemon has grown the map just now; nothing is written then
            environment.env.set_mapsize(0)
        except (lmdb.Error, OSError) as err:
            raise copy_error(err) from err
        else:
            return
    raise StorageError("The history grows faster than it can be copied.", suggestion="Try it again.")


def copy_error(err: Exception) -> LightagentError:
    """The error for a failed copy."""
    text = str(err)
    full = getattr(err, "errno", 0) in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) or any(
        os.strerror(number) in text for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    )
    if full:
        return StorageError(
            f"There is no room for the copy: {text}.", suggestion="Make room, or write it to another disk."
        )
    if isinstance(err, lmdb.CorruptedError | lmdb.IncompatibleError | lmdb.PageNotFoundError):
        return HistoryDamaged(
            f"The history cannot be copied, its file is damaged: {text}.",
            suggestion="Save what can be read with 'lactl history export'.",
        )
    return StorageError(f"The copy cannot be written: {text}.", suggestion="Look at the disk.")
