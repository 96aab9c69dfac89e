"""Events: each is handled aside, by one bounded turn in a child session of a conversation.

The conversation is untouched, except through `message.parent`, which the turn always has. It can do nothing
that the conversation's agent may not do, and the options only narrow that. Only so many are at work or wait
at once; who sends more waits, and is refused when that takes too long. So what was taken is never lost, and
a flood takes no memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from lightagentd.agents.choosing import Choice, admit
from lightagentd.agents.content import Content
from lightagentd.agents.definition import TO_PARENT, AgentDefinition
from lightagentd.agents.sessions.copying import said_before
from lightagentd.agents.sessions.session import Session, new_record, title_from
from lightagentd.agents.team.mail import held
from lightagentd.agents.tool_calls.results import message_event
from lightagentd.agents.turn import Asked, Turn
from lightagentd.agents.uninterrupted import uninterrupted
from lightagentd.config.configuration import Limits
from lightagentd.errors import AgentNotFound, ChoiceTooWide, QueueFull
from lightagentd.events.context import own_task
from lightagentd.events.history import Change, History, NewEvent
from lightagentd.events.types.session import SessionCreated
from lightagentd.llm.protocol import Message
from lightagentd.quoted import Prompt
from lightagentd.tool import Effect

if TYPE_CHECKING:
    from lightagentd.agents.agent import Agent
    from lightagentd.agents.registry import Registry

ACTIVATE = ("skill", "activate")
WAIT_S = 10.0
"""How long a sender waits for room."""


@dataclass(frozen=True, kw_only=True)
class Aside:
    """How an event is handled."""

    system_append: str = ""
    initial_messages: Literal["empty", "forked"] | Sequence[Message] = "empty"
    """What the turn knows of before: nothing, the conversation, or these messages."""
    tools_add: Sequence[str] = ()
    """Of the agent's tools (`tool`, `tool.action`), those that it has in spite of `tools_remove`."""
    tools_remove: Sequence[str] = ()
    skills_remove_prefix: str = ""
    allow_activate_skill: bool = True
    sub_agent_name: str = ""
    """The agent that handles it, of those that the conversation's agent may ask; empty for that one."""
    max_steps: int | None = None
    unattended: bool = False
    outside: bool = True
    """Whether text from outside is in it."""
    trigger: str = ""
    """The trigger that sends it, if one does."""
    correlation_id: str = ""
    tools: Sequence[str] | None = None
    """The tools that it has of the agent's, and `message.parent`; all without."""
    alone: bool = False
    """Whether it has `tools` and nothing else at all."""
    effects: tuple[Effect, ...] | None = None
    wait_s: float | None = None
    """How long it waits for room; None for `WAIT_S`."""
    stored_with: Callable[[Session], tuple[Sequence[NewEvent], Sequence[Change]]] = lambda _: ((), ())
    """What to store with its session."""


class Asides:
    """Handles events for the sessions of a registry."""

    def __init__(self, history: History, content: Content, limits: Limits) -> None:
        self._history, self._content, self._limits = history, content, limits
        self._room = asyncio.Semaphore(limits.events_at_once)

    async def send(
        self, registry: Registry, agent: Agent, above: Session, text: str | Prompt, how: Aside
    ) -> Turn:
        """Handle an event beside a conversation; gives the turn once it is stored.

        Raises AgentNotFound, AgentNotRunning, ChoiceTooWide, ToolNotFound, QueueFull, StorageError.
        """
        parent = agent.running_parts().definition
        worker = agent
        if how.sub_agent_name:
            members = self._content.members_of(parent)
            if how.sub_agent_name not in members:
                raise AgentNotFound(
                    f"There is no agent {how.sub_agent_name[:60]!r} that {agent.name} may ask.",
                    field="sub_agent_name",
                    suggestion=f"It may ask: {', '.join(members) or 'none'}.",
                )
            worker = registry.get(members[how.sub_agent_name])
        choice = self._choice(worker.running_parts().definition, how)
        admit(choice, worker.running_parts())
        wait_s = WAIT_S if how.wait_s is None else how.wait_s
        try:
            async with asyncio.timeout(wait_s):
                await self._room.acquire()
        except TimeoutError:
            raise QueueFull(
                f"{self._limits.events_at_once} events are handled now, and none ended in {wait_s:g} s.",
                suggestion="Send it again later. The limit is limits.events_at_once.",
            ) from None
        try:
            prompt = text if isinstance(text, Prompt) else Prompt(text)
            turn = await uninterrupted(self._begin(worker, agent, above, prompt, how, choice))
        except BaseException:
            self._room.release()
            raise
        own_task(self._end(turn), name=f"event-{turn.trace_id}")
        return turn

    async def _begin(
        self, worker: Agent, agent: Agent, above: Session, prompt: Prompt, how: Aside, choice: Choice
    ) -> Turn:
        forked = how.initial_messages == "forked"
        guards = worker.running_parts().shared.policy.rules.guards
        # Where guards may take something out of the prompt, the title is made of what they leave.
        title = "" if guards else title_from(self._history.redactor.text(prompt.question))
        record = replace(
            new_record(worker.name, above.record.owner, title),
            parent=above.id,
            tainted=above.record.tainted if forked else how.initial_messages != "empty" or how.outside,
            tainted_by=(above.record.tainted_by or above.id) if forked else "event",
            hosts=above.record.hosts if worker is agent else (),
        )
        if not record.tainted:
            record = replace(record, tainted_by="")
        session = Session(record, self._history)
        with session.context():
            created = SessionCreated(title=record.title, parent=above.id).event()
            said = await asyncio.to_thread(self._said, above.id, how)
            above.check_there()
            events, changes = how.stored_with(session)
            await self._history.append(created, *said, *events, changes=[record.change(), *changes])
        worker.adopt(session)
        asked = Asked(
            prompt=prompt,
            correlation_id=how.correlation_id,
            trigger=how.trigger,
            unattended=how.unattended,
            outside=how.outside,
            choice=choice,
            aside=True,
            sent_by=() if worker is agent else (held(agent.running_parts().definition),),
        )
        try:
            return await worker.ask(session, asked)
        except BaseException:
            worker.sessions.pop(session.id, None)
            raise

    def _said(self, above: str, how: Aside) -> list[NewEvent]:
        if how.initial_messages == "forked":
            return said_before(self._history, above)
        if how.initial_messages == "empty":
            return []
        return [message_event(message) for message in how.initial_messages if isinstance(message, Message)]

    def _choice(self, agent: AgentDefinition, how: Aside) -> Choice:
        """Raises ChoiceTooWide for a tool to add that the agent does not have."""
        functions = self._content.toolbox_of(agent.name).functions.values()
        has = [one for one in functions if agent.offers(one.tool, one.name)]
        names = {f"{one.tool}.{one.name}" for one in has} | {one.tool for one in has}
        asked = how.tools_add if how.tools is None else (*how.tools_add, *how.tools)
        if wide := [name for name in asked if name not in names]:
            raise ChoiceTooWide(
                f"The agent {agent.name} does not have the tools {', '.join(wide)[:500]}.",
                field="tools_add" if how.tools is None else "tools",
                suggestion="An event is handled with the agent's tools, and no others.",
            )
        gone = set(how.tools_remove) | (set() if how.allow_activate_skill else {".".join(ACTIVATE)})
        tools = None
        if gone or how.tools is not None:
            only = names if how.tools is None else set(how.tools)
            tools = tuple(
                f"{one.tool}.{one.name}"
                for one in has
                for called in [{one.tool, f"{one.tool}.{one.name}"}]
                if (called & only and not called & gone)
                or called & set(how.tools_add)
                or ((one.tool, one.name) == TO_PARENT and not how.alone)
            )
        skills, prefix = None, how.skills_remove_prefix
        if prefix:
            every = self._content.catalog_of(agent)().skills
            skills = tuple(name for name in every if not name.startswith(prefix))
        most = agent.front.limits.max_steps or self._limits.max_steps
        steps = how.max_steps or min(self._limits.event_steps, most)
        return Choice(
            tools=tools,
            skills=skills,
            effects=how.effects,
            system=how.system_append,
            max_steps=steps,
            alone=how.alone or None,
        )

    async def _end(self, turn: Turn) -> None:
        await turn.over.wait()
        self._room.release()
