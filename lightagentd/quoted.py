"""A prompt: a question, followed by attached texts from elsewhere, each in a block.

A block is a fence that its text cannot close, labelled with the name of what is in it. A model reads all of
it as one text. The session's title, the offered tools and the choice of a runbook depend only on the
question, so a prompt records where its question ends. `lactl` imports this module for each prompt, so it
imports nothing heavy.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass

STANDARD_INPUT = "standard input"
"""The label of the block that lactl puts standard input in."""
INSTRUCTIONS = "instructions of the client"
"""The label of the block that the gateway puts a client's system messages in."""
_TICKS = re.compile(r"`{3,}")


def quoted(label: str, text: str) -> str:
    """The text between two lines of more backticks than it has anywhere; `label` is one line.

    A backtick in a label would make the first line no fence (CommonMark 0.31, 4.5), so it becomes a quote.
    """
    fence = "`" * (max(map(len, _TICKS.findall(text)), default=2) + 1)
    return f"{fence}{label.replace('`', chr(39))}\n{text}\n{fence}"


@dataclass(frozen=True)
class Prompt:
    """`question_chars` is the length of the question at the beginning of the text; 0 when all of it is the
    question, as of every prompt that was stored before there was such a number.
    """

    text: str
    question_chars: int = 0

    def __len__(self) -> int:
        return len(self.text)

    @property
    def question(self) -> str:
        return self.text[: self.question_chars or None]

    def with_blocks(self, *blocks: str) -> Prompt:
        """The prompt with more blocks behind it."""
        text = self.text.rstrip()
        return Prompt("\n\n".join([text, *blocks]), self.question_chars or len(text))

    def cleaned(self, clean: Callable[[str], str]) -> Prompt:
        """The prompt without its secrets. One that begins in the question may end in a block, so the text is
        cleaned as a whole.
        """
        text = clean(self.text)
        if not self.question_chars:
            return Prompt(text)
        alike = (one == other for one, other in zip(text, clean(self.question), strict=False))
        return Prompt(text, max(1, sum(itertools.takewhile(bool, alike))))


def sent(text: str, *, outside: bool) -> Prompt:
    """A prompt as a client sends it: one text, which ends in the block of standard input or of a client's
    instructions if it has one.

    Only what says that it holds text from `outside` has standard input. The fence of a block is longer than
    any in it, so it is found from its end, and a fence in the question is never taken for it.
    """
    head, _, fence = text.rpartition("\n")
    if _TICKS.fullmatch(fence):
        for label in (INSTRUCTIONS, STANDARD_INPUT) if outside else (INSTRUCTIONS,):
            question, found, block = head.rpartition(f"\n\n{fence}{label}\n")
            if found and question.strip() and fence not in block:
                return Prompt(text, len(question))
    return Prompt(text)
