"""The model clients of all agents: which models each agent asks, and whether a reload changes them.

The daemon makes one `ModelClients`. An agent gets its clients at its start and closes them at its stop. A
reload asks here which agents need new clients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from lightagentd.agents.definition import AgentDefinition
from lightagentd.agents.model_calls.call import store_unwatched
from lightagentd.config.configuration import Models
from lightagentd.errors import ConfigError
from lightagentd.events.history import History
from lightagentd.events.model import EventContext
from lightagentd.events.types.daemon import CircuitClosed, CircuitOpened
from lightagentd.events.types.event_type import EventType
from lightagentd.llm.circuit import CircuitState
from lightagentd.llm.factory import Recipe, client_of, recipe_of
from lightagentd.llm.metadata.facts import Metadata
from lightagentd.llm.protocol import ModelClient
from lightagentd.llm.providers import RUNBOOK
from lightagentd.llm.runbook.machine_names import MachineNames
from lightagentd.redaction import Redactor
from lightagentd.skills import SkillCatalog


@dataclass(frozen=True, kw_only=True)
class Clients:
    """An agent's own model and its fallbacks, followed by those of `[models] fallback`. `judge` is the model
    that judges drafts of plans, if it is one of its own.
    """

    own: list[ModelClient]
    last_resort: list[ModelClient]
    judge: ModelClient | None = None

    @property
    def all(self) -> list[ModelClient]:
        return [*self.own, *self.last_resort, *([self.judge] if self.judge is not None else [])]


class ModelClients:
    """Makes the clients of agents."""

    def __init__(
        self,
        models: Models,
        metadata: Metadata,
        redactor: Redactor,
        catalog: Callable[[AgentDefinition], Callable[[], SkillCatalog]],
        team: Callable[[AgentDefinition], Mapping[str, SkillCatalog]],
    ) -> None:
        """`team` gives the skills of the agents that an agent may ask."""
        self._team = team
        self.models = models
        self._metadata = metadata
        self._redactor = redactor
        self._catalog = catalog
        self._names = MachineNames()
        self._made_of: dict[str, list[Recipe]] = {}
        self._unmade: dict[str, ConfigError] = {}
        self.chosen: dict[str, str] = {}
        """By agent: the model that was set in place of that of its definition (`model_setting`)."""

    def take(self, models: Models) -> None:
        """Use a new configuration for clients made from now on."""
        self.models = models
        self._metadata.take(models)
        self._unmade.clear()

    def problems(self) -> list[str]:
        """The unusable models of `[models] fallback`, as sentences; agents work without them."""
        return [f"Nothing falls back to {model}: {why}" for model, why in self._unmade.items()]

    def named_by(self, definition: AgentDefinition) -> list[str]:
        """The models that an agent asks, each once: its own first, then the fallbacks."""
        first = self.chosen.get(definition.name) or definition.front.model or self.models.default
        return list(dict.fromkeys([first, *definition.front.fallback]))

    def in_full(self, definition: AgentDefinition, model: str) -> str:
        """A model with its provider, which one at the agent's own endpoint need not have."""
        if not definition.front.base_url or "/" in model or model in ("", RUNBOOK):
            return model
        return f"{self._home_of(definition)}/{model}"

    def endpoint_of(self, definition: AgentDefinition, model: str) -> tuple[str, Path | None]:
        """The base_url and the api_key_file of an agent's own definition, which are those of the provider of
        the definition's model, and of no other; empty and None for the others.
        """
        if model.partition("/")[0] != self._home_of(definition):
            return "", None
        return definition.front.base_url, definition.front.api_key_file

    def _home_of(self, definition: AgentDefinition) -> str:
        return (definition.front.model or self.models.default).partition("/")[0]

    def of(self, definition: AgentDefinition) -> Clients:
        """New clients for an agent that starts. Raises ConfigError."""
        own, behind, judge = self._recipes(definition)
        catalog = self._catalog(definition)
        make = partial(
            client_of,
            catalog=catalog,
            redactor=self._redactor,
            names=self._names,
            agent=definition.name,
            team=partial(self._team, definition),
        )
        made = [make(recipe) for recipe in own]
        last_resort = []
        for model, recipe in behind.items():
            try:
                last_resort.append(make(recipe))
            except ConfigError as err:
                self._unmade[model] = err
        self._made_of[definition.name] = [*own, *behind.values(), *judge]
        return Clients(own=made, last_resort=last_resort, judge=make(judge[0]) if judge else None)

    def changed(self, definition: AgentDefinition) -> bool:
        """Whether the agent's clients would differ now. Raises ConfigError when they cannot be made."""
        own, behind, judge = self._recipes(definition)
        return self._made_of.get(definition.name) != [*own, *behind.values(), *judge]

    def _recipes(self, definition: AgentDefinition) -> tuple[list[Recipe], dict[str, Recipe], list[Recipe]]:
        """The recipes of an agent's own models, by model those of the common fallbacks, and that of the judge
        of plans, if it has one.
        """
        front, own = definition.front, self.named_by(definition)
        found = []
        for model in [*own, *front.judge_models]:
            base_url, api_key_file = self.endpoint_of(definition, model)
            found.append(
                recipe_of(
                    model,
                    self.models,
                    base_url=base_url,
                    api_key_file=api_key_file,
                    more_fields=front.more_fields,
                    metadata=self._metadata,
                )
            )
        behind = {}
        for model in self.models.fallback:
            if model not in own:
                try:
                    behind[model] = recipe_of(model, self.models, metadata=self._metadata)
                except ConfigError as err:
                    self._unmade[model] = err  # it keeps no agent from its work
        return found[: len(own)], behind, found[len(own) :]


def store_circuit(history: History, circuit: CircuitState) -> None:
    """Store that an endpoint is skipped, or answers again; the event belongs to no turn."""
    if circuit.state == "closed":
        message = f"The model endpoint {circuit.endpoint} answers again."
        told: EventType = CircuitClosed(endpoint=circuit.endpoint, message=message)
    else:
        message = (
            f"The model endpoint {circuit.endpoint} is left alone for {circuit.open_s:.0f} s: it failed"
            f" {circuit.failures} times in a row; the last time {circuit.why}."
        )
        told = CircuitOpened(
            endpoint=circuit.endpoint,
            failures=circuit.failures,
            open_s=round(circuit.open_s, 3),
            message=message,
        )
    store_unwatched(history, [told.event(context=EventContext())], [])
