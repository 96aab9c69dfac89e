"""Fits rows into the width of a terminal, so that the column that one came for is seen.

The last column gets the room. Where a table is too wide its ids lose their last digits, then columns go:
those without any value, and the table's spare ones in their order. After that cells are cut.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_SEPARATOR = "  "
_CELL_MIN = 6
"""A column is not made narrower than that."""
_LONG_ID = re.compile(r"\b((?:apr|call|eval|inp|mem|ses|trace)_[0-9a-f]{8})([0-9a-f]{8})\b")


class Layout:
    """How the rows of one table are shown: made for the first ones, good for those that follow."""

    def __init__(
        self, headings: Sequence[str], rows: Sequence[Sequence[str]], room: int, spare: Sequence[str] = ()
    ) -> None:
        self._room = room
        self._cuts_ids = False
        self._kept = list(range(len(headings)))
        self._widths = self._measured(headings, rows)
        self._cuts_ids = self._excess(room // 2) > 0 and _are_unique_when_cut(rows)
        if self._cuts_ids:
            self._widths = self._measured(headings, rows)
        empty = [name for at, name in enumerate(headings) if rows and all(row[at] == "-" for row in rows)]
        for name in [*empty, *spare]:
            at = headings.index(name)
            if self._excess(room // 2) > 0 and at in self._kept and len(self._kept) > 1:
                self._kept.remove(at)
        while self._excess(room // 4) > 0 and len(self._kept) > 1:
            widest = max(self._kept[:-1], key=lambda at: self._widths[at])
            if self._widths[widest] <= _CELL_MIN:
                break
            self._widths[widest] -= 1

    def line(self, row: Sequence[str]) -> str:
        """One row, within the width of the terminal."""
        cells = self._cells(row)
        shown = [cut(cells[at], self._widths[at]) for at in self._kept[:-1]]
        padded = [
            text + " " * (self._widths[at] - width(text)) for at, text in zip(self._kept, shown, strict=False)
        ]
        return cut(_SEPARATOR.join([*padded, cells[self._kept[-1]]]).rstrip(), self._room)

    def _cells(self, row: Sequence[str]) -> Sequence[str]:
        return [_LONG_ID.sub(r"\1", text) for text in row] if self._cuts_ids else row

    def _measured(self, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
        """The width of each column."""
        return [max(map(width, column)) for column in zip(headings, *map(self._cells, rows), strict=True)]

    def _excess(self, last: int) -> int:
        """How much too wide the table is, when its last column has so much room."""
        *others, end = (self._widths[at] for at in self._kept)
        return sum(others) + len(_SEPARATOR) * len(others) + min(end, last) - self._room


def _are_unique_when_cut(rows: Sequence[Sequence[str]]) -> bool:
    ids = {match.groups() for row in rows for text in row for match in _LONG_ID.finditer(text)}
    return len({begin for begin, _ in ids}) == len(ids)


def cut(line: str, room: int) -> str:
    """The line within so many columns, at least one; a cut ends in `…`."""
    if width(line) <= room:
        return line
    while width(line) >= max(room, 1):
        line = line[: -max(1, (width(line) - room) // 2)]
    return line + "…"


def width(text: str) -> int:
    """How many columns a text takes: East Asian characters take two, combining ones none (UAX #11)."""
    if text.isascii():
        return len(text)
    import unicodedata

    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1
        for char in text
    )
