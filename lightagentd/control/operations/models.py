"""The operations on models: the list, the facts, and tests.

A caller who may inspect an agent sees its models. A test costs the owner of the key money. A caller who may
prompt an agent may test its first model; other models are for administrators.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from lightagentd import api
from lightagentd.agents.model_calls.metering.ledger import Whose
from lightagentd.agents.model_calls.metering.meter import Meter
from lightagentd.agents.model_calls.trial import Seen, try_model
from lightagentd.control.authz import Caller
from lightagentd.control.operations.access import Access
from lightagentd.control.operations.declared import Operations, method
from lightagentd.control.presentation import shown
from lightagentd.errors import ConfigError, InvalidArgument, NotFound, StorageError
from lightagentd.events.context import within
from lightagentd.events.types.daemon import ModelsRefreshed
from lightagentd.llm.circuit import endpoint_of_url
from lightagentd.llm.factory import Recipe, client_of, recipe_of
from lightagentd.llm.local import LocalServer, found_at, found_locally, served
from lightagentd.llm.metadata.facts import CONFIGURATION, Facts
from lightagentd.llm.metadata.price import Price
from lightagentd.llm.protocol import ModelClient
from lightagentd.llm.providers import RUNBOOK, known_provider, provider_at
from lightagentd.policy.operation import Operation

if TYPE_CHECKING:
    from lightagentd.agents.definition import AgentDefinition
    from lightagentd.config.models import Models as ModelSettings
    from lightagentd.daemon.runtime import Runtime

OPENAI = "openai"
"""The protocol of all servers that are found on this machine."""
READY, UNUSABLE, PAUSED, FOUND, KNOWN = "ready", "unusable", "paused", "found", "known"
UNREACHABLE = "unreachable"
_PRESENT, _MISSING, _NOT_NEEDED = "present", "missing", "not needed"


@dataclass(frozen=True, kw_only=True)
class _State:
    """Whether an endpoint can be used."""

    state: str = READY
    problem: str = ""
    suggestion: str = ""
    key: str = _NOT_NEEDED
    kind: str = ""
    base_url: str = ""
    window: int | None = None


class Models(Operations, interface="org.lightagent1.Models"):
    """The language models: which are in use, what is known of them, and whether they work."""

    def __init__(self, access: Access, runtime: Runtime) -> None:
        self._access, self._now, self._panic = access, runtime.now, runtime.panic
        self._registry, self._history = runtime.registry, runtime.history
        self._shared = runtime.registry.shared

    @method("List", returns="models")
    async def listed(self, caller: Caller, *, provider: str = "", all_: bool = False) -> list[api.Model]:
        """The models that agents or the configuration name. With provider, those of that one that anything is
        known of, and those that it lists itself if it is on this machine, or configured with a base URL
        without TLS; with all, those of every configured provider, too.
        """
        caller = await self._access.admit(caller, Operation.INSPECT)
        in_use = await self._in_use(caller)
        if provider:
            names = await asyncio.to_thread(self._known_of, [provider])
            names += [f"{provider}/{model}" for model in await self._served(provider)]
            names += [model for model in in_use if model.partition("/")[0] == provider]
            if not names:
                raise NotFound(
                    f"No models of the provider {provider[:60]!r} are known.",
                    field="provider",
                    suggestion=f"Known are those of: {', '.join(self._shared.metadata.providers())}.",
                )
        else:
            names = [*in_use]
            if all_:
                names += await asyncio.to_thread(self._known_of, [*self._models.providers])
        models = dict.fromkeys(names)
        return await asyncio.to_thread(lambda: [self._info(model, in_use) for model in models])

    @method("Providers", returns="providers")
    async def providers(self, caller: Caller) -> list[api.ModelProvider]:
        """The endpoints: those of the configuration and of the environment, servers on this machine, and
        what answers at the addresses of models.look_at.
        """
        caller = await self._access.admit(caller, Operation.INSPECT)
        in_use = await self._in_use(caller)
        of_models = {model.partition("/")[0] for model in in_use} - {RUNBOOK}
        names = dict.fromkeys([*self._models.providers, *sorted(of_models)])
        used = await asyncio.to_thread(lambda: [self._provider(name, in_use) for name in names])
        taken = {endpoint_of_url(each.base_url) for each in used}
        here, there = await asyncio.gather(found_locally(), found_at(self._models.look_at))
        for one in (*here, *there):
            if (endpoint := endpoint_of_url(one.base_url)) not in taken:
                taken.add(endpoint)
                used.append(self._offered(one))
        return used

    @method("Show", returns="model")
    async def show(self, caller: Caller, model: str) -> api.Model:
        """One model, PROVIDER/MODEL, whether it is in use or not."""
        caller = await self._access.admit(caller, Operation.INSPECT)
        in_use = await self._in_use(caller)
        if model not in in_use and await asyncio.to_thread(self._shared.metadata.facts, model) is None:
            provider = model.partition("/")[0]
            which = f"--provider {provider}" if known_provider(provider) else "--all"
            raise NotFound(
                f"Nothing is known of the model {model[:80]!r}, and no agent uses it.",
                field="model",
                suggestion=f"Models are written PROVIDER/MODEL. Run: lactl models list {which}",
            )
        return await asyncio.to_thread(self._info, model, in_use)

    @method("Test", returns="report")
    async def test(self, caller: Caller, *, model: str = "", agent: str = "") -> api.ModelTest:
        """Make one real call with a function, which nothing runs, and say what was seen. It is counted like
        any other call. Without model the one of agent, or the default. A model that no agent uses is for
        administrators to test.
        """
        if model and agent:
            raise InvalidArgument(
                "Name a model or an agent, not both.",
                field="agent",
                suggestion="With an agent it is the model that this asks first, at the agent's own address.",
            )
        if not agent:
            model = model or self._models.default
            agent = await self._agent_with(caller, model)
        caller = await self._access.admit(
            caller, Operation.PROMPT if agent else Operation.ADMINISTER, agent=agent
        )
        await self._access.check_open(caller)
        self._panic.check()
        recipe = await asyncio.to_thread(self._recipe_to_test, model, agent)
        client = client_of(
            recipe, catalog=lambda: self._shared.content.skills, redactor=self._history.redactor
        )
        meter = Meter(self._shared.ledger, Whose(agent=agent, owner=caller.uid))
        try:
            with within(agent=agent, owner=caller.uid):
                seen = await try_model(client, meter)
            if (circuit := self._shared.circuits.of(client)) is not None:
                circuit.answered("")
        finally:
            await client.close()
        endpoint = endpoint_of_url(recipe.settings.base_url) if recipe.settings is not None else ""
        return self._report(client, agent, endpoint, seen)

    @method("Refresh", returns="refreshed")
    async def refresh(self, caller: Caller, data: str) -> api.ModelsRefreshed:
        """Take another table of models: JSON in the shape of https://models.dev/api.json. It stays until the
        next one. The daemon itself fetches nothing.
        """
        caller = await self._access.admit(caller, Operation.ADMINISTER)
        metadata = self._shared.metadata
        before = {model: metadata.facts(model) for model in self._registry.models_in_use()}
        try:
            reading = await asyncio.to_thread(metadata.store, data)
        except OSError as err:
            raise StorageError(
                f"The table of models cannot be stored: {err.strerror or err}.",
                suggestion="Look at the disk of the daemon's state folder.",
            ) from err
        metadata.taken()
        await asyncio.to_thread(metadata.load, [*before])
        changes = [
            change for model, old in before.items() for change in _changes(model, old, metadata.facts(model))
        ]
        providers, models = len(reading.table), reading.models
        message = f"{models} models of {providers} providers"
        await self._history.append(
            ModelsRefreshed(message=message, by=caller.uid, providers=providers, models=models).event()
        )
        return api.ModelsRefreshed(providers=providers, models=models, changes=changes)

    # What there is

    async def _in_use(self, caller: Caller) -> dict[str, list[str]]:
        """The models in use, each with its agents that the caller may inspect."""
        found = self._registry.models_in_use()
        seen = await self._access.inspectable(
            caller, {agent for agents in found.values() for agent in agents}
        )
        return {
            model: [agent for agent in agents if agent in seen]
            for model, agents in found.items()
            if model == self._models.default or not agents or seen & set(agents)
        }

    async def _served(self, provider: str) -> list[str]:
        """The models that a provider on this machine lists, or one in its network that is configured."""
        with contextlib.suppress(ConfigError):
            recipe = await asyncio.to_thread(recipe_of, f"{provider}/-", self._models)
            if (settings := recipe.settings) is not None and recipe.recording is None:
                key = {"Authorization": f"Bearer {settings.api_key}"} if settings.api_key else {}
                configured = provider in self._models.providers
                return await served(settings.base_url, settings.headers | key, anywhere=configured)
        return []

    def _known_of(self, providers: Iterable[str]) -> list[str]:
        return [facts.model for one in providers for facts in self._shared.metadata.known_of(one)]

    def _info(self, model: str, in_use: dict[str, list[str]]) -> api.Model:
        provider = model.partition("/")[0] if model != RUNBOOK else ""
        facts = self._shared.metadata.facts(model) or Facts(model=model)
        state = self._state(model, in_use[model]) if model in in_use else _State(state=KNOWN)
        window, origin = facts.context_tokens, facts.origins.get("context_tokens", "")
        if state.window not in (None, facts.window_tokens):
            window, origin = state.window, CONFIGURATION
        return shown(
            api.Model,
            facts,
            provider=provider,
            state=state.state,
            problem=state.problem,
            suggestion=state.suggestion,
            default=model == self._models.default,
            agents=sorted(in_use.get(model, [])),
            context_tokens=window,
            context_from=origin,
            price=_price(facts),
            facts_from=facts.origin,
        )

    def _provider(self, name: str, in_use: dict[str, list[str]]) -> api.ModelProvider:
        model = next((one for one in in_use if one.partition("/")[0] == name), f"{name}/MODEL")
        state = self._state(model, in_use.get(model, ()))
        known = len(self._shared.metadata.known_of(name))
        return shown(api.ModelProvider, state, name=name, known_models=known, models=[])

    def _offered(self, server: LocalServer) -> api.ModelProvider:
        found = _State(state=FOUND, kind=OPENAI, suggestion=server.how_to_use if server.kind else "")
        if not server.reached:
            problem = f"No model server answers at {server.base_url.removesuffix('/v1')} (models.look_at)."
            found = _State(
                state=UNREACHABLE, problem=problem, suggestion="Start it, or correct models.look_at."
            )
        return shown(
            api.ModelProvider,
            found,
            name=server.name,
            base_url=server.base_url,
            known_models=0,
            models=list(server.models),
        )

    def _state(self, model: str, agents: Sequence[str] = ()) -> _State:
        """Whether a model can be used, by one of the agents, without calling it."""
        if model == RUNBOOK:
            return _State(kind=RUNBOOK)
        failure: ConfigError | None = None
        for agent in (*agents, ""):
            try:
                recipe = self._recipe(model, agent)
            except ConfigError as err:
                failure = failure or err
                continue
            return self._endpoint_state(recipe, agent)
        assert failure is not None
        known = known_provider(model.partition("/")[0])
        return _State(
            state=UNUSABLE,
            problem=failure.message,
            suggestion=failure.suggestion,
            key=_MISSING if known is not None and known.keys else _NOT_NEEDED,
        )

    def _endpoint_state(self, recipe: Recipe, agent: str = "") -> _State:
        settings = recipe.settings
        assert settings is not None
        found = _State(
            kind=recipe.kind,
            base_url=_shown_url(settings.base_url),
            key=_PRESENT if settings.api_key else _NOT_NEEDED,
            window=settings.context_tokens,
        )
        configured, known = self._models.providers.get(settings.provider), provider_at(settings.base_url)
        at_home = configured is not None and configured.base_url == settings.base_url
        wanted = configured.api_key_env if configured is not None and at_home else ""
        wanted = wanted or (known.keys[0] if known is not None else "")
        if wanted and not settings.api_key:
            return replace(
                found,
                state=UNUSABLE,
                problem=f"There is no key for the provider {settings.provider!r}.",
                suggestion=f"Set {wanted} in the daemon's environment, or api_key_file in the configuration.",
                key=_MISSING,
            )
        endpoint, model = endpoint_of_url(settings.base_url), f"{settings.provider}/{settings.model}"
        for circuit in self._shared.circuits.states():
            if circuit.endpoint == endpoint and circuit.turns_away(model):
                problem = f"It is left alone after {circuit.failures} failures in a row: {circuit.why}."
                what = f"--agent {agent}" if agent and not at_home else model
                hint = f"Try it now: lactl models test {what}"
                return replace(found, state=PAUSED, problem=problem, suggestion=hint)
        return found

    def _recipe(self, model: str, agent: str) -> Recipe:
        """The settings to reach a model, from an agent or else from the configuration. Raises ConfigError."""
        definition = self._shared.content.definitions.agents.get(agent)
        metadata = self._shared.metadata
        if definition is None:
            return recipe_of(model, self._models, metadata=metadata)
        base_url, api_key_file = self._shared.model_clients.endpoint_of(definition, model)
        return recipe_of(model, self._models, base_url=base_url, api_key_file=api_key_file, metadata=metadata)

    def _first_of(self, definition: AgentDefinition) -> str:
        """The model that an agent asks first."""
        return self._shared.model_clients.named_by(definition)[0]

    @property
    def _models(self) -> ModelSettings:
        return self._now.config.models

    # Tests

    async def _agent_with(self, caller: Caller, model: str) -> str:
        """An agent with this model first that the caller may prompt without authenticating."""
        agents = [
            name
            for name, definition in self._shared.content.definitions.agents.items()
            if self._first_of(definition) == model
        ]
        allowed = await self._access.may_each(caller, Operation.PROMPT, agents)
        return next((agent for agent in agents if agent in allowed), "")

    def _recipe_to_test(self, model: str, agent: str) -> Recipe:
        """The settings for a client that serves one test call.

        Raises ConfigError, AgentNotFound, and InvalidArgument for the runbook.
        """
        if agent:
            self._registry.get(agent)
            model = self._first_of(self._shared.content.definitions.agents[agent])
        recipe = self._recipe(model, agent)
        if recipe.settings is None:
            raise InvalidArgument(
                "The model runbook is a part of the daemon: there is no endpoint to test.",
                field="model",
                suggestion='Try it: lactl prompt AGENT "check disk". Others: lactl models list --all',
            )
        state = self._endpoint_state(recipe)
        if state.state == UNUSABLE:
            raise ConfigError(state.problem, suggestion=state.suggestion)
        return replace(recipe, settings=replace(recipe.settings, max_retries=0))

    def _report(self, client: ModelClient, agent: str, endpoint: str, seen: Seen) -> api.ModelTest:
        reply, redactor = seen.reply, self._history.redactor
        usage, ledger = reply.usage, self._shared.ledger
        checks = [
            api.ModelCheck(name=check.name, seen=check.seen, detail=redactor.text(check.detail))
            for check in seen.checks()
        ]
        return api.ModelTest(
            model=client.name,
            agent=agent,
            endpoint=endpoint,
            duration_ms=reply.duration_ms,
            text=redactor.text(reply.text[:2000]),
            finish_reason=reply.finish.reason,
            prompt_tokens=usage.prompt_tokens if usage else 0,
            completion_tokens=usage.completion_tokens if usage else 0,
            cached_tokens=usage.cached_tokens if usage else 0,
            cost=None if usage is None else ledger.cost(client.name, usage),
            checks=[*checks, *self._known(client)],
        )

    def _known(self, client: ModelClient) -> Sequence[api.ModelCheck]:
        """The known facts about the model, without calling it."""
        facts = self._shared.metadata.facts(client.name) or Facts(model=client.name)
        if client.window_known and client.context_tokens:
            origin = facts.origins.get("context_tokens", "")
            if facts.window_tokens != client.context_tokens:
                origin = CONFIGURATION
            said = f"{client.context_tokens:,} tokens, from: {origin or 'the client'}"
            window = api.ModelCheck(name="window", seen=True, detail=said)
        else:
            said = f'not known; set context_tokens under [models.known."{client.name}"]'
            window = api.ModelCheck(name="window", seen=None, detail=said)
        price = facts.price
        if price is None:
            said = f'not known; set it under [models.prices."{client.name}"]'
            return [window, api.ModelCheck(name="price", seen=None, detail=said)]
        said = f"{price.prompt:g} and {price.completion:g} a million tokens, from: {facts.origins['price']}"
        return [window, api.ModelCheck(name="price", seen=True, detail=said)]


def _price(facts: Facts) -> api.ModelPrice | None:
    price = facts.price
    if price is None:
        return None
    return api.ModelPrice(
        prompt=float(price.prompt),
        completion=float(price.completion),
        cached=None if price.cached is None else float(price.cached),
        cache_write=None if price.cache_write is None else float(price.cache_write),
        origin=facts.origins.get("price", ""),
    )


def _changes(model: str, old: Facts | None, new: Facts | None) -> list[str]:
    """The differences from what was known before, as sentences."""
    found: list[str] = []
    windows = [facts.context_tokens if facts is not None else None for facts in (old, new)]
    if windows[0] != windows[1]:
        found.append(f"{model}: the window is {_tokens(windows[1])} now, and was {_tokens(windows[0])}.")
    prices = [facts.price if facts is not None else None for facts in (old, new)]
    if prices[0] != prices[1]:
        found.append(f"{model}: the price is {_money(prices[1])} now, and was {_money(prices[0])}.")
    return found


def _tokens(window: int | None) -> str:
    return "not known" if window is None else f"{window:,} tokens"


def _money(price: Price | None) -> str:
    return "not known" if price is None else f"{price.prompt:g} and {price.completion:g}"


def _shown_url(url: str) -> str:
    """A URL without its parts that may be secret."""
    with contextlib.suppress(ValueError):
        parts = urlsplit(url)
        return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()
    return ""
