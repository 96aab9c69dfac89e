"""pydantic-ai: `Agent.run_stream_events` over chat completions."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from pydantic_ai import Agent, Tool  # type: ignore[import-not-found]
from pydantic_ai.messages import (  # type: ignore[import-not-found]
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
)
from pydantic_ai.models.openai import OpenAIChatModel  # type: ignore[import-not-found]
from pydantic_ai.providers.openai import OpenAIProvider  # type: ignore[import-not-found]
from pydantic_ai.usage import UsageLimits  # type: ignore[import-not-found]

from tests.bench.peer_programs.rounds import (
    API_KEY,
    INSTRUCTIONS,
    MODEL,
    MOST_STEPS,
    PROMPT,
    Round,
    never,
    serve,
    stat,
)


def _tool(function: dict[str, Any]) -> Any:
    name = function["name"]

    async def call(**arguments: Any) -> str:
        return stat(**arguments) if name == "file_stat" else never(name)

    return Tool.from_schema(call, name, function["description"], function["parameters"])


def prompting(base_url: str, functions: list[dict[str, Any]]) -> Round:
    model = OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=base_url, api_key=API_KEY))
    agent = Agent(model, instructions=INSTRUCTIONS, tools=[_tool(each) for each in functions])

    async def prompt() -> int:
        chars = 0
        limits = UsageLimits(request_limit=MOST_STEPS)
        async with agent.run_stream_events(PROMPT, usage_limits=limits) as events:
            async for event in events:
                if isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta):
                    chars += len(event.delta.content_delta)
                elif isinstance(event, PartStartEvent) and isinstance(event.part, TextPart):
                    chars += len(event.part.content)
        return chars

    return prompt


if __name__ == "__main__":
    serve("pydantic-ai", version("pydantic-ai-slim"), prompting)
