"""Sends changes to the event bus in batches that stay small, however much happens.

The daemon stores each event durably and sends it to the journal, so a storm must not become a storm of
events, and an event must not cause the next one. Per watch:

- at most one event in PAUSE_S, with up to BATCH records and about BATCH_CHARS characters;
- records in detail up to DETAILS, of which DETAILS_PER_S come back; beyond that an event has counts by kind
  and by folder, and comes at most every STORM_PAUSE_S;
- an event that says no more than that the same files grew again waits twice as long as the one before it, up
  to LONGEST_PAUSE_S. That breaks the circle of a log that grows because the event was logged, whoever writes
  it;
- growth of journald's own files, which each event makes grow, is not sent at all.

A poll gets every record all the same, as far as the watch's buffer goes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from lightagentd.toolkit.files.search import shown
from lightagentd.toolkit.watching.changes import Record
from lightagentd.toolkit.watching.selection import is_growth, is_journal

BATCH = 500
BATCH_CHARS = 500_000
DETAILS, DETAILS_PER_S = 2000, 10
PAUSE_S, STORM_PAUSE_S, LONGEST_PAUSE_S = 1.0, 10.0, 60.0
FOLDERS_COUNTED = 20
"""Folders that a summary names; the rest is counted together."""


class Outbox:
    """Takes records and gives batches. All times are monotonic seconds that the caller passes in."""

    def __init__(self, now: float) -> None:
        self._waiting: list[Record] = []
        self._kinds: Counter[str] = Counter()
        self._folders: Counter[str] = Counter()
        self._summed = 0
        """Records that are only in the counters."""
        self._room = BATCH_CHARS
        self._details = float(DETAILS)
        self._refilled = now
        self._sent: float | None = None
        self._pause_s = PAUSE_S
        self._grown: frozenset[str] = frozenset()
        """The files of the last batch, if it was nothing but growth."""
        self._first: float | None = None

    @property
    def due(self) -> float | None:
        """When `take` is to be called; None when there is nothing."""
        if self._first is None:
            return None
        if self._sent is None:
            return self._first
        pause_s = max(
            self._pause_s if self._only_growth() else PAUSE_S, STORM_PAUSE_S if self._summed else 0.0
        )
        return max(self._first, self._sent + pause_s)

    def add(self, records: Iterable[Record], now: float) -> None:
        self._details = min(DETAILS, self._details + (now - self._refilled) * DETAILS_PER_S)
        self._refilled = now
        for record in records:
            if is_growth(record.kinds) and is_journal(record.path):
                continue
            self._first = now if self._first is None else self._first
            if len(self._waiting) < BATCH and self._room >= record.size and self._details >= 1:
                self._details -= 1
                self._room -= record.size
                self._waiting.append(record)
            elif record.is_marker:
                self._waiting.append(record)  # few, and never left out
            else:
                self._summed += 1
                self._kinds.update(record.kinds)
                folder = shown(record.path.rpartition("/")[0])
                listed = folder in self._folders or len(self._folders) < FOLDERS_COUNTED
                self._folders[folder if listed else "(elsewhere)"] += 1

    def _only_growth(self) -> bool:
        """Whether what waits is growth of files that the last batch had too, and nothing else."""
        return (
            bool(self._grown)
            and not self._summed
            and all(is_growth(one.kinds) and one.path in self._grown for one in self._waiting)
        )

    def take(self, now: float) -> dict[str, Any]:
        """The data of the next event: `changes`, and `summary` when there are more than those."""
        if self._only_growth() and self._sent is not None:
            self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        else:
            self._pause_s = PAUSE_S
        growth = not self._summed and all(is_growth(one.kinds) for one in self._waiting)
        self._grown = frozenset(one.path for one in self._waiting) if growth else frozenset()
        data: dict[str, Any] = {"changes": [record.to_dict() for record in self._waiting]}
        if self._summed:
            data["summary"] = {
                "changes": self._summed,
                "events": dict(self._kinds),
                "folders": dict(self._folders),
            }
        self._waiting, self._summed, self._first, self._sent = [], 0, None, now
        self._room = BATCH_CHARS
        self._kinds.clear()
        self._folders.clear()
        return data
