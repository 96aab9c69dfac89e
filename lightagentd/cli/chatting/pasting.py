"""Pasted blocks of many lines, which stand in the typed line as a few words until it is sent."""

from __future__ import annotations

import re

BEGIN = "[pasted "
_LINES, _CHARS = 5, 2000
"""From so many lines or characters on a block is folded."""


class Pastes:
    """The blocks of the line that is typed. The screen owns it, and clears it when the line is sent."""

    def __init__(self) -> None:
        self._blocks: dict[str, str] = {}
        """By the words that stand for the block."""

    def fold(self, text: str) -> str:
        """What is put into the typed line for a pasted text."""
        text = text.replace("\r\n", "\n").replace("\r", "\n")
        count = text.count("\n") + (not text.endswith("\n"))
        if count < _LINES and len(text) < _CHARS:
            return text
        what = f"{count} lines" if count > 1 else f"{len(text)} characters"
        number, mark = 1, f"{BEGIN}{what}]"
        while mark in self._blocks:
            number += 1
            mark = f"{BEGIN}{what}, {number}]"
        self._blocks[mark] = text
        return mark

    def whole(self, typed: str) -> str:
        """The typed line with its blocks in place of the words."""
        if not self._blocks:
            return typed
        marks = re.compile("|".join(map(re.escape, self._blocks)))
        return marks.sub(lambda found: self._blocks[found[0]], typed)

    def clear(self) -> None:
        self._blocks.clear()
