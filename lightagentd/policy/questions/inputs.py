"""Questions of agents to people (`human.ask`) and of own tools (`NeedsInput`), and the answers.

A question commits together with the turn that waits for it. Questions whose call has no result yet are in
memory, answered or not. So an answer given while the daemon stopped reaches its turn at the next start. An
own tool's question has the tool's state with it, until the call goes on or ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

from lightagentd.api import turn_events
from lightagentd.errors import Cancelled, InputClosed, InputNotFound, InvalidArgument
from lightagentd.events.history import Change, History, NewEvent
from lightagentd.events.types.event_type import EventType
from lightagentd.events.types.input import InputAnswered, InputExpired, InputLapsed, InputRequested, InputUsed
from lightagentd.events.types.tool import CallEnded
from lightagentd.host.users import called
from lightagentd.policy.questions.question import Question, State, now_us
from lightagentd.policy.questions.questions import ABANDONED, OPEN_OF_OWNER, Questions, Stored, about

TOOL, ACTION = "human", "ask"
"""The built-in action that asks."""
ANSWER_MAX_BYTES = 16 << 10


@dataclass(frozen=True, kw_only=True)
class Input(Question):
    """One question. What `api.Input` does not have is about the call, and nobody is shown it."""

    NOUN: ClassVar[str] = "input"
    PREFIX: ClassVar[str] = "inp"
    STATES: ClassVar[frozenset[State]] = frozenset(
        {State.WAITING, State.ANSWERED, State.EXPIRED, State.LAPSED}
    )
    NOT_FOUND: ClassVar[type[InputNotFound]] = InputNotFound

    question: str
    choices: tuple[str, ...]
    answer: str = ""
    tool: str = TOOL
    action: str = ACTION
    effect: str = "observe"
    approval: str = ""
    """The approval that the call has used, if it needed one."""
    number: int = 1
    """Which question of its call it is."""
    saved: dict[str, Any] = field(default_factory=dict)
    """`state` for the action that goes on; empty when it went on, or never will."""

    @property
    def is_own(self) -> bool:
        """Whether an own tool asks, and not the agent."""
        return (self.tool, self.action) != (TOOL, ACTION)

    def ended(self, state: State, _why: str) -> Self:
        return replace(self, state=state, saved={})

    @property
    def pending(self) -> bool:
        """Whether its call has no result yet; an answer does not matter."""
        return True

    def event(self, why: str) -> EventType:
        about_it = {"input": self.id, "call_id": self.call_id}
        if self.state is State.WAITING:
            return InputRequested(**self.request().fields())
        if self.state is State.EXPIRED:
            return InputExpired(**about_it)
        if self.state is State.LAPSED:
            return InputLapsed(**about_it, note=why)
        assert self.answered_by is not None
        return InputAnswered(**about_it, answer=self.answer, answered_by=self.answered_by)

    def request(self) -> turn_events.InputRequested:
        asked = self._fields("call_id", "question", "expires_us")
        return turn_events.InputRequested(input=self.id, choices=[*self.choices], **asked)

    def outcome(self) -> turn_events.InputAnswered:
        answer = self._fields("call_id", "answer", "answered_by")
        return turn_events.InputAnswered(input=self.id, state=self.state.value, **answer)

    def refusal(self) -> InputClosed:
        words = {
            State.ANSWERED: f"was answered already by {called(self.answered_by or 0)}",
            State.EXPIRED: "has expired: its agent was told that nobody answered",
            State.LAPSED: "has lapsed, because its turn is over",
        }
        return InputClosed(
            f"The input {self.id} {words[self.state]}.",
            suggestion="To tell the agent something all the same, prompt its session: "
            f"lactl prompt --session {self.session}",
            field="input",
        )


class Inputs:
    """The store of inputs. Its `questions` load them and wait."""

    def __init__(self, history: History, *, timeout_s: float, open_of_owner: int = OPEN_OF_OWNER) -> None:
        self.questions = Questions(history, Input, timeout_s=timeout_s, open_of_owner=open_of_owner)
        self._redactor = history.redactor

    def new(
        self,
        *,
        agent: str,
        session: str,
        owner: int,
        trace_id: str,
        call_id: str,
        question: str,
        choices: Sequence[str],
        timeout_s: float | None,
        **own: Any,
    ) -> Input:
        """A new question, not stored yet. `timeout_s` can only shorten its time. `own` are the fields about
        the call of an own tool, without secrets.

        Raises LimitExceeded when too many others are open.
        """
        return Input(
            **self.questions.begun(owner, timeout_s),
            agent=agent,
            session=session,
            trace_id=trace_id,
            call_id=call_id,
            question=self._redactor.text(question),
            choices=tuple(map(self._redactor.text, choices)),
            **own,
        )

    async def answer(self, input_id: str, text: str, *, uid: int) -> Input:
        """Answer for the person with this uid, who must be authorized; of concurrent answers the first
        counts.

        With choices, `text` is one of them or its number, counted from 1; an equal text is preferred. Raises
        InputNotFound, InputClosed, InvalidArgument, StorageError.
        """
        found = await self.questions.answerable(input_id)
        said = _picked(found, self._redactor.text(text))
        answered = replace(found, state=State.ANSWERED, answer=said, answered_by=uid, answered_us=now_us())
        return await self.questions.change(found, answered)

    def taken(self, input_id: str, why: str = ABANDONED) -> Stored:
        """Close the question of a call that got its result, or goes on; returns what to store with that."""
        found = self._open(input_id)
        events, changes = self.questions.lapse(input_id, why)
        if found is not None and found.state is State.ANSWERED and found.saved:
            value = replace(found, saved={}).to_dict()
            changes = [*changes, Change(state="inputs", key=found.id, value=value)]
        return events, changes

    def use(self, found: Input, *, decision: str, rule: str) -> Stored:
        """Close an answered question, since its call goes on; returns what to store before that."""
        call = found._fields("call_id", "tool", "action", "effect")
        used = InputUsed(input=found.id, **call, decision=decision, rule=rule).event()
        events, changes = self.taken(found.id)
        return [*events, used], changes

    def lapse(self, question_id: str, why: str) -> Stored:
        """As `Questions.lapse`, for a turn that ends before its call has a result; includes the end of the
        call.
        """
        found = self._open(question_id)
        events, changes = self.taken(question_id, why)
        return ([*events, _call_ended(found)] if found is not None else events), changes

    def _open(self, question_id: str) -> Input | None:
        return self.questions.get(question_id) if self.questions.is_open(question_id) else None


not_found = Input.not_found


def check_answer(text: str) -> None:
    """Raises InvalidArgument for an answer that is empty, too long or holds a NUL byte."""
    if not text.strip():
        raise InvalidArgument("The answer is empty.", field="text", suggestion="Say something.")
    if "\0" in text:
        raise InvalidArgument("The answer holds a NUL byte.", field="text", suggestion="Remove it.")
    if len(text.encode("utf-8", "replace")) > ANSWER_MAX_BYTES:
        raise InvalidArgument(
            f"The answer is larger than {ANSWER_MAX_BYTES} bytes.",
            field="text",
            suggestion="Answer in fewer words, or name a file that holds the rest.",
        )


def _picked(found: Input, text: str) -> str:
    """The choice that a text means. Raises InvalidArgument for a text that names none."""
    if not found.choices:
        return text
    word = text.strip()
    if word in found.choices:
        return word
    if word.isascii() and word.isdigit() and len(word) < 4 and 1 <= int(word) <= len(found.choices):
        return found.choices[int(word) - 1]
    listed = ", ".join(f"{number} ({choice})" for number, choice in enumerate(found.choices, 1))
    raise InvalidArgument(
        f"{word[:60]!r} is none of the choices of {found.id}.",
        field="text",
        suggestion=f"Answer with one of them, or with its number: {listed}",
    )


def _call_ended(found: Input) -> NewEvent:
    """The end of a call whose turn ended while it waited; its intent is stored, so it needs an end."""
    with about(found):
        return CallEnded(
            call_id=found.call_id,
            tool=found.tool,
            action=found.action,
            effect=found.effect,
            result=Cancelled.code,
            duration_ms=max(0, now_us() - found.created_us) // 1000,
            output_chars=0,
            taints=False,
            metadata={"input": found.id},
        ).event(source="daemon")
