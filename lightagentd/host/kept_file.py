"""A small file that its one owner writes again and again, and whose failure fails nothing else.

The owner shows `problem`. The log has one line when it begins to fail and one when it works again, not one
for each try: a disk that is full or read-only stays so for hours.
"""

from __future__ import annotations

import logging
from pathlib import Path

from lightagentd.host.atomic_file import write_whole
from lightagentd.text.reason import reason

_log = logging.getLogger(__name__)


class KeptFile:
    """The file; `path` may be on a disk that fails."""

    def __init__(self, path: Path, what: str) -> None:
        """`what` says what it holds, as in "the newest checkpoint"."""
        self.path = path
        self._what = what
        self._failed = 0
        """How many tries in a row failed."""
        self._why = ""

    def problem(self) -> str:
        """Why the newest content is not in the file, as a sentence; empty when it is."""
        if not self._failed:
            return ""
        times = "" if self._failed == 1 else f" ({self._failed} times)"
        return f"{self.path}, which keeps {self._what}, cannot be written{times}: {self._why}."

    def write(self, content: bytes) -> None:
        """Write the file whole, or count a failure. Blocks."""
        try:
            write_whole(self.path, content, draft=self.path.with_suffix(".new"))
        except OSError as err:
            self._failed += 1
            self._why = reason(err)
            if self._failed == 1:
                _log.warning("%s", self.problem())
            return
        if self._failed:
            _log.info("%s is written again, after %d failures", self.path, self._failed)
        self._failed = 0
