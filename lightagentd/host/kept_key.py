"""A secret key of the daemon's own that lies in a file of its state folder, such as that of keyed digests."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

KEY_BYTES = 32


def kept_key(path: Path) -> bytes:
    """The key in a file, mode 0600; made where there is none, or no whole one. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        found = path.read_bytes()
        if len(found) == KEY_BYTES:
            return found
    fresh = secrets.token_bytes(KEY_BYTES)
    temporary = path.with_suffix(".new")
    temporary.unlink(missing_ok=True)
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(fresh)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)
    return fresh
