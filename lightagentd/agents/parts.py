"""What a running agent works with; the registry makes it anew each time an agent starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lightagentd.agents.definition import AgentDefinition
from lightagentd.agents.model_calls.metering.ledger import Ledger
from lightagentd.agents.planning.prompt import plan_section
from lightagentd.agents.system_prompt import SystemPrompts
from lightagentd.agents.tool_calls.run import Dispatcher
from lightagentd.agents.tool_calls.toolbox import Toolbox
from lightagentd.agents.tool_choice.choice import Offers
from lightagentd.config.configuration import Limits
from lightagentd.events.history import History
from lightagentd.llm.circuit import Circuits
from lightagentd.llm.protocol import ModelClient

if TYPE_CHECKING:
    from lightagentd.agents.sessions.session import Session


@dataclass(frozen=True, kw_only=True)
class AgentParts:
    """One agent's definition and its tools of the trade. `clients` are the model, then its fallbacks;
    `last_resort` are asked when all these are down.
    """

    definition: AgentDefinition
    clients: Sequence[ModelClient]
    dispatcher: Dispatcher
    history: History
    limits: Limits
    prompts: SystemPrompts
    ledger: Ledger
    offers: Offers
    last_resort: Sequence[ModelClient] = ()
    circuits: Circuits = field(default_factory=Circuits)

    def toolbox(self) -> Toolbox:
        """The tools as they are now."""
        return self.dispatcher.toolbox()

    @property
    def max_steps(self) -> int:
        return self.definition.front.limits.max_steps or self.limits.max_steps

    @property
    def max_queue(self) -> int:
        return self.definition.front.limits.max_queue or self.limits.max_queue

    @property
    def turn_timeout_s(self) -> float:
        return self.definition.front.limits.turn_timeout_s or self.limits.turn_timeout_s

    def recording_problems(self) -> list[str]:
        """Why exchanges with its models are not recorded that are to be, as sentences."""
        from lightagentd.llm.recording import Recorder

        clients = (*self.clients, *self.last_resort)
        return [client.problem for client in clients if isinstance(client, Recorder) and client.problem]

    async def system_prompt(self, session: Session) -> str:
        """The system prompt of the session's next turn. Raises StorageError."""
        prompt = await self.prompts.of(self.definition, session.record.owner)
        plan = plan_section(session.plan, self.definition)
        return self.history.redactor.text(f"{prompt}\n\n{plan}" if plan else prompt)
