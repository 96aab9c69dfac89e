"""Makes the client of a model string: `runbook`, or `PROVIDER/MODEL` with the provider's settings.

A provider is one of those in force (`llm.in_force`), a known one (`llm.providers`), or the `base_url` of an
agent's own definition. A provider's key, headers, certificates and proxy are never used for an agent's own
`base_url`, but the known facts about its models are. Missing settings come from the metadata of the model.

A `Recipe` holds everything that a client is made from: equal recipes make equal clients, so a reload can tell
whether anything changed.
"""

from __future__ import annotations

import importlib
import importlib.util
import urllib.parse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightagentd.config.models import Models, Provider, api_key, credential, read_key
from lightagentd.errors import ConfigError
from lightagentd.llm.protocol import ModelClient, ModelSettings
from lightagentd.llm.providers import RUNBOOK, kind_of, known_provider, provider_at, unconfigured
from lightagentd.llm.runbook.client import RunbookClient
from lightagentd.redaction import Redactor
from lightagentd.skills import SkillCatalog

if TYPE_CHECKING:
    from lightagentd.llm.metadata.facts import Facts, Metadata
    from lightagentd.llm.runbook.machine_names import MachineNames


_DIALECTS = {
    "anthropic": ("messages", "Messages"),
    "openai": ("chat_completions", "ChatCompletions"),
    "openai-responses": ("responses", "Responses"),
}
"""By the kind of a provider: the module of its dialect, and the class."""
_TIMES = ("connect_timeout_s", "idle_timeout_s", "total_timeout_s", "max_retries", "max_retry_s")
_AT_ANY_ADDRESS = (*_TIMES, "max_output_tokens", "native_tools", "thinking_tokens", "context_tokens")
"""What a provider's settings say that is not secret and belongs to no address."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """All inputs of one client. `kind` is `runbook`, or that of a provider."""

    kind: str
    settings: ModelSettings | None = None
    """None for the runbook."""
    recording: Path | None = None
    """The folder with the exchanges to replay."""
    record: Path | None = None
    """Where exchanges are written to."""


def recipe_of(
    model: str,
    models: Models,
    *,
    base_url: str = "",
    api_key_file: Path | None = None,
    more_fields: Mapping[str, Any] | None = None,
    metadata: Metadata | None = None,
) -> Recipe:
    """Collect the inputs of a model's client; `base_url`, `api_key_file` and `more_fields` (for each request)
    are the agent's own.

    Raises ConfigError.
    """
    if model == RUNBOOK:
        return Recipe(kind=RUNBOOK)
    name, _, rest = model.partition("/")
    if not name or not rest:
        raise ConfigError(f"{model!r} is not a model.", suggestion="Write runbook, or PROVIDER/MODEL.")
    if base_url:
        provider = _of_agent(name, base_url, models.providers.get(name))
    else:
        provider = models.providers.get(name) or unconfigured(name, models, has_key=api_key_file is not None)
    key = read_key(api_key_file) if api_key_file else api_key(provider)
    if not (key.isascii() and key.isprintable()):
        raise ConfigError(f"The API key for {model} has characters that no HTTP header can have.")
    return Recipe(
        kind=provider.kind or kind_of(name, provider.base_url),
        settings=_settings(model, provider, key, metadata, more_fields or {}),
        recording=provider.recording,
        record=models.record,
    )


def client_of(
    recipe: Recipe,
    *,
    catalog: Callable[[], SkillCatalog],
    redactor: Redactor,
    names: MachineNames | None = None,
    agent: str = "AGENT",
    team: Callable[[], Mapping[str, SkillCatalog]] = dict,
) -> ModelClient:
    """The client of a recipe; the redactor learns its secrets. `names`, the name of its agent and the skills
    of its `team` are for the runbook.

    Raises ConfigError.
    """
    settings = recipe.settings
    if settings is None:
        return RunbookClient(catalog, names, agent, team)
    _tell(redactor, settings)
    client = _client(recipe.kind, settings, recipe.recording, redactor)
    if recipe.record is None:
        return client
    from lightagentd.llm.recording import Recorder

    return Recorder(client, recipe.record, redactor)


def _client(kind: str, settings: ModelSettings, recording: Path | None, redactor: Redactor) -> ModelClient:
    if ":" in kind:
        from lightagentd.llm.own_client import OwnClient

        return OwnClient(kind, settings)
    if kind == "replay":
        from lightagentd.llm.replay import ReplayClient

        assert recording is not None  # `llm.in_force` has checked it
        return ReplayClient(settings, recording, redactor)
    if settings.proxy.startswith("socks") and importlib.util.find_spec("socksio") is None:
        raise ConfigError(
            f"The proxy of the provider {settings.provider} speaks SOCKS, and the Python package socksio,"
            " which that takes, is not installed.",
            suggestion="Install python3-socksio, or name a proxy that speaks HTTP.",
        )
    from lightagentd.llm.http_client import HttpClient  # with httpx: 0.1 s and some megabytes

    module, name = _DIALECTS.get(kind, _DIALECTS["openai"])
    dialect = getattr(importlib.import_module(f"lightagentd.llm.dialects.{module}"), name)
    return HttpClient(settings, dialect(settings))


def _of_agent(name: str, base_url: str, configured: Provider | None) -> Provider:
    """The endpoint of an agent's own definition. From the provider with its name it takes the settings that
    are not secret and not bound to the provider's address.
    """
    if configured is None:
        return Provider.model_construct(kind=kind_of(name, base_url), base_url=base_url)
    if not configured.over_http:
        raise ConfigError(
            f"The provider {name} is of the kind {configured.kind}, which has no address.",
            suggestion="Take base_url out of the agent's definition, or name another provider.",
            field="base_url",
        )
    kept = {name: getattr(configured, name) for name in _AT_ANY_ADDRESS}
    kind = configured.kind or kind_of(name, base_url)
    return Provider.model_construct(kind=kind, base_url=base_url, **kept)


def _settings(
    model: str, provider: Provider, key: str, metadata: Metadata | None, more_fields: Mapping[str, Any]
) -> ModelSettings:
    """The settings of a provider; missing ones come from the model's known facts."""
    name, _, rest = model.partition("/")
    facts = None
    if metadata is not None:
        at = provider_at(provider.base_url) if known_provider(name) is None else None
        facts = metadata.facts(model) or (metadata.facts(f"{at.name}/{rest}") if at is not None else None)
    native = provider.native_tools
    if native is None:
        native = facts is None or facts.tools is not False
    return ModelSettings(
        provider=name,
        model=rest,
        base_url=provider.base_url,
        api_key=key,
        headers=provider.headers,
        extra_body={**provider.extra_body, **more_fields},
        context_tokens=provider.context_tokens or (facts.window_tokens if facts else None),
        max_output_tokens=provider.max_output_tokens or _longest(provider, facts),
        native_tools=native,
        thinking_tokens=provider.thinking_tokens,
        **{name: getattr(provider, name) for name in _TIMES},
        proxy=provider.proxy,
        ca_file=_file(provider.ca_file),
        client_cert=_file(provider.client_cert),
        client_key=_file(provider.client_key),
    )


def _longest(provider: Provider, facts: Facts | None) -> int | None:
    """The longest answer, for a protocol that requires a limit. Others do better without one: the limit
    counts against the window even when the answer is short.
    """
    return facts.max_output_tokens if facts is not None and provider.kind == "anthropic" else None


def _file(path: Path | None) -> Path | None:
    return None if path is None else credential(path)


def _tell(redactor: Redactor, settings: ModelSettings) -> None:
    """Register the secrets that are sent to the endpoint."""
    redactor.add(settings.api_key)
    redactor.add(urllib.parse.urlsplit(settings.base_url).password or "")
    for value in (*settings.headers.values(), *settings.extra_body.values()):
        if isinstance(value, str) and redactor.looks_secret(value):
            redactor.add(value)
