"""The public keys of who signs records: of the approver, and of each worker for change, in its state folder.

`public` has that of now. A line of `public.former` has one that was replaced, so that an audit still knows
what it signed: Base64, and the times in microseconds from and until which it was in use.
"""

from __future__ import annotations

import base64
import contextlib
import os
import time
from dataclasses import dataclass, replace
from pathlib import Path

from lightagentd.host.atomic_file import MODE, write_whole
from lightagentd.host.kept_key import KEY_BYTES

PUBLIC, FORMER = "public", "public.former"
_LATE_US = 60_000_000
"""So long journald may take to receive a record."""
_MOST = 100
_MOST_BYTES = 64 * 1024


@dataclass(frozen=True, kw_only=True)
class PublicKey:
    key: bytes
    """32 bytes, of Ed25519."""
    since_us: int
    until_us: int | None = None
    """None while it is in use."""

    def is_of(self, time_us: int) -> bool:
        """Whether journald may have received then what was signed with it."""
        return self.since_us <= time_us and (self.until_us is None or time_us <= self.until_us + _LATE_US)


def publish(folder: Path, key: bytes, *, mode: int = MODE) -> None:
    """Make it the key of now. Raises OSError."""
    before = published(folder)
    if before and before[-1].key == key and before[-1].until_us is None:
        return
    if before and before[-1].until_us is None:
        now_us = time.time_ns() // 1000
        ended = [*before[:-1], replace(before[-1], until_us=now_us)][-_MOST:]
        lines = (f"{base64.b64encode(one.key).decode()} {one.since_us} {one.until_us}\n" for one in ended)
        write_whole(folder / FORMER, "".join(lines).encode(), mode=mode)
    write_whole(folder / PUBLIC, key, mode=mode)


def published(folder: Path) -> list[PublicKey]:
    """The keys in the order of their times, as far as they can be read; the last one is that of now."""
    found = []
    for line in _content(folder / FORMER)[0].split(b"\n"):
        with contextlib.suppress(ValueError):
            key, since, until = line.split()
            raw = base64.b64decode(key, validate=True)
            if len(raw) == KEY_BYTES:
                found.append(PublicKey(key=raw, since_us=int(since), until_us=int(until)))
    raw, written_us = _content(folder / PUBLIC)
    being_replaced = bool(found) and found[-1].key == raw and written_us <= (found[-1].until_us or 0)
    if len(raw) == KEY_BYTES and not being_replaced:
        found.append(PublicKey(key=raw, since_us=written_us))
    return found


def _content(path: Path) -> tuple[bytes, int]:
    """What a file has, and when it was written; nothing where it cannot be read. Its folder is another's."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            return file.read(_MOST_BYTES), os.fstat(fd).st_mtime_ns // 1000
    except OSError:
        return b"", 0
