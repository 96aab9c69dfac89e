"""The endpoints of models: whether each has its key, and, only when asked for, whether it answers at all.

Nothing is asked of a model, because that costs something: reaching an endpoint is a connection and no more.
"""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

from lightagentd import config as configuration
from lightagentd.api import Finding
from lightagentd.checkup.finding import not_tried, ok, wrong
from lightagentd.config import Provider
from lightagentd.errors import LightagentError
from lightagentd.paths import Paths

_PORTS = {"http": 80, "https": 443}


async def check(paths: Paths, *, in_daemon: bool, reach: bool) -> list[Finding]:
    """`in_daemon` says that this process has the daemon's environment and credentials."""
    try:
        models = configuration.load(paths.config)[0].models
    except (LightagentError, OSError):
        return []  # told where the configuration is looked at
    found = [_default(models)]
    for name, provider in models.providers.items():
        found.append(_key(name, provider, in_daemon=in_daemon))
        if reach:
            found.append(await _reached(name, provider))
    return found


def _default(models: configuration.Models) -> Finding:
    if models.default == "runbook":
        return ok("models", "default", "runbook, which needs no key and no network")
    provider = models.default.partition("/")[0]
    if provider in models.providers or provider == "openai":
        return ok("models", "default", models.default)
    detail = f"{models.default}: the provider {provider} is not configured"
    return wrong("models", "default", detail, f"Add [models.providers.{provider}] with its base_url.")


def _key(name: str, provider: Provider, *, in_daemon: bool) -> Finding:
    title = f"{name}, key"
    file, variable = provider.api_key_file, provider.api_key_env
    if file is None and not variable:
        return ok("models", title, "it has none")
    if not in_daemon and (file is None or len(file.parts) == 1):
        why = "only the daemon has its environment and credentials"
        return not_tried("models", title, why, "Start the daemon, and ask again as an administrator.")
    try:
        if configuration.api_key(provider):
            return ok("models", title, "there")
    except LightagentError as err:
        if isinstance(err.__cause__, PermissionError) and not in_daemon:
            return not_tried("models", title, err.message)
        return wrong("models", title, err.message, err.suggestion)
    remedy = f"Set it: systemctl edit lightagentd, Environment={variable}=…; or better use api_key_file."
    return wrong("models", title, f"the daemon's environment has no {variable}", remedy)


async def _reached(name: str, provider: Provider) -> Finding:
    url = urlsplit(provider.base_url)
    host, port = url.hostname or "", url.port or _PORTS.get(url.scheme, 443)
    title, place = f"{name}, endpoint", f"{host} port {port}"
    try:
        async with asyncio.timeout(provider.connect_timeout_s):
            _, writer = await asyncio.open_connection(host, port)
    except (OSError, ValueError) as err:  # TimeoutError is an OSError, and has no text
        why = str(err) or f"no answer within {provider.connect_timeout_s:g} s"
        remedy = f"Check base_url and the way there: curl -v {provider.base_url}"
        return wrong("models", title, f"{place} cannot be reached: {why}", remedy)
    writer.transport.abort()
    return ok("models", title, f"{place} answers")
