"""Works on the store's files, with or without a running daemon, with the rights of their owner.

LMDB trusts its file, so a forged file could attack its reader. Root therefore never opens the daemon's files.
`run_as_owner` forks a child that drops everything that the folder's owner does not have (uid, gid, groups,
terminal, other descriptors, new privileges), does the work, and sends the results through a pipe. Files that
it writes belong to the owner, and a crash of LMDB ends only the child. The parent accepts frames of bounded
size: a letter, 4 bytes of length, and JSON or bytes.

The child lives as long as its iterator. Leaving that early kills the child with SIGKILL, and so does the end
of the parent.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from lightagentd.errors import (
    HistoryDamaged,
    LightagentError,
    NotFound,
    PermissionDenied,
    StorageError,
    from_dict,
)
from lightagentd.host.users import called

_JSON, _BYTES, _ERROR, _END = b"J", b"B", b"E", b"Z"
_MAX_FRAME_BYTES = 256 << 20
"""The largest frame that a child may send; the owner of the store may have forged its size."""
_CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP)
_LAST_FD = (1 << 31) - 1
_READ_BY_OWNER = "Use sudo."


@dataclass(frozen=True, kw_only=True)
class Owner:
    """The owner of a store."""

    uid: int
    gid: int


def owner_of(state: Path) -> Owner:
    """The owner of a state folder and of the store in it.

    Raises NotFound, PermissionDenied, and StorageError when the folder and the store have different owners,
    or when users other than root can write root's folder: then the true owner of the files is unknown.
    """
    try:
        folder = state.stat()
    except FileNotFoundError as err:
        raise NotFound(
            f"There is no state folder {state}.", suggestion="Name the daemon's own: --state-dir DIR"
        ) from err
    except PermissionError as err:
        raise PermissionDenied(f"You cannot look into {state}.", suggestion=_READ_BY_OWNER) from err
    if not stat.S_ISDIR(folder.st_mode):
        raise StorageError(f"{state} is no folder.", suggestion="Name the daemon's: --state-dir DIR")
    if os.geteuid() not in (0, folder.st_uid):
        raise PermissionDenied(
            f"The store in {state} belongs to {called(folder.st_uid)}; you cannot read it.",
            suggestion=_READ_BY_OWNER,
        )
    if folder.st_uid == 0 and folder.st_mode & 0o022:
        raise StorageError(
            f"{state} is root's, and others can write it.", suggestion=f"Run: chmod go-w {state}"
        )
    with contextlib.suppress(FileNotFoundError):
        history = (state / "history").lstat()
        if history.st_uid != folder.st_uid:
            raise StorageError(
                f"{state / 'history'} belongs to {called(history.st_uid)}, and {state} to"
                f" {called(folder.st_uid)}.",
                suggestion="Find out who did that, then give both to the daemon's user with chown.",
            )
    return Owner(uid=folder.st_uid, gid=folder.st_gid)


def run_as_owner(
    state: Path, function: Callable[..., Iterable[Any]], /, *args: Any, pass_fds: Sequence[int] = ()
) -> Iterator[Any]:
    """Yield the results of a function that runs in a child with the rights of a state folder's owner.

    The function may yield bytes and JSON values. The child keeps only the descriptors `pass_fds`; its
    standard input and output are /dev/null. Call this only while no other thread runs. Raises the errors of
    `owner_of` and of the function, and HistoryDamaged when the child crashes.
    """
    return _child_of(owner_of(state), state, function, args, pass_fds)


def result_as_owner(
    state: Path, function: Callable[..., Iterable[Any]], /, *args: Any, pass_fds: Sequence[int] = ()
) -> Any:
    """The last value that a function yields, as `run_as_owner`; None when it yields nothing."""
    last = None
    for last in run_as_owner(state, function, *args, pass_fds=pass_fds):  # noqa: B007
        pass
    return last


def _child_of(
    owner: Owner, state: Path, function: Callable[..., Iterable[Any]], args: Any, pass_fds: Sequence[int]
) -> Iterator[Any]:
    reading, writing = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        _be_child(owner, parent, function, args, writing, pass_fds)
    os.close(writing)
    ended = False
    try:
        with os.fdopen(reading, "rb") as frames:
            for kind, payload in _frames(frames):
                if kind == _END:
                    ended = True
                    return
                if kind == _ERROR:
                    raise _error(payload)
                yield payload if kind == _BYTES else _decoded(payload)
        status, pid = os.waitpid(pid, 0)[1], 0
        raise _ending(state, status)
    finally:
        if pid:
            if not ended:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _frames(frames: BinaryIO) -> Iterator[tuple[bytes, bytes]]:
    while len(head := frames.read(5)) == 5:
        size_bytes = int.from_bytes(head[1:], "big")
        if size_bytes > _MAX_FRAME_BYTES:
            raise HistoryDamaged(f"What was read of the store is too large: {size_bytes} bytes.")
        payload = frames.read(size_bytes)
        if len(payload) < size_bytes:
            return
        yield head[:1], payload


def _decoded(payload: bytes) -> Any:
    try:
        return json.loads(payload)
    except (ValueError, RecursionError) as err:
        raise HistoryDamaged("What was read of the store is no JSON.") from err


def _error(payload: bytes) -> LightagentError:
    found = _decoded(payload)
    if not isinstance(found, dict) or not {"code", "message"} <= found.keys():
        return HistoryDamaged("What was read of the store is no answer.")
    return from_dict(found)


def _ending(state: Path, status: int) -> LightagentError:
    """The error for a child that ended without an end frame."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        name = signal.Signals(number).name
        if number in _CRASHES:
            return HistoryDamaged(
                f"A file of the store is damaged: reading it for {state} ended with {name}.",
                suggestion="Nothing was changed. Look at it with 'lactl doctor', or restore a backup.",
            )
        return StorageError(f"Reading the store of {state} was ended by {name}.", suggestion="Try it again.")
    return StorageError(f"Reading the store of {state} ended early.", suggestion="Try it again.")


def _be_child(
    owner: Owner,
    parent: int,
    function: Callable[..., Iterable[Any]],
    args: Any,
    writing: int,
    pass_fds: Sequence[int],
) -> NoReturn:
    try:
        with os.fdopen(writing, "wb", closefd=False) as frames:
            try:
                _confine(owner, parent, [writing, *pass_fds])
                for found in function(*args):
                    _send(frames, found)
                _frame(frames, _END, b"")
            except LightagentError as err:
                _frame(frames, _ERROR, json.dumps(err.to_dict()).encode())
            except BaseException as err:  # noqa: BLE001 - the edge of the process; the parent raises it
                said = {"code": "internal", "message": f"Reading the store failed: {err!r}"}
                _frame(frames, _ERROR, json.dumps(said).encode())
    finally:
        os._exit(0)


def _send(frames: BinaryIO, found: Any) -> None:
    if isinstance(found, bytes):
        _frame(frames, _BYTES, found)
    else:
        _frame(frames, _JSON, json.dumps(found).encode())


def _frame(frames: BinaryIO, kind: bytes, payload: bytes) -> None:
    frames.write(kind + len(payload).to_bytes(4, "big") + payload)
    frames.flush()


def _confine(owner: Owner, parent: int, keep: Sequence[int]) -> None:
    """Drop the rights that the owner of the store does not have. Raises OSError."""
    from lightagentd.host import libc  # first: the owner may not read the Python of a checkout

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    os.setsid()  # no terminal: the child could type on it, TIOCSTI in ioctl_tty(2)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        if fd not in keep:
            os.dup2(null, fd)
    low = 3
    for fd in sorted({fd for fd in keep if fd > 2}):
        os.closerange(low, fd)
        low = fd + 1
    os.closerange(low, _LAST_FD)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.umask(0o077)
    os.chdir("/")
    if os.geteuid() == 0 and owner.uid != 0:
        os.setgroups([])
        os.setresgid(owner.gid, owner.gid, owner.gid)
        os.setresuid(owner.uid, owner.uid, owner.uid)
    # Once more, because changing the uid resets it, see prctl(2).
    libc.forbid_new_privileges()
    libc.prctl(libc.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
