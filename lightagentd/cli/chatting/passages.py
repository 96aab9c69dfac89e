"""Splits streamed text into finished Markdown blocks and the unfinished rest.

A block is finished when another one begins after it, so the last one is unfinished until the text ends.
Finished blocks are printed once; only the rest changes on the screen.
"""

from __future__ import annotations

from lightagentd.cli.markdown import LONG_CHARS, parser
from lightagentd.cli.terminal import Cleaner


class Passage:
    """One message of the model, as it comes; `text` is all of it, without escape sequences."""

    def __init__(self) -> None:
        self.text = ""
        self.rest = ""
        """What is not finished yet."""
        self._cleaner = Cleaner()

    def feed(self, text: str) -> str:
        """Add a piece; returns the blocks that are finished now, possibly none."""
        text = self._cleaner.feed(text)
        self.text += text
        self.rest += text
        return self._finished() if "\n" in text else ""

    def end(self) -> str:
        """End the text; returns the rest."""
        held = self._cleaner.flush()
        self.text += held
        rest, self.rest = self.rest + held, ""
        return rest

    def _finished(self) -> str:
        if len(self.rest) > LONG_CHARS:  # parsing it repeatedly would take longer than receiving it
            finished, _, self.rest = self.rest.rpartition("\n")
            return finished
        begins = [token.map[0] for token in parser().parse(self.rest) if token.level == 0 and token.map]
        if not begins or begins[-1] == 0:
            return ""
        lines = self.rest.split("\n")
        self.rest = "\n".join(lines[begins[-1] :])
        return "\n".join(lines[: begins[-1]])
