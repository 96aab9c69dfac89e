"""The last event up to which the journal has everything, or was told about its gaps.

The number is in a file of 8 bytes that is mapped into memory: changing it costs nothing, and it survives a
kill of the process (after a power cut journald lacks its newest entries anyway). The journald sink owns it;
one process writes it at a time.
"""

from __future__ import annotations

import logging
import mmap
import os
from pathlib import Path

_log = logging.getLogger(__name__)
_BYTES = 8


class JournalMark:
    """The mark in one file, which is made if missing. Without a file, the mark is lost at the end."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._map: mmap.mmap | None = None

    @staticmethod
    def kept(path: Path) -> int | None:
        """The number in a file that a sink may have open; None when it is not known. Raises OSError."""
        found = int.from_bytes(path.read_bytes()[:_BYTES], "little")
        return found - 1 if found else None

    def open(self) -> None:
        """Open the file. Errors are only logged: then the position of an earlier run is unknown."""
        if self._path is None:
            return
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                # On a full disk writing to a page without a block would end the process, mmap(2).
                os.posix_fallocate(fd, 0, _BYTES)
                self._map = mmap.mmap(fd, _BYTES)
            finally:
                os.close(fd)
        except (OSError, ValueError) as err:
            _log.warning("what the journal has got cannot be kept in %s: %s", self._path, err)

    @property
    def seq(self) -> int | None:
        """The number of the event; None when it is not known."""
        found = int.from_bytes(self._map[:_BYTES], "little") if self._map is not None else 0
        return found - 1 if found else None

    @seq.setter
    def seq(self, value: int) -> None:
        if self._map is not None:
            self._map[:_BYTES] = (value + 1).to_bytes(_BYTES, "little")  # 0 is what a new file holds

    def close(self) -> None:
        """Let go of the file."""
        if self._map is not None:
            self._map.close()
            self._map = None
