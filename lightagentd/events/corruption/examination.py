"""Examines the history's file; a damaged one is set aside, never overwritten.

`examine` reads the file before LMDB opens it (see `pages`): the first pages, the list of databases, the
newest event and the stored states, and then everything else as far as time allows. Rows of the state that are
whole but invalid are not its matter (`daemon.state_rows`). An unreadable file (no permission, a failing
device) is not damaged, but no daemon starts with it.

`set_aside` renames the folder to `history.damaged-YYYYMMDDTHHMMSSZ`. It writes a note first, so that a start
can continue after a kill: a new store begins after the last known event of the old one. The damaged folder
stays for the administrator, and the new store records it (`types.history.HistorySetAside`).
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import lmdb

from lightagentd.errors import StorageError
from lightagentd.events.corruption.pages import Meta, Node, PageFile, Torn, Tree, Walk
from lightagentd.events.corruption.runs import known_event
from lightagentd.events.model import GENESIS, Event, decode
from lightagentd.events.store.layout import (
    EVENTS,
    INDEXES,
    META,
    SCHEMA_VERSION,
    STATES,
    as_storage_error,
)
from lightagentd.host.atomic_file import write_whole
from lightagentd.host.renaming import sync_folder

QUICK_S = 0.015
"""How long a start that follows a stop looks at what it need not look at."""
SET_ASIDE = "history.damaged-"
EXPORT = ".jsonl"
"""What the file with the readable part of such a store ends with."""
DATA, LOCK = "data.mdb", "lock.mdb"
_MAGIC = (0xBEEFC0DE).to_bytes(4, sys.byteorder)
"""What LMDB's own lock file begins with."""
TAIL_EVENTS = 1000
_SINCE_VERSION = {"by_field": 2}
"""Indexes that a store of an older schema does not have."""


@dataclass(frozen=True, kw_only=True)
class Examined:
    """The result of `examine`. `problem` is empty for a sound store, and where there is no store."""

    problem: str = ""
    seq: int = 0
    """The number of the newest event."""
    hash: str = GENESIS
    whole: bool = False
    """Whether every page was looked at."""


def examine(folder: Path, *, seconds: float | None, known: bool = False) -> Examined:
    """Examine a store that nobody writes. After the necessary checks, further ones run for `seconds`; None
    runs them all. `known` says that the store had events: then a missing or empty file is damage too.
    Raises StorageError when the file cannot be examined.
    """
    deadline = None if seconds is None else time.monotonic() + seconds
    try:
        with _opened(folder, known=known) as fd:
            if fd is None:
                return Examined(whole=True)
            file = PageFile(fd)
            return _look(file, file.meta(), deadline)
    except Torn as err:
        return Examined(problem=str(err))
    except OSError as err:
        raise StorageError(
            f"The history in {folder} cannot be read: {err.strerror}.",
            suggestion=_advice(err, folder),
        ) from err


def examine_live(folder: Path) -> Examined:
    """Examine the whole of a store that a daemon writes meanwhile, as it is at one moment: LMDB is given a
    reader, so that no page of that moment is used again. For a process of its own, which a damaged file may
    end. Raises StorageError.
    """
    try:
        with (
            lmdb.open(os.fspath(folder), readonly=True, create=False, readahead=False) as environment,
            environment.begin() as txn,
            _opened(folder, known=True) as fd,
        ):
            assert fd is not None
            file = PageFile(fd)
            metas = [meta for meta in file.any_meta() if meta.txn >= txn.id()]
            if not metas:
                raise Torn("its first pages do not lead to the newest events")
            file.page_size = metas[0].page_size
            return _look(file, metas[0], None)
    except Torn as err:
        return Examined(problem=str(err))
    except (lmdb.Error, OSError) as err:
        raise as_storage_error(folder, err) from err


def _advice(err: OSError, folder: Path) -> str:
    if err.errno in (errno.EACCES, errno.EPERM):
        return f"Give it back to the daemon's user: chown -R --reference={folder.parent} {folder}"
    return "Look at the disk and its mount; nothing was changed."


@contextlib.contextmanager
def _opened(folder: Path, *, known: bool) -> Iterator[int | None]:
    """A descriptor of the store's file; None when there is no store yet. Raises Torn, OSError."""
    try:
        names = set(os.listdir(folder))  # noqa: PTH208 - Path.iterdir is lazy, and fails later
    except FileNotFoundError:
        if folder.is_symlink():
            raise  # its target may only be unmounted
        yield None
        return
    except NotADirectoryError as err:
        raise Torn(f"{folder} is no folder") from err
    path = folder / DATA
    try:
        info = path.stat()
    except FileNotFoundError as err:
        if known or path.is_symlink() or names - {LOCK}:
            raise Torn(f"{DATA} is not there") from err
        yield None
        return
    except OSError as err:
        if err.errno == errno.ELOOP:
            raise Torn(f"{DATA} is a symbolic link to itself") from err
        raise
    if not stat.S_ISREG(info.st_mode):
        raise Torn(f"{DATA} is no file")
    if info.st_size == 0 and not known:  # killed while it was made: LMDB starts it anew
        yield None
        return
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        yield fd
    finally:
        os.close(fd)


def _look(file: PageFile, meta: Meta, deadline: float | None) -> Examined:
    """Raises Torn, OSError."""
    used_bytes = (meta.last_page + 1) * meta.page_size
    if file.size_bytes < used_bytes:
        raise Torn(f"it is truncated: {file.size_bytes} bytes of {used_bytes} are left")
    walk = Walk(file, meta)
    trees = walk.trees()
    if not trees:
        return Examined(whole=True)  # killed while it was made
    if META not in trees or EVENTS not in trees:
        raise Torn("its list of databases lacks the one of the events")
    version = schema_version(file, walk, trees[META])
    if version > SCHEMA_VERSION:
        return Examined()  # opening it reports this; this module does not judge it
    walk.check_free(claim=False)
    if trees[EVENTS].root is not None:
        for name in INDEXES:
            if name not in trees and _SINCE_VERSION.get(name, 1) <= version:
                raise Torn(f"its list of databases lacks {name}")
    last = _last_event(file, Walk(file, meta), trees[EVENTS])
    head = {} if last is None else {"seq": last.seq, "hash": last.hash}
    whole = _look_at_all(file, walk, trees, deadline)
    return Examined(whole=whole, **head)  # type: ignore[arg-type]


def schema_version(file: PageFile, walk: Walk, meta: Tree) -> int:
    """The schema version in the store; 0 when it has none. Raises Torn, OSError."""
    for nodes in walk.leaves(meta):
        for node in nodes:
            if node.key == b"schema_version":
                found = file.value(node)
                if not found.isdigit() or len(found) > 9:
                    raise Torn("its schema version is no number")
                return int(found)
    return 0


def _last_event(file: PageFile, walk: Walk, events: Tree) -> Event | None:
    for nodes in walk.leaves(events, newest_first=True):
        for node in nodes:
            record = file.value(node)
            try:
                event = decode(record)
            except ValueError as err:
                raise Torn(f"its newest event cannot be read: {err}") from err
            if node.key != event.seq.to_bytes(8, "big"):
                raise Torn(f"its newest event says that it is number {event.seq}, and lies elsewhere")
            return event
    return None


def _look_at_all(file: PageFile, walk: Walk, trees: dict[str, Tree], deadline: float | None) -> bool:
    """Examine the states, which every start reads; the newest events; and the rest. False when time is over.
    Raises Torn, OSError.
    """
    first = (*(name for name in STATES if name in trees), EVENTS)
    for name in (*first, *(name for name in trees if name not in (*first, META))):
        for nodes in walk.leaves(trees[name], newest_first=True):
            if name == EVENTS and deadline is None:
                _check_events(file, nodes)
            if deadline is not None and time.monotonic() > deadline:
                return False
    if deadline is None or time.monotonic() < deadline:
        walk.free_after().check_free(claim=True)
    return True


def _check_events(file: PageFile, nodes: list[Node]) -> None:
    """Raises Torn for an unreadable record."""
    for node in nodes:
        try:
            decode(file.value(node))
        except ValueError as err:
            raise Torn(f"the event at {int.from_bytes(node.key, 'big')} cannot be read: {err}") from err


def clear_lock(folder: Path) -> None:
    """Move away a lock file that LMDB could not use. It holds no data, and LMDB makes a new one. Raises
    StorageError.
    """
    path = folder / LOCK
    try:
        usable = not os.path.lexists(path) or _can_lock(path)
        if not usable:
            path.rename(path.with_name(f"{LOCK}.{_stamp()}"))
    except OSError as err:
        raise StorageError(
            f"The lock file {path} cannot be used: {err.strerror}.", suggestion=f"Remove it: rm -r {path}"
        ) from err


def _can_lock(path: Path) -> bool:
    """Whether it is our own file with valid content."""
    info = path.lstat()
    if not stat.S_ISREG(info.st_mode):
        return False
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except PermissionError:
        return False
    except OSError as err:
        if err.errno == errno.EROFS:  # LMDB reads without it then
            return True
        raise
    try:
        start = os.read(fd, 4)
    finally:
        os.close(fd)
    return start in (b"", bytes(4), _MAGIC)


# Setting aside


@dataclass(frozen=True, kw_only=True)
class Note:
    """The note about a store that is being set aside; removed once the new store records the same."""

    path: str
    message: str
    seq: int
    hash: str


def note_file(folder: Path) -> Path:
    return folder.parent / "history-set-aside.json"


def set_aside(folder: Path, message: str, seq: int, head_hash: str) -> Note:
    """Move a damaged store away, and note its last known event.

    Raises StorageError; then the store is in its old place.
    """
    stamp = _stamp()
    target = folder.with_name(f"{SET_ASIDE}{stamp}")
    number = 1
    while os.path.lexists(target):
        number += 1
        target = folder.with_name(f"{SET_ASIDE}{stamp}-{number}")
    note = Note(path=str(target), message=message, seq=seq, hash=head_hash)
    try:
        _write_note(note_file(folder), note)
        folder.rename(target)
        sync_folder(folder.parent)
    except OSError as err:
        with contextlib.suppress(OSError):
            note_file(folder).unlink(missing_ok=True)
        raise StorageError(
            f"The damaged history in {folder} could not be moved away: {err.strerror}.",
            suggestion=f"Move it away by hand: mv {folder} {target}",
        ) from err
    return note


def _stamp() -> str:
    return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())


def pending_note(folder: Path) -> Note | None:
    """The note of an unfinished `set_aside` that the new store does not record yet; None also when nothing
    was moved.
    """
    try:
        value = json.loads(note_file(folder).read_bytes())
        seq, event_hash = known_event(value)
        note = Note(path=str(value["path"]), message=str(value["message"]), seq=seq, hash=event_hash)
    except (FileNotFoundError, ValueError, TypeError, KeyError, RecursionError):
        return None
    except OSError as err:
        raise StorageError(f"{note_file(folder)} cannot be read: {err.strerror}.") from err
    return note if os.path.lexists(note.path) else None


def forget_note(folder: Path) -> None:
    """The new store has its first event. Raises OSError."""
    note_file(folder).unlink(missing_ok=True)


def export_of(path: Path) -> Path:
    """The file for the readable part of a store that was set aside."""
    return path.with_name(path.name + EXPORT)


def left_aside(folder: Path) -> list[Path]:
    """The damaged stores that an administrator has not moved away, the oldest first."""
    try:
        names = os.listdir(folder.parent)  # noqa: PTH208 - fails at once
    except OSError:
        return []
    kept = sorted(name for name in names if name.startswith(SET_ASIDE))
    return [folder.with_name(name) for name in kept if not name.endswith((EXPORT, ".partial"))]


def _write_note(path: Path, note: Note) -> None:
    value = {"path": note.path, "message": note.message, "seq": note.seq, "hash": note.hash}
    write_whole(path, json.dumps(value).encode(), draft=path.with_suffix(".new"))
