"""What a step costs: one streamed model call, one tool call in a worker, all its events stored and synced.

Beside it, in turns, a bare httpx loop that makes the same HTTP calls with the same bodies, and no tool call.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from typing import Any

import httpx

from lightagentd.client.blocking import Client
from tests.bench.rig import Rig, rig, show

STEPS = 20
TARGET = 1.5


def run(rounds: int) -> None:
    with rig(STEPS) as ready, ready.daemon.client() as client:
        bodies = _bodies(ready, client)
        ours: list[float] = []
        bare: list[float] = []
        with asyncio.Runner() as runner:
            http = httpx.AsyncClient()
            for number in range(rounds + 1):
                turn = one_turn(client)
                loop = runner.run(_bare(http, ready.model_url, bodies))
                if number:  # the first round warms both up
                    ours.append(turn / (STEPS + 1) * 1000)
                    bare.append(loop / (STEPS + 1) * 1000)
            runner.run(http.aclose())
    show("step, lightagentd", ours, "ms")
    show("step, bare httpx loop", bare, "ms")
    ratios = [one / other for one, other in zip(ours, bare, strict=True)]
    print(f"step, ratio: {statistics.median(ratios):.2f} (target: at most {TARGET})")


def one_turn(client: Client) -> float:
    """One turn in a new session, in seconds."""
    started = time.perf_counter()
    last: dict[str, Any] = {}
    for reply in client.stream("org.lightagent1.Sessions.Prompt", agent="bench", text="go", new=True):
        last = reply["event"]
    assert last["type"] == "done", last
    assert last["steps"] == STEPS + 1, last
    return time.perf_counter() - started


def _bodies(ready: Rig, client: Client) -> list[dict[str, Any]]:
    """The requests that a turn makes, rebuilt from the conversation that the daemon stored."""
    one_turn(client)
    session = client.call("org.lightagent1.Sessions.List", agent="bench")["sessions"][0]["id"]
    stored = client.call("org.lightagent1.Sessions.Messages", session=session, limit=1000)["messages"]
    tools = client.call("org.lightagent1.Tools.List")["tools"]
    functions = [
        {
            "type": "function",
            "function": {
                "name": f"{tool['name']}_{action['name']}",
                "description": action["description"],
                "parameters": action["schema"],
            },
        }
        for tool in tools
        for action in tool["actions"]
        if action["effect"] != "change"
    ]
    messages: list[dict[str, Any]] = [{"role": "system", "content": "Be brief. " * 100}]
    bodies = []
    for message in stored:
        if message["role"] == "assistant":
            bodies.append(
                {"model": "scripted", "messages": list(messages), "stream": True, "tools": functions}
            )
        messages.append(_wire(message))
    assert len(bodies) == STEPS + 1
    assert ready.model_url
    return bodies


def _wire(message: dict[str, Any]) -> dict[str, Any]:
    wire = {"role": message["role"], "content": message["content"]}
    if message["tool_calls"]:
        wire["tool_calls"] = [
            {
                "id": call["id"],
                "type": "function",
                "function": {"name": call["name"], "arguments": call["arguments"]},
            }
            for call in message["tool_calls"]
        ]
    if message["tool_call_id"]:
        wire["tool_call_id"] = message["tool_call_id"]
    return wire


async def _bare(http: httpx.AsyncClient, url: str, bodies: list[dict[str, Any]]) -> float:
    """The same calls without anything else, in seconds."""
    started = time.perf_counter()
    for body in bodies:
        async with http.stream("POST", f"{url}/chat/completions", json=body) as response:
            async for line in response.aiter_lines():
                if line.startswith("data: ") and line != "data: [DONE]":
                    json.loads(line[6:])
    return time.perf_counter() - started
