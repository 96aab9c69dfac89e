"""Merges the configuration of models with the environment; the configuration wins.

A configured provider keeps its settings. If it has a known name and neither address nor key, both come from
the table of known providers and from the environment. Providers that are not configured are added: `openai`,
`anthropic` and others with a key in the environment, and `env` for `API_KEY`, `BASE_URL` and `MODEL`. `MODEL`
is the default when the configuration names none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from lightagentd.config.configuration import Config, place_of
from lightagentd.config.models import Models, Provider, wrong_url
from lightagentd.errors import ConfigError
from lightagentd.llm.environment import ADDRESS, IN_ENVIRONMENT, KEY, MODEL, Environment
from lightagentd.llm.providers import (
    KNOWN,
    RUNBOOK,
    KnownProvider,
    kind_by_ending,
    kind_of,
    known_provider,
    unconfigured,
)

UNNAMED = "env"
"""The provider of `API_KEY` and `BASE_URL`."""
_PLACE = "models.providers"


@dataclass(frozen=True, kw_only=True)
class InForce:
    """The configuration in force, the source of each value, and the problems, as sentences."""

    config: Config
    origins: Mapping[str, Path | str]
    problems: tuple[str, ...] = ()
    secrets: tuple[str, ...] = field(default=(), repr=False)
    """The keys that the environment has, used or not."""


def in_force(config: Config, origins: Mapping[str, Path], environment: Environment) -> InForce:
    """The configuration files together with the environment.

    Raises ConfigError, with file and line, for an invalid provider of the configuration.
    """
    found = _Together(config.models, environment)
    for name, provider in config.models.providers.items():
        found.configured(name, provider)
        check_provider(name, found.providers[name], origins)
    for known in KNOWN:
        if known.keys and known.name not in config.models.providers:
            found.from_environment(known)
    found.unnamed()
    default = found.default()
    models = config.models.model_copy(update={"providers": found.providers, "default": default})
    return InForce(
        config=config.model_copy(update={"models": models}),
        origins={**origins, **found.origins},
        problems=(*environment.problems, *found.problems),
        secrets=tuple(environment.secrets()),
    )


def unserved(models: Models) -> dict[str, ConfigError]:
    """The models of `default` and `fallback` without a provider, regardless of keys, with the reason."""
    found = {}
    for model in (models.default, *models.fallback):
        name = model.partition("/")[0]
        if model != RUNBOOK and name not in models.providers:
            try:
                unconfigured(name, models, has_key=True)
            except ConfigError as err:
                found[model] = err
    return found


def check_provider(name: str, provider: Provider, origins: Mapping[str, Path]) -> None:
    """Raises ConfigError when a provider lacks what its kind needs."""
    wrong = _lacking(provider)
    if wrong is not None:
        key, said, suggestion = wrong
        loc = ("models", "providers", name, key)
        raise ConfigError(
            f"{place_of(loc, origins)}: {'.'.join(loc)}: {said}.",
            suggestion=suggestion,
            field=".".join(loc),
        )


def _lacking(provider: Provider) -> tuple[str, str, str] | None:
    """The wrong key, the reason, and a remedy."""
    if provider.kind == "replay" and provider.recording is None:
        return "recording", "a replay needs a recording", "Name the folder that record = … of [models] made."
    if provider.kind != "replay" and provider.recording is not None:
        return "recording", "only the kind replay plays a recording", 'Write kind = "replay", or take it out.'
    if not provider.over_http:
        if provider.base_url:
            said = f"the kind {provider.kind} has no address"
            return "base_url", said, "Take it out, or name another kind."
        return None
    if not provider.base_url:
        return "base_url", "it is missing", 'Write where the endpoint is: base_url = "https://HOST/v1".'
    ending = kind_by_ending(provider.base_url)
    if ending is not None and provider.kind not in ("", ending):
        said = f"it ends as those of the kind {ending} do, but the kind is {provider.kind}"
        return "base_url", said, f'Write kind = "{ending}", or the address up to and with /v1.'
    return None


class _Together:
    """The providers while they are merged."""

    def __init__(self, models: Models, environment: Environment) -> None:
        self.providers: dict[str, Provider] = {}
        self.origins: dict[str, Path | str] = {}
        self.problems: list[str] = []
        self._models = models
        self._environment = environment
        self._made: list[str] = []
        """The names of the providers that the environment alone made, in the order of their variables."""

    def configured(self, name: str, provider: Provider) -> None:
        """A configured provider, with missing settings filled in from its known name."""
        known = known_provider(name)
        if known is not None and provider.over_http and not provider.base_url:
            own_key = provider.api_key_file is not None or provider.api_key_env
            # A configured key goes to the known address, and not to one from the environment.
            url, key = (known.base_url, "") if own_key else self._address_and_key(known)
            provider = self._with(name, provider, url or known.base_url, key)
        elif provider.over_http and provider.base_url and not provider.kind:
            provider = provider.model_copy(update={"kind": kind_of(name, provider.base_url)})
        self.providers[name] = provider

    def from_environment(self, known: KnownProvider) -> None:
        """A known provider with a key or an address in the environment."""
        url, key = self._address_and_key(known)
        if url and (key or url != known.base_url):
            # The variable's name determines the protocol, whatever the address.
            kind = kind_by_ending(url) or known.kind
            self.providers[known.name] = self._with(known.name, Provider(kind=kind), url, key)
            self._made.append(known.name)

    def unnamed(self) -> None:
        """The provider of `API_KEY` and `BASE_URL`."""
        env = self._environment
        url = self._address(ADDRESS)
        if url:
            if UNNAMED in self._models.providers:
                self.problems.append(
                    f"{ADDRESS} is not used: the configuration has a provider {UNNAMED} of its own."
                )
                return
            self.providers[UNNAMED] = self._with(UNNAMED, Provider(), url, KEY if env.get(KEY) else "")
            self._made.insert(0, UNNAMED)
            if not env.get(MODEL) and "default" not in self._models.model_fields_set:
                self.problems.append(
                    f"{ADDRESS} is set without {MODEL}, so that no agent uses it by itself."
                    f' Set {MODEL}, or write default = "{UNNAMED}/NAME" under [models].'
                )
        elif env.get(KEY) and not env.get(ADDRESS):
            self.problems.append(
                f"{KEY} is set without {ADDRESS}, so it is not used."
                f" Set {ADDRESS} too, such as https://HOST/v1, and {MODEL}."
            )

    def default(self) -> str:
        """The model of agents that name none."""
        name = self._environment.get(MODEL)
        if not name or "default" in self._models.model_fields_set:
            return self._models.default
        chosen = self._chosen(name)
        if not chosen and self._environment.get(ADDRESS):
            return self._models.default  # the problem is reported for the address
        if not chosen:
            self.problems.append(
                f"{MODEL} is set, but it does not say whose model that is: set {KEY} and {ADDRESS} with it,"
                " or OPENAI_API_KEY or ANTHROPIC_API_KEY alone, or write PROVIDER/MODEL into it."
            )
            return self._models.default
        self.origins["models.default"] = self._origin(MODEL)
        return chosen

    def _chosen(self, name: str) -> str:
        if UNNAMED in self._made:
            return f"{UNNAMED}/{name}"
        if name.partition("/")[0] in self.providers:
            return name
        if len(self._made) == 1:
            return f"{self._made[0]}/{name}"
        return ""

    def _address_and_key(self, known: KnownProvider) -> tuple[str, str]:
        """The URL of a known endpoint, and the variable with its key; both empty when the environment has an
        invalid address.
        """
        variable = self._environment.first(known.keys)
        if not known.address or not self._environment.get(known.address):
            return known.base_url, variable
        url = self._address(known.address)
        return (url, variable) if url else ("", "")

    def _address(self, variable: str) -> str:
        url = self._environment.get(variable)
        if url and (why := wrong_url(url)):
            self.problems.append(f"{variable} is not used: {why}.")
            return ""
        return url

    def _with(self, name: str, provider: Provider, url: str, variable: str) -> Provider:
        """A provider with an address and the key in a variable; notes its source."""
        update = {"base_url": url, "kind": provider.kind or kind_of(name, url)}
        if variable:
            update["api_key_env"] = variable
            self.origins[f"{_PLACE}.{name}.api_key_env"] = self._origin(variable)
        known = known_provider(name)
        address = ADDRESS if name == UNNAMED else known.address if known is not None else ""
        if address and self._environment.get(address) == url:
            self.origins[f"{_PLACE}.{name}.base_url"] = self._origin(address)
        elif known is not None and url == known.base_url:
            self.origins[f"{_PLACE}.{name}.base_url"] = "known by its name"
        made = provider.model_copy(update=update)
        return made.with_key(self._environment.get(variable)) if variable else made

    def _origin(self, variable: str) -> str:
        """`environment`, or the file, and the variable."""
        place = self._environment.origins[variable]
        return f"{variable} in {'the environment' if place == IN_ENVIRONMENT else place}"
