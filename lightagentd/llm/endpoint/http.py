"""Connects one agent to one model server, over keep-alive connections of the agent's own.

It uses httpx one level below its client, since a model call wants neither redirects (the key would be sent
along) nor cookies. Each has its own transport, `Connections` or, through a proxy, that of httpx, with a
shared TLS context. A shared pool of connections costs 2.8 times the CPU at 128 agents, and one agent's stuck
connections would hold up the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import ssl
import sys
import urllib.parse
import urllib.request
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from types import ModuleType
from typing import cast

import httpx

from lightagentd import __version__
from lightagentd.errors import (
    ConfigError,
    ModelCertificate,
    ModelError,
    ModelGarbled,
    ModelRedirected,
    ModelTimedOut,
)
from lightagentd.llm.endpoint.answer import Answer
from lightagentd.llm.endpoint.body import Body
from lightagentd.llm.endpoint.compression import NotReadable
from lightagentd.llm.endpoint.failures import begin, failure
from lightagentd.llm.endpoint.refusals import printable, refusal
from lightagentd.llm.endpoint.tls import tls_context
from lightagentd.llm.protocol import ModelSettings

_ERROR_BODY_BYTES = 64 << 10
_ANSWER_BYTES = 64 << 20
"""How long one streamed answer may be; each token comes as a chunk of some hundred bytes."""
_AFTER_OVER_S = 2.0
"""How long the end of the response may take once the answer is whole, so that its connection can be kept."""


@dataclass(kw_only=True)
class Head:
    """Facts about an answer beside its events."""

    content_type: str = ""
    over: bool = False
    """Whoever reads the events says with it that the answer is whole; the response should end then, too."""


class Endpoint:
    """Posts requests to one URL and returns the events of the answers."""

    def __init__(self, settings: ModelSettings, url: str, headers: dict[str, str]) -> None:
        self._name = f"{settings.provider}/{settings.model}"
        self._settings = settings
        self._url = url
        self._where = f"the model {self._name} at {shown_url(url)}"
        proxy = settings.proxy or _proxy_for(url) or ""
        self._proxy = "" if proxy == "none" else proxy
        self._http: httpx.AsyncBaseTransport | None = None
        self._headers = {
            "User-Agent": f"lightagentd/{__version__}",
            "Content-Type": "application/json",
            "Accept": "text/event-stream",
            "Accept-Encoding": "identity",
            **settings.headers,
            **headers,
        }
        self._timeout = httpx.Timeout(
            settings.idle_timeout_s, connect=settings.connect_timeout_s, pool=settings.connect_timeout_s
        ).as_dict()

    async def events(self, body: bytes, head: Head) -> AsyncGenerator[str, None]:
        """Post a request, and yield the data of each event of the answer. Closing the generator closes the
        connection.

        `head` is filled in before the first event. Raises ModelError.
        """
        deadline = asyncio.get_running_loop().time() + self._settings.total_timeout_s
        request = self._request(body)
        await self._load()
        transport = self._transport()
        answer: Body | None = None
        done = False
        try:
            async with asyncio.timeout_at(deadline):
                response = await transport.handle_async_request(request)
            answer = Body(response, deadline, self._settings.idle_timeout_s)
            if not response.is_success:
                raise await self._refused(response, answer)
            headers = response.headers
            head.content_type = headers.get("content-type", "")
            decoder = Answer(self._name, self._where, response.status_code, headers)
            async for chunk in answer:
                if answer.received > _ANSWER_BYTES:
                    raise self._endless()
                for data in decoder.feed(chunk):
                    yield data
                    if head.over and not done:
                        done = True
                        answer.hurry(_AFTER_OVER_S)
            for data in decoder.finish():
                yield data
        except TimeoutError as err:
            if not done:
                raise self._took_too_long() from err
        except NotReadable as err:
            raise ModelGarbled(
                f"{begin(self._where)}: the answer {err}.",
                suggestion="Check base_url, and whether a proxy is in the way.",
                reached=True,
            ) from err
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as err:  # OSError: TLS errors while reading
            if not done:
                raise failure(
                    err, self._where, shown_host(self._proxy), answering=answer is not None
                ) from err
        finally:
            if answer is not None:
                await answer.close()

    async def close(self) -> None:
        """Close the connections; a call that is being answered fails with ModelCutOff."""
        if self._http is not None:
            http, self._http = self._http, None
            await http.aclose()

    def _request(self, body: bytes) -> httpx.Request:
        """The request. Raises ModelError for a URL or a header that cannot be sent."""
        try:
            request = httpx.Request(
                "POST", self._url, content=body, headers=self._headers, extensions={"timeout": self._timeout}
            )
            if any(set("\r\n\0") & set(value) for pair in self._headers.items() for value in pair):
                raise ValueError("a header has more than one line")
        except (httpx.InvalidURL, UnicodeEncodeError, ValueError, TypeError) as err:
            # The text of a UnicodeEncodeError holds the whole value, which may be secret.
            why = "a header has characters other than ASCII" if isinstance(err, UnicodeError) else str(err)
            raise ModelError(
                f"{begin(self._where)} cannot be asked: {why}.",
                suggestion="Correct base_url and headers of the provider.",
            ) from None
        port = request.url.port
        if (
            request.url.scheme not in ("http", "https")
            or not request.url.host
            or not (port is None or 0 < port < 1 << 16)
        ):
            raise ModelError(
                f"{begin(self._where)} cannot be asked: its base_url is no URL of a web server.",
                suggestion="Write base_url with its scheme, such as https://HOST/v1.",
            )
        return request

    async def _load(self) -> None:
        """Load aiohttp and the certificates outside of the event loop: 0.1 s, once for the process."""
        if self._http is None:
            if not self._proxy:
                await asyncio.to_thread(importlib.import_module, "lightagentd.llm.endpoint.connections")
            with contextlib.suppress(ConfigError):  # the code that needs them reports it
                await asyncio.to_thread(self._tls)

    def _tls(self) -> ssl.SSLContext | None:
        """What secures the connections, for a URL of https. Raises ConfigError."""
        settings = self._settings
        if not self._url.lower().startswith("https:"):
            return None
        return tls_context(settings.ca_file, settings.client_cert, settings.client_key)

    def _transport(self) -> httpx.AsyncBaseTransport:
        """The connections. Raises ModelError for unusable certificates or an unusable proxy."""
        if self._http is None:
            try:
                tls = self._tls()
                if self._proxy:
                    self._http = _through_proxy(self._proxy, tls)
                else:
                    from lightagentd.llm.endpoint.connections import Connections

                    self._http = Connections(tls)
            except ConfigError as err:
                raise ModelCertificate(
                    f"{begin(self._where)}: {err.message}", suggestion=err.suggestion
                ) from err
            except (ImportError, ValueError, httpx.InvalidURL) as err:
                missing = (
                    "the Python package socksio is missing" if isinstance(err, ImportError) else "no URL"
                )
                raise ModelError(
                    f"{begin(self._where)} has the proxy {shown_host(self._proxy)!r}: {missing}.",
                    suggestion="Correct the provider's proxy; an http:// proxy needs nothing more.",
                ) from err
        return self._http

    async def _refused(self, response: httpx.Response, body: Body) -> ModelError:
        """The error for an unsuccessful response."""
        status = response.status_code
        if response.is_redirect or status // 100 == 3:
            return self._redirected(response)
        said = b""
        body.hurry(self._settings.connect_timeout_s)
        try:
            async for chunk in body:
                said += chunk
                if len(said) > _ERROR_BODY_BYTES:
                    break
        except (httpx.HTTPError, OSError, NotReadable):
            pass  # the status says enough
        return refusal(self._name, status, response.headers, said)

    def _redirected(self, response: httpx.Response) -> ModelRedirected:
        said = response.headers.get("location", "")
        try:
            to = shown_url(urllib.parse.urljoin(self._url, said)) if said else "nowhere"
        except ValueError:
            to = "somewhere that is no URL"
        return ModelRedirected(
            f"{begin(self._where)} sends requests on to {printable(to)[:200]} "
            f"(status {response.status_code}); neither the request nor its key was sent there.",
            suggestion="If that is the right place, name it in base_url; else a login page is in the way.",
            reached=True,
        )

    def _endless(self) -> ModelTimedOut:
        return ModelTimedOut(
            f"{begin(self._where)} does not come to an end: it has more than {_ANSWER_BYTES >> 20} MiB.",
            suggestion="Choose another model, or set max_output_tokens.",
            reached=True,
        )

    def _took_too_long(self) -> ModelTimedOut:
        return ModelTimedOut(
            f"{begin(self._where)} did not answer in time: the answer took longer than "
            f"{self._settings.total_timeout_s:g} s.",
            suggestion="Try again, choose another model, or set total_timeout_s.",
            reached=True,
        )


def shown_url(url: str) -> str:
    """A URL for error messages: without user and password, and without its query, which may hold a key."""
    scheme, sep, rest = url.partition("://")
    host, slash, path = rest.partition("?")[0].partition("#")[0].partition("/")
    return f"{scheme}{sep}{host.rpartition('@')[2]}{slash}{path}" if sep else url.partition("?")[0]


def shown_host(url: str) -> str:
    """The host of a proxy with its port, without user and password."""
    return shown_url(url).partition("://")[2].partition("/")[0]


def _proxy_for(url: str) -> str | None:
    """The proxy that the environment names for a URL, if it names one."""
    parts = urllib.parse.urlsplit(url)
    if urllib.request.proxy_bypass(parts.netloc.rpartition("@")[2]):
        return None
    proxies = urllib.request.getproxies()
    found = proxies.get(parts.scheme) or proxies.get("all")
    return found if not found or "://" in found else f"http://{found}"


def _through_proxy(proxy: str, tls: ssl.SSLContext | None) -> httpx.AsyncHTTPTransport:
    """Connections through a proxy. Raises ImportError, ValueError and httpx.InvalidURL."""
    # httpcore imports sniffio for every lock that it makes, four times a call; if that is not installed, each
    # failing import searches the disk. An entry of None makes the import fail at once.
    if importlib.util.find_spec("sniffio") is None:
        sys.modules.setdefault("sniffio", cast(ModuleType, None))
    return httpx.AsyncHTTPTransport(
        verify=tls or False,
        limits=httpx.Limits(max_connections=256, max_keepalive_connections=64),
        proxy=proxy,
    )
