"""Checks that each model endpoint has its key and, only on request, that it answers.

No model is asked, because that costs money: to reach an endpoint means only to connect to it, or to its
proxy. Unconfigured servers on this machine are named, so that they can be configured.
"""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

from lightagentd.api import Finding
from lightagentd.config import configuration
from lightagentd.config.configuration import Models, Provider
from lightagentd.config.models import credential
from lightagentd.doctor.finding import not_tried, note, ok, wrong
from lightagentd.errors import LightagentError
from lightagentd.host.paths import Paths
from lightagentd.llm.circuit import endpoint_of_url
from lightagentd.llm.environment import Environment, own_environment
from lightagentd.llm.in_force import InForce, in_force, unserved
from lightagentd.llm.local import LocalServer, found_at, found_locally
from lightagentd.llm.providers import known_provider

_PORTS = {"http": 80, "https": 443, "socks5": 1080, "socks5h": 1080}


async def check(paths: Paths, *, in_daemon: bool, reach: bool) -> list[Finding]:
    """`in_daemon` says that this process has the daemon's environment and credentials."""
    try:
        # Outside of the daemon its environment is not known, and that of this process is another one.
        environment = own_environment() if in_daemon else Environment()
        found = in_force(*configuration.load(paths.config), environment)
    except (LightagentError, OSError):
        return []  # told where the configuration is looked at
    models = found.config.models
    told = [_default(models, in_daemon=in_daemon), *_fallback(models), *_environment(found)]
    for name, provider in models.providers.items():
        told.append(_key(name, provider, in_daemon=in_daemon))
        told += _certificates(name, provider, in_daemon=in_daemon)
        if reach and provider.over_http:
            told.append(await reached(name, provider))
    told += [_offered(server, models) for server in await found_locally()]
    told += [_looked_at(server, models) for server in await found_at(models.look_at)]
    return told


def _default(models: Models, *, in_daemon: bool) -> Finding:
    if models.default == "runbook":
        return ok("models", "default", "runbook, which needs no key and no network")
    name = models.default.partition("/")[0]
    if name in models.providers:
        return ok("models", "default", models.default)
    known = known_provider(name)
    if known is not None and (known.local or known.name in models.providers):
        return ok("models", "default", models.default)
    if known is not None and not in_daemon:
        why = f"{models.default}: only the daemon knows whether it has the key {known.keys[0]}"
        return not_tried("models", "default", why, "Start the daemon, and ask again as an administrator.")
    if known is not None:
        detail = f"{models.default}: there is no key for the provider {name}"
        remedy = f"Set {known.keys[0]}, or add [models.providers.{name}] with api_key_file."
        return wrong("models", "default", detail, remedy)
    detail = f"{models.default}: the provider {name} is not configured"
    return wrong("models", "default", detail, f"Add [models.providers.{name}] with its base_url.")


def _fallback(models: Models) -> list[Finding]:
    return [
        wrong("models", "fallback", f"{model}: {why}", why.suggestion)
        for model, why in unserved(models).items()
        if model != models.default
    ]


def _environment(found: InForce) -> list[Finding]:
    if not found.problems:
        return []
    remedy = "lightagentd.toml(5) says which variables belong together."
    return [wrong("models", "environment", " ".join(found.problems), remedy)]


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


def _certificates(name: str, provider: Provider, *, in_daemon: bool) -> list[Finding]:
    """The problems of the files for secure connections; none for good ones."""
    found = []
    for setting in ("ca_file", "client_cert", "client_key"):
        path = getattr(provider, setting)
        if path is None or (not in_daemon and len(path.parts) == 1):
            continue
        title = f"{name}, {setting}"
        try:
            if "-----BEGIN " in credential(path).read_text():
                continue
            why = "it is no PEM file"
        except (OSError, UnicodeDecodeError) as err:
            if isinstance(err, PermissionError) and not in_daemon:
                found.append(not_tried("models", title, f"{path} cannot be read by you"))
                continue
            why = (isinstance(err, OSError) and err.strerror) or "it is no PEM file"
        found.append(wrong("models", title, f"{path}: {why}", f"Correct {setting} of the provider {name}."))
    return found


async def reached(name: str, provider: Provider) -> Finding:
    """Whether something answers at an endpoint, or at the proxy before it."""
    proxy = _proxy_of(provider)
    url = urlsplit(proxy or provider.base_url)
    host, port = url.hostname or "", url.port or _PORTS.get(url.scheme, 443)
    title, place = f"{name}, endpoint", f"{'its proxy ' if proxy else ''}{host} port {port}"
    try:
        async with asyncio.timeout(provider.connect_timeout_s):
            _, writer = await asyncio.open_connection(host, port)
    except (OSError, ValueError) as err:  # TimeoutError is an OSError, and has no text
        why = str(err) or f"no answer within {provider.connect_timeout_s:g} s"
        setting = "the proxy" if proxy else "base_url"
        remedy = f"Check {setting} and the way there: curl -v {provider.base_url}"
        return wrong("models", title, f"{place} cannot be reached: {why}", remedy)
    writer.transport.abort()
    return ok("models", title, f"{place} answers")


def _proxy_of(provider: Provider) -> str:
    """The proxy on the way to an endpoint; empty for none."""
    if provider.proxy:
        return provider.proxy.removeprefix("none")
    import urllib.request  # with http.client: memory that a daemon needs for nothing else

    parts = urlsplit(provider.base_url)
    if urllib.request.proxy_bypass(parts.netloc):
        return ""
    named = urllib.request.getproxies().get(parts.scheme, "")
    return named if "://" in named or not named else f"http://{named}"


def _looked_at(server: LocalServer, models: Models) -> Finding:
    """What answers at an address of `look_at`."""
    address = server.base_url.removesuffix("/v1")
    if not server.reached:
        return note("models", address, "no model server answers", "Start it, or correct models.look_at.")
    used = any(endpoint_of_url(one.base_url) == endpoint_of_url(address) for one in models.providers.values())
    detail = f"{server.kind} with {len(server.models)} model{'' if len(server.models) == 1 else 's'}"
    return ok("models", address, detail if used else f"{detail}; to use it: {server.how_to_use}")


def _offered(server: LocalServer, models: Models) -> Finding:
    """A server on this machine, and how to use it."""
    used = server.name in models.providers or models.default.startswith(f"{server.name}/")
    count = len(server.models)
    detail = f"it runs on this machine with {count} model{'' if count == 1 else 's'}"
    if not used and count:
        detail += f'; to use it: default = "{server.model_strings[0]}" under [models], or model: in an agent'
    elif not used:
        detail += ", so there is nothing to use yet"
    return ok("models", server.name, detail)
