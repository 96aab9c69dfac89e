"""Two texts side by side: in two columns on a terminal, as a unified diff in a pipe (diff(1))."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from itertools import zip_longest

from lightagentd.cli.layout import width
from lightagentd.cli.output import say
from lightagentd.cli.terminal import GREEN, RED, clean, columns, is_terminal, style

_BETWEEN = 3
"""The columns between the texts: a mark with a space at each side."""
_LEAST = 10


def say_difference(old: Sequence[str], new: Sequence[str], names: tuple[str, str]) -> None:
    """Print two texts, as lines, below their names. The marks are those of `diff -y`."""
    if not is_terminal():
        for line in difflib.unified_diff(old, new, *names, lineterm=""):
            say(line)
        return
    room = max(_LEAST, (columns() - _BETWEEN) // 2)
    rows = [(names[0], " ", names[1]), *side_by_side([*map(clean, old)], [*map(clean, new)])]
    for left, mark, right in rows:
        for one, other in zip_longest(_pieces(left, room), _pieces(right, room), fillvalue=""):
            padded = one + " " * (room - width(one))
            if mark == " ":
                say(f"{padded}   {other}".rstrip())
            else:
                say(style(padded, RED), f" {mark} ", style(other, GREEN))


def side_by_side(old: Sequence[str], new: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """The rows of two columns, with the mark between: a space for equal lines, `|` for changed ones, `<` and
    `>` for those on one side alone.
    """
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    for tag, first, last, begin, end in matcher.get_opcodes():
        for left, right in zip_longest(old[first:last], new[begin:end]):
            mark = " " if tag == "equal" else "<" if right is None else ">" if left is None else "|"
            yield left or "", mark, right or ""


def _pieces(line: str, room: int) -> list[str]:
    """The line in pieces that each fit; at least one."""
    found, piece, used = list[str](), "", 0
    for char in line.expandtabs():
        if used + (size := width(char)) > room:
            found.append(piece)
            piece, used = "", 0
        piece, used = piece + char, used + size
    return [*found, piece]
