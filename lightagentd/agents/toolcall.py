"""A tool call that a person makes, without a model: through the same policy, worker and history."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncGenerator
from typing import Any

from lightagentd.agents.agent import Agent
from lightagentd.agents.dispatch import Results
from lightagentd.agents.stream import TurnStream
from lightagentd.api import TurnEvent
from lightagentd.errors import LightagentError
from lightagentd.events.model import new_id, within
from lightagentd.llm.protocol import ToolCall

_log = logging.getLogger(__name__)


async def call_as_person(
    agent: Agent, owner: int, tool: str, action: str, args: dict[str, Any]
) -> AsyncGenerator[TurnEvent, None]:
    """Run one call of an agent for its caller; closing the generator cancels it.

    Raises ToolNotFound and AgentNotRunning; a call that policy refused, or that failed, ends with an event of
    type error.
    """
    parts = agent.running_parts()
    found = parts.toolbox().find(tool, action)
    call = ToolCall(id=new_id("call"), name=found.function, arguments=json.dumps(args))
    trace_id = new_id("trace")
    stream = TurnStream("", trace_id)
    watcher = stream.watch()
    results = Results(stream)

    async def run() -> None:
        started = time.monotonic()
        try:
            with within(
                agent=agent.name, owner=owner, trace_id=trace_id, session="", request_id=new_id("req")
            ):
                outcome = await parts.dispatcher.run(
                    call,
                    agent=parts.definition,
                    toolbox=parts.toolbox(),
                    session="",
                    stream=stream,
                    results=results,
                    before=[],
                )
                await results.settle()
        except LightagentError as err:
            stream.event("error", **{"suggestion": "", **err.to_dict()}, steps=0, duration_ms=0)
            return
        except Exception:  # noqa: BLE001 - logged, and told to the caller, who waits for a last event
            _log.exception("the call of %s.%s failed in a way that nobody expected", tool, action)
            failed = LightagentError("The call failed inside the daemon.", suggestion="The journal says why.")
            stream.event("error", **failed.to_dict(), steps=0, duration_ms=0)
            return
        duration_ms = round((time.monotonic() - started) * 1000)
        if outcome.result == "ok":
            stream.event("done", text=outcome.text, steps=1, duration_ms=duration_ms)
        else:
            message = outcome.text.removeprefix(f"Error ({outcome.result}): ")
            stream.event(
                "error", code=outcome.result, message=message, suggestion="", steps=1, duration_ms=duration_ms
            )

    task = asyncio.create_task(run(), name=f"call-{trace_id}")
    try:
        async for event in watcher.events():
            yield event
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
