"""Has the kernel read the events that a walk comes to next, while it looks at those before them.

The store is mapped without the kernel's own reading ahead (`layout`), because most reads want single events.
A walk over all of them would wait for each page of a disk. The pages are found in the file itself. Where that
fails, since the file is damaged or just exchanged, the walk does without.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from lightagentd.events.corruption.pages import PageFile, Torn, Walk
from lightagentd.events.store.layout import EVENTS

_PAGES = 4096
"""What is asked for at once; the walk is one such part behind."""
_GAP, _RUN = 4, 32
"""So many pages between two of ours are read too; and so many are read by one posix_fadvise(2) at the most,
which ignores what exceeds the limits of the device.
"""


class ReadAhead:
    """For one walk in ascending order, which begins at a key."""

    def __init__(self, file: Path, start: bytes) -> None:
        self._file = file
        self._fd = -1
        self._turn = self._end = start
        """Where the last part that was asked for begins, and where it ends; empty at the end."""

    def __enter__(self) -> ReadAhead:
        try:
            self._fd = os.open(self._file, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._end = b""
        return self

    def __exit__(self, *_: object) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    def reach(self, key: bytes) -> None:
        """The walk goes on at a key."""
        while self._end and key >= self._turn:
            self._turn, self._end = self._end, self._ask_from(self._end)

    def _ask_from(self, start: bytes) -> bytes:
        """The key behind the pages that were asked for."""
        pages: list[int] = []
        end = b""
        try:
            file = PageFile(self._fd)
            walk = Walk(file, file.meta())
            for page, low in walk.leaf_pages(walk.trees()[EVENTS], start):
                if len(pages) == _PAGES:
                    end = low
                    break
                pages.append(page)
            for first, count in _runs(sorted(pages)):
                at, size_bytes = first * file.page_size, count * file.page_size
                os.posix_fadvise(self._fd, at, size_bytes, os.POSIX_FADV_WILLNEED)
        except (Torn, OSError, KeyError):
            return b""
        return end if end > start else b""


def _runs(pages: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Ascending pages as first ones and counts, with small gaps filled."""
    first = last = -1
    for page in pages:
        if page - last > _GAP or page - first >= _RUN:
            if first >= 0:
                yield first, last - first + 1
            first = page
        last = page
    if first >= 0:
        yield first, last - first + 1
