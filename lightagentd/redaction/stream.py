"""Removes secrets from text that arrives in pieces, such as a model's answer or a command's output.

Its joined output equals `Redactor.text` of the whole text. It holds back an unfinished word, a line from the
word with a hint on, and a private key until its end; ordinary text goes out word by word. This is enough
because a match stays in its line (except blocks) and begins in the word of its hint.

Each text has its own stream, which holds at most about `HELD_CHARS`. A longer line or block is cut there at
white space, and both sides of the cut are cleaned separately.

The source may also pause within a word: `pause` then gives a short part of it. That part is still checked
with the rest of its word, so at most these few characters of a secret can go out.
"""

from __future__ import annotations

from lightagentd.redaction.formats import BLOCK_BEGINS, BLOCK_ENDS
from lightagentd.redaction.redactor import BLANKS, Redactor

HELD_CHARS = 64 << 10
_SHORT = 7
"""So many characters are no secret yet: known values have at least one more."""


class Stream:
    """Begin with an empty one; `feed` each piece, and `finish` at the end."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._held = ""
        self._shown = ""
        """What is held back no more than for the sake of what follows: a pause has let it go out."""
        self._in_block = False
        self._hinted = False
        """Whether what is held begins with a word that has a hint in it: all of its line has to wait."""
        self._line_blank = True
        """Whether the line has nothing but blanks until what is held."""

    def feed(self, piece: str) -> str:
        """The text that can go out now."""
        self._held += piece
        out = ""
        if self._in_block or "\n" in piece:
            out = self._whole_lines()
        if not self._in_block and not self._hinted:
            out += self._take(self._safe())
        if len(self._held) > HELD_CHARS:
            out += self._take(self._held.rfind(" ", HELD_CHARS // 2) + 1 or len(self._held))
            self._in_block = False
        return out

    def pause(self) -> str:
        """The part of an unfinished word that can go out after a pause."""
        if self._shown or self._hinted or self._in_block or len(self._held) > _SHORT:
            return ""
        self._shown = self._held
        return self._shown

    @property
    def holds(self) -> bool:
        """Whether something waits for what follows."""
        return len(self._held) > len(self._shown)

    def finish(self) -> str:
        """The text that was held back; the next piece begins a new text."""
        out = self._take(len(self._held))
        self._in_block, self._line_blank = False, True
        return out

    def _whole_lines(self) -> str:
        """The lines that are whole, up to a block that is not."""
        begins = BLOCK_BEGINS.search(self._held)
        end = self._held.rfind("\n", 0, begins.start() if begins else len(self._held)) + 1
        out = self._take(end)
        self._in_block = begins is not None
        if self._in_block and (end := self._block_end()):
            out += self._take(end)
            return out + self._whole_lines()
        return out

    def _block_end(self) -> int:
        """Where the line ends with which the first block does; 0 when that has not come yet."""
        line_end = place = 0
        while True:
            begins = BLOCK_BEGINS.search(self._held, place)
            if begins is None or (line_end and begins.start() >= line_end):
                return line_end
            ends = BLOCK_ENDS.search(self._held, begins.end())
            line_end = self._held.find("\n", ends.end()) + 1 if ends else 0
            if ends is None or not line_end:
                return 0
            place = ends.end()

    def _safe(self) -> int:
        """How much of an unfinished line can go out: up to the word with the first hint, or the last word."""
        held = self._held
        hint = self._redactor.hint_at(held)
        self._hinted = hint is not None
        end = len(held) if hint is None else hint
        return max(held.rfind(blank, 0, end) for blank in BLANKS) + 1

    def _take(self, end: int) -> str:
        if not end:
            return ""
        piece, self._held = self._held[:end], self._held[end:]
        done = self._redactor.part(piece, begins_line=self._line_blank)
        if self._shown:
            done, self._shown = done.removeprefix(self._shown), ""
        _, line_end, rest = piece.rpartition("\n")
        self._line_blank = (bool(line_end) or self._line_blank) and not rest.strip(BLANKS)
        if line_end or not self._held:
            self._hinted = False
        return done
