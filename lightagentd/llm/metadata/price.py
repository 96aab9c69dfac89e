"""The prices of a model, and the cost of a call."""

from __future__ import annotations

from dataclasses import dataclass

from lightagentd.llm.protocol import Usage

_LONG_PROMPT_TOKENS = 200_000
_MILLION = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Price:
    """The price of a million tokens: configured prices in their own currency, others in USD."""

    prompt: float
    completion: float
    cached: float | None = None
    """Of a prompt, those that the endpoint had cached; without it they cost what others do."""
    cache_write: float | None = None
    """Those that the endpoint put into its cache. No endpoint's count of them reaches us."""
    over_200k: Price | None = None
    """Of a call whose prompt has more than 200,000 tokens, where that is another price."""

    def cost(self, usage: Usage) -> float:
        """The cost of a call."""
        if self.over_200k is not None and usage.prompt_tokens > _LONG_PROMPT_TOKENS:
            return self.over_200k.cost(usage)
        cached = min(usage.cached_tokens, usage.prompt_tokens)
        of_cached = self.prompt if self.cached is None else self.cached
        whole = (usage.prompt_tokens - cached) * self.prompt + cached * of_cached
        return (whole + usage.completion_tokens * self.completion) / _MILLION


FREE = Price(prompt=0.0, completion=0.0)
