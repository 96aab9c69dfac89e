"""The results of calls that are being stored, and what waits for them."""

from __future__ import annotations

import asyncio

from lightagentd.agents.stream import SessionStream, TurnStream
from lightagentd.agents.tool_calls.results import Results
from lightagentd.api import turn_events
from lightagentd.events.model import Event
from lightagentd.redaction import Redactor

RESULT = turn_events.ToolResult(
    call_id="c1", tool="a", action="b", result="ok", text="x", metadata={}, duration_ms=1
)
USED = turn_events.Used(prompt_tokens=1, completion_tokens=1, cached_tokens=0, total_tokens=2, cost=None)


async def test_watchers_hear_of_a_result_once_it_is_stored_and_of_what_follows_after_it() -> None:
    stream = TurnStream("trace_1", SessionStream("s1", Redactor()))
    watcher = stream.watch()
    hurried: list[None] = []
    results = Results(stream, lambda: hurried.append(None))
    stored = asyncio.get_running_loop().create_future()
    results.add(stored, RESULT)
    results.tell(USED)
    settling = asyncio.create_task(results.settle())
    await asyncio.sleep(0)
    assert stream.latest is None
    assert hurried, "the history keeps it for others to share its commit"
    found: list[Event] = []
    stored.set_result(found)
    await settling
    results.tell(turn_events.Notice(code="x", message="at once"))
    events = watcher.events()
    assert [(await anext(events))["type"] for _ in range(3)] == ["tool_result", "usage", "notice"]
    await events.aclose()
