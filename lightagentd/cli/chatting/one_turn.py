"""One turn on a terminal, as a chat shows it: finished text stays, and what is not finished is drawn anew.

The live region is below the finished text. It is erased and drawn by moving the cursor up (ECMA-48), at most
every `_REDRAW_S`; a terminal that cannot do that gets lines.
"""

from __future__ import annotations

import sys
import time
from functools import partial
from typing import Any

from lightagentd.cli import output, terminal
from lightagentd.cli.chatting.questions import Questions
from lightagentd.cli.chatting.transcript import Transcript
from lightagentd.cli.options import Settings
from lightagentd.cli.question import may_answer, may_type

_REDRAW_S = 0.1
_KEPT_ROWS = 2


class TurnTerminal:
    """Implements `screen.TurnScreen` on standard output."""

    is_terminal = echoes = True

    def __init__(self) -> None:
        self.can_ask = may_type()
        self.can_redraw = not terminal.is_dumb()
        self.colours = terminal.has_colours()
        self.view: Transcript | None = None
        self._drawn: list[str] = []
        self._due_s = time.monotonic() + _REDRAW_S

    @property
    def columns(self) -> int:
        return terminal.columns()

    def print(self, text: str = "") -> None:
        self._draw([])
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
        self._due_s = 0.0

    def warn(self, text: str, suggestion: str = "") -> None:
        self._draw([])
        output.warn(text, suggestion)

    def refresh(self) -> None:
        if self.view is not None and self.can_redraw and time.monotonic() >= self._due_s:
            self._draw(self.view.live(self.columns - 1, terminal.rows() - _KEPT_ROWS))

    def ask(self, question: str, words: str) -> None:  # noqa: ARG002 - the protocol's
        """`cli.turn` asks."""
        self._draw([])

    def _draw(self, lines: list[str]) -> None:
        """Show these lines in place of those that were drawn last."""
        if lines == self._drawn:
            return
        erased = f"\x1b[{len(self._drawn)}A\r\x1b[J" if self._drawn else ""
        sys.stdout.write(erased + "".join(f"{line}\n" for line in lines))
        sys.stdout.flush()
        self._drawn, self._due_s = lines, time.monotonic() + _REDRAW_S


class TurnView:
    """Shows a turn, or with `is_call` a call by a person, whose result is no Markdown."""

    def __init__(self, settings: Settings, *, is_call: bool, thoughts: bool) -> None:
        self._screen = TurnTerminal()
        self._transcript = Transcript(
            self._screen, Questions(self._screen), _nothing, in_chat=False, is_markdown=not is_call
        )
        self._transcript.shows_thoughts = thoughts
        self._transcript.may_answer = partial(may_answer, settings)
        self._screen.view = self._transcript

    def show(self, event: dict[str, Any]) -> None:
        if event["type"] == "error":  # whoever watches reports it
            self.leave()
        else:
            self._transcript.show(event)

    def tick(self) -> None:
        self._transcript.tick()

    def leave(self) -> None:
        """Stop showing, in the middle of a turn."""
        self._transcript.lost()


def _nothing(*_: object) -> None:
    """Nothing waits for the turn's end."""
