"""A session: one conversation of one owner with one agent, its messages and its queue of turns.

The session's record and its messages are in the history; the copy in memory can be dropped and read again at
any time. One turn runs at a time. Later prompts wait in the queue, which survives a restart.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from lightagentd.agents.definition import AgentDefinition
from lightagentd.agents.model_calls.compaction.compactor import stored_conversation
from lightagentd.agents.planning.plan import DRAFTING, Plan
from lightagentd.agents.stream import SessionStream
from lightagentd.agents.tool_calls.results import message_event
from lightagentd.agents.turn import Asked, Step, Turn, unanswered
from lightagentd.agents.uninterrupted import uninterrupted
from lightagentd.api import turn_events
from lightagentd.errors import (
    AgentNotRunning,
    Conflict,
    LightagentError,
    QueueFull,
    SessionNotFound,
    SessionPaused,
)
from lightagentd.events.history import Change, History, NewEvent
from lightagentd.events.journal.entry import plain
from lightagentd.events.model import current_context, new_id, within
from lightagentd.events.store.states import checked, decoding
from lightagentd.events.types import session as kinds
from lightagentd.events.types.agent import Prompted
from lightagentd.llm.json_calls import may_be_call
from lightagentd.llm.protocol import Message

TITLE_CHARS = 60
"""How much of the first prompt becomes the title."""
TITLE_MAX_CHARS = 200
MAX_HOSTS = 500
"""More hosts a session does not remember: the record is stored again with each of them."""

_TEXTS = (
    *("id", "agent", "title", "tainted_by", "forked_from", "model", "holder", "interrupted"),
    *("parent", "of_turn", "of_call", "run"),
)

Lapsed = tuple[Sequence[NewEvent], Sequence[Change]]


@dataclass(frozen=True, kw_only=True)
class SessionRecord:
    """The stored record of a session, beside its events."""

    id: str
    agent: str
    owner: int
    title: str
    created_us: int
    updated_us: int
    turns: int = 0
    tainted: bool = False
    """Whether text from outside is in the conversation. It stays there, so a session never loses this."""
    tainted_by: str = ""
    """The call whose result tainted it, or the turn (`trace_...`) whose prompt did."""
    hosts: tuple[str, ...] = ()
    """The hosts that it reached before it was tainted, or with an approval."""
    paused: bool = False
    """Whether it takes no prompts and begins no turn."""
    forked_from: str = ""
    """The session whose conversation it began with."""
    model: str = ""
    """The model that its turns ask first; empty for the agent's own."""
    holder: str = ""
    """The agent that has the conversation, after a transfer; empty for its own."""
    interrupted: str = ""
    """What is known of a turn that the daemon stopped in the middle of, until the next turn is done."""
    parent: str = ""
    """The session whose turn made it, or for which it handles an event; empty for one that a person made."""
    of_turn: str = ""
    """The trace of that turn; empty for an event."""
    of_call: str = ""
    """The call of that turn."""
    run: str = ""
    """The run of a flow that it is for."""
    leaves: tuple[dict[str, Any], ...] = ()
    """The calls that a person allowed for as long as the session is there (`tool_calls.leaves`)."""
    reflected: int = 0
    """How many of its turns were reflected on (`agents.reflection`)."""

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> SessionRecord:
        """Read a stored record; records of older versions have fewer fields. Raises HistoryDamaged."""
        numbers = ("owner", "created_us", "updated_us", "turns", "reflected")
        with decoding("sessions", str(value.get("id"))):
            checked(value, hosts=list, tainted=bool, paused=bool, leaves=list)
            checked(value, **dict.fromkeys(_TEXTS, str), **dict.fromkeys(numbers, int))
            hosts, leaves = tuple(map(str, value.get("hosts", ()))), tuple(map(dict, value.get("leaves", ())))
            return cls(**{**value, "hosts": hosts, "leaves": leaves})

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "hosts": list(self.hosts), "leaves": list(self.leaves)}

    def change(self) -> Change:
        """The change of state that stores this record."""
        return Change(state="sessions", key=self.id, value=self.to_dict())

    def current_change(self) -> Change:
        """The change of state that makes this session its owner's current one with its agent."""
        return Change(state="current", key=f"{self.agent}/{self.owner}", value={"session": self.id})


def new_record(agent: str, owner: int, title: str) -> SessionRecord:
    now = time.time_ns() // 1000
    return SessionRecord(
        id=new_id("ses"), agent=agent, owner=owner, title=title, created_us=now, updated_us=now
    )


@dataclass(eq=False)
class Session:
    """One session in memory. The agent that it belongs to owns it and runs its turns."""

    record: SessionRecord
    history: History
    queue: deque[Turn] = field(default_factory=deque)
    storing: set[str] = field(default_factory=set)
    """The traces of turns whose prompt is on its way to the disk; then they join the queue."""
    running: Turn | None = None
    plan: Plan | None = None
    """Its plan, as it is stored; None when there is none."""
    stream: SessionStream = field(init=False, repr=False)
    is_current: bool = False
    """Whether its owner's prompts to its agent go to it when they name no session."""
    deleted: bool = False
    """Whether it is being deleted, or is: nothing may be stored of it any more."""
    take_current: Callable[[Session], None] | None = field(default=None, repr=False)
    """Has its agent know that it is the current one now."""
    driver: Callable[[Session, str], AsyncGenerator[Step, None]] | None = field(default=None, repr=False)
    """What `run` goes through: the agent that adopted the session."""
    ended: Callable[[Turn], None] | None = field(default=None, repr=False)
    """Takes each turn that ends."""
    ends: Callable[[], Awaitable[None]] | None = field(default=None, repr=False)
    """Ends what works in it beside its turns: the run of a flow."""
    compacting: bool = False
    """Whether it is compacted just now, between two turns: none begins meanwhile."""
    _messages: list[Message] | None = None
    counted: tuple[int, int] = (0, 0)
    """What an endpoint counted last in tokens, and the bytes of that request; for `window.Gauge`."""
    _storing_bytes: int = 0

    def __post_init__(self) -> None:
        self.stream = SessionStream(self.id, self.history.redactor)

    @property
    def id(self) -> str:
        return self.record.id

    @property
    def messages(self) -> list[Message]:
        """The conversation, read from the history when it is not in memory."""
        if self._messages is None:
            self._messages = stored_conversation(self.history, self.id).messages
        return self._messages

    async def load(self) -> None:
        """Read the conversation into memory without blocking the event loop."""
        if self._messages is None:
            found = await asyncio.to_thread(stored_conversation, self.history, self.id)
            self._messages = found.messages if self._messages is None else self._messages

    @property
    def waiting(self) -> bool:
        """Whether its turn waits for a person's answer."""
        return self.running is not None and self.running.is_waiting

    @property
    def waiting_bytes(self) -> int:
        """The size of the prompts that wait in the queue or for the disk."""
        return self._storing_bytes + sum(turn.size_bytes for turn in self.queue)

    @property
    def at_rest(self) -> bool:
        """Whether nothing runs and nothing will start by itself; a paused session's queue does not count."""
        if self.deleted:
            return True
        if self.running or self.storing or (self.queue and not self.record.paused):
            return False
        plan = self.plan
        return plan is None or plan.phase != "applying" or bool(plan.stopped_at) or self.record.paused

    async def until_at_rest(self) -> None:
        """Wait until the session is at rest or deleted, or the daemon stops."""
        while not self.at_rest and not self.stream.ended:
            await self.stream.changed()

    @property
    def mode(self) -> str:
        """`normal`, or the phase of its plan while that is not completed."""
        return self.plan.phase if self.plan is not None and self.plan.phase != "completed" else "normal"

    def plan_gate(self, agent: AgentDefinition) -> Literal["", "observe", "none"]:
        """The limit on calls while a plan is drafted; empty when none is."""
        drafting = self.plan is not None and self.plan.phase in DRAFTING
        return agent.front.plan_tools if drafting else ""

    def check_there(self) -> None:
        """Raises SessionNotFound once the session is deleted. Call it before storing anything about one."""
        if self.deleted:
            raise session_not_found(self.id)

    async def rename(self, title: str, *, by: int) -> None:
        """Raises SessionNotFound, StorageError."""
        title = self.history.redactor.text(title)
        with self.context():
            event = kinds.SessionRenamed(title=title, by=by).event()
        await self.change(event, title=title)

    async def set_paused(self, paused: bool, *, by: int) -> None:
        """Pause or resume prompts and new turns; after resuming, the agent has to be told.

        Raises SessionNotFound, StorageError.
        """
        kind = kinds.SessionPaused if paused else kinds.SessionResumed
        with self.context():
            event = kind(by=by).event()
        await self.change(event, paused=paused)

    async def change(self, event: NewEvent, **changes: Any) -> None:
        """Change fields of the record and store it with its event; a failure undoes the change."""
        self.check_there()
        before = {name: getattr(self.record, name) for name in changes}
        self.record = replace(self.record, **changes)
        try:
            await uninterrupted(self.history.append(event, changes=(self.record.change(),)))
        except LightagentError:
            self.record = replace(self.record, **before)
            raise

    async def become_current(self, *, by: int) -> None:
        """Send its owner's prompts without a session here. Raises SessionNotFound, StorageError."""
        self.check_there()
        with self.context():
            event = kinds.SessionSwitched(by=by).event()
        await self.history.append(event, changes=(self.record.current_change(),))
        if self.take_current is not None:
            self.take_current(self)

    def take_messages(self, messages: list[Message]) -> None:
        """Send these messages to the model from now on."""
        self._messages = messages

    def forget_messages(self) -> None:
        self._messages = None

    @property
    def loaded_chars(self) -> int:
        """The total length of the messages in memory, without their calls."""
        return sum(len(message.content) for message in self._messages or ())

    def context(self, turn: Turn | None = None) -> Any:
        """The event context of this session, and of a turn of it, as a `with` block."""
        names = ("caller", "correlation_id", "client")
        of_turn = {} if turn is None else {name: getattr(turn, name) for name in names}
        return within(
            agent=self.record.agent,
            session=self.id,
            owner=self.record.owner,
            trace_id=turn.trace_id if turn else "",
            request_id="",
            **of_turn,
        )

    def after_call(self, call_id: str, *, taints: bool, host: str) -> tuple[Change, ...]:
        """Note the effects of a call's result on later calls; the changes must commit with that result.

        `host` is the host that the call reached and later calls may reach without a question, if any.
        """
        record = self.record
        if host and host not in record.hosts and len(record.hosts) < MAX_HOSTS:
            record = replace(record, hosts=(*record.hosts, host))
        if taints and not record.tainted:
            record = replace(record, tainted=True, tainted_by=call_id)
        if record is self.record:
            return ()
        self.record = record
        return (record.change(),)

    def run(self, text: str) -> AsyncGenerator[Step, None]:
        """Prompt and drive the turn: `async for step in session.run("check disk")`; see `Agent.run`."""
        if self.driver is None:
            raise AgentNotRunning(f"The session {self.id} has no agent that runs it.")
        return self.driver(self, text)

    async def enqueue(
        self,
        asked: Asked,
        *,
        max_queue: int,
        of_plan: Callable[[Turn], tuple[Plan, Sequence[NewEvent]]] | None = None,
    ) -> Turn:
        """Store a prompt and put its turn into the queue.

        Raises QueueFull, SessionPaused, SessionNotFound, StorageError.

        `of_plan` makes the turn a task of the session's plan: it gives the plan with that turn, and the
        events to store with it. Such a turn is queued even if the queue is full or the session is paused.

        The turn runs for the caller in the context. If the calling task is cancelled meanwhile, the prompt is
        still stored and stays in the queue.
        """
        self.check_there()
        if self.record.parent and asked.above is None and not asked.aside:
            raise Conflict(
                f"The session {self.id} belongs to a turn of the session {self.record.parent}.",
                suggestion=f"Prompt that one, or take a copy: lactl sessions fork {self.id}",
            )
        if self.record.paused and of_plan is None:
            raise SessionPaused(
                f"The session {self.id} is paused.", suggestion=f"Run: lactl sessions resume {self.id}"
            )
        waiting = len(self.queue) + len(self.storing)
        if waiting >= max_queue and of_plan is None:
            raise QueueFull(
                f"{waiting} prompts wait in this session already.",
                suggestion="Wait for their answers, or cancel them.",
            )
        redactor = self.history.redactor
        turn = Turn(
            self,
            replace(
                asked,
                prompt=asked.prompt.cleaned(redactor.text),
                correlation_id=redactor.text(asked.correlation_id or current_context().correlation_id),
            ),
            trace_id=new_id("trace"),
            caller=current_context().caller,
        )
        planned = of_plan(turn) if of_plan is not None else (None, ())
        self.storing.add(turn.trace_id)
        self._storing_bytes += turn.size_bytes
        try:
            await uninterrupted(self._store_prompt(asked, turn, *planned))
        except asyncio.CancelledError:
            if asked.stepwise:
                turn.cancel()  # nobody will take its steps
            raise
        return turn

    async def _store_prompt(
        self, asked: Asked, turn: Turn, plan: Plan | None, events: Sequence[NewEvent]
    ) -> None:
        """Store the prompt. Appends keep their order, so turns are queued in the order of their prompts."""
        about = plan.title if plan is not None else turn.prompt.question
        title = self.record.title or title_from(about[:TITLE_MAX_CHARS])[:TITLE_CHARS]
        now = time.time_ns() // 1000
        self.record = replace(self.record, title=title, updated_us=now, turns=self.record.turns + 1)
        if asked.outside and not self.record.tainted:
            self.record = replace(self.record, tainted=True, tainted_by=turn.trace_id)
        with self.context(turn):
            chars = turn.prompt.question_chars
            more: dict[str, Any] = {"question_chars": chars} if chars else {}
            if told := turn.choice.told():
                more["choice"] = told
            prompted = Prompted(text=turn.prompt.text, **more).event()
        changes = [self.record.change(), turn.change("queued")]
        if plan is not None:
            changes.append(plan.change())
        if asked.letter is not None:
            changes.append(asked.letter.change(waits=False))
        if asked.becomes_current:
            changes.append(self.record.current_change())
        try:
            await self.history.append(prompted, *events, changes=changes)
            self.plan = plan or self.plan
            self.queue.append(turn)
        finally:
            self.storing.discard(turn.trace_id)
            self._storing_bytes -= turn.size_bytes
        if asked.becomes_current and self.take_current is not None:
            self.take_current(self)
        self.stream.emit(turn_events.PromptTaken(text=turn.prompt.text), trace_id=turn.trace_id)

    async def begin(self, turn: Turn) -> None:
        """Store the begin of a turn: its prompt becomes a message of the conversation."""
        messages = self.messages
        missing = missing_results(self.messages)
        prompt = turn.prompt
        message = Message(role="user", content=prompt.text, question_chars=prompt.question_chars)
        speaker = {"speaker": turn.sent_by[0]["agent"]} if turn.hops else {}
        started, said = kinds.TurnStarted().event(), message_event(message, **speaker)
        await self.history.append(*missing, started, said, changes=(turn.change("running"),))
        if missing:
            self.forget_messages()
        else:
            messages.append(message)

    async def end(self, turn: Turn, outcome: NewEvent, *, lapsed: Lapsed = ((), ())) -> None:
        """Store the end of a turn; after an error, with a result for each call without one, and with what the
        model had said.

        `lapsed` closes the approval that the turn waited for.
        """
        missing: list[NewEvent] = []
        if outcome.topic == "agent.error":
            # Appends keep their order: after an empty one, what a cancel did not wait for is stored too.
            await self.history.append()
            self.forget_messages()
            missing = missing_results(self.messages)
            if not is_answered(self.messages):
                said, guard = "".join(turn.said), turn.stream.guard
                missing.append(cut_off(outcome, said if guard is None else guard.whole(said)))
        ended = [Change(state="turns", key=turn.trace_id, value=None)]
        if self.record.interrupted and outcome.type == "done":
            self.record = replace(self.record, interrupted="")
            ended.append(self.record.change())
        events, changes = lapsed
        await self.history.append(*missing, *events, outcome, changes=(*changes, *ended))
        if missing:
            self.forget_messages()


def missing_results(messages: Sequence[Message]) -> list[NewEvent]:
    """A result for each call without one; no endpoint accepts the conversation otherwise."""
    return [
        result_event(call.id, call.name, "Error (cancelled): The call was not run.")
        for call in unanswered(messages)
    ]


def is_answered(messages: Sequence[Message]) -> bool:
    """Whether the newest prompt has an answer, or there is no prompt."""
    return not messages or (messages[-1].role == "assistant" and not messages[-1].tool_calls)


def cut_off(outcome: NewEvent, said: str = "") -> NewEvent:
    """The answer of a turn that ended with an error: what was said by then, and the error."""
    said = "" if may_be_call(said) else said  # its arguments may be for the tool alone
    error = f"Error ({outcome.data['code']}): {outcome.data['message']}"
    return message_event(Message(role="assistant", content=said, cut_off=error))


def result_event(call_id: str, name: str, text: str) -> NewEvent:
    """A result made by the daemon instead of a worker, so that every call has one."""
    return message_event(Message(role="tool", content=text, tool_call_id=call_id, name=name))


def session_not_found(session_id: str) -> SessionNotFound:
    """The error for a session that does not exist, or that the caller may not know of."""
    return SessionNotFound(
        f"There is no session {session_id[:60]!r}.", suggestion="Run: lactl sessions list", field="session"
    )


def title_from(text: str) -> str:
    """Make a title from an arbitrary text."""
    first = text.lstrip()[: 4 * TITLE_MAX_CHARS]  # the text may have millions of characters
    return plain(" ".join(first.split()))[:TITLE_MAX_CHARS].strip()
