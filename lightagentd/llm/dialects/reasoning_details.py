"""Puts together what OpenRouter streams as `reasoning_details`: blocks of a model's reasoning, some of them
signed or encrypted, which the model's next request has to have back as they were.

https://openrouter.ai/docs/use-cases/reasoning-tokens
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from lightagentd.llm.protocol import Reasoning

FIELD = "reasoning_details"
_MOST_CHARS = 2 << 20
_PIECES = ("text", "summary", "data")
"""The fields that come in pieces; of the others the last value that is not null counts."""


class ReasoningDetails:
    """The blocks of one answer, in the order of their first pieces."""

    def __init__(self) -> None:
        self.blocks: list[dict[str, Any]] = []
        self._chars = 0

    def take(self, pieces: Any) -> None:
        """Raises TypeError, AttributeError or ValueError for what is no list of such pieces, or too much."""
        for piece in pieces or ():
            block = self._block_of(piece.get("type"), piece.get("index"))
            for name, value in piece.items():
                if name in _PIECES and isinstance(value, str):
                    block[name] = (block.get(name) or "") + value
                elif value is not None or name not in block:
                    block[name] = value
                self._chars += len(value) if isinstance(value, str) else 8
            if self._chars > _MOST_CHARS:
                raise ValueError("the reasoning does not come to an end")

    def _block_of(self, kind: object, index: object) -> dict[str, Any]:
        last = self.blocks[-1] if self.blocks else None
        if last is None or index is None or (last.get("type"), last.get("index")) != (kind, index):
            last = {}
            self.blocks.append(last)
        return last


def kept(reasoning: Iterable[Reasoning]) -> Any:
    """The blocks that were stored with a message; None where there are none, or something else."""
    for block in reasoning:
        if block.id == FIELD:
            try:
                return json.loads(block.data)
            except (ValueError, RecursionError):
                return None
    return None
