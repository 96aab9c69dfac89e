"""One tool call from the model's words to a stored result: check, decide, store the intent, run, store.

What is refused, invalid or failed becomes a result that the model reads; only a history that cannot store
and a cancel end the turn. No call runs before its intent is on disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from lightagentd.agents.definition import AgentDefinition
from lightagentd.agents.stream import TurnStream
from lightagentd.agents.toolbox import ActionInfo, Toolbox
from lightagentd.config import Limits
from lightagentd.errors import (
    Cancelled,
    InvalidArgument,
    LightagentError,
    OutcomeUnknown,
    StorageError,
    ToolError,
)
from lightagentd.events.history import History, NewEvent
from lightagentd.events.model import Event, new_id
from lightagentd.llm.protocol import Message, ToolCall
from lightagentd.policy.decide import Decision, Policy, PolicyCall, Ruling
from lightagentd.worker.pool import Call, Pool


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a call ended. `result` is `ok` or an error's code, `text` what the model reads."""

    call: ToolCall
    result: str
    text: str
    metadata: dict[str, Any] = field(default_factory=dict)
    duration_ms: int = 0
    function: str = ""

    def message(self) -> Message:
        return Message(role="tool", content=self.text, tool_call_id=self.call.id, name=self.function)


@dataclass(frozen=True, kw_only=True)
class _Stored:
    """A result on its way to the disk, and what the watchers hear once it is there."""

    done: asyncio.Future[list[Event]]
    event: dict[str, Any]


class Results:
    """The results of a turn's calls that are being stored.

    A result is handed to the model while it is written, so that the disk and the model work at once. Nothing
    that comes of it is told or run before `settle` has returned.
    """

    def __init__(self, stream: TurnStream) -> None:
        self._stream = stream
        self._waiting: deque[_Stored] = deque()

    def add(self, done: asyncio.Future[list[Event]], **event: Any) -> None:
        self._waiting.append(_Stored(done=done, event=event))

    async def settle(self) -> None:
        """Wait until each result is on disk, and tell the watchers of it. Raises StorageError."""
        while self._waiting:
            stored = self._waiting[0]
            if not stored.done.done():
                await asyncio.wait([stored.done])
            self._waiting.popleft()
            stored.done.result()
            self._stream.event("tool_result", **stored.event)


@dataclass(frozen=True, kw_only=True)
class Dispatcher:
    """What it takes to run calls; one for the daemon."""

    history: History
    policy: Policy
    pool: Pool
    limits: Limits

    async def run(
        self,
        call: ToolCall,
        *,
        agent: AgentDefinition,
        toolbox: Toolbox,
        session: str,
        stream: TurnStream,
        results: Results,
        before: list[NewEvent],
    ) -> Outcome:
        """Run one call; its result goes to `results`, which the caller settles.

        `before` are events that must be stored no later than the intent; the list is emptied. Raises
        StorageError, and CancelledError after the cancelled call's result went to `results`.
        """
        await results.settle()
        call_id = new_id("call")
        what: dict[str, Any] = {"call_id": call_id, "function": call.name}
        try:
            action, args = parse_call(call, toolbox)
            effect = action.effect_of(args)
            what |= {"tool": action.tool, "action": action.name, "effect": effect.value, "args": args}
            ruling = self.policy.decide(
                PolicyCall(
                    agent=agent.name,
                    tool=action.tool,
                    action=action.name,
                    args=args,
                    effect=effect,
                    agent_effects=tuple(agent.front.effects),
                    offered=agent.offers(action.tool, action.name),
                    agent_skills=None if agent.front.skills is None else tuple(agent.front.skills),
                )
            )
            what |= {"decision": ruling.decision.value, "rule": ruling.rule}
            _raise_refusal(ruling)
        except LightagentError as err:
            return await self._refuse(call, what, err, stream, before)
        intent = NewEvent(topic="agent.tool_dispatch", type="intent", data=what, source="agent")
        await self._store(before, intent)
        stream.event(
            "tool_call",
            **{key: what[key] for key in ("call_id", "tool", "action", "effect", "decision", "args")},
        )
        wanted = Call(
            call_id=call_id,
            tool=action.tool,
            action=action.name,
            args=args,
            agent=agent.name,
            session=session,
            effect=effect,
            timeout_s=action.timeout_of(args, self.limits.call_timeout_s),
        )
        return await self._execute(call, wanted, action, stream, results)

    async def _execute(
        self, call: ToolCall, wanted: Call, action: ActionInfo, stream: TurnStream, results: Results
    ) -> Outcome:
        started = time.monotonic()
        try:
            output, metadata = await self._work(wanted, stream)
            result, text = "ok", cap_text(output, self.limits.result_bytes)
        except StorageError:
            raise
        except LightagentError as err:
            result, text, metadata = err.code, error_text(err), {}
        except asyncio.CancelledError:
            stopped = Cancelled("The call was cancelled; what it had changed until then stays changed.")
            outcome = self._outcome(call, action, stopped.code, error_text(stopped), {}, started)
            self._store_result(wanted, action, outcome, results)
            raise
        outcome = self._outcome(call, action, result, text, metadata, started)
        self._store_result(wanted, action, outcome, results)
        return outcome

    async def _work(self, wanted: Call, stream: TurnStream) -> tuple[str, dict[str, Any]]:
        async with contextlib.aclosing(self.pool.call(wanted)) as events:
            async for event in events:
                kind = event["kind"]
                if kind == "output":
                    stream.event(
                        "tool_output", call_id=wanted.call_id, stream=event["stream"], text=event["text"]
                    )
                elif kind == "event":
                    await self.history.append(_tool_event(wanted, event))
                elif kind == "result":
                    return event["output"], event["metadata"]
        raise OutcomeUnknown(f"The worker gave no result for {wanted.tool}.{wanted.action}.")

    def _outcome(
        self,
        call: ToolCall,
        action: ActionInfo,
        result: str,
        text: str,
        metadata: dict[str, Any],
        started: float,
    ) -> Outcome:
        return Outcome(
            call=call,
            result=result,
            text=text,
            metadata=metadata,
            duration_ms=round((time.monotonic() - started) * 1000),
            function=action.function,
        )

    def _store_result(self, wanted: Call, action: ActionInfo, outcome: Outcome, results: Results) -> None:
        data = {
            "call_id": wanted.call_id,
            "tool": wanted.tool,
            "action": wanted.action,
            "effect": wanted.effect.value,
            "result": outcome.result,
            "duration_ms": outcome.duration_ms,
            "output_chars": len(outcome.text),
            "taints": action.taints,
            "metadata": outcome.metadata,
        }
        stored = self.history.append(
            NewEvent(topic=f"tool.{wanted.tool}", type="invocation", data=data, source="worker"),
            message_event(outcome.message()),
        )
        results.add(
            stored,
            call_id=wanted.call_id,
            tool=wanted.tool,
            action=wanted.action,
            result=outcome.result,
            text=outcome.text,
            metadata=outcome.metadata,
            duration_ms=outcome.duration_ms,
        )

    async def _refuse(
        self,
        call: ToolCall,
        what: dict[str, Any],
        err: LightagentError,
        stream: TurnStream,
        before: list[NewEvent],
    ) -> Outcome:
        """A call that does not run: stored as such, and told to the model with what to do next."""
        outcome = Outcome(call=call, result=err.code, text=error_text(err), function=call.name[:100])
        data = {**what, "result": err.code, "message": err.message}
        refused = NewEvent(topic="agent.tool_dispatch", type="refused", data=data, source="agent")
        await self._store(before, refused, message_event(outcome.message()))
        stream.event(
            "tool_result",
            call_id=what["call_id"],
            tool=what.get("tool", call.name[:100]),
            action=what.get("action", ""),
            result=err.code,
            text=outcome.text,
            metadata={},
            duration_ms=0,
        )
        return outcome

    async def _store(self, before: list[NewEvent], *events: NewEvent) -> None:
        waiting = (*before, *events)
        before.clear()
        await self.history.append(*waiting)


def _raise_refusal(ruling: Ruling) -> None:
    if ruling.decision is not Decision.ALLOW:
        assert ruling.error is not None
        raise ruling.error


def parse_call(call: ToolCall, toolbox: Toolbox) -> tuple[ActionInfo, dict[str, Any]]:
    """The action that a model named, and its arguments. Raises ToolNotFound, InvalidArgument.

    The arguments are checked in full by the worker, against the action's own model.
    """
    action = toolbox.by_function(call.name)
    try:
        args = json.loads(call.arguments or "{}", parse_constant=_no_constant)
    except (ValueError, RecursionError) as err:
        raise InvalidArgument(
            f"The arguments of {call.name} are not JSON: {err}.", suggestion="Write one JSON object."
        ) from err
    if not isinstance(args, dict):
        raise InvalidArgument(
            f"The arguments of {call.name} are not an object.", suggestion="Write one JSON object."
        )
    known = action.schema.get("properties", {})
    for name in args:
        if name not in known:
            raise InvalidArgument(
                f"{call.name} has no argument {name[:100]!r}.",
                field=name[:100],
                suggestion=f"The arguments are: {', '.join(known) or 'none'}.",
            )
    for name in action.schema.get("required", ()):
        if name not in args:
            raise InvalidArgument(f"{call.name} needs the argument {name!r}.", field=name)
    return action, args


def _no_constant(name: str) -> float:
    """NaN and Infinity, which Python reads and JSON does not have."""
    raise ValueError(f"{name} is not a JSON value")


def message_event(message: Message) -> NewEvent:
    """The event that keeps a message of the conversation."""
    return NewEvent(topic="agent.message", type="message", data=message.to_dict(), source="agent")


def error_text(err: LightagentError) -> str:
    """What a model reads of a call that failed."""
    return f"Error ({err.code}): {err.message}{f' {err.suggestion}' if err.suggestion else ''}"


def cap_text(text: str, limit_bytes: int) -> str:
    """The text within a number of UTF-8 bytes, its head and tail kept."""
    raw = text.encode("utf-8", "replace")
    if len(raw) <= limit_bytes:
        return text
    half = limit_bytes // 2
    head, tail = raw[:half].decode(errors="ignore"), raw[-half:].decode(errors="ignore")
    return f"{head}\n[... {len(raw) - 2 * half} bytes left out ...]\n{tail}"


def _tool_event(wanted: Call, event: dict[str, Any]) -> NewEvent:
    """An event that a tool emitted; it may only speak under its own name. Raises ToolError."""
    topic = str(event["topic"])
    if topic != f"tool.{wanted.tool}" and not topic.startswith(f"tool.{wanted.tool}."):
        raise ToolError(f"The tool {wanted.tool} emitted an event of the topic {topic[:100]!r}.")
    data = {"call_id": wanted.call_id, **event["data"]}
    try:
        return NewEvent(topic=topic, type=str(event["type"]), data=data, source="tool")
    except ValueError as err:
        raise ToolError(f"The tool {wanted.tool} emitted an event that cannot be stored: {err}.") from err
