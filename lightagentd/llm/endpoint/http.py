"""One model server as one agent reaches it: keep-alive connections of the agent's own.

It uses httpx one level below its client, since a model call wants neither redirects (the key would go along)
nor cookies: one `httpx.AsyncHTTPTransport` each, all with the same TLS context. A shared pool of connections
costs 2.8 times the CPU at 128 agents, and one agent's stuck connections would hold up the others.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import urllib.parse
import urllib.request
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from types import ModuleType
from typing import cast

import httpx

from lightagentd import __version__
from lightagentd.errors import ModelCutOff, ModelTimedOut, ModelUnreachable
from lightagentd.llm.endpoint.refusals import refusal
from lightagentd.llm.endpoint.sse import SSEDecoder
from lightagentd.llm.endpoint.tls import tls_context
from lightagentd.llm.protocol import ModelSettings

_ERROR_BODY_BYTES = 64 << 10
_ANSWER_BYTES = 64 << 20
"""How long one streamed answer may be; each token comes as a chunk of some hundred bytes."""


@dataclass(kw_only=True)
class Head:
    """What an endpoint said of its answer before the answer itself."""

    content_type: str = ""


class Endpoint:
    """Posts requests to one URL and gives back the events of the answers."""

    def __init__(self, settings: ModelSettings, url: str, headers: dict[str, str]) -> None:
        self._name = f"{settings.provider}/{settings.model}"
        self._settings = settings
        self._url = url
        self._shown = without_userinfo(url)
        """The URL as errors may show it."""
        self._http: httpx.AsyncHTTPTransport | None = None
        self._headers = {
            "User-Agent": f"lightagentd/{__version__}",
            "Content-Type": "application/json",
            "Accept": "text/event-stream",
            "Accept-Encoding": "gzip, deflate",
            **settings.headers,
            **headers,
        }
        self._timeout = httpx.Timeout(
            settings.idle_timeout_s, connect=settings.connect_timeout_s, pool=settings.connect_timeout_s
        ).as_dict()

    def _transport(self) -> httpx.AsyncHTTPTransport:
        if self._http is None:
            _settle_sniffio()
            settings = self._settings
            self._http = httpx.AsyncHTTPTransport(
                # Plain HTTP needs no certificates.
                verify=tls_context(settings.ca_file, settings.client_cert, settings.client_key)
                if self._url.startswith("https:")
                else False,
                limits=httpx.Limits(max_connections=256, max_keepalive_connections=64),
                proxy=_proxy_for(self._url) if not settings.proxy else settings.proxy,
            )
        return self._http

    async def events(self, body: bytes, head: Head) -> AsyncGenerator[str, None]:
        """Post a request; the data of each event of the answer. Closing the generator closes the connection.

        `head` is filled in before the first event. Raises ModelError.
        """
        decoder = SSEDecoder()
        received = 0
        request = httpx.Request(
            "POST", self._url, content=body, headers=self._headers, extensions={"timeout": self._timeout}
        )
        try:
            response = await self._transport().handle_async_request(request)
            response.request = request
            async with contextlib.aclosing(response):
                if response.status_code != httpx.codes.OK:
                    said = await _start_of(response)
                    raise refusal(self._name, response.status_code, response.headers, said)
                head.content_type = response.headers.get("content-type", "")
                async for chunk in response.aiter_bytes():
                    received += len(chunk)
                    if received > _ANSWER_BYTES:
                        raise ModelTimedOut(f"The model {self._name} does not come to an end.", reached=True)
                    for data in decoder.feed(chunk):
                        yield data
                for data in decoder.finish():
                    yield data
        except httpx.TimeoutException as err:
            raise ModelTimedOut(
                f"The model {self._name} at {self._shown} did not answer in time ({type(err).__name__}).",
                suggestion="Try again, or choose another model.",
            ) from err
        except (httpx.HTTPError, httpx.InvalidURL) as err:
            said_of = str(err).replace(self._url, self._shown)
            kind = ModelCutOff if isinstance(err, httpx.RemoteProtocolError) else ModelUnreachable
            raise kind(
                f"The model {self._name} at {self._shown} cannot be reached:"
                f" {said_of or type(err).__name__}.",
                suggestion="Check base_url and that the endpoint is up.",
            ) from err

    async def close(self) -> None:
        if self._http is not None:
            await self._http.aclose()
            self._http = None


async def _start_of(response: httpx.Response) -> bytes:
    """As much of an error's body as may be of use."""
    body = b""
    async for chunk in response.aiter_bytes():
        body += chunk
        if len(body) > _ERROR_BODY_BYTES:
            break
    return body


def without_userinfo(url: str) -> str:
    """A URL without the user and password that may stand in it."""
    scheme, sep, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}{sep}{host.rpartition('@')[2]}{slash}{path}" if sep else url


def _proxy_for(url: str) -> str | None:
    """The proxy that the environment names for a URL, if it names one."""
    parts = urllib.parse.urlsplit(url)
    if urllib.request.proxy_bypass(parts.netloc):
        return None
    return urllib.request.getproxies().get(parts.scheme)


def _settle_sniffio() -> None:
    """Have httpcore not look for the package sniffio again and again.

    It imports sniffio for every lock that it makes, four times a call; where that is not installed, each
    failing import searches the disk. An entry of None says at once that there is no such module.
    """
    if importlib.util.find_spec("sniffio") is None:
        sys.modules.setdefault("sniffio", cast(ModuleType, None))
