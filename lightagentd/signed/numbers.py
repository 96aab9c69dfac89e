"""The numbers of the grants that a worker for change has used: none runs twice, also after a restart.

A number is on the disk before its call begins. Those whose grants have expired are forgotten, and the latest
end among them is kept: what expired before that is refused, also when the clock is set back.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from lightagentd.errors import ApprovalMismatch
from lightagentd.signed.grant import FRESH_S, Grant
from lightagentd.signed.keeping import Log

FILE = "used"
_REWRITE_BYTES = 256 << 10
_AHEAD_US = int(2 * FRESH_S * 1_000_000)
"""A grant that ends later than this was made with another clock."""


class Numbers:
    """Those of one worker, in its own state folder. Its owner calls `close`."""

    def __init__(self, folder: Path) -> None:
        """Raises StorageError."""
        self._log = Log(folder / FILE)
        self._used: dict[tuple[str, int], dict[str, Any]] = {}
        self._forgotten_us = 0
        for one in self._log.records:
            if "forgotten_us" in one:
                self._forgotten_us = int(one["forgotten_us"])
            else:
                self._used[one["series"], one["number"]] = one
        self._log.records.clear()

    def use(self, grant: Grant, call_id: str) -> None:
        """Use a grant up for a call. Raises ApprovalMismatch for one that was used or is over, and
        StorageError.
        """
        now_us = time.time_ns() // 1000
        if grant.expires_us <= max(now_us, self._forgotten_us):
            raise ApprovalMismatch("The approval of this call is too old.", suggestion="Ask for it again.")
        if grant.expires_us > now_us + _AHEAD_US:
            raise ApprovalMismatch("The approval of this call comes from another time: look at the clock.")
        if (grant.series, grant.number) in self._used:
            raise ApprovalMismatch("The approval of this call was used already, and counts once.")
        if self._log.size_bytes > _REWRITE_BYTES:
            self._forget(now_us)
        record = {
            "series": grant.series,
            "number": grant.number,
            "expires_us": grant.expires_us,
            "digest": grant.digest,
            "call_id": call_id,
        }
        self._log.add(record)
        self._used[grant.series, grant.number] = record

    def _forget(self, now_us: int) -> None:
        kept = {key: one for key, one in self._used.items() if one["expires_us"] > now_us}
        over = [one["expires_us"] for key, one in self._used.items() if key not in kept]
        self._forgotten_us = max([self._forgotten_us, *over])
        self._log.rewrite([{"forgotten_us": self._forgotten_us}, *kept.values()])
        self._used = kept

    def close(self) -> None:
        self._log.close()
