"""Messages between the agents of one owner's sessions: each waits in the mailbox of a session.

A session's turn reads them before its next model call. Where no turn runs, one begins with the oldest; it can
do nothing that the sender could not do when it sent it, and what it may do now. Each message counts one hop
more than the turn that sent it, so that two agents cannot talk for ever. What waits survives a restart, and
a session that is paused or whose agent does not run reads its messages later.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightagentd.agents.choosing import NOTHING, narrowed
from lightagentd.agents.definition import AgentDefinition, AgentFrontMatter
from lightagentd.agents.team.prompt import shortest
from lightagentd.agents.tool_calls.origin import Origin
from lightagentd.agents.tool_calls.results import message_event
from lightagentd.agents.turn import Asked, Turn
from lightagentd.config.configuration import Limits
from lightagentd.errors import AgentNotFound, LightagentError, LimitExceeded, QueueFull, Refused
from lightagentd.events.context import own_task, within
from lightagentd.events.history import Change, History
from lightagentd.events.model import new_id
from lightagentd.events.store.states import checked, decoding
from lightagentd.events.types.session import MessageSent
from lightagentd.llm.protocol import Message
from lightagentd.quoted import Prompt

if TYPE_CHECKING:
    from lightagentd.agents.agent import Agent
    from lightagentd.agents.sessions.session import Session

_log = logging.getLogger(__name__)

PARENT = "parent"
"""To whom a child session writes, where it names nobody else."""
_MINUTE_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Letter:
    """A message that waits. `by` are the agents that it is from, its sender first, then those above that one:
    `agent`, and what that one had of tools, skills, agents and effects.
    """

    id: str
    session: str
    owner: int
    by: tuple[dict[str, Any], ...]
    sender: str
    """The session that it is from."""
    text: str
    tainted: bool
    unattended: bool
    hops: int
    sent_us: int
    client: str = ""
    """As `EventContext.client`."""

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> Letter:
        """Raises HistoryDamaged."""
        with decoding("mail", str(value.get("id"))):
            checked(value, **dict.fromkeys(("id", "session", "sender", "text", "client"), str), by=list)
            checked(value, owner=int, hops=int, sent_us=int, tainted=bool, unattended=bool)
            for one in value["by"]:
                checked(one, agent=str, effects=list)
            return cls(**{**value, "by": tuple(value["by"])})

    def change(self, *, waits: bool) -> Change:
        value = {**asdict(self), "by": list(self.by)}
        return Change(state="mail", key=self.id, value=value if waits else None)

    @property
    def shown(self) -> str:
        """As the model reads it."""
        return f"[A message of the agent {self.speaker}, not of the user:]\n\n{self.text}"

    @property
    def speaker(self) -> str:
        return str(self.by[0]["agent"])


class Mail:
    """The mailboxes of all sessions."""

    def __init__(
        self,
        history: History,
        limits: Limits,
        members: Callable[[AgentDefinition], Mapping[str, str]],
        definitions: Callable[[], Mapping[str, AgentDefinition]],
    ) -> None:
        """`members` gives the agents that an agent may ask, as `Content.members_of` does."""
        self._history, self._limits = history, limits
        self._members, self._definitions = members, definitions
        self._find: Callable[[str], tuple[Agent, Session]] | None = None
        self._agent: Callable[[str], Agent] | None = None
        self._boxes: dict[str, list[Letter]] | None = None
        self._sent: defaultdict[int, deque[float]] = defaultdict(deque)
        """By owner, when messages were sent within the last minute."""
        self._beginning: dict[str, Letter] = {}
        """By session, the message whose turn is being begun."""

    def bind(self, find: Callable[[str], tuple[Agent, Session]], agent: Callable[[str], Agent]) -> None:
        """`find` gives a session by its id, `agent` an agent by its name; they raise where there is none."""
        self._find, self._agent = find, agent

    def waiting(self, session_id: str) -> list[Letter]:
        """What waits for a session, the oldest first."""
        return [*self._all().get(session_id, ())]

    def above(self, turn: Turn) -> Origin | None:
        """The agents whose message began a turn, as those above it. They have no session here: what theirs
        knew is not known.
        """
        found: Origin | None = None
        for sender in reversed(turn.sent_by):
            definition = partial(self._sender, sender)
            found = Origin(definition=definition, owner=turn.session.record.owner, above=found)
        return found

    def _sender(self, sent: Mapping[str, Any]) -> AgentDefinition:
        """A sender as it was then, without what it has lost since."""
        name = str(sent["agent"])
        front = AgentFrontMatter(**{key: sent[key] for key in _HELD if sent[key] is not None})
        then = AgentDefinition(name=name, front=front, prompt="", path=Path())
        gone = replace(then, front=_NOTHING)
        return narrowed(then, NOTHING, self._definitions().get(name, gone))

    # Sending

    async def send(self, origin: Origin, to: str, text: str) -> Letter:
        """Put a message into the mailbox of a session: that with this id, that which the owner has with this
        agent, or the one above a child. Gives it.

        Raises AgentNotFound, SessionNotFound, Refused, LimitExceeded, QueueFull, StorageError.
        """
        turn = origin.turn
        if turn is None or origin.plan:
            why = "while a plan is drafted" if origin.plan else "outside of a turn"
            raise Refused(f"No message is sent {why}.", suggestion="Say it in your answer.")
        agent, session = self._recipient(origin, to)
        self._check(origin, turn, session)
        letter = Letter(
            id=new_id("msg"),
            session=session.id,
            owner=origin.owner,
            by=tuple(held(one.agent) for one in origin.line),
            sender=turn.session.id,
            text=self._history.redactor.text(text),
            tainted=origin.tainted,
            unattended=turn.unattended,
            hops=turn.hops + 1,
            sent_us=time.time_ns() // 1000,
            client=turn.client,
        )
        self._sent[origin.owner].append(time.monotonic())
        turn.sent += 1
        self._all().setdefault(session.id, []).append(letter)
        try:
            session.check_there()
            about = {"message_id": letter.id, "to_session": session.id, "to_agent": agent.name}
            sent = MessageSent(**about, text=letter.text, hops=letter.hops, tainted=letter.tainted).event()
            await self._history.append(sent, changes=[letter.change(waits=True)])
        except BaseException:
            self._forget(letter)
            raise
        self.wake(agent, session)
        return letter

    def _recipient(self, origin: Origin, to: str) -> tuple[Agent, Session]:
        assert origin.session is not None
        assert self._find is not None
        assert self._agent is not None
        own, members = origin.session.record, self._members(origin.agent)
        if to == PARENT or to == own.parent:
            if not own.parent:
                raise AgentNotFound("No session is above this one.", field="to")
            return self._find(own.parent)
        if to.startswith("ses_"):
            agent, session = self._find(to)
            if session.record.owner == own.owner and agent.name in members.values() and to != own.id:
                return agent, session
        elif name := members.get(to):
            agent = self._agent(name)
            if (current := agent.current_of(own.owner)) is not None:
                return agent, current
            raise AgentNotFound(
                f"The user has no session with the agent {name} that could read it.",
                suggestion="Ask the agent itself: agent_ask.",
                field="to",
            )
        raise AgentNotFound(
            f"There is no agent or session {to[:60]!r} that {origin.agent.name} may write to.",
            suggestion=f"It may write to: {', '.join(shortest(members)) or 'none'}.",
            field="to",
        )

    def _check(self, origin: Origin, turn: Turn, session: Session) -> None:
        """Raises LimitExceeded, QueueFull."""
        limits, now = self._limits, time.monotonic()
        sent = self._sent[origin.owner]
        while sent and sent[0] < now - _MINUTE_S:
            sent.popleft()
        for reached, most, what, name in (
            (turn.hops, limits.message_hops, "messages led to this one without a person", "message_hops"),
            (turn.sent, limits.messages, "messages were sent in this turn already", "messages"),
            (len(sent), limits.messages_per_minute, "messages were sent in a minute", "messages_per_minute"),
        ):
            if reached >= most:
                hint = f"Tell the user what you have found. The limit is limits.{name}."
                raise LimitExceeded(f"{reached} {what}.", suggestion=hint)
        if len(self._all().get(session.id, ())) >= limits.mailbox:
            raise QueueFull(
                f"{limits.mailbox} messages wait for that session already.",
                suggestion="Go on without it. The limit is limits.mailbox.",
            )

    # Reading

    async def deliver(self, turn: Turn) -> None:
        """Give a turn what waits for its session, as messages of its conversation. Raises StorageError."""
        session = turn.session
        letters = [one for one in self.waiting(session.id) if one is not self._beginning.get(session.id)]
        if not letters:
            return
        messages = [Message(role="user", content=one.shown) for one in letters]
        events = [
            message_event(message, speaker=one.speaker)
            for message, one in zip(messages, letters, strict=True)
        ]
        changes = [one.change(waits=False) for one in letters]
        if tainted := next((one for one in letters if one.tainted), None):
            changes += session.after_call(tainted.id, taints=True, host="")
        turn.hops = max(turn.hops, *(one.hops for one in letters))
        await self._history.append(*events, changes=changes)
        for one in letters:
            self._forget(one)
        session.messages.extend(messages)

    def wake(self, agent: Agent, session: Session) -> None:
        """Begin a turn for what waits for a session, if it is idle."""
        busy = session.running or session.queue or session.storing or session.id in self._beginning
        if session.deleted:
            self._all().pop(session.id, None)
        if busy or session.record.paused or session.record.parent or agent.state != "running":
            return  # a child session takes no prompts: its turn reads what comes while it runs
        if letters := self.waiting(session.id):
            self._beginning[session.id] = letters[0]
            own_task(self._begin(agent, session, letters[0]), name=f"mail-{session.id}")

    async def _begin(self, agent: Agent, session: Session, letter: Letter) -> None:
        try:
            asked = Asked(
                prompt=Prompt(letter.shown),
                unattended=letter.unattended,
                outside=letter.tainted,
                letter=letter,
            )
            with within(client=letter.client):
                await agent.ask(session, asked)
            self._forget(letter)
        except LightagentError as err:
            _log.warning("a message waits for the session %s: %s", session.id, err.message)
        finally:
            del self._beginning[session.id]

    def _all(self) -> dict[str, list[Letter]]:
        if self._boxes is None:
            self._boxes = {}
            stored = [Letter.from_dict(one) for one in self._history.queries.state("mail").values()]
            for letter in sorted(stored, key=lambda one: one.sent_us):
                self._boxes.setdefault(letter.session, []).append(letter)
        return self._boxes

    def _forget(self, letter: Letter) -> None:
        box = self._all().get(letter.session, [])
        if letter in box:
            box.remove(letter)
        if not box:
            self._all().pop(letter.session, None)


def held(agent: AgentDefinition) -> dict[str, Any]:
    """What an agent has now, for `Letter.by`."""
    front = agent.front.model_dump(mode="json", include=set(_HELD))
    return {"agent": agent.name, **front}


_HELD = ("tools", "skills", "agents", "effects")
_NOTHING = AgentFrontMatter(tools=[], skills=[], agents=[], effects=[])
"""What an agent may do that is gone."""
