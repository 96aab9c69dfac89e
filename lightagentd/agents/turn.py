"""A turn, from a prompt to its final answer: its state, and its record while it is unfinished.

A session makes a turn when it stores the prompt; `turn_loop` runs it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lightagentd.agents.choosing import NOTHING, Choice
from lightagentd.agents.model_calls.metering.meter import Meter
from lightagentd.agents.stream import TurnStream
from lightagentd.agents.tool_calls.results import Outcome
from lightagentd.api import turn_events
from lightagentd.errors import Cancelled, LightagentError
from lightagentd.events.history import Change
from lightagentd.events.model import current_context, dump_json
from lightagentd.llm.protocol import Message, ToolCall, Usage
from lightagentd.quoted import Prompt

if TYPE_CHECKING:
    from lightagentd.agents.sessions.session import Session


MOST_CALLS = 1000
"""Of how many calls the last event of a turn tells."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A prompt, and how it is asked."""

    prompt: Prompt
    correlation_id: str = ""
    stepwise: bool = False
    """Whether its caller drives the turn (`Agent.run`)."""
    unattended: bool = False
    """Whether nobody is there to be asked: what policy would ask about is refused."""
    outside: bool = False
    """Whether it holds text from outside, which taints the session."""
    becomes_current: bool = False
    """Whether its owner chose the session: prompts without a session go there from now on."""
    choice: Choice = NOTHING
    """What it chose for its turn."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """One model call and its results. `final`: the turn ended with it."""

    number: int
    request_id: str
    text: str
    calls: tuple[ToolCall, ...]
    outcomes: tuple[Outcome, ...]
    usage: Usage | None
    final: bool


@dataclass(frozen=True, kw_only=True)
class Resumed:
    """Where a turn waited for a person when the daemon stopped. `left_s` is its remaining time."""

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
    """One turn of one session.

    With `resumed` it continues where it waited in an earlier run of the daemon.
    """

    def __init__(
        self,
        session: Session,
        asked: Asked,
        *,
        trace_id: str,
        caller: int | None = None,
        resumed: Resumed | None = None,
    ) -> None:
        self.session = session
        self.prompt = asked.prompt
        self.size_bytes = len(asked.prompt.text.encode("utf-8", "replace"))
        self.size_bytes += len(dump_json(asked.choice.to_dict()))
        self.trace_id = trace_id
        self.correlation_id = asked.correlation_id
        self.unattended = asked.unattended
        self.choice = asked.choice
        self.caller = caller
        """The uid on whose word it runs: who prompted, or had the plan applied; not always the owner's."""
        self.resumed = resumed
        self.waits_for = resumed.waits_for if resumed else ""
        """The approval or input that it waits for, or was the last to wait for."""
        self.task_id = ""
        """The task of the session's plan that it works on, if it does."""
        self.task_note = ""
        """Why that task is not done although the turn came to an answer: its check did not pass."""
        self.is_waiting = False
        self.timer: asyncio.Timeout | None = None
        """Ends the turn when its time is over; set while it runs."""
        self.meter: Meter | None = None
        """What it uses; made when it runs."""
        self.calls_left: int | None = resumed.calls_left if resumed else None
        """How many of the step's calls may still run; None when nothing limits them."""
        self.stream = TurnStream(trace_id, session.stream)
        self.task: asyncio.Task[None] | None = None
        self.begun = False
        """Whether the task has run at all: one that is cancelled before that does nothing, not even end."""
        self.cancelled = False
        self.cancelled_because: LightagentError | None = None
        """What it ends with when that is not a plain cancel."""
        self.steps_done = resumed.steps if resumed else 0
        self.answer = ""
        self.data: Any = None
        """The value of an answer that fits the schema of the choice."""
        self.repaired = False
        """Whether the model was told that its answer does not fit."""
        self.finish_reason = ""
        self.calls: list[dict[str, Any]] = []
        """What was called, the first MOST_CALLS."""
        self.said: list[str] = []
        """What the model said that is not stored yet."""
        self.started: float | None = None
        self.over = asyncio.Event()
        self.failure: LightagentError | None = None
        self.handed: asyncio.Queue[Step | None] | None = asyncio.Queue() if asked.stepwise else None
        """The steps on their way to a caller who drives the turn; None comes last."""

    @property
    def figures(self) -> dict[str, Any]:
        """What its last event says of it."""
        passed_ms = 0 if self.started is None else round((time.monotonic() - self.started) * 1000)
        return {"steps": self.steps_done, "duration_ms": passed_ms}

    def note_call(self, **call: Any) -> None:
        """Count a call that ended among those that the last event tells of."""
        if len(self.calls) < MOST_CALLS:
            self.calls.append(call)

    def cancel(self, why: LightagentError | None = None) -> None:
        """End the turn as cancelled: at once, or when its turn comes if it is queued."""
        if self.cancelled or self.over.is_set():
            return
        self.cancelled, self.cancelled_because = True, why
        if self.begun and self.task is not None:
            self.task.cancel()

    async def driven(self) -> AsyncGenerator[Step, None]:
        """The steps of a turn that was asked for as `stepwise`; each begins when the one before was taken.

        Closing the generator cancels the turn. Raises the error that ended the turn, if any.
        """
        assert self.handed is not None
        try:
            while (step := await self.handed.get()) is not None:
                yield step
                self.handed.task_done()
        finally:
            self.cancel()
            if self.begun:
                await self.over.wait()
        if self.failure is not None:
            raise self.failure

    @contextlib.contextmanager
    def waiting(self, waits_for: str) -> Iterator[None]:
        """A block while a person is asked: this time does not count as the turn's."""
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
        """The remaining time; None when the time is not limited, or the turn is over."""
        if self.timer is None or self.timer.expired() or (when := self.timer.when()) is None:
            return None
        return max(0.0, when - asyncio.get_running_loop().time())

    def change(self, state: str, waits_for: str = "") -> Change:
        """The change of state that keeps the unfinished turn findable: queued, running or waiting.

        A turn that waits for a person can continue in the next run of the daemon, unless a caller drove it.
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
        if chosen := self.choice.to_dict():
            value["choice"] = chosen
        if self.repaired:
            value["repaired"] = True
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
            if self.calls_left is not None:
                value["calls_left"] = self.calls_left
        return Change(state="turns", key=self.trace_id, value=value)

    def finish(self, failure: LightagentError | None, figures: dict[str, Any]) -> None:
        """Tell all watchers that the turn is over; no event follows."""
        self.failure = failure
        if failure is None:
            self.stream.emit(
                turn_events.Done(
                    text=self.answer,
                    data=self.data,
                    usage=self.meter.usage() if self.meter is not None else None,
                    calls=self.calls,
                    finish_reason=self.finish_reason,
                    **figures,
                )
            )
        else:
            self.stream.emit(turn_events.Failed.of(failure, **figures))
        if self.handed is not None:
            self.handed.put_nowait(None)
        self.over.set()
        if self.session.ended is not None:
            self.session.ended(self)


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
    """The error that ends a turn without an answer."""
    if isinstance(err, LightagentError):
        return err
    if cancelled:
        return Cancelled("The turn was cancelled.")
    if isinstance(err, asyncio.CancelledError):
        return Cancelled("The turn was cancelled because its agent stopped.")
    return LightagentError("The turn failed inside the daemon.", suggestion="The journal says why.")
