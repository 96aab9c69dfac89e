"""renameat2(2), which Python does not have: exchanging two names at once, and renaming without replacing."""

from __future__ import annotations

import errno
import os
from pathlib import Path

_AT_FDCWD = -100
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
    """Have the names in a folder, by path or descriptor, survive a power cut. Raises OSError."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    fd = os.open(".", flags, dir_fd=folder) if isinstance(folder, int) else os.open(folder, flags)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _renameat2(source: Path, target: Path, flags: int) -> bool:
    import ctypes  # only here: it is slow to import

    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "renameat2"):  # glibc before 2.28
        return False
    if libc.renameat2(_AT_FDCWD, os.fsencode(source), _AT_FDCWD, os.fsencode(target), flags) == 0:
        return True
    number = ctypes.get_errno()
    if number in _NOT_THERE:
        return False
    raise OSError(number, os.strerror(number), os.fspath(target))
