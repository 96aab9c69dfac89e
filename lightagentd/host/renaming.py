"""Exchanges two names in one step, renames without replacing, and syncs folders."""

from __future__ import annotations

import errno
import os
from pathlib import Path

_RENAME_NOREPLACE, _RENAME_EXCHANGE = 1, 2
_NOT_THERE = (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP)


def exchange(one: Path, other: Path) -> bool:
    """Exchange what two names stand for, in one step; False where the file system cannot. Raises OSError."""
    return _renameat2(one, other, _RENAME_EXCHANGE)


def rename_new(source: Path, target: Path) -> None:
    """Rename a file or folder to a name that is free. Raises FileExistsError, OSError."""
    if _renameat2(source, target, _RENAME_NOREPLACE):
        return
    if source.is_dir():
        if os.path.lexists(target):  # rename(2) would replace an empty folder
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), os.fspath(target))
        source.rename(target)
        return
    target.hardlink_to(source)
    source.unlink()


def sync_folder(folder: Path | int) -> None:
    """Make the names in a folder, by path or descriptor, survive a power cut. Raises OSError."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    fd = os.open(".", flags, dir_fd=folder) if isinstance(folder, int) else os.open(folder, flags)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _renameat2(source: Path, target: Path, flags: int) -> bool:
    from lightagentd.host import libc  # only here: it is slow to import

    try:
        libc.renameat2(source, target, flags)
    except OSError as err:
        if err.errno in _NOT_THERE:
            return False
        raise OSError(err.errno, os.strerror(err.errno or 0), os.fspath(target)) from None
    return True
