"""The turn: from a prompt to its final answer, step by step.

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
from functools import partial
from typing import TYPE_CHECKING, Any

from lightagentd.agents.model_calls.asking import Asking
from lightagentd.agents.model_calls.call import Reply, store_unwatched
from lightagentd.agents.model_calls.metering.ledger import Whose
from lightagentd.agents.model_calls.metering.meter import Meter
from lightagentd.agents.parts import AgentParts
from lightagentd.agents.stream import TurnStream
from lightagentd.agents.tool_calls.origin import Origin
from lightagentd.agents.tool_calls.repeats import Repeats
from lightagentd.agents.tool_calls.results import Before, Outcome, Results, message_event
from lightagentd.agents.tool_calls.run import ToolRun
from lightagentd.agents.tool_calls.toolbox import Toolbox
from lightagentd.agents.uninterrupted import uninterrupted
from lightagentd.api import turn_events
from lightagentd.errors import Cancelled, LightagentError, StepLimit
from lightagentd.events.history import Change
from lightagentd.events.model import current_context, new_id, within
from lightagentd.llm.json_calls import call_in_text
from lightagentd.llm.protocol import Message, ToolCall, Usage
from lightagentd.policy.questions.approval import hide
from lightagentd.quoted import Prompt
from lightagentd.redaction import Redactor

if TYPE_CHECKING:
    from lightagentd.agents.sessions.session import Session

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
class TakenUp:
    """Where a turn was when the daemon stopped while it waited for a person. `left_s` is its time."""

    waits_for: str
    """The approval or the input."""
    steps: int
    left_s: float
    request_id: str
    calls_left: int | None = None
    """How many of the step's other calls the budgets had room for; None for all of them."""
    wall_ms: int = 0
    """Its running time that was not counted."""


class Turn:
    """One turn of one session. It is made when the prompt is stored, and runs when its time has come.

    With `taken_up` it goes on where it waited in an earlier run of the daemon.
    """

    def __init__(
        self,
        session: Session,
        prompt: Prompt,
        *,
        trace_id: str,
        correlation_id: str,
        caller: int | None = None,
        stepwise: bool = False,
        unattended: bool = False,
        taken_up: TakenUp | None = None,
    ) -> None:
        self.session = session
        self.prompt = prompt
        self.size_bytes = len(prompt.text.encode("utf-8", "replace"))
        self.trace_id = trace_id
        self.correlation_id = correlation_id
        self.caller = caller
        """The uid on whose word it runs: who prompted, or had the plan applied; not always the owner's."""
        self.unattended = unattended
        """Whether nobody is there to be asked: what policy would ask about is refused."""
        self.taken_up = taken_up
        self.waits_for = taken_up.waits_for if taken_up else ""
        """The approval or input that it waits for, or was the last to wait for."""
        self.task_id = ""
        """The task of the session's plan that it works on, if it does."""
        self.task_note = ""
        """Why that task is not done although the turn came to an answer: its check did not pass."""
        self.is_waiting = False
        self.timer: asyncio.Timeout | None = None
        """Ends the turn when its time is over; the agent sets it."""
        self.meter: Meter | None = None
        """What it uses; made when it runs."""
        self._calls_left: int | None = taken_up.calls_left if taken_up else None
        """How many of the step's calls may still run; None when nothing limits them."""
        self.stream = TurnStream(trace_id, session.stream)
        self._results = Results(self.stream)
        self._repeats = Repeats(trace_id)
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
    def waiting(self, waits_for: str) -> Iterator[None]:
        """While a person is asked: the time that he takes does not count as the turn's."""
        self.waits_for, self.is_waiting = waits_for, True
        left_s = self.left_s()
        if left_s is not None and self.timer is not None:
            self.timer.reschedule(None)
        if self.meter is not None:
            self.meter.pause()
        try:
            yield
        finally:
            self.is_waiting = False
            if self.meter is not None:
                self.meter.run()
            if left_s is not None and self.timer is not None:
                self.timer.reschedule(asyncio.get_running_loop().time() + left_s)

    def left_s(self) -> float | None:
        """How much of its time is left; None when nothing counts it, or it is over."""
        if self.timer is None or self.timer.expired() or (when := self.timer.when()) is None:
            return None
        return max(0.0, when - asyncio.get_running_loop().time())

    def change(self, state: str, waits_for: str = "") -> Change:
        """The change of state that keeps the unfinished turn findable: queued, running or waiting.

        A turn that waits for a person can go on in the next run of the daemon, if it is nobody's who drove
        it and is gone then.
        """
        value: dict[str, Any] = {
            "session": self.session.id,
            "state": state,
            "correlation_id": self.correlation_id,
        }
        if self.caller is not None:
            value["caller"] = self.caller
        if self.unattended:
            value["unattended"] = True
        if self.task_id:
            value["task"] = self.task_id
        if waits_for and self.handed is None:
            value |= {
                "approval": waits_for,
                "steps": self.steps_done,
                "left_s": self.left_s() or 0.0,
                "request_id": current_context().request_id,
                "wall_ms": self.meter.wall_ms if self.meter is not None else 0,
            }
            if self._calls_left is not None:
                value["calls_left"] = self._calls_left
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
            self.stream.emit(turn_events.Done(text=self.answer, **figures))
        else:
            self.stream.emit(turn_events.Failed.of(failure, **figures))
        if self.handed is not None:
            self.handed.put_nowait(None)
        self.over.set()

    async def steps(self, parts: AgentParts) -> AsyncGenerator[Step, None]:
        """Run the turn. Raises StepLimit, CallLoop, ModelError, BudgetExceeded, ContextFull, StorageError."""
        self.started = time.monotonic()
        record, carried_ms = self.session.record, self.taken_up.wall_ms if self.taken_up else 0
        whose = Whose(agent=record.agent, owner=record.owner, session=record.id, trace_id=self.trace_id)
        self.meter = meter = Meter(parts.ledger, whose, wall_ms=carried_ms)
        asking = Asking(self, parts, meter, self._results)
        meter.run()
        try:
            async with contextlib.aclosing(self._loop(parts, meter, asking)) as steps:
                async for step in steps:
                    yield step
        finally:
            meter.stop()
            asking.close()
            await uninterrupted(self._results.settle())

    def figures(self) -> tuple[dict[str, Any], list[Change]]:
        """At its end: what it used, for its last event, and the changes that go with that."""
        if self.meter is None:
            return {}, []
        changes = self.meter.ending()
        return self.meter.totals(), changes

    async def _loop(self, parts: AgentParts, meter: Meter, asking: Asking) -> AsyncGenerator[Step, None]:
        session = self.session
        system = await parts.system_prompt(session)
        offer = await parts.offers.begin(
            session,
            parts.definition,
            parts.toolbox(),
            parts.clients[0],
            change=parts.dispatcher.pool.has_change(parts.definition.name),
            max_tools=parts.limits.max_tools,
        )
        limit = parts.max_steps
        if self.taken_up is not None:
            await self._take_up(self.taken_up, parts)
        for number in range(self.steps_done + 1, limit + 1):
            with within(request_id=new_id("req")) as context:
                reply = await asking.ask(system, offer.functions(session.messages))
                self.steps_done = number
                outcomes = await self._act(reply, parts, meter)
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
                usage=reply.usage,
                final=not reply.calls,
            )
            if not reply.calls:
                return
        raise StepLimit(
            f"The turn used all its {limit} steps without coming to an answer.",
            suggestion="Ask for less at once, or raise max_steps in the agent's limits.",
        )

    async def _act(self, reply: Reply, parts: AgentParts, meter: Meter) -> tuple[Outcome, ...]:
        """Store what the model said, then run its calls one by one, in its order."""
        said = Message(
            role="assistant", content=reply.text, tool_calls=reply.calls, reasoning=reply.reasoning
        )
        message = storable(said, parts.toolbox(), parts.history.redactor)
        room = meter.room_for_calls(len(reply.calls))
        self._calls_left = room if room < len(reply.calls) else None
        events, changes = reply.stored(meter, counted_calls=room)
        before = Before([*events, message_event(message)], changes)
        session = self.session
        if not reply.calls:
            await parts.history.append(*before.events, changes=before.changes)
            session.messages.append(message)
            return ()
        session.messages.append(message)
        return await self._run_calls(reply.calls, parts, before, cut=reply.finish.reason == "length")

    async def _take_up(self, taken_up: TakenUp, parts: AgentParts) -> None:
        """Finish the step in which the turn waited; its first call without a result was asked about."""
        with within(request_id=taken_up.request_id):
            calls = unanswered(self.session.messages)
            await self._run_calls(calls[:1], parts, Before(), waits_for=taken_up.waits_for)
            for call in calls[1:]:
                if REMOVED in call.arguments:
                    await self._cannot_take_up(call, parts)
                else:
                    await self._run_calls([call], parts, Before())

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
        self,
        calls: Sequence[ToolCall],
        parts: AgentParts,
        before: Before,
        *,
        waits_for: str = "",
        cut: bool = False,
    ) -> tuple[Outcome, ...]:
        """Run calls one by one. `waits_for` is what the first of them waits for already; `cut` says that the
        answer ended in the last of them because it had become too long.

        Raises BudgetExceeded where there is no room for one more, and CallLoop.
        """
        session = self.session
        origin = Origin(agent=parts.definition, owner=session.record.owner, turn=self)
        outcomes: list[Outcome] = []
        try:
            for call in calls:
                if not waits_for:
                    self._repeats.check(call)
                    await self._make_room(parts, before)
                remark = partial(self._repeats.remark, cut=cut and call is calls[-1])
                run = ToolRun(call, parts.dispatcher, origin, self._results, before=before, remark=remark)
                outcome = await run.run(waits_for)
                waits_for = ""
                outcomes.append(outcome)
                session.messages.append(outcome.message())
        except BaseException:
            # The conversation on disk is the truth now: it is read again before the next turn. What the step
            # used is used, even where no call came as far as to be stored with it.
            store_unwatched(parts.history, *before.take())
            session.forget_messages()
            raise
        return tuple(outcomes)

    async def _make_room(self, parts: AgentParts, before: Before) -> None:
        """Whether the budgets have room for one more call. Raises BudgetExceeded, and stores `before`."""
        if self._calls_left is None:
            return
        if self._calls_left <= 0 and self.meter is not None:
            events, changes = before.take()
            await parts.history.append(*events, changes=changes)
            await self.meter.refuse_calls()
        self._calls_left -= 1


def storable(message: Message, toolbox: Toolbox, redactor: Redactor) -> Message:
    """A message of a model without secrets, and without the arguments that are for the tool alone: what is
    stored of it, and what the model is sent of it from then on. What runs are the arguments as it wrote them.
    """
    hidden = _without_hidden(message, toolbox)
    # An endpoint that signs its reasoning would refuse what is left of a block when a secret is taken out.
    reasoning = tuple(
        block for block in hidden.reasoning if redactor.value(block.to_dict()) == block.to_dict()
    )
    calls = tuple(
        replace(call, name=redactor.text(call.name), arguments=_without_secrets(call.arguments, redactor))
        for call in hidden.tool_calls
    )
    return replace(hidden, content=redactor.text(hidden.content), tool_calls=calls, reasoning=reasoning)


def _without_secrets(arguments: str, redactor: Redactor) -> str:
    """Arguments as JSON: taken apart, since the name of a field says that it holds a secret."""
    if not redactor.suspects(arguments.encode("utf-8", "replace")):
        return arguments
    try:
        found = json.loads(arguments)
        cleaned = redactor.value(found)
        return arguments if cleaned == found else json.dumps(cleaned)
    except (ValueError, RecursionError):
        return redactor.text(arguments)


def _without_hidden(message: Message, toolbox: Toolbox) -> Message:
    calls: list[ToolCall] = []
    for call in message.tool_calls:
        action = toolbox.functions.get(call.name)
        if action is None or not action.hidden:
            calls.append(call)
            continue
        try:
            args = json.loads(call.arguments or "{}")
            kept = json.dumps(hide(args, action.hidden) if isinstance(args, dict) else {})
        except (ValueError, RecursionError):
            kept = "{}"  # it is refused, and what it holds cannot be told apart
        calls.append(replace(call, arguments=kept))
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
