"""LightAgent: `LightAgent.run(stream=True)`, whose loop is not asynchronous."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from LightAgent import LightAgent  # type: ignore[import-not-found]

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


def _tool(function: dict[str, Any]) -> Callable[..., str]:
    """The function as it wants it: a parameter has a name, a type and a description."""
    name, parameters = function["name"], function["parameters"]

    def call(**arguments: Any) -> str:
        return stat(**arguments) if name == "file_stat" else never(name)

    call.__name__ = name
    call.tool_info = {  # type: ignore[attr-defined]
        "tool_name": name,
        "tool_description": function["description"],
        "tool_params": [
            {
                "name": each,
                "description": schema.get("description", each),
                "type": schema.get("type", "string"),
                "required": each in parameters.get("required", ()),
            }
            for each, schema in parameters.get("properties", {}).items()
        ],
    }
    return call


def prompting(base_url: str, functions: list[dict[str, Any]]) -> Round:
    agent: Any = LightAgent(
        name="bench",
        instructions=INSTRUCTIONS,
        model=MODEL,
        api_key=API_KEY,
        base_url=base_url,
        tools=[_tool(each) for each in functions],
    )

    async def prompt() -> int:
        chars = 0
        for chunk in agent.run(PROMPT, stream=True, max_tool_iterations=MOST_STEPS):
            choices = getattr(chunk, "choices", None)
            if choices and choices[0].delta.content:
                chars += len(choices[0].delta.content)
        return chars

    return prompt


if __name__ == "__main__":
    serve("lightagent", version("lightagent"), prompting)
