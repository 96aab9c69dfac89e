"""Sets the model of an agent at run time, in place of the one that its definition names.

The stored state `agents` has the model by the agent's name, and `ModelClients.chosen` has it in memory. It
stays across restarts and reloads until it is taken back, or the agent is deleted. No definition is changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING

from lightagentd.agents.model_calls.clients import Clients, ModelClients
from lightagentd.agents.uninterrupted import uninterrupted
from lightagentd.config.models import wrong_model
from lightagentd.errors import InvalidArgument, LightagentError
from lightagentd.events.context import within
from lightagentd.events.history import Change, History
from lightagentd.events.store.states import decoding
from lightagentd.events.types.daemon import AgentModelSet

if TYPE_CHECKING:
    from lightagentd.agents.agent import Agent
    from lightagentd.agents.registry import Registry

UNSET = "default"
"""Stands for the model of the definition, or of `[models] default`."""
_STATE = "agents"
_MAX_CHARS = 200


def load(clients: ModelClients, history: History) -> None:
    """Read the models that were set before. Raises StorageError."""
    for name, value in history.queries.state(_STATE).items():
        with decoding(_STATE, name):
            clients.chosen[name] = str(value["model"])


async def set_model(registry: Registry, name: str, model: str, *, by: int) -> None:
    """Have an agent ask this model first, from its next turn on; empty or `default` takes that back.

    Raises AgentNotFound, AgentBroken, InvalidArgument, StorageError; ConfigError for a model that cannot be
    used as things are configured. Then the agent keeps the model that it has.
    """
    async with registry.changing:
        await uninterrupted(_set(registry, name, "" if model == UNSET else model, by))


async def _set(registry: Registry, name: str, model: str, by: int) -> None:
    shared, agent = registry.shared, registry.get(name)
    clients, definition = shared.model_clients, shared.content.definitions.agents.get(name)
    definition = definition or agent.running_parts().definition
    model = clients.in_full(definition, model)
    if model and (len(model) > _MAX_CHARS or not model.isprintable() or wrong_model(model)):
        raise InvalidArgument(
            f"{model[:60]!r} is not a model: write runbook, or PROVIDER/MODEL.",
            field="model",
            suggestion="See: lactl models list",
        )
    before = clients.chosen.get(name, "")
    _choose(clients, name, model)
    try:
        await asyncio.to_thread(shared.metadata.load, sorted(registry.models_in_use()))
        made = clients.of(definition)
        with within(agent=name):
            event = AgentModelSet(model=model, by=by).event()
        await shared.history.append(event, changes=(_change(name, model),))
    except LightagentError:
        _choose(clients, name, before)
        raise
    await _exchange(agent, made)
    if agent.state == "stopped" and agent.problem:  # it may have been its model that kept it from starting
        await registry.try_start(name)


async def _exchange(agent: Agent, made: Clients) -> None:
    """Have the next turns use these clients; a turn that runs keeps its own. Closes those without a user."""
    parts, unused = agent.parts, made.all
    if parts is not None:
        agent.parts = replace(parts, clients=made.own, last_resort=made.last_resort, judge=made.judge)
        unused = [] if agent.turns_running else agent.former_clients
        kept = agent.former_clients if agent.turns_running else []
        agent.former_clients = [*kept, *parts.all_clients]
    for client in unused:
        await client.close()


async def forget(clients: ModelClients, history: History, names: Collection[str]) -> None:
    """Agents that are deleted: another one with the name begins anew. Raises StorageError."""
    gone = [name for name in names if clients.chosen.pop(name, "")]
    if gone:
        await history.append(changes=[_change(name, "") for name in gone])


def _choose(clients: ModelClients, name: str, model: str) -> None:
    if model:
        clients.chosen[name] = model
    else:
        clients.chosen.pop(name, None)


def _change(name: str, model: str) -> Change:
    return Change(state=_STATE, key=name, value={"model": model} if model else None)
