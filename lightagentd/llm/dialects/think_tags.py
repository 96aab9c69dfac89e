"""Separates reasoning that a local server leaves in the text: `<think>…</think>` at the start of an answer.

A later tag is part of the answer, which may be about such tags.
"""

from __future__ import annotations

from lightagentd.llm.protocol import Part, ReasoningDelta, TextDelta

_OPEN = "<think>"
_CLOSE = "</think>"
_MOST_BLANKS = 1000
"""With more blanks than that before it, a tag is part of the text."""


class ThinkTags:
    """Separates reasoning from text in the pieces of one answer."""

    def __init__(self) -> None:
        self.settled = False
        """Whether all that comes is text, as it comes."""
        self._inside = False
        self._held = ""
        """Text that may be a part of a tag."""
        self._behind = False
        """Whether the place is behind the reasoning, where blanks are left out until the text begins."""

    def feed(self, piece: str) -> list[Part]:
        """The parts in a piece of the content, as far as their kind is certain."""
        if self.settled:
            return [TextDelta(piece)]
        self._held += piece
        if not self._inside and not self._behind:
            begin = self._held.lstrip()
            if len(begin) < len(_OPEN) and _OPEN.startswith(begin) and len(self._held) <= _MOST_BLANKS:
                return []
            if not begin.startswith(_OPEN):
                return self._text(self._held)
            self._inside = True
            self._held = begin.removeprefix(_OPEN)
        if self._behind:
            return self._text(self._held.lstrip())
        thought, tag, rest = self._held.partition(_CLOSE)
        if tag:
            self._inside, self._behind = False, True
            return [*_reasoning(thought), *self._text(rest.lstrip())]
        keep = next((size for size in range(len(_CLOSE) - 1, 0, -1) if thought.endswith(_CLOSE[:size])), 0)
        self._held = thought[len(thought) - keep :]
        return _reasoning(thought[: len(thought) - keep])

    def finish(self) -> list[Part]:
        """The remaining text."""
        held, self._held = self._held, ""
        if self._inside:
            return _reasoning(held)
        return [TextDelta(held)] if held.strip() else []

    def _text(self, said: str) -> list[Part]:
        self._held = ""
        self.settled = bool(said)
        return [TextDelta(said)] if said else []


def _reasoning(thought: str) -> list[Part]:
    return [ReasoningDelta(thought)] if thought else []
