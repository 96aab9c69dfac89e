"""The parts that all agents share, and the parts of one running agent.

The daemon makes the shared parts once and closes them. The registry makes an agent's own parts anew each
time the agent starts.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from lightagentd.agents.builtin import Builtins
from lightagentd.agents.choosing import Choice, check_schema_client, narrowed
from lightagentd.agents.content import Content
from lightagentd.agents.definition import AgentDefinition
from lightagentd.agents.ended_turns import EndedTurns
from lightagentd.agents.hooks import Hooks
from lightagentd.agents.model_calls.clients import ModelClients
from lightagentd.agents.model_calls.metering.ledger import Ledger
from lightagentd.agents.planning.plans import Plans
from lightagentd.agents.planning.prompt import plan_section
from lightagentd.agents.skills_prompt import skills_section
from lightagentd.agents.system_prompt import SystemPrompts
from lightagentd.agents.team.asides import Asides
from lightagentd.agents.team.children import Children
from lightagentd.agents.team.mail import Mail
from lightagentd.agents.team.prompt import team_section
from lightagentd.agents.tool_calls.dispatcher import Dispatcher
from lightagentd.agents.tool_calls.toolbox import Toolbox
from lightagentd.agents.tool_choice.choice import Offers
from lightagentd.agents.watches import Watches
from lightagentd.config.configuration import Limits
from lightagentd.events.history import History
from lightagentd.host.paths import Paths, share_folder
from lightagentd.llm.circuit import Circuits
from lightagentd.llm.metadata.facts import Metadata
from lightagentd.llm.protocol import ModelClient
from lightagentd.llm.providers import RUNBOOK
from lightagentd.memory.memories import Memories
from lightagentd.memory.profiles import Profiles
from lightagentd.policy.decide import Policy
from lightagentd.policy.panic import Panic
from lightagentd.policy.questions.asked import AllQuestions
from lightagentd.worker.pool import Pool

if TYPE_CHECKING:
    from lightagentd.agents.confirming.confirmations import Confirmations
    from lightagentd.agents.sessions.session import Session
    from lightagentd.agents.turn import Turn


@dataclass(frozen=True, kw_only=True)
class SharedParts:
    """What all agents of a daemon share (`daemon.shared_parts` makes it)."""

    paths: Paths
    limits: Limits
    history: History
    pool: Pool
    panic: Panic
    content: Content
    policy: Policy
    asked: AllQuestions
    plans: Plans
    metadata: Metadata
    model_clients: ModelClients
    circuits: Circuits
    ledger: Ledger
    memories: Memories
    profiles: Profiles
    prompts: SystemPrompts
    offers: Offers
    builtins: Builtins
    dispatcher: Dispatcher
    hooks: Hooks
    watches: Watches
    children: Children
    mail: Mail
    asides: Asides
    more_prompt: Callable[[Turn], Awaitable[str]] | None = None
    """Gives more text for the system prompt of a turn: that of a program that embeds the agents."""
    ended_turns: EndedTurns = field(default_factory=EndedTurns)

    @property
    def confirmations(self) -> Confirmations:
        return self.dispatcher.confirmations


@dataclass(frozen=True, kw_only=True)
class AgentParts:
    """The parts of one running agent. `clients` are its model, then its fallbacks; `last_resort` are asked
    when all of these are down. Those of a turn (`for_turn`) have less.
    """

    definition: AgentDefinition
    clients: Sequence[ModelClient]
    last_resort: Sequence[ModelClient]
    shared: SharedParts
    judge: ModelClient | None = None
    """The model that judges drafts of plans, where that is not the one that is asked."""
    steps: int | None = None
    """The most steps where that is not what the definition says."""

    @property
    def dispatcher(self) -> Dispatcher:
        return self.shared.dispatcher

    @property
    def toolbox(self) -> Toolbox:
        """The tools, with the agent's own."""
        return self.shared.content.toolbox_of(self.definition.name)

    @property
    def history(self) -> History:
        return self.shared.history

    @property
    def limits(self) -> Limits:
        return self.shared.limits

    @property
    def max_steps(self) -> int:
        return self.steps or self._steps_of(self.definition)

    def _steps_of(self, definition: AgentDefinition) -> int:
        return definition.front.limits.max_steps or self.limits.max_steps

    @property
    def max_queue(self) -> int:
        return self.definition.front.limits.max_queue or self.limits.max_queue

    @property
    def turn_timeout_s(self) -> float:
        return self.definition.front.limits.turn_timeout_s or self.limits.turn_timeout_s

    def for_turn(self, choice: Choice) -> AgentParts:
        """The parts of a turn: narrowed by its choice, and by what the definition lost since the agent
        started. Ask anew for each use.
        """
        now = self.shared.content.definitions.agents.get(self.definition.name, self.definition)
        definition = narrowed(self.definition, choice, now)
        steps = min(self.max_steps, self._steps_of(now), choice.max_steps or self.max_steps)
        if definition is self.definition and steps == self.max_steps:
            return self
        return replace(self, definition=definition, steps=steps)

    def models(self) -> list[str]:
        """The models that a session or a prompt can choose."""
        return list(dict.fromkeys(client.name for client in (*self.clients, *self.last_resort)))

    def clients_for(self, model: str, *, schema: bool = False) -> list[ModelClient]:
        """The agent's model and its fallbacks, with a choice first; one that is gone is ignored. With a
        `schema`, those that can answer with JSON; raises SchemaUnsupported when the first cannot.
        """
        chosen = [client for client in (*self.clients, *self.last_resort) if client.name == model][:1]
        found = [*chosen, *(client for client in self.clients if client not in chosen)]
        if not schema:
            return found
        check_schema_client(found[0])
        return [client for client in found if client.name != RUNBOOK]

    @property
    def all_clients(self) -> list[ModelClient]:
        return [*self.clients, *self.last_resort, *([self.judge] if self.judge is not None else [])]

    def recording_problems(self) -> list[str]:
        """Why the exchanges with its models are not recorded although they should be, as sentences."""
        from lightagentd.llm.recording import Recorder

        return [
            client.problem for client in self.all_clients if isinstance(client, Recorder) and client.problem
        ]

    async def system_prompt(self, session: Session, *more: str) -> str:
        """The system prompt of the session's next turn, with more sections. Raises StorageError."""
        prompt = await self.shared.prompts.of(self.definition, session.record.owner, session.id)
        windows = [client.context_tokens for client in self.clients if client.context_tokens]
        skills = skills_section(
            self.shared.content.catalog_of(self.definition)(),
            self.definition,
            window_tokens=min(windows, default=0),
            shipped=share_folder() / "skills",
        )
        content = self.shared.content
        members = team_section(
            self.definition, content.members_of(self.definition), content.definitions.agents
        )
        sections = (prompt, skills, members, plan_section(session.plan, self.definition), *more)
        return self.history.redactor.text("\n\n".join(filter(None, sections)))
