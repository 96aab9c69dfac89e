"""Reads the files of the system prompt when they change; below /etc only root may have written them.

The registry owns one `PromptFiles` for all turns, which read in threads. A file counts as unchanged when its
status is the same (stat(2)). A recently changed file is read again all the same: a second change within one
tick of the file system's clock would not show.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lightagentd.config.configuration import check_place
from lightagentd.errors import ConfigError

DEFINITION = "AGENT.md"
MAX_FILE_BYTES = 64 << 10
_SETTLED_NS = 2_000_000_000
"""A file that was changed longer ago than this has no change that its status does not show."""
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class _Known:
    """A text and the status of the file that it was read from."""

    status: tuple[int, ...]
    text: str


class PromptFiles:
    """Reads files of the search path; holds nothing open."""

    def __init__(self) -> None:
        self._known: dict[Path, _Known] = {}
        self._refused: dict[Path, str] = {}

    def problems(self) -> list[str]:
        """The files that were refused at the last read, as sentences."""
        return [
            # In words that `status` leaves out for those who may not look at the agent.
            f"The agent {path.parent.name} keeps the prompt that it started with: {why}"
            if path.name == DEFINITION
            else f"A file of the system prompt is left out: {why}"
            for path, why in sorted(self._refused.items())
        ]

    def look_again(self) -> None:
        """Read refused files again, so that files repaired or removed since are no longer reported."""
        for path in list(self._refused):
            self.read(path)

    def first(self, name: str, folders: Sequence[Path]) -> str:
        """The text of the first file of this name on the search path; empty when there is none."""
        found = (self.read(folder / name) for folder in folders)
        return next((text for text in found if text is not None), "")

    def read(self, path: Path, limit_bytes: int = MAX_FILE_BYTES) -> str | None:
        """The text of a file; None when there is no such file. An unreadable file counts as empty, and so
        does one below /etc that others than root can write. No later folder replaces it.
        """
        try:
            check_place(path)
            self._refused.pop(path, None)
            known = self._known.get(path)
            if known is not None and known.status == _status(path.stat()):
                return known.text
            return self._read(path, limit_bytes)
        except (FileNotFoundError, NotADirectoryError):
            self._known.pop(path, None)
            self._refused.pop(path, None)
            return None
        except ConfigError as err:
            self._refused[path] = err.message
            return ""
        except OSError:
            return ""

    def _read(self, path: Path, limit_bytes: int) -> str:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a FIFO must not hold up a turn
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            os.close(fd)
            return ""
        with os.fdopen(fd, "rb") as file:
            text = file.read(limit_bytes).decode("utf-8-sig", "replace").strip()
        if not _COMMENT.sub("", text).strip():
            text = ""  # what is shipped says in a comment what the file is for
        if time.time_ns() - info.st_ctime_ns > _SETTLED_NS:
            self._known[path] = _Known(status=_status(info), text=text)
        return text


def _status(info: os.stat_result) -> tuple[int, ...]:
    return (info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns)
