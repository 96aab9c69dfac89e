"""The model clients of all agents: which models each one asks, and whether that has changed since.

The registry owns it. An agent gets its clients when it starts, and closes them when it stops; a reload asks
here which agents would get others now.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lightagentd.agents.definition import AgentDefinition
from lightagentd.config import Models
from lightagentd.events.redaction import Redactor
from lightagentd.llm.factory import Recipe, client_of, recipe_of
from lightagentd.llm.metadata.facts import Metadata
from lightagentd.llm.protocol import ModelClient
from lightagentd.skills import SkillCatalog


@dataclass(frozen=True, kw_only=True)
class Clients:
    """An agent's own model and its fallbacks, and behind them those of `[models] fallback`."""

    own: list[ModelClient]
    last_resort: list[ModelClient]


class ModelClients:
    """Makes the clients of agents."""

    def __init__(
        self,
        models: Models,
        metadata: Metadata,
        redactor: Redactor,
        catalog: Callable[[AgentDefinition], Callable[[], SkillCatalog]],
    ) -> None:
        self.models = models
        self._metadata = metadata
        self._redactor = redactor
        self._catalog = catalog
        self._made_of: dict[str, list[Recipe]] = {}

    def take(self, models: Models) -> None:
        """Make clients by another configuration from now on."""
        self.models = models
        self._metadata.take(models)

    def named_by(self, definition: AgentDefinition) -> list[str]:
        """The models that an agent asks, each once; those that it falls back to after the first."""
        front = definition.front
        return list(dict.fromkeys([front.model or self.models.default, *front.fallback]))

    def of(self, definition: AgentDefinition) -> Clients:
        """New clients for an agent that starts. Raises ConfigError."""
        recipes = self._recipes(definition)
        made = [
            client_of(recipe, catalog=self._catalog(definition), redactor=self._redactor)
            for recipe in recipes
        ]
        self._made_of[definition.name] = recipes
        count = len(self.named_by(definition))
        return Clients(own=made[:count], last_resort=made[count:])

    def changed(self, definition: AgentDefinition) -> bool:
        """Whether an agent would get other clients than it has. Raises ConfigError when it would get none."""
        return self._made_of.get(definition.name) != self._recipes(definition)

    def _recipes(self, definition: AgentDefinition) -> list[Recipe]:
        front, own = definition.front, self.named_by(definition)
        at_home = own[0].partition("/")[0]
        found = []
        for model in own:
            # An agent's own address is that of its model's provider, and no other's.
            here = model.partition("/")[0] == at_home
            found.append(
                recipe_of(
                    model,
                    self.models,
                    base_url=front.base_url if here else "",
                    api_key_file=front.api_key_file if here else None,
                    metadata=self._metadata,
                )
            )
        behind = [model for model in dict.fromkeys(self.models.fallback) if model not in own]
        return [*found, *(recipe_of(model, self.models, metadata=self._metadata) for model in behind)]
