"""Redacts text that arrives in pieces, such as a model's answer, by guards.

Its joined output is that of `judge` for the whole text, as long as no line is longer than `HELD_CHARS`. It
holds back what may be the beginning of a match: a class of text can begin in the last word, or in a number
before it; a pattern anywhere in the line. A longer line goes out but for its last `LONGEST_MATCH` characters.
"""

from __future__ import annotations

import re

from lightagentd.policy.guards import Guards
from lightagentd.policy.looking import LONGEST_MATCH, Found, Looked, without

HELD_CHARS = 4096
_WORD = re.compile(r"\S+")
_DIGIT = re.compile(r"[\d²³¹⁰-⁹₀-₉①-⓿❶-➓]")
_LETTERS = re.compile(r"(?<!\S)[A-Za-z]{2}\s*\Z")
"""Two letters before a number may belong to it."""
_NEAR = 96
_JOINS_CHARS = 6
"""A word of so few characters may stand between the groups of a number, as NWBK in an IBAN."""


class GuardStream:
    """Begin with an empty one; `feed` each piece, and `finish` at the end."""

    def __init__(self, guards: Guards) -> None:
        self._guards = guards
        self._by_line = any(one.patterns for one in guards)
        self._held = ""
        self._unsure = ""
        """What stands for all that follows, once a pattern took too long."""

    def feed(self, piece: str) -> str:
        """The text that can go out now."""
        self._held += piece
        end = self._held.rfind("\n") + 1
        if not self._by_line:
            end = _number_at_end(self._held, end)
        if len(self._held) - end > HELD_CHARS:
            end = self._cut()
        return self._take(end)

    def finish(self) -> str:
        """The text that was held back."""
        return self._take(len(self._held))

    def _cut(self) -> int:
        """Where a line that is too long can be cut: not in a match."""
        end = len(self._held) - LONGEST_MATCH
        end = self._held.rfind(" ", 0, end) + 1 or end
        for one in self._found(self._held):
            if one.start < end < one.end:
                end = one.start
        return end or len(self._held)

    def _found(self, text: str) -> list[Found]:
        looked = Looked(text)
        return [one for guard in self._guards for one in looked.found(guard)]

    def _take(self, end: int) -> str:
        if not end:
            return ""
        piece, self._held = self._held[:end], self._held[end:]
        if self._unsure:
            return ""
        found = self._found(piece)
        self._unsure = next((one.label for one in found if one.unsure), "")
        return without(piece, found) if found else piece


def _number_at_end(text: str, line: int) -> int:
    """Where the last word begins, or the number that it may go on with, in the line that begins there."""
    for chars in (_NEAR, LONGEST_MATCH):
        start = max(line, len(text) - chars)
        if (end := _number_from(text, start)) > start:
            return end
    return max(line, text.rfind(" ", line, end) + 1, text.rfind("\t", line, end) + 1)


def _number_from(text: str, start: int) -> int:
    """As `_number_at_end`, for the text from there on; its begin where the number may begin before."""
    words = [word.span() for word in _WORD.finditer(text, start)]
    end = len(text)
    if words and words[-1][1] == end:
        end = words.pop()[0]
    for begins, ends in reversed(words):
        if _DIGIT.search(text, begins, ends):
            end = begins
        elif ends - begins > _JOINS_CHARS:
            break
    else:
        return start
    if before := _LETTERS.search(text, max(start, end - 5), end):
        end = before.start()
    return end
