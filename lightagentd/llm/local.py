"""Finds model servers on request. They are offered, and never used unasked.

Only the default ports of these servers on 127.0.0.1 are asked, and the addresses of `[models] look_at`. An
answer counts only when it has the form that this server gives: another program may listen there. No proxy, no
key, no redirect; answers are read up to a limit.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeGuard
from urllib.parse import urlsplit

from lightagentd.llm.providers import known_provider

if TYPE_CHECKING:
    import httpx

TIMEOUT_S = 2.0
"""How long one server may take for all questions."""
_MOST_BYTES = 1 << 20
_MOST_MODELS = 500
_NAME_CHARS = 200
_PORTS = {"http": 80, "https": 443}
_HERE = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True, kw_only=True)
class LocalServer:
    """A server that answers. `name` is its provider's name, `models` its models. One of `look_at` is named
    after its host; its `kind` is `ollama` and so on, and it is not `reached` if no model server answers.
    """

    name: str
    base_url: str
    models: tuple[str, ...]
    version: str = ""
    kind: str = ""
    reached: bool = True

    @property
    def how_to_use(self) -> str:
        """What makes a server of `look_at` a provider."""
        return f'Add [models.providers.{self.name}] with base_url = "{self.base_url}".'

    @property
    def model_strings(self) -> list[str]:
        """The model string that selects it."""
        return [f"{self.name}/{model}" for model in self.models]


@dataclass(frozen=True, kw_only=True)
class Sign:
    """How to recognize a server: `path` is answered with an object that `is_it` accepts; `models` lists its
    models, and `names` extracts their names.
    """

    provider: str
    path: str
    is_it: Callable[[dict[str, Any]], bool]
    models: str
    names: Callable[[dict[str, Any]], list[object]]
    may_want_key: bool = False
    """Whether it may show its models only to those who have its key."""


def _ids(listed: dict[str, Any]) -> list[object]:
    return [one.get("id") for one in _objects(listed.get("data"))]


def _objects(value: object) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


SIGNS: tuple[Sign, ...] = (
    Sign(
        provider="ollama",
        path="/api/version",
        is_it=lambda said: isinstance(said.get("version"), str),
        models="/api/tags",
        names=lambda listed: [one.get("name") for one in _objects(listed.get("models"))],
    ),
    Sign(
        provider="llamacpp",
        path="/props",
        is_it=lambda said: isinstance(said.get("default_generation_settings"), dict),
        models="/v1/models",
        names=_ids,
    ),
    Sign(
        provider="lmstudio",
        path="/api/v0/models",
        is_it=lambda said: (
            isinstance(said.get("data"), list) and all("state" in one for one in _objects(said["data"]))
        ),
        models="/api/v0/models",
        names=_ids,
    ),
    Sign(
        provider="vllm",
        path="/v1/models",
        is_it=lambda said: any(one.get("owned_by") == "vllm" for one in _objects(said.get("data"))),
        models="/v1/models",
        names=_ids,
    ),
    Sign(
        provider="litellm",
        path="/health/readiness",
        is_it=lambda said: isinstance(said.get("litellm_version"), str),
        models="/v1/models",
        names=_ids,
        may_want_key=True,
    ),
)


async def found_locally(
    *, timeout_s: float = TIMEOUT_S, places: dict[str, str] | None = None
) -> list[LocalServer]:
    """The servers that answer now; never raises. `places`: base URLs of providers that are elsewhere."""
    looked = await asyncio.gather(*(_look(sign, timeout_s, places or {}) for sign in SIGNS))
    return [server for server in looked if server is not None]


async def found_at(urls: Sequence[str], *, timeout_s: float = TIMEOUT_S) -> list[LocalServer]:
    """What answers at these addresses now, one for each; never raises."""
    return list(await asyncio.gather(*(_look_at(url.rstrip("/"), timeout_s) for url in dict.fromkeys(urls))))


async def _look_at(root: str, timeout_s: float) -> LocalServer:
    parts = urlsplit(root)
    host = parts.hostname or ""
    is_address = host[:1].isdigit() or ":" in host
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", host if is_address else host.partition(".")[0]).strip("-")
    if known_provider(name) is not None:
        name += "-host"
    places = {sign.provider: f"{root}/v1" for sign in SIGNS}
    found = await found_locally(timeout_s=timeout_s, places=places)
    if not found:
        return LocalServer(name=name, base_url=f"{root}/v1", models=(), reached=False)
    return replace(found[0], name=name, kind=found[0].name)


async def served(base_url: str, headers: dict[str, str], *, anywhere: bool = False) -> list[str]:
    """The models that a server lists at `/models` of its base URL, on this machine or, with `anywhere`, on
    another that speaks plain HTTP; none of a server that does not answer. Those with TLS, the services on the
    Internet, are in the table of known models.
    """
    parts = urlsplit(base_url)
    if parts.scheme != "http" or not (anywhere or parts.hostname in _HERE):
        return []
    import httpx

    transport = httpx.AsyncHTTPTransport(verify=False)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            listed = await _get(transport, f"{base_url.rstrip('/')}/models", headers)
    except (OSError, ValueError, httpx.HTTPError):
        return []
    finally:
        await transport.aclose()
    return [name for name in _ids(listed)[:_MOST_MODELS] if _is_name(name)]


async def _look(sign: Sign, timeout_s: float, places: dict[str, str]) -> LocalServer | None:
    known = known_provider(sign.provider)
    assert known is not None
    base_url = places.get(sign.provider, known.base_url)
    root = base_url.removesuffix("/v1")
    try:
        async with asyncio.timeout(timeout_s):
            if not await _listens(root):
                return None
            return await _asked(sign, base_url, root)
    except (OSError, ValueError):  # TimeoutError is an OSError
        return None


async def _listens(root: str) -> bool:
    """Whether any program listens there. Needs no HTTP client."""
    parts = urlsplit(root)
    try:
        _, writer = await asyncio.open_connection(parts.hostname, parts.port or _PORTS[parts.scheme])
    except OSError:
        return False
    writer.transport.abort()
    return True


async def _asked(sign: Sign, base_url: str, root: str) -> LocalServer | None:
    import httpx  # 0.1 s and some megabytes, for those who have such a server

    transport = httpx.AsyncHTTPTransport(verify=root.startswith("https:"))
    try:
        said = await _get(transport, f"{root}{sign.path}")
        if not sign.is_it(said):
            return None
        try:
            listed = said if sign.models == sign.path else await _get(transport, f"{root}{sign.models}")
        except ValueError:
            if not sign.may_want_key:
                raise
            listed = {}
        version = said.get("version", "")
        return LocalServer(
            name=sign.provider,
            base_url=base_url,
            models=tuple(name for name in sign.names(listed)[:_MOST_MODELS] if _is_name(name)),
            version=version if _is_name(version) else "",
        )
    except httpx.HTTPError:
        return None
    finally:
        await transport.aclose()


async def _get(
    transport: httpx.AsyncHTTPTransport, url: str, headers: dict[str, str] | None = None
) -> dict[str, Any]:
    """The JSON object at a URL. Raises ValueError and httpx.HTTPError."""
    import httpx

    accepted = {"Accept": "application/json", "Accept-Encoding": "identity"}
    request = httpx.Request("GET", url, headers={**(headers or {}), **accepted})
    response = await transport.handle_async_request(request)
    try:
        if response.status_code != httpx.codes.OK or "content-encoding" in response.headers:
            raise ValueError("not what was asked for")
        body = b""
        async for chunk in response.aiter_raw():
            body += chunk
            if len(body) > _MOST_BYTES:
                raise ValueError("too long")
    finally:
        await response.aclose()
    try:
        found = json.loads(body)
    except RecursionError as err:
        raise ValueError("nested too deeply") from err
    if not isinstance(found, dict):
        raise ValueError("not an object")  # noqa: TRY004 - it is the answer that is wrong
    return found


def _is_name(name: object) -> TypeGuard[str]:
    return isinstance(name, str) and 0 < len(name) <= _NAME_CHARS and name.isprintable()
