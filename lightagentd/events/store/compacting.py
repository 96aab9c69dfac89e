"""Rewrites the history's file without its free pages, while it is in use or while no daemon runs.

With a running daemon, another process copies the store (this module, with `python -m`); that is as slow as
the disk, and can be killed. Events stored meanwhile are added to the copy. Between two transactions, the
writer adds the rest, compares, and exchanges the folders (`exchange`). After a crash at any point either the
old store or the new one is whole, and `exchange.finish_exchange` clears up.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import shutil
import sys
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import lmdb

from lightagentd.errors import Conflict, HistoryDamaged, LightagentError, StorageError
from lightagentd.events.model import decode
from lightagentd.events.store import records
from lightagentd.events.store.exchange import being_made, exchange, finish_exchange, made
from lightagentd.events.store.layout import (
    EVENTS,
    INDEXES,
    META,
    RESERVE_BYTES,
    SCHEMA_VERSION,
    Environment,
    as_storage_error,
    ascending,
    bounded,
    free_bytes,
    index_prefix,
    seq_key,
    written,
)
from lightagentd.events.store.room import give_up_reserve, take_reserve
from lightagentd.events.types.history import HistoryCompacted
from lightagentd.host import state_lock
from lightagentd.host.renaming import sync_folder

if TYPE_CHECKING:
    from lightagentd.events.history import History

_log = logging.getLogger(__name__)

Copy = Callable[[Path, Path], Awaitable[None]]
"""Has another process do what `copy_store` does. Raises StorageError."""
_T = TypeVar("_T")
_BATCH = 1000
SLACK_BYTES = 1 << 20
"""The room for what is stored while a copy is made."""
_CLOSE = 200
"""With so few events left to bring, the writer brings them."""


@contextlib.contextmanager
def _opened(folder: Path) -> Iterator[int]:
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as err:
        raise as_storage_error(folder, err) from err
    try:
        yield fd
    finally:
        os.close(fd)


def copy_store(source: Path, folder: int) -> None:
    """Copy a store as it is at one moment, without its free pages, into an empty folder that is open.

    Raises StorageError, HistoryDamaged.
    """
    environment = Environment(source, read_only=True)
    try:
        if environment.version < SCHEMA_VERSION:
            raise Conflict(
                f"The history in {source} has schema version {environment.version}.",
                suggestion="Start the daemon once, which brings it to the present one.",
            )
        fd = os.open("data.mdb", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder)
        try:
            with contextlib.suppress(OSError):  # as mdb_env_copy does: it need not fill the page cache
                fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_DIRECT)
            environment.env.copyfd(fd, compact=True)
            os.fsync(fd)
        finally:
            os.close(fd)
        sync_folder(folder)
    except (lmdb.Error, OSError) as err:
        raise as_storage_error(source, err) from err
    finally:
        environment.close()


def _prepare(environment: Environment) -> Path:
    """The empty folder for the copy. The store's reserve is given up where the disk has no room otherwise; no
    other thread writes the store meanwhile. Raises StorageError when the room is not enough then either.
    """
    path = environment.path
    needed = environment.live_bytes() + SLACK_BYTES
    try:
        if (room := free_bytes(path)) < needed + RESERVE_BYTES:
            give_up_reserve(environment)
            room = free_bytes(path)
        if room < needed:
            raise StorageError(
                f"The disk that holds {path} has {room >> 20} MiB left, and the copy needs"
                f" {needed >> 20} MiB.",
                suggestion="Make room, or remove old events first: lactl history prune",
            )
        target = being_made(path)
        for left in (target, made(path)):
            if left.exists():
                shutil.rmtree(left)
        target.mkdir(mode=0o700)
    except OSError as err:
        raise as_storage_error(path, err) from err
    return target


def compact_stopped(path: Path) -> HistoryCompacted:
    """Compact a store that nobody has open, and owe it the event. The caller holds the daemon's lock.

    Raises StorageError, HistoryDamaged, Conflict.
    """
    finish_exchange(path)
    source = Environment(path, read_only=True)
    try:
        bytes_before = source.used_bytes()
        target = _prepare(source)
    finally:
        source.close()
    try:
        with _opened(target) as folder:
            copy_store(path, folder)
        copy = Environment(target)
        try:
            done = HistoryCompacted(bytes_before=bytes_before, bytes_after=copy.used_bytes())
            with copy.env.begin(write=True) as txn:
                copy.owe(txn, done.event())
        finally:
            copy.close()
        _exchange_and_remove(path)
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise
    return done


def compact_state(state: str) -> Iterator[dict[str, int]]:
    """`compact_stopped` in a state folder without a daemon, for `stored.run_as_owner`. Raises Conflict."""
    fd = state_lock.hold(Path(state))
    try:
        yield compact_stopped(Path(state) / "history").data()
    finally:
        os.close(fd)


def _exchange_and_remove(path: Path) -> None:
    try:
        being_made(path).rename(made(path))
        sync_folder(path.parent)
        exchange(path)
        shutil.rmtree(made(path))
    except OSError as err:
        raise as_storage_error(path, err) from err


async def compact(history: History, copy: Copy) -> HistoryCompacted:
    """Compact the history of this process while it is in use. Only one at a time, and not beside `prune`.

    Raises StorageError, HistoryDamaged; then the history is unchanged.
    """
    live = history.environment
    bytes_before = live.used_bytes()
    try:
        bytes_after = await _compact(history, copy)
    finally:
        await _to_its_end(history.exclusively(partial(take_reserve, live)))
    done = HistoryCompacted(bytes_before=bytes_before, bytes_after=bytes_after)
    await history.append(done.event())
    return done


async def _compact(history: History, copy: Copy) -> int:
    """Gives the size of the new file in bytes."""
    live, path = history.environment, history.environment.path
    erased = history.watch_erasures()
    prepared: list[Path] = []
    await _to_its_end(history.exclusively(lambda: prepared.append(_prepare(live))))
    [target] = prepared
    try:
        await copy(path, target)
        new = await _to_its_end(asyncio.to_thread(Environment, target))
        try:
            await _to_its_end(asyncio.to_thread(_follow, live, new))
            bytes_after = new.used_bytes()
            await _to_its_end(history.exclusively(partial(_finish, live, new, erased)))
        finally:
            new.close()
    except BaseException:
        await _to_its_end(asyncio.to_thread(shutil.rmtree, target, ignore_errors=True))
        raise
    await _to_its_end(asyncio.to_thread(shutil.rmtree, made(path), ignore_errors=True))
    return bytes_after


async def _to_its_end(work: Awaitable[_T]) -> _T:
    """Wait for a thread's work even when the caller is cancelled, because the caller then closes what it
    uses.
    """
    future = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        await asyncio.wait([future])
        raise


def _follow(live: Environment, new: Environment) -> None:
    """Add the events stored since the copy was made, as long as the backlog shrinks."""
    while _bring(live, new) > _CLOSE:
        pass


def _bring(live: Environment, new: Environment) -> int:
    """Add one batch of the events that the copy lacks; returns their number."""
    last = new.newest_seq()
    with live.reading() as txn, txn.cursor(live.db[EVENTS]) as cursor:
        found = cursor.set_range(seq_key(last + 1))
        rows = list(bounded(islice(cursor, _BATCH))) if found else []
    events = [(record, decode(record)) for _, record in rows]

    def put(txn: Any) -> None:
        puts = records.Puts(new, txn)
        for record, event in events:
            puts.add(record, event)
        puts.flush()

    written(new, put)
    return len(rows)


def _finish(live: Environment, new: Environment, erased: set[str]) -> None:
    """In the writer's thread: add the rest, compare, and put the copy in the place of the store."""
    path = live.path
    try:
        while _bring(live, new):
            pass
        with live.reading() as source:
            written(new, partial(_bring_changes, live, source, new, erased))
        _compare(live, new)
        new.close()
        being_made(path).rename(made(path))
        sync_folder(path.parent)
        try:
            live.reopen(partial(exchange, path))
        except StorageError:  # it cannot be opened: go back to the old store
            live.reopen(partial(exchange, path))
            raise
    except (lmdb.Error, OSError) as err:
        raise as_storage_error(path, err) from err
    live.reserve()


def _bring_changes(live: Environment, source: Any, new: Environment, erased: set[str], txn: Any) -> None:
    """Copy everything but events: the present states, and the erasures since the copy was made."""
    for name, database in live.db.items():
        if name == EVENTS or name in INDEXES:
            continue
        txn.drop(new.db[name], delete=False)
        with source.cursor(database) as rows, txn.cursor(new.db[name]) as cursor:
            cursor.putmulti(iter(rows), append=True)
    for session in erased:
        for key in [key[-8:] for key, _ in ascending(txn, new.db["by_session"], index_prefix(session))]:
            before, now = txn.get(key, db=new.db[EVENTS]), source.get(key, db=live.db[EVENTS])
            if before != now and now is not None:
                records.forget_data(new, txn, before, now)


def _compare(live: Environment, new: Environment) -> None:
    """Raises HistoryDamaged when the copy differs from the store."""
    different = [name for name in live.db if live.entries(name) != new.entries(name)]
    with live.reading() as mine, new.reading() as copied:
        with mine.cursor(live.db[EVENTS]) as one, copied.cursor(new.db[EVENTS]) as other:
            same_end = one.last() == other.last() and one.item() == other.item()
        same_meta = list(mine.cursor(live.db[META])) == list(copied.cursor(new.db[META]))
    if different or not same_end or not same_meta:
        raise HistoryDamaged(
            f"The copy of the history in {live.path} is not what was copied"
            f" ({', '.join(different) or 'its newest event'}), so it is not used.",
            suggestion="Run: lactl audit verify",
        )


def main() -> int:
    """The process that copies. Its arguments are the two folders and the process id of the daemon. It may
    outlive that, and then writes nothing into the folder of the next one. It reports errors on standard
    error.
    """
    source, target, daemon = sys.argv[1:]
    try:
        # First the folder, then the look at who made it: a next daemon removes this one and makes another.
        with _opened(Path(target)) as folder:
            if os.getppid() != int(daemon):
                raise Conflict("The daemon that asked for the copy has ended.")
            copy_store(Path(source), folder)
    except LightagentError as err:
        sys.stderr.write(f"{err.message}\n")
        return err.exit_status
    return 0


if __name__ == "__main__":
    sys.exit(main())
