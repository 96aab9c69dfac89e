"""Child sessions: a turn asks another agent, in a session of its own that belongs to the same owner.

A child can do nothing that its parent could not do now (`Origin.line`): tools, effects, hosts and plan mode
are checked for each agent of the line, what it uses counts for all of them, and its time is at most what they
have left. It begins with the taint of its parent, and what it answers taints the parent as it is tainted
itself. A child ends with the turn that made it, in whatever way that ends.

A turn that waits for a child which asks a person is stored as waiting, together with the question. After a
restart the child is held until the turn above it is taken up; a child that no turn takes up is ended.

The daemon makes one `Children`, and the registry binds it to the agents.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lightagentd.agents.choosing import NOTHING, Choice
from lightagentd.agents.definition import AgentDefinition
from lightagentd.agents.sessions.copying import said_before
from lightagentd.agents.sessions.recovery import end_stored, recover
from lightagentd.agents.sessions.session import Session, SessionRecord, new_record, title_from
from lightagentd.agents.team.prompt import shortest
from lightagentd.agents.tool_calls.origin import Origin
from lightagentd.agents.turn import Asked, Child, Join, Turn
from lightagentd.agents.uninterrupted import uninterrupted
from lightagentd.config.configuration import Limits
from lightagentd.errors import (
    AgentNotFound,
    Cancelled,
    ChildFailed,
    ChildRefused,
    Conflict,
    LightagentError,
    LimitExceeded,
    Refused,
    SessionNotFound,
)
from lightagentd.events.history import History
from lightagentd.events.queries import Filter
from lightagentd.events.types.session import SessionCreated, SessionTransferred
from lightagentd.policy.questions.asked import AllQuestions
from lightagentd.policy.questions.questions import Suspended
from lightagentd.quoted import Prompt

if TYPE_CHECKING:
    from lightagentd.agents.agent import Agent

_ENDED = Cancelled("The turn that made this child session ended.")
_STOPPED = Cancelled("The agent that had asked stopped it.")
_LOST = Cancelled("The daemon stopped, and the turn that made this child session did not go on.")


class Children:
    """Makes, joins and ends the children of turns."""

    def __init__(
        self,
        history: History,
        limits: Limits,
        asked: AllQuestions,
        members: Callable[[AgentDefinition], Mapping[str, str]],
    ) -> None:
        """`members` gives the agents that an agent may ask, as `Content.members_of` does."""
        self._history, self._limits, self._asked = history, limits, asked
        self.members = members
        self._agent: Callable[[str], Agent] | None = None
        self._held: dict[str, tuple[Agent, Turn]] = {}
        """By session, the children that wait for a person since an earlier run, and for the turn above."""
        self._open = asyncio.Event()
        """Set when all agents have started."""

    def bind(self, agent: Callable[[str], Agent]) -> None:
        """`agent` gives an agent by its name, and raises AgentNotFound."""
        self._agent = agent

    async def started(self, name: str) -> Agent:
        """An agent, when all have started. Raises AgentNotFound."""
        await self._open.wait()
        assert self._agent is not None
        return self._agent(name)

    async def transfer(self, session: Session, to: str, note: str) -> Agent:
        """Give a conversation to an agent that the session's own may ask, or back to that one.

        Raises AgentNotFound, Refused, Conflict, AgentNotRunning, SessionNotFound, StorageError.
        """
        record, history = session.record, self._history
        if record.parent:
            raise Refused("Only a person's conversation is handed over.", suggestion="Ask the agent instead.")
        own = await self.started(record.agent)
        members = self.members(own.running_parts().definition)
        real = record.agent if to == record.agent else members.get(to, "")
        if not real:
            raise AgentNotFound(
                f"There is no agent {to[:60]!r} that can have this conversation.",
                suggestion=f"There are: {', '.join([record.agent, *shortest(members)])}.",
                field="agent",
            )
        if real == (record.holder or record.agent):
            raise Conflict(f"The agent {real} has the conversation already.")
        agent = await self.started(real)
        agent.running_parts()
        with session.context(session.running):
            event = SessionTransferred(to_agent=real, note=history.redactor.text(note)).event()
        await session.change(event, holder="" if real == record.agent else real)
        return agent

    # Making

    async def make(
        self, origin: Origin, call_id: str, name: str, text: str, *, forked: bool, choice: Choice = NOTHING
    ) -> Child:
        """Ask another agent for the call of a turn, or with a `choice` the same one; the child that this call
        made already, after a restart.

        Raises AgentNotFound, ChildRefused, LimitExceeded, AgentNotRunning, Panicked, StorageError.
        """
        parent = _turn(origin)
        made = next((one for one in parent.children.values() if one.call_id == call_id), None)
        if made is not None:
            return made
        agent = self._member(origin, name, choice)
        agent.running_parts()
        async with parent.makes_child:
            await self._room(origin)
            child = await uninterrupted(self._make(origin, agent, call_id, text, forked))
            await self.prompt(origin, child, text, choice)
        return child

    def _member(self, origin: Origin, name: str, choice: Choice) -> Agent:
        if choice != NOTHING and self._agent is not None:
            if any(one.turn is not None and one.turn.choice == choice for one in origin.line):
                chain = f"{origin.chain} → {name}"
                raise ChildRefused(f"This skill is at work already: {chain}.", suggestion="Do it yourself.")
            return self._agent(name)
        members = self.members(origin.agent)
        real = members.get(name, name)
        if real in [one.agent.name for one in origin.line if one.turn is not None]:
            raise ChildRefused(
                f"The agent {real} waits for this answer itself: {origin.chain} → {real}.",
                suggestion="Ask another agent, or do it yourself.",
            )
        if name not in members or self._agent is None:
            raise AgentNotFound(
                f"There is no agent {name[:60]!r} that {origin.agent.name} may ask.",
                suggestion=f"It may ask: {', '.join(shortest(members)) or 'none'}.",
                field="agent",
            )
        return self._agent(real)

    async def _room(self, origin: Origin) -> None:
        """Wait until another child may work. Raises LimitExceeded where there may be no more of them."""
        parent, limits = _turn(origin), self._limits
        if len(origin.line) > limits.child_depth:
            raise LimitExceeded(
                f"The agents that ask each other are {len(origin.line)} already: {origin.chain}.",
                suggestion="Do it yourself, or say what is missing. The limit is limits.child_depth.",
            )
        if len(parent.children) >= limits.children:
            raise LimitExceeded(
                f"This turn has made {len(parent.children)} child sessions already.",
                suggestion="Go on with what they answered. The limit is limits.children.",
            )
        while sum(child.busy for child in parent.children.values()) >= limits.children_at_once:
            await parent.child_changed()

    async def _make(self, origin: Origin, agent: Agent, call_id: str, text: str, forked: bool) -> Child:
        parent = _turn(origin)
        above = parent.session.record
        # Where guards may take something out of the text, the title is made of what they leave.
        guards = agent.running_parts().shared.policy.rules.guards
        title = "" if guards else title_from(self._history.redactor.text(text))
        record = replace(
            new_record(agent.name, above.owner, title),
            parent=above.id,
            of_turn=parent.trace_id,
            of_call=call_id,
            tainted=origin.tainted,
            tainted_by=next((one.tainted_by for one in _records(origin) if one.tainted), ""),
            hosts=tuple(host for host in above.hosts if origin.knows(host)),
        )
        session = Session(record, self._history)
        with session.context():
            created = SessionCreated(title=record.title, parent=above.id, of_turn=parent.trace_id).event()
            said = await asyncio.to_thread(said_before, self._history, above.id) if forked else []
            parent.session.check_there()
            await self._history.append(created, *said, changes=[record.change()])
        agent.adopt(session)
        child = Child(agent=agent, session=session, call_id=call_id)
        parent.children[session.id] = child
        return child

    async def prompt(self, origin: Origin, child: Child, text: str, choice: Choice = NOTHING) -> None:
        """Give a child a prompt. Raises QueueFull, AgentNotRunning, SessionNotFound, StorageError."""
        parent = _turn(origin)
        asked = Asked(
            prompt=Prompt(text),
            correlation_id=parent.correlation_id,
            unattended=parent.unattended,
            trigger=parent.trigger,
            outside=origin.tainted,
            above=parent,
            choice=choice,
        )
        child.turns.append(await child.agent.ask(child.session, asked))

    # Joining

    def child(self, origin: Origin, session_id: str) -> Child:
        """A child of the turn. Raises SessionNotFound."""
        parent = _turn(origin)
        if session_id not in parent.children:
            raise SessionNotFound(
                f"There is no child {session_id[:60]!r} of this turn.",
                suggestion=f"There are: {', '.join(parent.children) or 'none'}.",
                field="id",
            )
        return parent.children[session_id]

    async def join(
        self,
        origin: Origin,
        join: Join,
        made: Callable[[], Awaitable[list[Child]]],
        in_order: Callable[[], Awaitable[None]],
    ) -> list[Child]:
        """Make or find children, and wait until they have answered all that they were asked, and until it is
        the call's turn to store a result. If the call is cancelled, they end.

        Raises what `made` raises; Suspended when the daemon stops while one of them asks a person;
        StorageError.
        """
        parent = _turn(origin)
        children: list[Child] = []
        with parent.joining(join):
            try:
                children += await made()
                join.turns.extend(turn for child in children for turn in child.turns)
                parent.set_clocks()
                for turn in join.turns:
                    await turn.over.wait()
                if any(turn.stays for turn in join.turns):
                    raise Suspended
                await in_order()
            except asyncio.CancelledError:
                stays = self._asked.suspended and not parent.cancelled
                await uninterrupted(_end(children, _ENDED, keep_waiting=stays))
                raise
        await self._taint(origin, join.call_id, children)
        return children

    async def _taint(self, origin: Origin, call_id: str, children: Sequence[Child]) -> None:
        """What a tainted child says taints the session that asked, before it reads it."""
        if any(child.session.record.tainted for child in children):
            own = replace(origin, above=None)
            if changes := own.after_call(call_id, taints=True, host=""):
                await self._history.append(changes=changes)

    async def answer(self, child: Child) -> str:
        """The answer to the child's last prompt. Raises ChildFailed, StorageError."""
        turn = child.turns[-1] if child.turns else None
        if turn is None:
            return await asyncio.to_thread(_stored_answer, self._history, child)
        if turn.failure is not None:
            raise _failed(child, turn.failure.code, turn.failure.message)
        return turn.answer

    # Ending

    async def stop(self, child: Child) -> None:
        """End what a child does, and wait until it is over."""
        await uninterrupted(_end([child], _STOPPED))

    async def end_of(self, parent: Turn, *, stays: bool) -> None:
        """At the end of a turn: end its children. With `stays` those that wait for a person are suspended."""
        children = [*parent.children.values()]
        await _end(children, _ENDED, keep_waiting=stays)
        for child in children:
            if not any(turn.stays for turn in child.turns):
                child.agent.sessions.pop(child.session.id, None)

    # After a restart

    async def found(self, agent: Agent, session: Session, unfinished: dict[str, dict[str, Any]]) -> None:
        """Take the unfinished turns of a child session that an earlier run left. One that waits for a person
        is held for the turn above it, while the daemon starts; the others end. Raises StorageError.
        """
        left = await recover(session, unfinished)
        for turn in (*left.requeued, *left.resumed):
            if turn in left.resumed and not self._open.is_set():
                self._held[session.id] = agent, turn
            else:
                await end_stored(turn, self._asked, _LOST)
        if session.id not in self._held:
            agent.sessions.pop(session.id, None)

    async def open(self) -> None:
        """All agents have started: end the children that no turn will take up. Raises StorageError."""
        self._open.set()
        turns = self._history.queries.state("turns")
        for session_id, (agent, turn) in [*self._held.items()]:
            if turns.get(turn.session.record.of_turn, {}).get("state") != "waiting":
                del self._held[session_id]
                await end_stored(turn, self._asked, _LOST)
                agent.sessions.pop(session_id, None)

    async def resume(self, parent: Turn) -> None:
        """Give a turn that goes on after a restart its children back, and have those go on that wait for a
        person. Raises StorageError.
        """
        await self._open.wait()
        records = await asyncio.to_thread(self._records_of, parent)
        unfinished = self._history.queries.state("turns")
        for record in records:
            child = self._child_of(record)
            if child is None:
                continue
            parent.children[record.id] = child
            _, turn = self._held.pop(record.id, (None, None))
            if turn is not None and turn.trace_id in unfinished:
                child.session, turn.above = turn.session, parent
                child.turns.append(turn)
                child.agent.adopt(turn.session).queue.append(turn)
                child.agent.go_on(turn.session)

    def _child_of(self, record: SessionRecord) -> Child | None:
        """A child of an earlier run; None if its agent is gone."""
        try:
            agent = self._agent(record.agent) if self._agent is not None else None
        except LightagentError:
            return None
        session = Session(record, self._history)
        return None if agent is None else Child(agent=agent, session=session, call_id=record.of_call)

    def _records_of(self, parent: Turn) -> list[SessionRecord]:
        stored = self._history.queries.state("sessions").values()
        found = [SessionRecord.from_dict(one) for one in stored if one.get("of_turn") == parent.trace_id]
        return sorted(found, key=lambda one: one.created_us)


async def _end(children: Sequence[Child], why: LightagentError, *, keep_waiting: bool = False) -> None:
    """Cancel the turns of children and wait until they are over; with `keep_waiting` those that wait for a
    person are suspended, since the daemon stops.
    """
    for child in children:
        for turn in child.turns:
            if not (keep_waiting and turn.is_waiting):
                turn.cancel(why)
        child.agent.go_on(child.session)
    for turn in [turn for child in children for turn in child.turns]:
        await turn.over.wait()


def _turn(origin: Origin) -> Turn:
    assert origin.turn is not None
    return origin.turn


def _records(origin: Origin) -> list[SessionRecord]:
    return [one.session.record for one in origin.line if one.session is not None]


def _failed(child: Child, code: str, message: str) -> ChildFailed:
    return ChildFailed(
        f"The agent {child.session.record.agent} did not answer ({code}): {message}",
        suggestion="Go on without its answer, or ask for less.",
    )


def _stored_answer(history: History, child: Child) -> str:
    """The answer of a child that ended in an earlier run of the daemon. Raises ChildFailed."""
    session = child.session.id
    ends = [
        event
        for topic in ("agent.error", "session.turn")
        for event in history.queries.newest(Filter(session=session, topic=topic), 1)
    ]
    last = max(ends, key=lambda event: event.seq, default=None)
    if last is None or last.topic == "agent.error":
        data = (last.data if last is not None else None) or {}
        code, message = str(data.get("code", "interrupted")), str(data.get("message", "It did not begin."))
        raise _failed(child, code, message)
    messages = history.queries.newest_messages(session, 1)
    return str((messages[-1].data or {}).get("content", "")) if messages else ""
