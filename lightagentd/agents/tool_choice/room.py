"""How many functions there is room for in a small window.

All that ships takes some 10,000 tokens of a request, and models on one's own machine often have a window of
4,096 or 8,192: what does not fit is then left to the choice, as where there are too many functions.
"""

from __future__ import annotations

from collections.abc import Sequence

from lightagentd.agents.model_calls.compaction.window import BYTES_PER_TOKEN, bytes_of_function
from lightagentd.llm.protocol import Function, ModelClient

PART = 1 / 3
"""How much of the window functions may take. The system prompt and the conversation have to fit, too."""
LEAST = 8
"""So many are offered however small the window is; an agent without tools is of no use."""
_LARGE = 128_000
"""In a window of this size all functions fit that `limits.max_tools` usually lets through."""


def most_functions(functions: Sequence[Function], client: ModelClient, max_tools: int) -> int:
    """How many of its functions an agent's model is offered at most: `max_tools`, or what its window has room
    for.
    """
    window = client.context_tokens if client.window_known else 0
    if not functions or not window or window >= _LARGE:
        return max_tools
    mean_bytes = sum(map(bytes_of_function, functions)) / len(functions)
    return min(max_tools, max(LEAST, int(window * PART * BYTES_PER_TOKEN / mean_bytes)))
