"""What a model says, in no dialect."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

Finished = Literal["stop", "length", "tool_calls", "content_filter"]


@dataclass(frozen=True, kw_only=True)
class Called:
    """A function that is called. `arguments` is what the model writes, which need not be JSON."""

    name: str
    arguments: str
    id: str = "call_1"

    def pieces(self, count: int = 3) -> list[str]:
        """The arguments, cut; never empty."""
        size = max(1, -(-len(self.arguments) // count))
        cut = range(0, len(self.arguments), size)
        return [self.arguments[place : place + size] for place in cut] or [""]


@dataclass(frozen=True, kw_only=True)
class Said:
    """One whole answer; texts come in as many deltas as they have pieces."""

    thinking: Sequence[str] = ()
    text: Sequence[str] = ()
    calls: Sequence[Called] = ()
    finish: Finished | None = None
    prompt_tokens: int = 10
    completion_tokens: int = 5
    cached_tokens: int = 0

    @property
    def finished(self) -> Finished:
        return self.finish or ("tool_calls" if self.calls else "stop")


def say(*text: str, **more: Any) -> Said:
    """An answer of text, one delta for each argument."""
    return Said(text=text, **more)


def call(name: str, arguments: dict[str, Any] | str, *, call_id: str = "call_1", **more: Any) -> Said:
    """An answer that calls one function."""
    written = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return Said(calls=(Called(name=name, arguments=written, id=call_id),), **more)
