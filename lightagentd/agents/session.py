"""A session: one conversation of one owner with one agent, its messages and its queue of turns.

The session's record and its messages live in the history; what is in memory can be dropped and read again
at any time. One turn runs at a time; later prompts wait in the queue, which survives a restart.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lightagentd.agents.turn import Step, Turn, unanswered
from lightagentd.agents.uninterrupted import uninterrupted
from lightagentd.errors import AgentNotRunning, InvalidArgument, QueueFull
from lightagentd.events.history import Change, History, NewEvent
from lightagentd.events.model import new_id, within
from lightagentd.llm.protocol import Message

TITLE_CHARS = 60
MAX_HOSTS = 500
"""More hosts a session does not remember: the record is stored again with each of them."""

Lapsed = tuple[Sequence[NewEvent], Sequence[Change]]


@dataclass(frozen=True, kw_only=True)
class SessionRecord:
    """What is stored of a session beside its events."""

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

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> SessionRecord:
        """The record that was stored; those of older versions have no taint and no hosts."""
        return cls(**{**value, "hosts": tuple(value.get("hosts", ()))})

    def to_dict(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "agent": self.agent,
            "owner": self.owner,
            "title": self.title,
            "created_us": self.created_us,
            "updated_us": self.updated_us,
            "turns": self.turns,
            "tainted": self.tainted,
            "tainted_by": self.tainted_by,
            "hosts": list(self.hosts),
        }

    def change(self) -> Change:
        """The change of state that stores this record."""
        return Change(state="sessions", key=self.id, value=self.to_dict())


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
    driver: Callable[[Session, str], AsyncGenerator[Step, None]] | None = field(default=None, repr=False)
    """What `run` goes through: the agent that adopted the session."""
    _messages: list[Message] | None = None

    @property
    def id(self) -> str:
        return self.record.id

    @property
    def messages(self) -> list[Message]:
        """The conversation, read from the history when it is not in memory."""
        if self._messages is None:
            events = self.history.messages(self.id)
            self._messages = [Message.from_dict(event.data) for event in events if event.data]
        return self._messages

    @property
    def waiting(self) -> bool:
        """Whether its turn waits for a person's answer."""
        return self.running is not None and self.running.is_waiting

    def forget_messages(self) -> None:
        self._messages = None

    def context(self, turn: Turn | None = None) -> Any:
        """The event context of this session, and of a turn of it, as a `with` block."""
        return within(
            agent=self.record.agent,
            session=self.id,
            owner=self.record.owner,
            trace_id=turn.trace_id if turn else "",
            correlation_id=turn.correlation_id if turn else "",
            request_id="",
        )

    def after_call(self, call_id: str, *, taints: bool, host: str) -> tuple[Change, ...]:
        """Note what a call's result means for the calls after it; the changes go with that result.

        `host` is one that it reached and that may be reached again without a question, if any.
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
        """Prompt, and drive the turn: `async for step in session.run("check disk")`; see `Agent.run`."""
        if self.driver is None:
            raise AgentNotRunning(f"The session {self.id} has no agent that runs it.")
        return self.driver(self, text)

    async def enqueue(
        self,
        text: str,
        *,
        correlation_id: str,
        max_queue: int,
        stepwise: bool = False,
        unattended: bool = False,
        outside: bool = False,
    ) -> Turn:
        """Store a prompt and put its turn into the queue. Raises QueueFull, StorageError.

        With `outside` the prompt holds text from outside: it taints the session, from now on.

        When the caller is cancelled meanwhile, the prompt is stored and stays in the queue all the same.
        """
        waiting = len(self.queue) + len(self.storing)
        if waiting >= max_queue:
            raise QueueFull(
                f"{waiting} prompts wait in this session already.",
                suggestion="Wait for their answers, or cancel them.",
            )
        turn = Turn(
            self,
            text,
            trace_id=new_id("trace"),
            correlation_id=correlation_id,
            stepwise=stepwise,
            unattended=unattended,
        )
        self.storing.add(turn.trace_id)
        try:
            await uninterrupted(self._store_prompt(turn, outside=outside))
        except asyncio.CancelledError:
            if stepwise:
                turn.cancel()  # nobody will take its steps
            raise
        return turn

    async def _store_prompt(self, turn: Turn, *, outside: bool) -> None:
        """Appends keep their order, so the queue has the turns in the order of their prompts."""
        title = self.record.title or " ".join(turn.text.split())[:TITLE_CHARS]
        now = time.time_ns() // 1000
        self.record = replace(self.record, title=title, updated_us=now, turns=self.record.turns + 1)
        if outside and not self.record.tainted:
            self.record = replace(self.record, tainted=True, tainted_by=turn.trace_id)
        data = {"text": turn.text}
        with self.context(turn):
            prompt = NewEvent(topic="agent.prompt", type="prompt", data=data, source="agent")
        try:
            await self.history.append(prompt, changes=(self.record.change(), turn_change(turn, "queued")))
            self.queue.append(turn)
        finally:
            self.storing.discard(turn.trace_id)

    async def begin(self, turn: Turn) -> None:
        """Store that a turn begins: its prompt becomes a message of the conversation."""
        messages = self.messages
        missing = self._missing_results()
        message = Message(role="user", content=turn.text)
        started = NewEvent(topic="session.turn", type="started", data={}, source="agent")
        data = NewEvent(topic="agent.message", type="message", data=message.to_dict(), source="agent")
        await self.history.append(*missing, started, data, changes=(turn_change(turn, "running"),))
        if missing:
            self.forget_messages()
        else:
            messages.append(message)

    async def end(self, turn: Turn, outcome: NewEvent, *, lapsed: Lapsed = ((), ())) -> None:
        """Store how a turn ended; after an error, with a result for each call that got none.

        `lapsed` is what to store for the approval that the turn waited for.
        """
        missing: list[NewEvent] = []
        if outcome.topic == "agent.error":
            # Appends keep their order: after an empty one, what a cancel did not wait for is stored too.
            await self.history.append()
            self.forget_messages()
            missing = self._missing_results()
        ended = Change(state="turns", key=turn.trace_id, value=None)
        events, changes = lapsed
        await self.history.append(*missing, *events, outcome, changes=(*changes, ended))
        if missing:
            self.forget_messages()

    def _missing_results(self) -> list[NewEvent]:
        """A result for each call of the conversation that has none: no endpoint takes it otherwise."""
        return [
            result_event(call.id, call.name, "Error (cancelled): The call was not run.")
            for call in unanswered(self.messages)
        ]


def turn_change(turn: Turn, state: str) -> Change:
    """The change of state that keeps an unfinished turn findable after a crash."""
    return turn.change(state)


def result_event(call_id: str, name: str, text: str) -> NewEvent:
    """A result that the daemon gives in a worker's place, so that every call of a conversation has one."""
    message = Message(role="tool", content=text, tool_call_id=call_id, name=name)
    return NewEvent(topic="agent.message", type="message", data=message.to_dict(), source="agent")


def check_prompt(text: str, max_bytes: int) -> None:
    """Raises InvalidArgument for a prompt that is empty, too long or holds a NUL byte."""
    if not text.strip():
        raise InvalidArgument("The prompt is empty.", field="text", suggestion="Say what you want to know.")
    if "\0" in text:
        raise InvalidArgument(
            "The prompt holds a NUL byte.",
            field="text",
            suggestion="Remove it, for example with: tr -d '\\0'",
        )
    if len(text.encode("utf-8", "replace")) > max_bytes:
        raise InvalidArgument(
            f"The prompt is larger than {max_bytes} bytes.", field="text", suggestion="Send less at once."
        )
