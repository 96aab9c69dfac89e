"""Locks a state folder. Whoever writes or exchanges the history holds the lock.

The lock ends with its descriptor, also after SIGKILL.
"""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

from lightagentd.errors import Conflict, StorageError


def hold(state: Path) -> int:
    """Hold a state folder; gives the descriptor with which that ends. Raises Conflict, StorageError."""
    path = state / "lock"
    try:
        fd = _opened(path)
    except OSError as err:
        raise StorageError(
            f"The lock file {path} cannot be opened: {err.strerror}.",
            suggestion="Look at the disk and its mount, and at the owner of the file.",
        ) from err
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise Conflict(
            f"Another daemon uses {state} already.", suggestion="Stop it first, or use other folders."
        ) from None
    return fd


def _opened(path: Path) -> int:
    """On a file system that takes no writes, the file of an earlier run is enough. Raises OSError."""
    flags = os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | flags, 0o600)
    except OSError as err:
        if err.errno not in (errno.EROFS, errno.ENOSPC, errno.EDQUOT):
            raise
        return os.open(path, os.O_RDONLY | flags)
