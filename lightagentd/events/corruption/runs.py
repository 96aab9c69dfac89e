"""Records how the last runs of the daemon ended, in a small file beside the history.

The file is the mark of a run that is alive: a stop in order takes it back. A start that finds it examines the
whole store first, because a damaged page may have ended the run, and would end each one that reads it. The
file also names the newest event known then.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from lightagentd.events.model import GENESIS
from lightagentd.host.kept_file import KeptFile

_log = logging.getLogger(__name__)

_MOST_EVENTS = 1 << 53
_HASH = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True)
class Run:
    """The known facts about the last run."""

    stopped: bool = True
    """Whether it ended with a stop; false when nothing is known of it."""
    seq: int = 0
    hash: str = GENESIS
    """An event that was there."""


def known_event(value: Any) -> tuple[int, str]:
    """Number and hash of an event, as they are kept in a file. Raises ValueError, TypeError, KeyError."""
    seq, event_hash = value["seq"], value["hash"]
    if type(seq) is not int or not 0 <= seq < _MOST_EVENTS or not _HASH.fullmatch(event_hash):
        raise ValueError("it names no event")
    return seq, event_hash


class Runs:
    """The file. A failure to write it fails no start."""

    def __init__(self, path: Path) -> None:
        self._file = KeptFile(path, "how the last run ended")
        self.last = Run()
        """The run before this one, once `begin` was called."""
        self._now = Run()

    def problem(self) -> str:
        """Why the file is not as it should be, as a sentence; empty when it is."""
        return self._file.problem()

    def begin(self) -> Run:
        """Begin this run; returns the record of the last one."""
        self.last = self._read()
        self._now = replace(self.last, stopped=False)
        self._write()
        if self._file.problem():  # a full disk; to have no file is the mark as well
            with contextlib.suppress(OSError):
                self._file.path.unlink()
        return self.last

    def forget(self) -> None:
        """Do not count this run: the store could not be opened, and was not changed."""
        self._now = self.last
        self._write()

    def known(self, seq: int, head_hash: str) -> None:
        """Note the newest event."""
        self._now = replace(self._now, seq=seq, hash=head_hash)
        self._write()

    def stop(self, seq: int, head_hash: str) -> None:
        """Note a regular stop."""
        self._now = Run(seq=seq, hash=head_hash)
        self._write()

    def _read(self) -> Run:
        try:
            value = json.loads(self._file.path.read_bytes())
            seq, event_hash = known_event(value)
            return Run(stopped=value["stopped"] is True, seq=seq, hash=event_hash)
        except FileNotFoundError:
            return Run(stopped=False)
        except (OSError, ValueError, TypeError, KeyError, RecursionError) as err:
            _log.warning("%s cannot be read: %s", self._file.path, err)
            return Run(stopped=False)

    def _write(self) -> None:
        self._file.write(json.dumps(asdict(self._now)).encode())
