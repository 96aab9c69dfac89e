"""Keeps a secret key of the daemon in a file of its state folder, such as the key of the keyed digests."""

from __future__ import annotations

import contextlib
import secrets
from pathlib import Path

from lightagentd.host.atomic_file import write_whole

KEY_BYTES = 32


def kept_key(path: Path) -> bytes:
    """The key in a file of mode 0600; a new one if the file has no complete key. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        found = path.read_bytes()
        if len(found) == KEY_BYTES:
            return found
    fresh = secrets.token_bytes(KEY_BYTES)
    write_whole(path, fresh, draft=path.with_suffix(".new"))
    return fresh
