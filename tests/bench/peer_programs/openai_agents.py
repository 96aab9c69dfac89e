"""openai-agents: `Runner.run_streamed` over chat completions, without traces."""

from __future__ import annotations

import functools
import json
from importlib.metadata import version
from typing import Any

from agents import (  # type: ignore[import-not-found]
    Agent,
    FunctionTool,
    OpenAIChatCompletionsModel,
    Runner,
    set_tracing_disabled,
)
from openai import AsyncOpenAI

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


async def _call(name: str, _context: Any, arguments: str) -> str:
    return stat(**json.loads(arguments)) if name == "file_stat" else never(name)


def prompting(base_url: str, functions: list[dict[str, Any]]) -> Round:
    client = AsyncOpenAI(base_url=base_url, api_key=API_KEY)
    agent = Agent(
        name="bench",
        instructions=INSTRUCTIONS,
        model=OpenAIChatCompletionsModel(model=MODEL, openai_client=client),
        tools=[
            FunctionTool(
                name=each["name"],
                description=each["description"],
                params_json_schema=each["parameters"],
                on_invoke_tool=functools.partial(_call, each["name"]),
                strict_json_schema=False,
            )
            for each in functions
        ],
    )

    async def prompt() -> int:
        chars = 0
        result = Runner.run_streamed(agent, PROMPT, max_turns=MOST_STEPS)
        async for event in result.stream_events():
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
                chars += len(event.data.delta)
        return chars

    return prompt


if __name__ == "__main__":
    set_tracing_disabled(True)
    serve("openai-agents", version("openai-agents"), prompting)
