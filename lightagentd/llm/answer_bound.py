"""Bounds the length of an answer and of its pieces.

An answer is searched for secrets several times, and stored, so an absurdly long one must not use up the
daemon's time and memory. One `AnswerBound` belongs to one answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from lightagentd.llm.endpoint.refusals import NoModel
from lightagentd.llm.protocol import Part, Reasoning, ReasoningDelta, TextDelta, ToolCall

MOST_CHARS = 2 << 20
"""Text, reasoning and arguments together: four times what a model says in 128,000 tokens."""
PIECE_CHARS = 32 << 10
"""A longer piece of text goes on as several, so that others get their turn between them."""


class AnswerBound:
    """Counts the length of one answer. `model` is the model string."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._chars = 0

    def parts(self, parts: Iterable[Part]) -> Iterator[Part]:
        """The same parts, each of allowed length. Raises ModelGarbled."""
        for part in parts:
            if isinstance(part, TextDelta | ReasoningDelta):
                size = len(part.text)
            elif isinstance(part, ToolCall):
                size = len(part.id) + len(part.name) + len(part.arguments)
            elif isinstance(part, Reasoning):  # its text came in deltas
                size = len(part.signature) + len(part.data) + len(part.id)
            else:
                size = 0
            self._chars += size
            if self._chars > MOST_CHARS:
                raise NoModel(
                    f"The model {self._model} says more than {MOST_CHARS >> 20} MiB in one answer, which is"
                    " more than any model means.",
                    suggestion="Choose another model, or set max_output_tokens.",
                    reached=True,
                )
            if size > PIECE_CHARS and isinstance(part, TextDelta | ReasoningDelta):
                yield from _pieces(part)
            else:
                yield part


def _pieces(part: TextDelta | ReasoningDelta) -> Iterator[Part]:
    for at in range(0, len(part.text), PIECE_CHARS):
        yield type(part)(part.text[at : at + PIECE_CHARS])
