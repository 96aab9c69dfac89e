"""The interface between a conversation and its screen.

A screen prints finished text once (`print`), and, if it can, shows a region below that changes (`live`).
`cli.chat` makes and owns it; the conversation runs inside of it. A single turn needs a `TurnScreen` alone.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable
from dataclasses import dataclass
from typing import Protocol, TypeVar

_T = TypeVar("_T")


@dataclass(frozen=True)
class Line:
    """A typed line, up to Enter. `asked` is the id of the question that it answers; empty for none."""

    text: str
    asked: str = ""
    typed: str | None = None
    """The same with a few words for each pasted block, where there is one."""
    is_key: bool = False
    """Whether a key stands for this command."""


class View(Protocol):
    """The content that a screen draws, and the receiver of Ctrl-C."""

    def prompt(self) -> str:
        """The words before the typed text, on one line."""

    def below(self) -> str:
        """The words below the typed text, on one line."""

    def live(self, columns: int, rows: int) -> list[str]:
        """The live region, at most so many lines of at most so many columns."""

    def completions(self, before: str) -> Iterable[tuple[str, str]]:
        """The completions of the text before the cursor: the word to be replaced, and the replacements."""

    def interrupted(self) -> None:
        """Ctrl-C, also while no typed text is accepted."""


class TurnScreen(Protocol):
    """Where turns are shown."""

    is_terminal: bool
    """Whether a person reads it; else only the answers are printed."""
    can_ask: bool
    """Whether a person types there, so that a question can be asked."""
    can_redraw: bool
    """Whether it has a live region."""
    echoes: bool
    """Whether what is typed stays to be seen by itself."""
    colours: bool

    @property
    def columns(self) -> int: ...

    def print(self, text: str = "") -> None:
        """Show text that is safe already, and end its line."""

    def warn(self, text: str, suggestion: str = "") -> None:
        """Show what went wrong."""

    def refresh(self) -> None:
        """The live region or the prompt may have changed."""

    def ask(self, question: str, words: str) -> None:
        """From now on a typed line answers the question with this id, with these words as the prompt; an
        empty id ends that.
        """


class Screen(TurnScreen, Protocol):
    """Where a conversation is shown and typed. It shows `view` from `typed` on."""

    def typed(self, view: View) -> AsyncGenerator[Line, None]:
        """The typed lines, until the end of input."""

    def ready(self) -> None:
        """Nothing is running: the person may type."""

    def put_back(self, text: str) -> None:
        """Return unusable typed text to the input line for editing."""

    def clear(self) -> bool:
        """Drop the unfinished input; returns whether there was any."""

    def wipe(self) -> None:
        """Empty the screen."""

    def alert(self, took_s: float) -> None:
        """Have the person look here, after so long a time."""

    def copy(self, text: str) -> bool:
        """Put a text into the clipboard; returns whether the screen can."""

    async def suspended(self, function: Callable[[], _T]) -> _T:
        """Call a function that uses the terminal itself, in a thread."""
