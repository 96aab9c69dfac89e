"""A turn, from a prompt to its final answer: its state, and its record while it is unfinished.

A session makes a turn when it stores the prompt; `turn_loop` runs it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lightagentd.agents.choosing import NOTHING, Choice
from lightagentd.agents.model_calls.metering.meter import Meter
from lightagentd.agents.stream import TurnStream
from lightagentd.agents.tool_calls.results import Outcome
from lightagentd.api import turn_events
from lightagentd.errors import Cancelled, LightagentError
from lightagentd.events.history import Change, NewEvent
from lightagentd.events.model import current_context, dump_json, within
from lightagentd.llm.protocol import Message, ToolCall, Usage
from lightagentd.quoted import Prompt

if TYPE_CHECKING:
    from lightagentd.agents.agent import Agent
    from lightagentd.agents.sessions.session import Session
    from lightagentd.agents.team.mail import Letter
    from lightagentd.agents.tool_calls.origin import Origin
    from lightagentd.config.terms import Terms


MOST_CALLS = 1000
"""Of how many calls the last event of a turn tells."""
_OF_CALL = {"call_id": "", "tool": "", "action": "", "effect": "", "result": "", "duration_ms": 0}
"""What it tells of each, and what where that is not known."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A prompt, and how it is asked."""

    prompt: Prompt
    correlation_id: str = ""
    stepwise: bool = False
    """Whether its caller drives the turn (`Agent.run`)."""
    unattended: bool = False
    """Whether nobody is there to be asked: what policy would ask about is refused."""
    trigger: str = ""
    """The trigger that fired it, if one did."""
    outside: bool = False
    """Whether it holds text from outside, which taints the session."""
    becomes_current: bool = False
    """Whether its owner chose the session: prompts without a session go there from now on."""
    above: Turn | None = None
    """The turn that asks, where another agent's does."""
    letter: Letter | None = None
    """The message of another agent with which it begins, if it is one."""
    choice: Choice = NOTHING
    """What it chose for its turn."""
    aside: bool = False
    """Whether it is an event that a session of its own handles."""
    sent_by: tuple[dict[str, Any], ...] = ()
    """The agents above it that have no turn, as `Letter.by`."""


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
    joins: dict[str, str] = field(default_factory=dict)
    """The calls that waited for children, of whom one asks a person: the model's id of each → its own id."""
    begun: frozenset[int] = frozenset()
    """The places in the model's answer of other calls that had begun."""


@dataclass(frozen=True, kw_only=True)
class Join:
    """A call that waits for children: its id, the model's id of it, its step, and the turns that it waits
    for, which are none while it makes a child.
    """

    call_id: str
    model_call: str
    request_id: str = field(default_factory=lambda: current_context().request_id)
    turns: list[Turn] = field(default_factory=list)


@dataclass(eq=False, kw_only=True)
class Child:
    """A child of a turn: its agent, its session, and its turns, the newest last."""

    agent: Agent
    session: Session
    call_id: str
    """The call that made it."""
    turns: list[Turn] = field(default_factory=list)

    @property
    def busy(self) -> bool:
        return any(not turn.over.is_set() for turn in self.turns)


class Turn:
    """One turn of one session.

    With `resumed` it continues where it waited in an earlier run of the daemon.
    """

    in_conversation = True
    """Whether the results of its calls are messages of the session."""
    can_wait = False
    """Whether a person can be asked about its calls although it is unattended."""
    needs_approval = False
    """Whether a person has to approve each of its calls, whatever policy says."""

    terms: Terms | None = None
    """As which the changes of its calls have to be confirmed: those of a step of a flow."""

    told_form = False
    """Whether the model was told how to write a call, and has not made one since."""

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
        self.size_bytes += len(dump_json(asked.choice.to_dict())) if asked.choice != NOTHING else 0
        self.trace_id = trace_id
        self.correlation_id = asked.correlation_id
        self.unattended = asked.unattended
        self.trigger = asked.trigger
        self.choice = asked.choice
        self.caller = caller
        """The uid on whose word it runs: who prompted, or had the plan applied; not always the owner's."""
        self.client = current_context().client
        self.resumed = resumed
        self.waits_for = resumed.waits_for if resumed else ""
        """The approval or input that it waits for, or was the last to wait for."""
        self.task_id = ""
        """The task of the session's plan that it works on, if it does."""
        self.task_note = ""
        """Why that task is not done although the turn came to an answer: its check did not pass."""
        self.asks_person = False
        """Whether a call of its own waits for a person now."""
        self._in_line(asked)
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

    def _in_line(self, asked: Asked) -> None:
        """Its place in the line of turns that ask each other."""
        self.above, letter = asked.above, asked.letter
        self.origin: Origin | None = None
        """As which it makes its calls; set when it runs."""
        self.sent_by: tuple[dict[str, Any], ...] = letter.by if letter is not None else asked.sent_by
        """The agents whose message it began with: its sender, and those above that one."""
        self.hops = letter.hops if letter is not None else 0
        """How many messages of agents led to it without a person."""
        self.sent = 0
        """How many messages it has sent."""
        self.children: dict[str, Child] = {}
        """The children that it made, by their sessions."""
        self.makes_child = asyncio.Lock()
        """Held while it makes one: they are counted before."""
        self.joins: dict[str, Join] = {}
        """The calls that wait for children now, by their ids."""
        self.at_work = 0
        """How many of the calls that it runs at once wait for nothing."""
        self.stays = False
        """Whether it was suspended, and goes on in the next run of the daemon."""
        self._stored_waits = self.waits_for
        """The question for which it waits as it is stored."""
        self._stopped_with_s: float | None = None
        """The time that it had left when its clock was stopped; None while the clock runs."""
        self._changed: asyncio.Event | None = None

    @property
    def figures(self) -> dict[str, Any]:
        """What its last event says of it."""
        passed_ms = 0 if self.started is None else round((time.monotonic() - self.started) * 1000)
        return {"steps": self.steps_done, "duration_ms": passed_ms}

    def note_call(self, ended: Mapping[str, Any]) -> None:
        """Take a call that ended, as its event has it, among those that the last event tells of."""
        if len(self.calls) < MOST_CALLS:
            self.calls.append({name: ended.get(name, other) for name, other in _OF_CALL.items()})

    def cancel(self, why: LightagentError | None = None) -> None:
        """End the turn as cancelled: at once, or when its turn comes if it is queued."""
        if self.cancelled or self.over.is_set():
            return
        self.cancelled, self.cancelled_because = True, why
        if self.begun and self.task is not None:
            self.task.cancel()

    @property
    def is_waiting(self) -> bool:
        """Whether nothing of it goes on because a person is asked, by itself or by a child."""
        if self.at_work > 0:
            return False
        return self.asks_person or (bool(self.joined) and all(child.is_waiting for child in self.joined))

    @property
    def stays_with_children(self) -> bool:
        """Whether a child was suspended, so that the turn waits for it in the next run of the daemon."""
        return any(turn.stays for child in self.children.values() for turn in child.turns)

    @property
    def joined(self) -> list[Turn]:
        """The turns of children that it waits for now and that are not over."""
        return [turn for join in self.joins.values() for turn in join.turns if not turn.over.is_set()]

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
        self.waits_for, self.asks_person = waits_for, True
        try:
            with self.working(-1):
                yield
        finally:
            self.asks_person = False
            self.set_clocks()

    @contextlib.contextmanager
    def joining(self, join: Join) -> Iterator[None]:
        """A block while a call waits for children, whose time counts for this turn, too."""
        self.joins[join.call_id] = join
        try:
            with self.working(-1):
                yield
        finally:
            del self.joins[join.call_id]
            self.set_clocks()

    @contextlib.contextmanager
    def working(self, calls: int) -> Iterator[None]:
        """A block in which so many more calls are at work, of those that run at once."""
        self.at_work += calls
        self.set_clocks()
        try:
            yield
        finally:
            self.at_work -= calls
            self.set_clocks()

    def set_clocks(self) -> None:
        """Stop or go on with the clocks of the turn, and of those above it, as they wait now."""
        waits = self.is_waiting
        if self.meter is not None and self.meter.on:
            (self.meter.pause if waits or (self.joined and self.at_work <= 0) else self.meter.run)()
        if waits and self._stopped_with_s is None:
            self._stopped_with_s = self.left_s()
            if self.timer is not None and self._stopped_with_s is not None:
                self.timer.reschedule(None)
        elif not waits and (left_s := self._stopped_with_s) is not None:
            self._stopped_with_s = None
            if self.timer is not None:
                self.timer.reschedule(asyncio.get_running_loop().time() + left_s)
        if self.above is not None:
            self.above.set_clocks()

    async def child_changed(self) -> None:
        """Wait until a turn of a child is over."""
        self._changed = self._changed or asyncio.Event()
        await self._changed.wait()

    def _tell_above(self) -> None:
        if self.above is None:
            return
        self.above.set_clocks()
        changed, self.above._changed = self.above._changed, None
        if changed is not None:
            changed.set()

    def left_s(self) -> float | None:
        """The remaining time; None when the time is not limited, or the turn is over."""
        if self._stopped_with_s is not None:
            return self._stopped_with_s
        if self.timer is None or self.timer.expired() or (when := self.timer.when()) is None:
            return None
        return max(0.0, when - asyncio.get_running_loop().time())

    def waits(self, question_id: str) -> list[Change]:
        """The changes of state with which it begins to wait for a person, or with an empty id stops to. Those
        above that wait for this turn are stored as waiting, too, so that the next start finds them again.
        """
        changes: list[Change] = []
        turn, request_id = self, current_context().request_id
        while turn._stored_waits != question_id:
            turn._stored_waits, turn.waits_for = question_id, question_id or turn.waits_for
            changes.append(turn._waits(question_id, request_id))
            above = turn.above
            if above is None or not (
                join := next((j for j in above.joins.values() if turn in j.turns), None)
            ):
                break
            request_id = join.request_id
            others = [child._stored_waits for child in above.joined if child._stored_waits]
            question_id = above._stored_waits if above._stored_waits in others else next(iter(others), "")
            turn = above
        return changes

    def asking(self, question_id: str) -> tuple[NewEvent, ...]:  # noqa: ARG002 - for a step of a flow
        """What to store before a question to a person, beside the changes of `waits`."""
        return ()

    def call_ended(self, outcome: Outcome) -> tuple[Sequence[NewEvent], Sequence[Change]]:  # noqa: ARG002
        """What to store with the result of a call."""
        return (), ()

    def settled(self) -> list[Change]:
        """What to store with the result of a call that waited for children: as that the turn runs on."""
        return self.waits("") if self._stored_waits and not self.joined else []

    def _waits(self, question_id: str, request_id: str) -> Change:
        with within(request_id=request_id):
            return self.change("waiting" if question_id else "running", question_id)

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
        if self.client:
            value["client"] = self.client
        if self.unattended:
            value["unattended"] = True
        if self.trigger:
            value["trigger"] = self.trigger
        if chosen := self.choice.to_dict():
            value["choice"] = chosen
        if self.repaired:
            value["repaired"] = True
        if self.task_id:
            value["task"] = self.task_id
        if self.hops or self.sent_by:
            value |= {"hops": self.hops, "sent_by": list(self.sent_by)}
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
            if self.joins:
                value["joins"] = {join.model_call: join.call_id for join in self.joins.values()}
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
        self._tell_above()
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
