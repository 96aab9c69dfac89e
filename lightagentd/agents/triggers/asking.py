"""Asks the agent of a trigger: beside the owner's conversation, or in a session of its own.

What happened is text from outside: it follows the question in a block, and taints the session.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightagentd.agents.choosing import Choice
from lightagentd.agents.flows.as_turn import FlowTurn
from lightagentd.agents.flows.flows import Flows
from lightagentd.agents.sessions.session import Session, new_record, title_from
from lightagentd.agents.team.asides import Aside
from lightagentd.agents.turn import Asked, Turn
from lightagentd.config.unattended import Unattended
from lightagentd.errors import PermissionDenied
from lightagentd.events.context import within
from lightagentd.events.history import Change, NewEvent
from lightagentd.events.types.session import SessionCreated
from lightagentd.quoted import Prompt, quoted

if TYPE_CHECKING:
    from lightagentd.agents.agent import Agent
    from lightagentd.agents.registry import Registry

StoredWith = Callable[[Session], tuple[Sequence[NewEvent], Sequence[Change]]]
"""Gives what is to be stored before the question is, in the session where it is asked."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is asked for a trigger."""

    trigger: str
    file: Unattended
    happened: Sequence[Mapping[str, Any]]
    count: int = 1
    missed: int = 0
    agent: str = ""
    """Whom to ask in place of the file's agent."""
    owner: int | None = None
    """In whose name, where that is not the file's owner."""
    granted: bool = True
    """Whether it has the effects of the file without a person."""
    correlation_id: str = ""

    @property
    def prompt(self) -> Prompt:
        """The question, and what happened in a block."""
        first = dict(self.happened[0]) if self.happened else {}
        if self.file.flow is not None:
            given = json.dumps(self.file.inputs_for(first), ensure_ascii=False)
            return Prompt(f"The flow {self.file.flow} runs with {given}.")
        asked = Prompt(self.file.question(first))
        if not first or self.file.handling().on == "unit":
            return asked
        said = "what happened" if self.count == 1 else f"what happened {self.count} times"
        lines = [json.dumps(one, ensure_ascii=False) for one in self.happened]
        if left := self.count - len(lines):
            lines.append(f"… and {left} more")
        if self.missed:
            lines.insert(0, f"({self.missed} of this happened while nobody followed it)")
        return asked.with_blocks(quoted(said, "\n".join(lines)))


class Asking:
    """Makes the turns of triggers."""

    def __init__(self, registry: Registry, flows: Flows) -> None:
        self._registry, self._flows = registry, flows
        self._history = registry.shared.history

    def inputs_of(self, flow: str) -> Collection[str]:
        """Raises NotFound, ConfigError."""
        return self._flows.files.get(flow).inputs.keys()

    async def ask(self, question: Question, stored_with: StoredWith) -> Turn:
        """Ask; gives the turn once it is stored. Raises ConfigError, AgentNotFound, AgentNotRunning,
        PermissionDenied, SessionNotFound, ChoiceTooWide, QueueFull, StorageError.
        """
        file = question.file
        owner = question.owner
        if owner is None:
            owner = file.account(Path(question.trigger)).pw_uid
        if file.flow is not None:
            return await self._run(question, file, file.flow, owner, stored_with)
        agent = self._registry.get(question.agent or file.agent)
        agent.running_parts()
        how, is_unit = file.handling(), file.handling().on == "unit"
        trigger = "" if is_unit or not question.granted else question.trigger
        with within(caller=owner):
            if file.session == "aside":
                aside = Aside(
                    unattended=True,
                    trigger=trigger,
                    tools=how.tools,
                    effects=how.effects,
                    wait_s=0,
                    max_steps=how.max_steps,
                    correlation_id=question.correlation_id,
                    stored_with=stored_with,
                )
                above = agent.current_of(owner) or await self._made(agent, owner, "", current=True)
                asides = self._registry.shared.asides
                return await asides.send(self._registry, agent, above, question.prompt, aside)
            session = await self._session(agent, owner, question, stored_with)
            choice = Choice(tools=how.tools, effects=how.effects, max_steps=how.max_steps)
            asked = Asked(
                prompt=question.prompt,
                correlation_id=question.correlation_id,
                unattended=True,
                trigger=trigger,
                outside=not is_unit,
                choice=choice,
            )
            return await agent.ask(session, asked)

    async def _run(
        self, question: Question, file: Unattended, flow: str, owner: int, stored_with: StoredWith
    ) -> Turn:
        """Have a flow run. Its inputs come from outside."""
        first = dict(question.happened[0]) if question.happened else {}
        run = await self._flows.run(
            flow,
            file.inputs_for(first),
            owner,
            unattended=True,
            trigger=question.trigger if question.granted else "",
            tainted=True,
            stored_with=stored_with,
        )
        return FlowTurn(run)

    async def _session(
        self, agent: Agent, owner: int, question: Question, stored_with: StoredWith
    ) -> Session:
        """Where it is asked, after storing what goes with it."""
        wanted, name = question.file.session, question.trigger
        title = title_from(name.replace("@", " ") if "@" in name else f"trigger {name}")
        found = None
        if wanted == "same":
            own = [one for one in agent.sessions.values() if one.record.title == title]
            own = [one for one in own if one.record.owner == owner and not one.record.parent]
            found = max(own, key=lambda one: one.record.updated_us, default=None)
        elif wanted != "new":
            _, found = self._registry.session(wanted)
            if found.record.owner != owner or found.record.agent != agent.name:
                raise PermissionDenied(
                    f"The session {wanted} is not {question.file.owner}'s with the agent {agent.name}.",
                    suggestion=f"See: lactl sessions list --agent {agent.name}",
                )
        if found is None:
            return await self._made(agent, owner, title, stored_with=stored_with)
        events, changes = stored_with(found)
        if events:
            await self._history.append(*events, changes=changes)
        return found

    async def _made(
        self,
        agent: Agent,
        owner: int,
        title: str,
        *,
        current: bool = False,
        stored_with: StoredWith = lambda _: ((), ()),
    ) -> Session:
        record = new_record(agent.name, owner, title)
        session = Session(record, self._history)
        changes = [record.change(), *([record.current_change()] if current else [])]
        with session.context():
            events, more = stored_with(session)
            created = SessionCreated(title=record.title).event()
            await self._history.append(created, *events, changes=[*changes, *more])
        agent.adopt(session)
        if current:
            agent.take_current(session)
        return session
