"""A prompt as words, placeholders and marks, and as clauses; after `arguments.extract`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from lightagentd.llm.runbook.vocabulary import words

_TOKEN = re.compile(
    r"<(?P<kind>[a-z]+)(?::(?P<original>[^<>\s]*))?>|(?P<word>[A-Za-z0-9][A-Za-z0-9'_+]*)|"
    r"(?P<mark>[.,;:!?])"
)
BREAKS = words(
    """
    , . ; : ! ? and then but because so or also & plus
    """
)
QUESTIONS = words(
    """
    what who whom whose which why how when where is are was were did does do has have had can any anything
    anyone anybody check show list tell find look see give display get diagnose inspect verify review
    examine audit report investigate test status count print summarize analyze scan currently now
    """
)


@dataclass(frozen=True, kw_only=True)
class Token:
    """A word in lower case, a placeholder (`<port>`) or a mark."""

    text: str
    original: str = ""
    """The word that a placeholder stands for, if it was one."""

    @property
    def word(self) -> str:
        return self.original or self.text


def tokenize(text: str) -> list[Token]:
    """Words, placeholders and marks, in order; hyphens separate words."""
    return [
        Token(text=f"<{found['kind']}>", original=found["original"] or "")
        if found["kind"]
        else Token(text=(found["word"] or found["mark"]).lower().strip("'"))
        for found in _TOKEN.finditer(text)
    ]


def clauses_of(tokens: Sequence[Token]) -> list[list[Token]]:
    """The tokens in pieces between marks and conjunctions, without these; none is empty."""
    pieces: list[list[Token]] = [[]]
    for token in tokens:
        if token.text in BREAKS:
            pieces.append([])
        else:
            pieces[-1].append(token)
    return [piece for piece in pieces if piece]


def asks(tokens: Sequence[Token]) -> bool:
    """Whether the words look like a question or like an order to look at something."""
    return any(token.text in QUESTIONS or token.text == "?" for token in tokens)
