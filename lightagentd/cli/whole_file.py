"""Writes a file that appears whole or not at all: beside its name, synced, then renamed.

It is the caller's alone (mode 0600), replaces another file only on request, and follows no link. The
unfinished content is in FILE.partial, which is removed when the command fails.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from lightagentd.cli.named_file import unreadable
from lightagentd.errors import Conflict, InvalidArgument, LightagentError, StorageError
from lightagentd.host.renaming import rename_new, sync_folder


@contextlib.contextmanager
def new_file(path: Path, *, force: bool) -> Iterator[int]:
    """The descriptor of a file to write and read; `path` appears when the block ends without an error.
    `force` replaces an existing file. Raises Conflict, InvalidArgument, NotFound, StorageError.
    """
    if path.is_dir():
        raise InvalidArgument(f"{path} is a folder.", suggestion="Name the file in it, too.", field="file")
    if not force and os.path.lexists(path):
        raise _exists(path)
    partial = path.with_name(f"{path.name}.partial")
    fd = _made(partial)
    done = False
    try:
        yield fd
        try:
            os.fsync(fd)
            if force:
                partial.replace(path)
            else:
                rename_new(partial, path)
            done = True
            sync_folder(path.parent)
        except FileExistsError as err:
            raise _exists(path) from err
        except OSError as err:
            raise _unwritable(path, err) from err
    finally:
        if not done:
            with contextlib.suppress(OSError):
                partial.unlink()
        os.close(fd)


def _made(partial: Path) -> int:
    """A new file that is locked against a second command that writes it."""
    for _ in range(2):
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            fd = os.open(partial, flags, 0o600)
        except FileExistsError:
            _remove_left(partial)
            continue
        except OSError as err:
            if not partial.parent.is_dir():
                raise unreadable(partial.parent, FileNotFoundError(), "folder") from err
            raise _unwritable(partial, err) from err
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.fchmod(fd, 0o600)
        return fd
    raise _busy(partial)


def _remove_left(partial: Path) -> None:
    """Remove the unfinished file of a killed command. Raises Conflict when it is still being written."""
    try:
        fd = os.open(partial, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            partial.unlink()
        finally:
            os.close(fd)
    except OSError as err:
        raise _busy(partial) from err


def _busy(partial: Path) -> LightagentError:
    return Conflict(
        f"{partial} is there: another command may be writing it.",
        suggestion="Wait for it, or remove that file.",
        field="file",
    )


def _exists(path: Path) -> LightagentError:
    return Conflict(
        f"{path} exists.", suggestion="Name another file, or replace it with --force.", field="file"
    )


def _unwritable(path: Path, err: OSError) -> LightagentError:
    return StorageError(
        f"{path} cannot be written: {err.strerror}.",
        suggestion="Check the folder and the room on its disk.",
        field="file",
    )
