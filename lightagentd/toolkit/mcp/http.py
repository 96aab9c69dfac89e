"""Reaches an MCP server over HTTP: each message is a request, and its answer JSON or a stream of events.

Of the older versions it has the session, the stream of a server's own messages, going on with a broken
stream, and, where a server refuses all that, the transport of 2024-11-05: a stream, and an endpoint for
requests.
Redirects are not followed: they could take credentials elsewhere.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from typing import Any
from urllib.parse import urljoin, urlsplit

import httpx

from lightagentd.text.jsonrpc import MAX_BYTES, Id, Lost, Message, RpcError, decode, encode, message_of
from lightagentd.text.mcp import EVENTS, MODERN, NAMED, PREFIX, fits_header, header
from lightagentd.text.sse import EventTooLong, SSEDecoder
from lightagentd.toolkit.mcp.connection import Lose, Receive, Transport
from lightagentd.toolkit.web.fetch import tls_context

_log = logging.getLogger(__name__)

_OLD = (400, 404, 405)
"""How a server of the oldest transport answers to a message at its endpoint."""
_RESUMED, _RETRY_S, _LONGEST_RETRY_S = 20, 1.0, 30.0
"""How often a broken stream is gone on with, and after how long."""
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


class Http(Transport):
    """A server behind a URL."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        self._url, self._headers = url, dict(headers)
        self._mirrored: dict[str, dict[str, tuple[str, ...]]] = {}
        """The headers that tools want their arguments in, each with the path of its argument."""
        self._session = ""
        self._endpoint = ""
        """Where requests go, if the server has the oldest transport."""
        self._opened = AsyncExitStack()
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self, receive: Receive, lost: Lose) -> None:
        self._receive, self._lost = receive, lost
        client = httpx.AsyncClient(
            headers={"accept-encoding": "identity"},
            verify=tls_context(),
            timeout=httpx.Timeout(10.0, read=None),  # the call has its own time
            follow_redirects=False,
            trust_env=False,
        )
        self._client = await self._opened.enter_async_context(client)

    def mirror(self, tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """A tool whose headers are invalid cannot be called."""
        kept = []
        for one in tools:
            try:
                self._mirrored[str(one.get("name"))] = _mirrored(one.get("inputSchema"))
                kept.append(one)
            except ValueError as err:
                _log.warning("The tool %.100r is left out: %s", one.get("name"), err)
        return kept

    async def send(self, message: Message) -> None:
        if self.version == MODERN and message.method == "notifications/cancelled":
            return  # the end of its stream says that
        try:
            await self._post(message)
        except (httpx.HTTPError, httpx.InvalidURL) as err:
            raise Lost(f"it cannot be reached: {type(err).__name__}: {err}".rstrip(": ")) from None
        if message.method == "notifications/initialized" and not self._endpoint:
            self._tasks.append(asyncio.create_task(self._follow()))

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        async with self._opened:
            if self._session:
                with suppress(httpx.HTTPError, TimeoutError):
                    async with asyncio.timeout(2.0):
                        async with self._client.stream("DELETE", self._url, headers=self._own_headers()):
                            pass  # nobody reads a body

    def _own_headers(self, **more: str) -> dict[str, str]:
        found = {**self._headers, "accept": f"application/json, {EVENTS}"}
        found |= {"mcp-protocol-version": self.version} if self.version else {}
        return found | ({"mcp-session-id": self._session} if self._session else {}) | more

    def _request_headers(self, message: Message) -> dict[str, str]:
        found = {**self._own_headers(), "content-type": "application/json"}
        params = message.params
        if (version := params.get("_meta", {}).get(f"{PREFIX}protocolVersion")) is None:
            return found
        found |= {"mcp-protocol-version": version, "mcp-method": message.method}
        if message.method in NAMED:
            found["mcp-name"] = header(params[NAMED[message.method]])
        for name, path in self._mirrored.get(params.get("name", ""), {}).items():
            value = params.get("arguments")
            for part in path:
                value = value.get(part) if isinstance(value, dict) else None
            if value is not None:
                found[f"mcp-param-{name}"] = header(value if isinstance(value, str) else json.dumps(value))
        return found

    async def _post(self, message: Message) -> None:
        number = message.id if message.method else None
        headers, url = self._request_headers(message), self._endpoint or self._url
        async with self._client.stream("POST", url, content=encode(message), headers=headers) as answer:
            if answer.status_code == 404 and self._session:
                raise Lost("its session has ended")
            if answer.status_code >= 300:
                await self._refused(answer, message)
                return
            if self._endpoint:
                return  # the answer comes on the stream
            if message.method == "initialize":
                if not fits_header(session := answer.headers.get("mcp-session-id", "")):
                    raise Lost("its session has an id that no header can have")
                self._session = session
            if answer.headers.get("content-type", "").startswith(EVENTS):
                if await self._answered(answer, number):
                    return
            elif body := await _body(answer):
                await self._receive(body)
                return
        if number is not None:
            raise Lost("its answer broke off")

    async def _refused(self, answer: httpx.Response, message: Message) -> None:
        """Take an error in the body, try the oldest transport, or raise RpcError or Lost."""
        why, told = f"it answers with the status {answer.status_code}", None
        with suppress(RpcError):
            told = message_of(decode(await _body(answer))).error
        if told is not None:
            raise told
        if message.method == "server/discover":
            raise RpcError(-1, why)
        if message.method != "initialize" or answer.status_code not in _OLD or self._endpoint:
            raise Lost(why)
        await self._open_old()
        await self._post(message)

    async def _answered(self, answer: httpx.Response, number: Id | None) -> bool:
        """Take the events of a stream until the one that answers a request; says whether that came. A stream
        that breaks off is gone on with, where the server can do that.
        """
        events = SSEDecoder(MAX_BYTES)
        if await self._take(answer, events, number):
            return True
        for _ in range(_RESUMED):
            last_id = events.last_id if fits_header(events.last_id) else ""
            if number is None or self.version == MODERN or not last_id:
                return False
            await asyncio.sleep(min(_RETRY_S if events.retry_s is None else events.retry_s, _LONGEST_RETRY_S))
            async with self._get(last_id) as more:
                if more.status_code != 200:
                    return False
                if await self._take(more, events, number):
                    return True
        return False

    async def _take(
        self,
        answer: httpx.Response,
        events: SSEDecoder,
        number: Id | None = None,
        ready: asyncio.Future[str] | None = None,
    ) -> bool:
        """Take the messages of a stream. Says whether the answer to a request came, which ends it; `ready`
        gets the endpoint for requests. Raises Lost, and with `ready` HTTPError.
        """
        try:
            async for piece in _pieces(answer):
                for event in events.feed(piece):
                    if event.kind == "endpoint" and ready is not None and not ready.done():
                        ready.set_result(event.data)
                    elif event.kind == "message" and event.data:
                        found = await self._receive(event.data.encode())
                        if number is not None and any(one.id == number and not one.method for one in found):
                            return True
        except EventTooLong as err:
            raise Lost(f"it sent {err}") from None
        except httpx.HTTPError:
            if ready is not None:
                raise
        events.finish()  # half an event is none
        return False

    def _get(self, last_id: str = "") -> AbstractAsyncContextManager[httpx.Response]:
        headers = self._own_headers(accept=EVENTS) | ({"last-event-id": last_id} if last_id else {})
        return self._client.stream("GET", self._url, headers=headers)

    async def _follow(self, ready: asyncio.Future[str] | None = None) -> None:
        """The messages that an older server sends by itself, if it has such a stream. With `ready` it has no
        other, as in 2024-11-05, and the first event says where requests go.
        """
        why, is_lost = "it closed its stream", ready is not None
        try:
            async with self._get() as answer:
                if answer.status_code == 200:
                    await self._take(answer, SSEDecoder(MAX_BYTES), ready=ready)
                else:
                    why = f"it answers with the status {answer.status_code}"
        except httpx.HTTPError as err:
            why = f"its stream broke off: {err}"
        except Lost as err:
            why, is_lost = str(err), True
        if ready is not None and not ready.done():
            ready.set_exception(Lost(why))
        if is_lost:
            await self._lost(why)

    async def _open_old(self) -> None:
        """Raises Lost for an endpoint elsewhere: it would get the credentials."""
        ready = asyncio.get_running_loop().create_future()
        self._tasks.append(asyncio.create_task(self._follow(ready)))
        named = (await ready).strip()
        try:
            endpoint = urljoin(self._url, named)
            elsewhere = urlsplit(endpoint)[:2] != urlsplit(self._url)[:2]
        except ValueError:
            raise Lost("it names an endpoint that is no URL") from None
        if elsewhere:
            raise Lost("it names an endpoint on another host")
        self._endpoint = endpoint


def _mirrored(schema: Any, path: tuple[str, ...] = ()) -> dict[str, tuple[str, ...]]:
    """The headers in which a tool wants arguments (`x-mcp-header`). Raises ValueError for an invalid one."""
    found: dict[str, tuple[str, ...]] = {}
    properties = schema.get("properties") if isinstance(schema, dict) else None
    for key, one in properties.items() if isinstance(properties, dict) else ():
        inner = _mirrored(one, (*path, key))
        if isinstance(one, dict) and "x-mcp-header" in one:
            name = one["x-mcp-header"]
            plain = one.get("type") in ("string", "integer", "boolean")
            if not isinstance(name, str) or not _TOKEN.fullmatch(name) or not plain:
                raise ValueError(f"the header of the argument {key[:60]!r} cannot be one")
            inner[name.lower()] = (*path, key)
        if inner.keys() & found.keys():
            raise ValueError("two arguments have the same header")
        found |= inner
    return found


async def _pieces(answer: httpx.Response) -> AsyncIterator[bytes]:
    """Raises Lost for a compressed body: nobody asked for it, and it could unfold without end."""
    if (encoding := answer.headers.get("content-encoding", "identity").lower()) not in ("", "identity"):
        raise Lost(f"it sent the encoding {encoding[:50]!r}, which was not asked for")
    async for piece in answer.aiter_raw():
        yield piece


async def _body(answer: httpx.Response) -> bytes:
    """Raises Lost for one that is too long."""
    found = bytearray()
    async for piece in _pieces(answer):
        found += piece
        if len(found) > MAX_BYTES:
            raise Lost(f"it sent more than {MAX_BYTES} bytes")
    return bytes(found)
