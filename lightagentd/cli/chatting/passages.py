"""Splits streamed text into finished Markdown blocks and the unfinished rest.

A block is finished when another one begins after it, so the last one is unfinished until the text ends.
Finished blocks are printed once; only the rest changes on the screen.
"""

from __future__ import annotations

import io

from lightagentd.cli.terminal import Cleaner

_GROWTH = 1.25
"""The rest is parsed again once it is so much longer: else a long list would be parsed with each line."""


class Passage:
    """One message of the model, as it comes; `text` is all of it, without escape sequences."""

    def __init__(self) -> None:
        self._text = io.StringIO()
        self.rest = ""
        """What is not finished yet."""
        self._due = 0.0
        """How long the rest must be to be parsed again."""
        self._cleaner = Cleaner()

    @property
    def text(self) -> str:
        return self._text.getvalue()

    def feed(self, text: str) -> str:
        """Add a piece; returns the blocks that are finished now, possibly none."""
        text = self._cleaner.feed(text)
        self._text.write(text)
        self.rest += text
        return self._finished(has_line="\n" in text)

    def end(self) -> str:
        """End the text; returns the rest."""
        held = self._cleaner.flush()
        self._text.write(held)
        rest, self.rest = self.rest + held, ""
        return rest

    def _finished(self, *, has_line: bool) -> str:
        from lightagentd.cli.markdown import LONG_CHARS, parser  # not before there is something to show

        if len(self.rest) > LONG_CHARS:  # parsing it repeatedly would take longer than receiving it
            finished, found, rest = self.rest.rpartition("\n")
            # A line without an end goes out in pieces.
            finished, self.rest = (finished, rest) if found and len(rest) < LONG_CHARS else (self.rest, "")
            return finished
        if not has_line or len(self.rest) < self._due:
            return ""
        begins = [token.map[0] for token in parser().parse(self.rest) if token.level == 0 and token.map]
        if not begins or begins[-1] == 0:
            self._due = len(self.rest) * _GROWTH
            return ""
        self._due = 0.0
        lines = self.rest.split("\n")
        self.rest = "\n".join(lines[begins[-1] :])
        return "\n".join(lines[: begins[-1]])
