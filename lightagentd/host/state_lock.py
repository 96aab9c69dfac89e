"""Locks a state folder. Whoever writes or exchanges the history holds the lock.

The lock ends with its descriptor, also after SIGKILL.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from lightagentd.errors import Conflict


def hold(state: Path) -> int:
    """Hold a state folder; gives the descriptor with which that ends. Raises Conflict, OSError."""
    fd = os.open(state / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise Conflict(
            f"Another daemon uses {state} already.", suggestion="Stop it first, or use other folders."
        ) from None
    return fd
