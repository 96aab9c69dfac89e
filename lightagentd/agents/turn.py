"""The turn: from a prompt to its final answer, step by step (DESIGN section 6).

A step is one model call and the tool calls that it asked for. What a step did is stored before the next
one begins. `Turn.steps()` is the loop itself. The agent runs it, in a task of the turn's own; where a caller
drives the turn (`Session.run`), each step is handed over and the next one waits until it was taken.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from lightagentd.agents.jsoncalls import call_in_text
from lightagentd.agents.origin import Origin
from lightagentd.agents.parts import AgentParts
from lightagentd.agents.results import Outcome, Results, message_event
from lightagentd.agents.stream import TurnStream
from lightagentd.agents.toolbox import Toolbox
from lightagentd.agents.uninterrupted import uninterrupted
from lightagentd.errors import Cancelled, LightagentError, ModelError, StepLimit
from lightagentd.events.history import Change, NewEvent
from lightagentd.events.model import current_context, new_id, within
from lightagentd.llm.protocol import Finish, Message, ModelClient, Request, TextDelta, ToolCall, Usage
from lightagentd.policy.approval import hide

if TYPE_CHECKING:
    from lightagentd.agents.session import Session

REMOVED = "[removed: "
"""Begins what stands in the store in place of a secret (`Redactor`, `hide`)."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """One model call and what came of it. `final` when the turn ended with it."""

    number: int
    request_id: str
    text: str
    calls: tuple[ToolCall, ...]
    outcomes: tuple[Outcome, ...]
    usage: Usage | None
    final: bool


@dataclass(frozen=True, kw_only=True)
class _Reply:
    """What one model call gave."""

    text: str
    calls: tuple[ToolCall, ...]
    finish: Finish
    model: str
    duration_ms: int


@dataclass(frozen=True, kw_only=True)
class TakenUp:
    """Where a turn was when the daemon stopped while it waited for an approval. `left_s` is its time."""

    approval: str
    steps: int
    left_s: float
    request_id: str


class Turn:
    """One turn of one session. It is made when the prompt is stored, and runs when its time has come.

    With `taken_up` it goes on where it waited in an earlier run of the daemon.
    """

    def __init__(
        self,
        session: Session,
        text: str,
        *,
        trace_id: str,
        correlation_id: str,
        stepwise: bool = False,
        unattended: bool = False,
        taken_up: TakenUp | None = None,
    ) -> None:
        self.session = session
        self.text = text
        self.trace_id = trace_id
        self.correlation_id = correlation_id
        self.unattended = unattended
        """Whether nobody is there to be asked: what policy would ask about is refused."""
        self.taken_up = taken_up
        self.approval = taken_up.approval if taken_up else ""
        """The approval that it waits for, or was the last to wait for."""
        self.is_waiting = False
        self.timer: asyncio.Timeout | None = None
        """Ends the turn when its time is over; the agent sets it."""
        self.stream = TurnStream(session.id, trace_id)
        self._results = Results(self.stream)
        self.task: asyncio.Task[None] | None = None
        self.begun = False
        """Whether the task has run at all: one that is cancelled before that does nothing, not even end."""
        self.cancelled = False
        self.cancelled_because: LightagentError | None = None
        """What it ends with when that is not a plain cancel."""
        self.steps_done = taken_up.steps if taken_up else 0
        self.answer = ""
        self.started: float | None = None
        self.over = asyncio.Event()
        self.failure: LightagentError | None = None
        self.handed: asyncio.Queue[Step | None] | None = asyncio.Queue() if stepwise else None
        """The steps on their way to a caller who drives the turn; None comes last."""

    @property
    def duration_ms(self) -> int:
        return 0 if self.started is None else round((time.monotonic() - self.started) * 1000)

    def cancel(self, why: LightagentError | None = None) -> None:
        """Have the turn end as cancelled, now or, while it waits, when its time comes."""
        if self.cancelled or self.over.is_set():
            return
        self.cancelled, self.cancelled_because = True, why
        if self.begun and self.task is not None:
            self.task.cancel()

    @contextlib.contextmanager
    def waiting(self, approval: str) -> Iterator[None]:
        """While a person is asked: the time that he takes does not count as the turn's."""
        self.approval, self.is_waiting = approval, True
        left_s = self._left_s()
        if left_s is not None and self.timer is not None:
            self.timer.reschedule(None)
        try:
            yield
        finally:
            self.is_waiting = False
            if left_s is not None and self.timer is not None:
                self.timer.reschedule(asyncio.get_running_loop().time() + left_s)

    def _left_s(self) -> float | None:
        """How much of its time is left; None when nothing counts it, or it is over."""
        if self.timer is None or self.timer.expired() or (when := self.timer.when()) is None:
            return None
        return max(0.0, when - asyncio.get_running_loop().time())

    def change(self, state: str, approval: str = "") -> Change:
        """The change of state that keeps the unfinished turn findable: queued, running or waiting.

        A turn that waits for an approval can go on in the next run of the daemon, if it is nobody's who drove
        it and is gone then.
        """
        value: dict[str, Any] = {
            "session": self.session.id,
            "state": state,
            "correlation_id": self.correlation_id,
        }
        if self.unattended:
            value["unattended"] = True
        if approval and self.handed is None:
            value |= {
                "approval": approval,
                "steps": self.steps_done,
                "left_s": self._left_s() or 0.0,
                "request_id": current_context().request_id,
            }
        return Change(state="turns", key=self.trace_id, value=value)

    async def hand_over(self, step: Step) -> None:
        """Give a step to the caller who drives the turn, if there is one, and wait until he took it."""
        if self.handed is not None:
            self.handed.put_nowait(step)
            await self.handed.join()

    def finish(self, failure: LightagentError | None, figures: dict[str, Any]) -> None:
        """Tell everybody that the turn is over; nothing follows."""
        self.failure = failure
        if failure is None:
            self.stream.event("done", text=self.answer, **figures)
        else:
            self.stream.event("error", **{"suggestion": "", **failure.to_dict()}, **figures)
        if self.handed is not None:
            self.handed.put_nowait(None)
        self.over.set()

    async def steps(self, parts: AgentParts) -> AsyncGenerator[Step, None]:
        """Run the turn. Raises StepLimit, ModelError, StorageError and what the budget check raises."""
        self.started = time.monotonic()
        try:
            async with contextlib.aclosing(self._loop(parts)) as steps:
                async for step in steps:
                    yield step
        finally:
            await uninterrupted(self._results.settle())

    async def _loop(self, parts: AgentParts) -> AsyncGenerator[Step, None]:
        session = self.session
        system = parts.system_prompt()
        functions = parts.toolbox().offered(
            parts.definition, change=parts.dispatcher.pool.has_change(parts.definition.name)
        )
        clients = [*parts.clients]
        limit = parts.max_steps
        if self.taken_up is not None:
            await self._take_up(self.taken_up, parts)
        for number in range(self.steps_done + 1, limit + 1):
            with within(request_id=new_id("req")) as context:
                parts.check_budget()
                request = Request(system=system, messages=session.messages, functions=functions)
                reply = await self._ask(clients, request, parts)
                self.steps_done = number
                self._usage(reply.finish.usage)
                outcomes = await self._act(reply, parts)
            if not reply.calls:
                self.answer = reply.text
            if self.handed is not None:
                await self._results.settle()
            yield Step(
                number=number,
                request_id=context.request_id,
                text=reply.text,
                calls=reply.calls,
                outcomes=outcomes,
                usage=reply.finish.usage,
                final=not reply.calls,
            )
            if not reply.calls:
                return
        raise StepLimit(
            f"The turn used all its {limit} steps without coming to an answer.",
            suggestion="Ask for less at once, or raise max_steps in the agent's limits.",
        )

    async def _ask(self, clients: list[ModelClient], request: Request, parts: AgentParts) -> _Reply:
        """One model call; a model that fails before it said anything gives way to the next for this turn."""
        while True:
            client = clients[0]
            started = time.monotonic()
            texts: list[str] = []
            calls: list[ToolCall] = []
            finish = Finish(reason="stop")
            try:
                async with contextlib.aclosing(client.stream(request)) as answer:
                    async for part in answer:
                        await self._results.settle()
                        if isinstance(part, TextDelta):
                            texts.append(part.text)
                            self.stream.text(part.text)
                        elif isinstance(part, ToolCall):
                            calls.append(part)
                        else:
                            finish = part
            except ModelError as err:
                await self._results.settle()
                if texts or len(clients) == 1:
                    raise
                clients.pop(0)
                await self._fall_back(err, clients[0], parts)
                continue
            text = "".join(texts)
            if not calls and (found := call_in_text(text)):
                calls = [found]
            return _Reply(
                text=text,
                calls=tuple(calls),
                finish=finish,
                model=client.name,
                duration_ms=round((time.monotonic() - started) * 1000),
            )

    async def _fall_back(self, err: ModelError, client: ModelClient, parts: AgentParts) -> None:
        message = f"{err.message} The turn goes on with {client.name}."
        self.stream.event("notice", code=err.code, message=message)
        await parts.history.append(
            NewEvent(topic="agent.error", type="fallback", data={"code": err.code, "message": message})
        )

    def _usage(self, usage: Usage | None) -> None:
        if usage is not None:
            self.stream.event(
                "usage",
                prompt_tokens=usage.prompt_tokens,
                completion_tokens=usage.completion_tokens,
                cached_tokens=usage.cached_tokens,
            )

    async def _act(self, reply: _Reply, parts: AgentParts) -> tuple[Outcome, ...]:
        """Store what the model said, then run its calls one by one, in its order."""
        message = Message(role="assistant", content=reply.text, tool_calls=reply.calls)
        before = [_response_event(reply), message_event(storable(message, parts.toolbox()))]
        session = self.session
        if not reply.calls:
            await parts.history.append(*before)
            session.messages.append(message)
            return ()
        session.messages.append(message)
        return await self._run_calls(reply.calls, parts, before)

    async def _take_up(self, taken_up: TakenUp, parts: AgentParts) -> None:
        """Finish the step in which the turn waited; its first call without a result was asked about."""
        with within(request_id=taken_up.request_id):
            calls = unanswered(self.session.messages)
            await self._run_calls(calls[:1], parts, [], approval=taken_up.approval)
            for call in calls[1:]:
                if REMOVED in call.arguments:
                    await self._cannot_take_up(call, parts)
                else:
                    await self._run_calls([call], parts, [])

    async def _cannot_take_up(self, call: ToolCall, parts: AgentParts) -> None:
        """Answer a call whose arguments are not what the model wrote any more."""
        text = (
            "Error (cancelled): The call was not run. The daemon was started again meanwhile, and its"
            " arguments held a secret, which is not stored. Ask for it again if it is still wanted."
        )
        message = Message(role="tool", content=text, tool_call_id=call.id, name=call.name)
        await parts.history.append(message_event(message))
        self.session.messages.append(message)

    async def _run_calls(
        self, calls: Sequence[ToolCall], parts: AgentParts, before: list[NewEvent], *, approval: str = ""
    ) -> tuple[Outcome, ...]:
        """Run calls one by one. `approval` is what the first of them waits for already."""
        session = self.session
        origin = Origin(agent=parts.definition, owner=session.record.owner, turn=self)
        outcomes: list[Outcome] = []
        try:
            for call in calls:
                outcome = await parts.dispatcher.run(
                    call,
                    origin=origin,
                    toolbox=parts.toolbox(),
                    stream=self.stream,
                    results=self._results,
                    before=before,
                    approval=approval,
                )
                approval = ""
                outcomes.append(outcome)
                session.messages.append(outcome.message())
        except BaseException:
            # The conversation on disk is the truth now: it is read again before the next turn.
            session.forget_messages()
            raise
        return tuple(outcomes)


def _response_event(reply: _Reply) -> NewEvent:
    usage = reply.finish.usage or Usage()
    return NewEvent(
        topic="agent.llm_response",
        type="response",
        data={
            "model": reply.model,
            "finish_reason": reply.finish.reason,
            "tool_calls": len(reply.calls),
            "text_chars": len(reply.text),
            "duration_ms": reply.duration_ms,
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "cached_tokens": usage.cached_tokens,
            "counted": reply.finish.usage is not None,
        },
        source="agent",
    )


def storable(message: Message, toolbox: Toolbox) -> Message:
    """A message of a model without the arguments that are for the tool alone."""
    calls: list[ToolCall] = []
    for call in message.tool_calls:
        action = toolbox.functions.get(call.name)
        if action is None or not action.hidden:
            calls.append(call)
            continue
        try:
            args = json.loads(call.arguments or "{}")
        except (ValueError, RecursionError):
            args = None  # it is refused, and what it holds cannot be told apart
        kept = hide(args, action.hidden) if isinstance(args, dict) else {}
        calls.append(replace(call, arguments=json.dumps(kept)))
    content = message.content
    if tuple(calls) != message.tool_calls and (written := call_in_text(content)) is not None:
        # The call was written as text, and is what the message says.
        content = json.dumps({"function": written.name, "args": json.loads(calls[0].arguments)})
    return replace(message, content=content, tool_calls=tuple(calls))


def unanswered(messages: Sequence[Message]) -> list[ToolCall]:
    """The calls of a conversation that have no result yet, in their order.

    A model may use an id again in a later step, so a result belongs to the newest call before it.
    """
    waiting: dict[str, ToolCall] = {}
    for message in messages:
        waiting.update({call.id: call for call in message.tool_calls})
        if message.role == "tool":
            waiting.pop(message.tool_call_id, None)
    return list(waiting.values())


def final_error(err: BaseException, *, cancelled: bool) -> LightagentError:
    """What a turn that did not come to an answer ends with."""
    if isinstance(err, LightagentError):
        return err
    if cancelled:
        return Cancelled("The turn was cancelled.")
    if isinstance(err, asyncio.CancelledError):
        return Cancelled("The turn was cancelled because its agent stopped.")
    return LightagentError("The turn failed inside the daemon.", suggestion="The journal says why.")
