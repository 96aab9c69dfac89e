"""Holds each user to `[limits.owner]`: what they have stored lately, and how many sessions they have.

The daemon owns one `Owners`. The planes count what their connections hold, and the stores of questions those
that wait, with bounds from the same table.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Mapping

from lightagentd.errors import LimitExceeded
from lightagentd.host.users import called

_MINUTE_S, _DAY_S = 60, 86_400


class Owners:
    """Counts what users have stored lately, and refuses what is more than their share.

    Whom it does not hold, such as root, is for its callers to know.
    """

    def __init__(self, most: Mapping[str, int]) -> None:
        """`most` is `[limits.owner]`."""
        self._most = most
        self._lock = threading.Lock()
        self._minute = self._day = 0
        self._changes: Counter[int] = Counter()
        self._stored_bytes: Counter[int] = Counter()

    def check(self, uid: int, name: str, used: int, suggestion: str) -> None:
        """Raises LimitExceeded when a user has as much already as the limit with this name allows."""
        most = self._most[name]
        if used >= most:
            raise LimitExceeded(
                f"{called(uid)} has reached the limit {name}, which is {most}.",
                suggestion=f"{suggestion} An administrator sets it: [limits.owner] {name}.",
            )

    def change(self, uid: int) -> None:
        """Count a call that stores something. Raises LimitExceeded, which counts none."""
        with self._lock:
            self._renew()
            self.check(uid, "changes_per_minute", self._changes[uid], "Wait a minute.")
            self._changes[uid] += 1

    def store(self, uid: int, size_bytes: int) -> None:
        """Count what was stored for a user; from any thread."""
        with self._lock:
            self._renew()
            self._stored_bytes[uid] += size_bytes

    def check_stored(self, uid: int) -> None:
        """Raises LimitExceeded when enough was stored for a user today (UTC, since the daemon started)."""
        with self._lock:
            self._renew()
            self.check(uid, "stored_bytes_per_day", self._stored_bytes[uid], "Go on tomorrow.")

    def _renew(self) -> None:
        minute, day = (int(time.time() // span_s) for span_s in (_MINUTE_S, _DAY_S))
        if minute != self._minute:
            self._minute, self._changes = minute, Counter()
        if day != self._day:
            self._day, self._stored_bytes = day, Counter()
