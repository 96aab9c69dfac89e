"""Merges the changes of a path within a moment into one record, and buffers the records.

All that happens to one path within COALESCE_S becomes one record, which lists the kinds in their order and
counts the events. Creations, deletions and moves are always listed; writes are listed once after each of
those. So `["create", "modify", "close_write"]` with a count of 40 is a file that was made and written, and
`["create", "delete"]` one that came and went; neither is left out.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from lightagentd.toolkit.files.search import shown

COALESCE_S = 0.1
PAGE_CHARS = 800_000
"""How much a poll gives at most, since a result is bounded; more than the largest record has."""
KINDS_LISTED = 12
"""Kinds of one record; what happens beyond that is counted, and the last one is kept up to date."""

MARKERS = frozenset(
    {"overflow", "rescanned", "buffer_overflow", "root_gone", "root_back", "not_watched", "gap"}
)
"""Records about the watch itself."""
_STRUCTURE = frozenset({"create", "delete", "move", "moved_in", "moved_out"})


@dataclass(frozen=True, slots=True)
class Change:
    """One change. `found_by` is its source: the kernel, or a `scan`, `rescan` or `gap` scan."""

    kind: str
    path: str
    is_dir: bool = False
    from_path: str = ""
    found_by: str = "kernel"
    detail: dict[str, Any] | None = None


@dataclass(slots=True)
class Record:
    """The changes of one path within COALESCE_S."""

    path: str
    is_dir: bool
    kinds: list[str]
    found_by: str
    time_us: int
    from_path: str = ""
    count: int = 1
    detail: dict[str, Any] | None = None
    number: int = 0
    """Its place in the buffer."""

    @property
    def size(self) -> int:
        """An upper bound of its characters as JSON: a byte that cannot be shown takes six."""
        return 400 + 7 * (len(self.path) + len(self.from_path))

    @property
    def is_marker(self) -> bool:
        return self.kinds[0] in MARKERS

    def add(self, change: Change) -> None:
        self.count += 1
        self.from_path = change.from_path or self.from_path
        self.is_dir = change.is_dir
        if change.kind == self.kinds[-1]:
            return
        last = max((at for at, kind in enumerate(self.kinds) if kind in _STRUCTURE), default=-1)
        if change.kind not in _STRUCTURE and change.kind in self.kinds[last + 1 :]:
            return
        if len(self.kinds) >= KINDS_LISTED:
            self.kinds.pop()
        self.kinds.append(change.kind)

    def to_dict(self) -> dict[str, Any]:
        """As JSON. A path with characters that cannot be shown is escaped, and has its bytes beside it."""
        path = shown(self.path)
        found: dict[str, Any] = {"events": self.kinds, "path": path, "time_us": self.time_us}
        if path != self.path:
            found["path_hex"] = self.path.encode("utf-8", "surrogateescape").hex()
        if self.is_dir:
            found["is_dir"] = True
        if self.from_path:
            found["from"] = shown(self.from_path)
        if self.count > 1:
            found["count"] = self.count
        if self.found_by != "kernel":
            found["found_by"] = self.found_by
        return found | (self.detail or {})

    def line(self) -> str:
        """As one line for people and models."""
        when = datetime.fromtimestamp(self.time_us / 1e6, UTC).strftime("%H:%M:%S.%f")[:-3]
        path = shown(self.path) + ("/" if self.is_dir else "")
        source = f" (from {shown(self.from_path)})" if self.from_path else ""
        times = f" ({self.count} events)" if self.count > len(self.kinds) else ""
        found = f" [found by {self.found_by}]" if self.found_by != "kernel" else ""
        detail = "".join(f" {key}={value}" for key, value in (self.detail or {}).items())
        return f"{when}  {','.join(self.kinds):<20} {path}{source}{times}{found}{detail}"


class Pending:
    """Collects the changes of a moment. `due` is when they are to be taken (monotonic seconds)."""

    def __init__(self) -> None:
        self._records: list[Record] = []
        self._by_path: dict[str, Record] = {}
        self.due: float | None = None

    def add(self, changes: Iterable[Change]) -> None:
        now_us = time.time_ns() // 1000
        for change in changes:
            marker = change.kind in MARKERS
            merged = None if marker else self._by_path.get(change.path)
            if merged is not None:
                merged.add(change)
                continue
            record = Record(
                path=change.path,
                is_dir=change.is_dir,
                kinds=[change.kind],
                found_by=change.found_by,
                time_us=now_us,
                from_path=change.from_path,
                detail=change.detail,
            )
            self._records.append(record)
            if not marker:
                self._by_path[change.path] = record
        if self._records and self.due is None:
            self.due = time.monotonic() + COALESCE_S

    def take(self) -> list[Record]:
        taken, self._records, self.due = self._records, [], None
        self._by_path.clear()
        return taken


@dataclass(slots=True)
class Page:
    """The answer to a poll. `lost` counts the records that left the buffer before they were read."""

    records: list[Record]
    cursor: str
    lost: int
    more: int
    other_run: bool
    """The cursor is from before the watch was made again."""


@dataclass(slots=True)
class Buffer:
    """The last records, at most `size`. A cursor is `RUN-NUMBER`, where a run ends with the worker."""

    run: str
    size: int
    dropped: int = 0
    """Records that fell out and that nobody had asked for."""
    asked: int = 0
    """The number of the newest record that a poll has given."""
    _records: deque[Record] = field(default_factory=deque)
    newest: int = 0

    def add(self, records: Iterable[Record]) -> int:
        """Keep records; gives how many unread ones fell out for them."""
        before = self.dropped
        for record in records:
            self.newest += 1
            record.number = self.newest
            self._records.append(record)
            if len(self._records) > self.size and self._records.popleft().number > self.asked:
                self.dropped += 1
        return self.dropped - before

    def position(self, cursor: str) -> tuple[int, bool]:
        """After which record to go on, and whether the cursor is of another run. Raises ValueError."""
        if not cursor:
            return self.asked, False
        run, dash, number = cursor.rpartition("-")
        if not dash or not number.isascii() or not number.isdigit() or not run.isalnum():
            raise ValueError(f"not a cursor: {cursor[:40]!r}")
        if run != self.run:
            return 0, True
        return min(int(number), self.newest), False

    def page(self, after: int, limit: int, *, other_run: bool) -> Page:
        """The oldest records after a number: up to `limit`, and as far as PAGE_CHARS allows."""
        oldest = self.newest - len(self._records) + 1
        lost = max(0, oldest - 1 - after)
        first = max(after + 1, oldest)
        records: list[Record] = []
        room = PAGE_CHARS
        for record in islice(self._records, first - oldest, first - oldest + limit):
            room -= record.size
            if room < 0:
                break
            records.append(record)
        last = records[-1].number if records else max(after, oldest - 1)
        self.asked = max(self.asked, last)
        return Page(
            records=records,
            cursor=f"{self.run}-{last}",
            lost=lost,
            more=self.newest - last,
            other_run=other_run,
        )
