"""What a conversation needs of a screen, and what a screen says to it.

A screen shows finished text once and for ever (`print`), and where it can, a region below that changes
(`live`). It is made by `cli.chat`, which owns it; the conversation runs inside of it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable
from dataclasses import dataclass
from typing import Protocol, TypeVar

_T = TypeVar("_T")


@dataclass(frozen=True)
class Line:
    """What was typed, up to Enter. `asked` is the id of the question that it answers; empty for none."""

    text: str
    asked: str = ""


class View(Protocol):
    """What a screen shows whenever it draws, and whom it tells of Ctrl-C."""

    def prompt(self) -> str:
        """The words in front of what is typed, on one line."""

    def live(self, columns: int, rows: int) -> list[str]:
        """The live region, at most so many lines of at most so many columns."""

    def completions(self, before: str) -> Iterable[tuple[str, str]]:
        """What may follow the text before the cursor: the word that it would replace, and by what."""

    def interrupted(self) -> None:
        """Ctrl-C, also while nobody takes what is typed."""


class Screen(Protocol):
    """Where a conversation is shown and typed. It shows `view` from `typed` on."""

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

    def typed(self, view: View) -> AsyncGenerator[Line, None]:
        """The lines that are typed, until the end of input."""

    def print(self, text: str = "") -> None:
        """Show text that is safe already, and end its line."""

    def warn(self, text: str, suggestion: str = "") -> None:
        """Show what went wrong."""

    def refresh(self) -> None:
        """The live region or the prompt may have changed."""

    def ready(self) -> None:
        """Nothing goes on: it is for the person to type."""

    def ask(self, question: str, words: str) -> None:
        """From now on what is typed answers the question of this id, with these words as the prompt; empty:
        it answers none.
        """

    def put_back(self, text: str) -> None:
        """Give text back that was typed and could not be used, to be typed on."""

    def clear(self) -> bool:
        """Forget what was typed and not finished; says whether there was something."""

    async def suspended(self, function: Callable[[], _T]) -> _T:
        """Call a function that uses the terminal itself, in a thread."""
