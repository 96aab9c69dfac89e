"""Filters output to a terminal: removes escape sequences from outside text, and adds our own colours.

Models, tools and files can contain sequences that move the cursor, set the title or answer in the user's name
(ECMA-48, xterm's ctlseqs). They are removed on a terminal; in a pipe the reader handles the bytes.
"""

from __future__ import annotations

import os
import re
import sys

from lightagentd.text.visible import escaped

_BELL_S = 10.0
_WORDS = {"→ ": "Call: ", "← ": "Result: ", "· ": "", "> ": "You: ", "? ": "Question: ", "| ": "line: "}
_HELD_BACK_MAX = 256
"""A sequence that is still open after so many characters is shown as text, without its first character."""

_STRING = r"(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])"
_SEQUENCE = re.compile(
    rf"{_STRING}[^\x07\x1b\x80-\x9f]*(?:\x07|\x1b\\|\x9c)"  # a string, such as a title, up to its end
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # a control sequence, such as a colour
    r"|\x1b[ -/]*[0-OQ-WYZ\\`-~]"  # the short ones, such as a reset; not the openings of strings
)
_OPEN = re.compile(rf"{_STRING}[^\x07\x1b\x80-\x9f]*\x1b?\Z|(?:\x1b\[|\x9b)[0-?]*[ -/]*\Z|\x1b[ -/]*\Z")
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters but tab and newline, what reverses the direction of text, and bytes that are no text."""

_UNSEEN = re.compile("[\u180e\u200b\u2060-\u2065\u206a-\u206f\ufeff\ufff0-\ufffb\U000e0000-\U000e0fff]")
"""What no terminal shows and no script needs: words to a model could hide in it, so it is written out."""


class Cleaner:
    """Takes escape sequences and control characters out of text that comes in pieces."""

    def __init__(self) -> None:
        self._held = ""

    def feed(self, text: str) -> str:
        """The part of the text so far that can be shown; an open sequence at its end is held back."""
        text = _SEQUENCE.sub("", self._held + text)
        self._held = ""
        opening = _OPEN.search(text)
        if opening and len(text) - opening.start() <= _HELD_BACK_MAX:
            text, self._held = text[: opening.start()], text[opening.start() :]
        return _harmless(text)

    def flush(self) -> str:
        """The held-back text, at the end of the input."""
        held, self._held = self._held, ""
        return _harmless(held)


def clean(text: str) -> str:
    """A whole text without escape sequences and control characters other than tab and newline, and with
    unseen characters as escapes.
    """
    return _harmless(_SEQUENCE.sub("", text))


def _harmless(text: str) -> str:
    return _UNSEEN.sub(lambda found: escaped(found[0]), _CONTROL.sub("", text))


def is_terminal() -> bool:
    """Standard output is a terminal."""
    return sys.stdout.isatty()


def may_type() -> bool:
    """Whether a person at a terminal can answer."""
    return is_terminal() and sys.stdin is not None and sys.stdin.isatty()


def has_colours() -> bool:
    """Standard output is a terminal that may be coloured (https://no-color.org)."""
    return is_terminal() and not os.environ.get("NO_COLOR") and not is_dumb()


_plain = False


def be_plain() -> None:
    """For a screen reader: from now on only lines, without colours and frames, and with words for signs."""
    global _plain
    _plain = True


def is_plain() -> bool:
    return _plain


def in_words(line: str) -> str:
    """A line of our own; for a screen reader with a word in place of the sign that it begins with."""
    if not _plain:
        return line
    text = line.lstrip(" ")
    sign = next((sign for sign in _WORDS if text.startswith(sign)), "")
    return line[: len(line) - len(text)] + _WORDS.get(sign, "") + text.removeprefix(sign)


def is_dumb() -> bool:
    """Whether the terminal only prints lines: it has no colours and cannot move its cursor."""
    return _plain or os.environ.get("TERM") in (None, "", "dumb")


def rings(took_s: float, focused: bool | None) -> bool:
    """Whether a bell is rung after so long a turn; `focused` is None where the terminal does not say that it
    is. $LIGHTAGENT_BELL is after how many seconds (10), or `off`.
    """
    wanted = os.environ.get("LIGHTAGENT_BELL", "")
    after_s = float(wanted) if wanted.isascii() and wanted.isdigit() else _BELL_S
    return wanted != "off" and (focused is False or took_s >= after_s)


def columns() -> int:
    """The width of the terminal on standard output in characters."""
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or 80
    except OSError:
        return 80


def rows() -> int:
    """The height of the terminal on standard output in lines."""
    try:
        return os.get_terminal_size(sys.stdout.fileno()).lines or 24
    except OSError:
        return 24


class Styled(str):
    """Text that is clean already and may hold our own escape sequences."""

    __slots__ = ()


BOLD, DIM, RED, GREEN, MAGENTA = "1", "2", "31", "32", "35"
"""Yellow and cyan cannot be read on white, and blue not on black."""
_THEMES = {
    "dark": {DIM: "37", RED: "91", GREEN: "92", MAGENTA: "95"},
    "light": {DIM: "90"},
}
"""What stands for these colours where the background is known."""
_LIGHT = ("7", *map(str, range(9, 16)))
"""The backgrounds of $COLORFGBG on which one writes in black."""


def theme() -> str:
    """`dark`, `light`, or empty where the background is not known: by $LIGHTAGENT_THEME, else by $COLORFGBG,
    which rxvt, Konsole and others set. The terminal is not asked: its answer could mix with what is typed.
    """
    wanted = os.environ.get("LIGHTAGENT_THEME", "")
    if wanted in _THEMES:
        return wanted
    _, found, background = os.environ.get("COLORFGBG", "").rpartition(";")
    known = not wanted and found and background.isascii() and background.isdigit()
    return ("light" if background in _LIGHT else "dark") if known else ""


def style(text: str, code: str) -> Styled:
    """The text, cleaned, and coloured if colours are on."""
    text = clean(text)
    code = _THEMES.get(theme(), {}).get(code, code)
    return Styled(f"\x1b[{code}m{text}\x1b[0m") if text and has_colours() else Styled(text)
