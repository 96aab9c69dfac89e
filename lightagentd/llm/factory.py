"""Makes the client of a model string: `runbook`, or `PROVIDER/MODEL` with the provider's settings.

A provider comes from the configuration; `openai` also from `OPENAI_API_KEY` and `OPENAI_BASE_URL` in the
environment, and any provider from the `base_url` of an agent's own definition. A provider's key and headers
are never sent to an agent's own `base_url`; its window counts there, too.
"""

from __future__ import annotations

import os
import urllib.parse
from collections.abc import Callable
from pathlib import Path

from lightagentd.config import Models, api_key, read_key
from lightagentd.errors import ConfigError
from lightagentd.events.redaction import Redactor
from lightagentd.llm.protocol import ModelClient, ModelSettings
from lightagentd.llm.runbook.client import RunbookClient
from lightagentd.skills import SkillCatalog

OPENAI_URL = "https://api.openai.com/v1"


def make_client(
    model: str,
    models: Models,
    *,
    catalog: Callable[[], SkillCatalog],
    redactor: Redactor,
    base_url: str = "",
    api_key_file: Path | None = None,
) -> ModelClient:
    """The client of one model. Its key is made known to the redactor. Raises ConfigError."""
    if model == "runbook":
        return RunbookClient(catalog)
    provider, _, name = model.partition("/")
    if not provider or not name:
        raise ConfigError(f"{model!r} is not a model.", suggestion="Write runbook, or PROVIDER/MODEL.")
    settings = _settings(provider, name, models, base_url, api_key_file)
    if not (settings.api_key.isascii() and settings.api_key.isprintable()):
        raise ConfigError(f"The API key for {model} has characters that no HTTP header can have.")
    redactor.add(settings.api_key)
    redactor.add(urllib.parse.urlsplit(settings.base_url).password or "")
    for value in filter(redactor.looks_secret, settings.headers.values()):
        redactor.add(value)
    from lightagentd.llm.dialects.chat_completions import ChatCompletions
    from lightagentd.llm.http_client import HttpClient  # with httpx: 0.1 s and some megabytes

    return HttpClient(settings, ChatCompletions(settings))


def _settings(
    provider: str, name: str, models: Models, base_url: str, api_key_file: Path | None
) -> ModelSettings:
    configured = models.providers.get(provider)
    if base_url:
        key = read_key(api_key_file) if api_key_file else ""
        window = configured.context_tokens if configured is not None else None
        return ModelSettings(
            provider=provider, model=name, base_url=base_url, api_key=key, context_tokens=window
        )
    if configured is not None:
        return ModelSettings(
            provider=provider,
            model=name,
            base_url=configured.base_url,
            api_key=read_key(api_key_file) if api_key_file else api_key(configured),
            headers=configured.headers,
            context_tokens=configured.context_tokens,
            connect_timeout_s=configured.connect_timeout_s,
            idle_timeout_s=configured.idle_timeout_s,
        )
    env_key, env_url = os.environ.get("OPENAI_API_KEY", ""), os.environ.get("OPENAI_BASE_URL", "")
    if provider == "openai" and (env_key or env_url):
        key = read_key(api_key_file) if api_key_file else env_key
        return ModelSettings(provider=provider, model=name, base_url=env_url or OPENAI_URL, api_key=key)
    known = ", ".join(sorted(models.providers)) or "none"
    raise ConfigError(
        f"The model {provider}/{name} has no endpoint: the provider {provider!r} is not configured.",
        suggestion=f"Add [models.providers.{provider}] with base_url; configured are: {known}.",
    )
