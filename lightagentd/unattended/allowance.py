"""Limits how often something may happen, over all the processes of a boot, with a small file below /run.

Times are those of CLOCK_BOOTTIME, which cannot be set and restarts when /run does. The file is locked while
it is read and written; an invalid one counts as empty.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from pathlib import Path

from lightagentd.errors import LightagentError, LimitExceeded
from lightagentd.text.reason import reason


class Allowance:
    """`each` times for one name and `all_together` times for all names, in each `period_s`."""

    def __init__(self, path: Path, *, each: int, all_together: int, period_s: float) -> None:
        self._path = path
        self._each = each
        self._all_together = all_together
        self._period_s = period_s

    def take(self, name: str, now_s: float | None = None) -> None:
        """Count one time for a name. Raises LimitExceeded, without counting, when the limit is reached.
        Raises LightagentError when the file cannot be used: without a count there would be no limit.
        """
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            with open(fd, "r+b") as file:  # noqa: PTH123 - a descriptor
                fcntl.flock(file, fcntl.LOCK_EX)
                if now_s is None:  # only now, because the former holder of the lock may have counted
                    now_s = time.clock_gettime(time.CLOCK_BOOTTIME)
                taken = self._recent(file.read(), now_s)
                self._check(name, taken)
                taken.append((name, now_s))
                file.seek(0)
                file.truncate()
                file.write(json.dumps(taken).encode())
        except OSError as err:
            raise LightagentError(
                f"{self._path}, which keeps count, cannot be used: {reason(err)}.",
                suggestion="Look at the disk and the folder.",
            ) from err

    def _recent(self, data: bytes, now_s: float) -> list[tuple[str, float]]:
        try:
            found = [(str(name), float(at)) for name, at in json.loads(data)]
        except (ValueError, TypeError):
            return []
        return [(name, at) for name, at in found if now_s - self._period_s < at <= now_s]

    def _check(self, name: str, taken: list[tuple[str, float]]) -> None:
        minutes = f"{self._period_s / 60:g} minutes"
        own = sum(one == name for one, _ in taken)
        if own >= self._each:
            raise LimitExceeded(f"{name} had its diagnosis in the last {minutes}.")
        if len(taken) >= self._all_together:
            raise LimitExceeded(f"There were {len(taken)} diagnoses of all units in the last {minutes}.")
