"""A tool call that a person makes, without a model: through the same policy, worker and history."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any, Literal

from lightagentd.agents.agent import Agent
from lightagentd.agents.stream import SessionStream, TurnStream
from lightagentd.agents.tool_calls.origin import Origin
from lightagentd.agents.tool_calls.results import Before, Outcome, Results
from lightagentd.agents.tool_calls.run import ToolRun
from lightagentd.api import TurnEvent, turn_events
from lightagentd.config.terms import Terms
from lightagentd.errors import LightagentError, ShuttingDown
from lightagentd.events.history import Change, NewEvent
from lightagentd.events.model import new_id, within
from lightagentd.host.seat import Seat
from lightagentd.llm.protocol import ToolCall
from lightagentd.policy.questions.questions import Suspended

_log = logging.getLogger(__name__)


async def call_as_person(
    agent: Agent,
    owner: int,
    tool: str,
    action: str,
    args: dict[str, Any],
    *,
    approver: Seat | None = None,
    outside: bool = False,
    for_owner: int | None = None,
    own: Literal["", "confirm"] = "",
    terms: Terms | None = None,
    before: Before | None = None,
    takes_back: str = "",
    ended: Callable[[Outcome], tuple[Sequence[NewEvent], Sequence[Change]]] | None = None,
) -> AsyncGenerator[TurnEvent, None]:
    """Run one call of an agent for its caller; closing the generator cancels it.

    `approver` is where the caller's process runs, if they may answer approvals. Then a call that policy would
    ask about counts as approved by them, and is stored so. Otherwise it waits for somebody who may approve
    it. `outside`: text from outside may have chosen the call, which is judged so. `for_owner` is the uid that
    the worker runs the call for, if it is not the caller; policy and history use the caller. `terms` as
    `Origin`; `own`, `takes_back` and `ended` too, `before` as `ToolRun`: the daemon itself makes the call.

    Raises ToolNotFound and AgentNotRunning. A refused or failed call ends with an event of type error.
    """
    parts = agent.running_parts()
    found = parts.toolbox.find(tool, action)
    call = ToolCall(id=new_id("call"), name=found.function, arguments=json.dumps(args))
    trace_id = new_id("trace")
    stream = TurnStream(trace_id, SessionStream("", parts.history.redactor))
    watcher = stream.watch()
    results = Results(stream, parts.history.hurry)
    origin = Origin(
        definition=lambda: parts.definition,
        owner=owner,
        approver=approver,
        outside=outside,
        for_owner=for_owner,
        own=own,
        terms=terms,
        on_end=ended,
        takes_back=takes_back,
    )

    async def run() -> Outcome:
        with within(agent=agent.name, owner=owner, trace_id=trace_id, session="", request_id=new_id("req")):
            outcome = await ToolRun(call, parts.dispatcher, origin, results, before=before).run()
            await results.settle()
            return outcome

    task = asyncio.create_task(_tell(agent, stream, found.function, run), name=f"call-{trace_id}")
    agent.calls.add(task)
    task.add_done_callback(agent.calls.discard)
    try:
        async for event in watcher.events():
            yield event
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _tell(agent: Agent, stream: TurnStream, name: str, run: Callable[[], Awaitable[Outcome]]) -> None:
    """Run a call, and tell its caller how it ended."""
    started = time.monotonic()
    failure: LightagentError
    try:
        outcome = await run()
    except asyncio.CancelledError:
        if agent.panic.on:  # else the caller went away
            stream.emit(turn_events.Failed.of(agent.panic.error()))
        raise
    except Suspended:
        failure = ShuttingDown("The daemon stops; the call was not run.", suggestion="Try again later.")
    except LightagentError as err:
        failure = err
    except Exception:  # noqa: BLE001 - logged, and told to the caller, who waits for a last event
        _log.exception("the call of %s failed in a way that nobody expected", name)
        failure = LightagentError("The call failed inside the daemon.", suggestion="The journal says why.")
    else:
        duration_ms = round((time.monotonic() - started) * 1000)
        if outcome.result == "ok":
            stream.emit(turn_events.Done(text=outcome.text, steps=1, duration_ms=duration_ms))
            return
        message = outcome.text.removeprefix(f"Error ({outcome.result}): ")
        stream.emit(
            turn_events.Failed(
                code=outcome.result, message=message, suggestion="", steps=1, duration_ms=duration_ms
            )
        )
        return
    stream.emit(turn_events.Failed.of(failure))
