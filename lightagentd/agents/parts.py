"""What a running agent works with; the registry makes it anew each time an agent starts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lightagentd.agents import system_prompt
from lightagentd.agents.definition import AgentDefinition
from lightagentd.agents.dispatch import Dispatcher
from lightagentd.agents.toolbox import Toolbox
from lightagentd.config import Limits
from lightagentd.events.history import History
from lightagentd.llm.protocol import ModelClient

BudgetCheck = Callable[[], None]
"""Called before each model call, within the turn's event context; raises BudgetExceeded."""


@dataclass(frozen=True, kw_only=True)
class AgentParts:
    """One agent's definition and its tools of the trade. `clients` are the model, then its fallbacks."""

    definition: AgentDefinition
    clients: Sequence[ModelClient]
    dispatcher: Dispatcher
    history: History
    limits: Limits
    toolbox: Callable[[], Toolbox]
    prompt_folders: Sequence[Path]
    check_budget: BudgetCheck

    @property
    def max_steps(self) -> int:
        return self.definition.front.limits.max_steps or self.limits.max_steps

    @property
    def max_queue(self) -> int:
        return self.definition.front.limits.max_queue or self.limits.max_queue

    @property
    def turn_timeout_s(self) -> float:
        return self.definition.front.limits.turn_timeout_s or self.limits.turn_timeout_s

    def system_prompt(self) -> str:
        return system_prompt.build(self.definition, self.prompt_folders)
