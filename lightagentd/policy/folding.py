"""Undoes disguises of a text before guards look at it, and knows what each place was in the original.

`plain` is the text in Unicode's form NFKC, without characters that nobody sees. `alike` is that with letters,
digits, and signs of other scripts as the ASCII ones that they look like; it is as long as `plain`.
"""

from __future__ import annotations

import functools
import re
import sys
import unicodedata
from array import array
from dataclasses import dataclass

_INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb\U000e0000-\U000e0fff]"
)
_FOREIGN = re.compile(r"[\x00-\x7f]?[^\x00-\x7f]+")
_NOT_ASCII = re.compile(r"[^\x00-\x7f]")
_ALIKE = {
    "-": "\u2010\u2011\u2012\u2013\u2014\u2015\u2212", ".": "\u3002\u00b7", "/": "\u2215\u2044",
    "3": "\u0417", "A": "\u0410\u0391", "B": "\u0412\u0392", "C": "\u0421\u03f9", "E": "\u0415\u0395",
    "H": "\u041d\u0397", "I": "\u0406\u0399\u04c0", "J": "\u0408\u037f", "K": "\u041a\u039a",
    "M": "\u041c\u039c", "N": "\u039d", "O": "\u041e\u039f\u0555", "P": "\u0420\u03a1", "S": "\u0405",
    "T": "\u0422\u03a4", "X": "\u0425\u03a7", "Y": "\u0423\u03a5", "Z": "\u0396", "a": "\u0430\u0251\u03b1",
    "c": "\u0441\u03f2", "d": "\u0501", "e": "\u0435\u04bd", "g": "\u0261", "h": "\u04bb\u0570",
    "i": "\u0456\u0131\u03b9\u0269", "j": "\u0458\u03f3", "k": "\u043a\u03ba", "l": "\u04cf",
    "n": "\u0578\u043f", "o": "\u043e\u03bf\u0585\u03c3", "p": "\u0440\u03c1", "q": "\u051b", "s": "\u0455",
    "u": "\u03c5\u057d", "v": "\u0475\u03bd", "w": "\u051d", "x": "\u0445\u03c7", "y": "\u0443\u03b3",
}  # fmt: skip
"""By an ASCII character, what looks like it (after Unicode's confusables, https://www.unicode.org/reports/tr39/)."""


@dataclass(frozen=True, slots=True)
class Folded:
    """A text without disguises."""

    plain: str
    alike: str
    starts: array[int] | None = None
    """Where each character of them begins in the original, and `ends` where it ends; None for the same."""
    ends: array[int] | None = None

    def span(self, start: int, end: int) -> tuple[int, int]:
        """The place in the original of a place that is not empty."""
        if self.starts is None or self.ends is None:
            return start, end
        return self.starts[start], self.ends[end - 1]


def fold(text: str) -> Folded:
    """The text without its disguises."""
    if text.isascii():
        return Folded(text, text)
    if unicodedata.is_normalized("NFKC", text) and not _INVISIBLE.search(text):
        return Folded(text, _alike(text))
    parts, starts, ends, place = [], array("L"), array("L"), 0
    for run in _FOREIGN.finditer(text):
        for start, end in ((place, run.start()), run.span()):
            piece = text[start:end]
            if piece.isascii() or (unicodedata.is_normalized("NFKC", piece) and not _INVISIBLE.search(piece)):
                parts.append(piece)
                starts.extend(range(start, end))
                ends.extend(range(start + 1, end + 1))
            else:
                _take_odd(text, start, end, parts, starts, ends)
        place = run.end()
    parts.append(text[place:])
    starts.extend(range(place, len(text)))
    ends.extend(range(place + 1, len(text) + 1))
    plain = "".join(parts)
    return Folded(plain, _alike(plain), starts, ends)


def _take_odd(
    text: str, start: int, end: int, parts: list[str], starts: array[int], ends: array[int]
) -> None:
    """Take a run letter by letter, each with the marks that belong to it."""
    while start < end:
        after = start + 1
        while after < end and (unicodedata.combining(text[after]) or _INVISIBLE.match(text[after])):
            after += 1
        shown = _INVISIBLE.sub("", unicodedata.normalize("NFKC", _INVISIBLE.sub("", text[start:after])))
        parts.append(shown)
        starts.extend([start] * len(shown))
        ends.extend([after] * len(shown))
        start = after


def _alike(text: str) -> str:
    table = _look_alikes()
    return _NOT_ASCII.sub(lambda found: table.get(found[0], found[0]), text)


@functools.cache
def _look_alikes() -> dict[str, str]:
    """What looks like an ASCII character, and which; made once a text needs it."""
    table = {one: ascii_one for ascii_one, many in _ALIKE.items() for one in many}
    for code in range(0x80, min(sys.maxunicode, 0x1FBFF)):
        digit = unicodedata.decimal(chr(code), None)
        if digit is not None:
            table[chr(code)] = str(digit)
    return table
