"""Reaches an MCP server over HTTP: each message is a request, and its answer JSON or a stream of events.

Of the older versions it has the session, the stream of a server's own messages, going on with a broken
stream, and, where a server refuses all that, the transport of 2024-11-05: a stream, and an endpoint for
requests.
Redirects are not followed: they could take credentials elsewhere.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urljoin, urlsplit

import httpx

from lightagentd.text.jsonrpc import MAX_BYTES, Lost, RpcError
from lightagentd.toolkit.mcp.connection import NEWEST
from lightagentd.toolkit.web.fetch import tls_context

_log = logging.getLogger(__name__)

_EVENTS = "text/event-stream"
_OLD = (400, 404, 405)
"""How a server of the oldest transport answers to a message at its endpoint."""
_RESUMED, _RETRY_S, _LONGEST_RETRY_S = 20, 1.0, 30.0
"""How often a broken stream is gone on with, and after how long."""
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_NAMED = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}


@dataclass(kw_only=True)
class _Event:
    kind: str = "message"
    data: str = ""
    id: str = ""
    retry_s: float = _RETRY_S


class Http:
    """A server behind a URL (see `connection.Transport`)."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        self._url, self._headers = url, dict(headers)
        self.version = ""
        self._mirrored: dict[str, dict[str, tuple[str, ...]]] = {}
        """The headers that tools want their arguments in, each with the path of its argument."""
        self._session = ""
        self._endpoint = ""
        """Where requests go, if the server has the oldest transport."""
        self._old_ready: asyncio.Future[str] | None = None
        self._client: httpx.AsyncClient | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def open(
        self, receive: Callable[[bytes], Awaitable[None]], lost: Callable[[str], Awaitable[None]]
    ) -> None:
        self._receive, self._lost = receive, lost
        limits = httpx.Timeout(10.0, read=None)  # the call has its own time
        self._client = httpx.AsyncClient(
            verify=tls_context(), timeout=limits, follow_redirects=False, trust_env=False
        )

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

    async def send(self, data: bytes) -> None:
        message = json.loads(data)
        try:
            if self._endpoint:
                await self._post_old(data)
            elif not (self.version == NEWEST and message.get("method") == "notifications/cancelled"):
                await self._post(data, message)
        except httpx.HTTPError as err:
            raise Lost(f"it cannot be reached: {type(err).__name__}: {err}".rstrip(": ")) from None
        if message.get("method") == "notifications/initialized" and not self._endpoint:
            self._tasks.append(asyncio.create_task(self._follow()))

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._client is None:
            return
        try:
            if self._session:
                async with asyncio.timeout(2.0):
                    await self._client.delete(self._url, headers=self._own_headers())
        except (httpx.HTTPError, TimeoutError):
            return
        finally:
            await self._client.aclose()

    @property
    def _http(self) -> httpx.AsyncClient:
        if self._client is None:
            raise Lost("the connection is closed")
        return self._client

    def _own_headers(self) -> dict[str, str]:
        found = {**self._headers, "accept": f"application/json, {_EVENTS}"}
        found |= {"mcp-protocol-version": self.version} if self.version else {}
        return found | ({"mcp-session-id": self._session} if self._session else {})

    def _request_headers(self, message: Mapping[str, Any]) -> dict[str, str]:
        found = {**self._own_headers(), "content-type": "application/json"}
        method, params = message.get("method"), message.get("params", {})
        about = params.get("_meta", {}) if isinstance(params, dict) else {}
        if (modern := about.get("io.modelcontextprotocol/protocolVersion")) is None or method is None:
            return found
        found |= {"mcp-protocol-version": modern, "mcp-method": method}
        if method in _NAMED:
            found["mcp-name"] = _header_value(params[_NAMED[method]])
        for name, path in self._mirrored.get(params.get("name", ""), {}).items():
            value = params.get("arguments")
            for part in path:
                value = value.get(part) if isinstance(value, dict) else None
            if value is not None:
                found[f"mcp-param-{name}"] = _header_value(value)
        return found

    async def _post(self, data: bytes, message: Mapping[str, Any]) -> None:
        headers = self._request_headers(message)
        async with self._http.stream("POST", self._url, content=data, headers=headers) as answer:
            status, kind = answer.status_code, answer.headers.get("content-type", "")
            if status == 404 and self._session:
                raise Lost("its session has ended")
            if status >= 300:
                await self._refused(answer, message)
                return
            if message.get("method") == "initialize":
                self._session = answer.headers.get("mcp-session-id", "")
            if kind.startswith(_EVENTS):
                if await self._answered(answer, message.get("id")):
                    return
            elif body := await _body(answer):
                await self._receive(body)
                return
        if "id" in message and "method" in message:
            raise Lost("its answer broke off")

    async def _refused(self, answer: httpx.Response, message: Mapping[str, Any]) -> None:
        """Take an error in the body, try the oldest transport, or raise RpcError or Lost."""
        body, status = await _body(answer), answer.status_code
        try:
            found = json.loads(body)
            error = found["error"]
            told = RpcError(int(error["code"]), str(error.get("message", ""))[:1000], error.get("data"))
        except (ValueError, KeyError, TypeError, RecursionError):
            told = None
        if told is not None:
            raise told
        if message.get("method") == "initialize" and status in _OLD:
            await self._open_old()
            await self._post_old(json.dumps(message).encode())
        elif message.get("method") == "server/discover":
            raise RpcError(-1, f"it answers with the status {status}")
        else:
            raise Lost(f"it answers with the status {status}")

    async def _answered(self, answer: httpx.Response, number: Any) -> bool:
        """Take the events of a stream until the one that answers a request; says whether that came. A stream
        that breaks off is gone on with, where the server can do that.
        """
        last = _Event()
        for _ in range(_RESUMED):
            if await self._take(answer, number, last) or number is None:
                return True
            if not last.id or self.version == NEWEST:
                return False
            await asyncio.sleep(min(last.retry_s, _LONGEST_RETRY_S))
            headers = {**self._own_headers(), "accept": _EVENTS, "last-event-id": last.id}
            async with self._http.stream("GET", self._url, headers=headers) as more:
                if more.status_code != 200:
                    return False
                if await self._take(more, number, last):
                    return True
        return False

    async def _take(self, answer: httpx.Response, number: Any, last: _Event) -> bool:
        try:
            async for event in _events(answer):
                last.id, last.retry_s = event.id or last.id, event.retry_s
                if event.kind != "message" or not event.data:
                    continue
                await self._receive(event.data.encode())
                if number is not None and _answers(event.data, number):
                    return True
        except httpx.HTTPError:
            return False
        return False

    async def _follow(self) -> None:
        """The messages that an older server sends by itself, if it has such a stream."""
        try:
            headers = {**self._own_headers(), "accept": _EVENTS}
            async with self._http.stream("GET", self._url, headers=headers) as answer:
                if answer.status_code == 200:
                    await self._take(answer, None, _Event())
        except httpx.HTTPError:
            return
        except Lost as err:
            await self._lost(str(err))

    async def _open_old(self) -> None:
        """Open the stream of 2024-11-05, whose first event says where requests go."""
        self._old_ready = asyncio.get_running_loop().create_future()
        self._tasks.append(asyncio.create_task(self._follow_old(self._old_ready)))
        self._endpoint = await self._old_ready

    async def _follow_old(self, ready: asyncio.Future[str]) -> None:
        why = "it closed its stream"
        try:
            headers = {**self._headers, "accept": _EVENTS}
            async with self._http.stream("GET", self._url, headers=headers) as answer:
                if answer.status_code != 200:
                    raise Lost(f"it answers with the status {answer.status_code}")
                async for event in _events(answer):
                    if event.kind == "endpoint" and not ready.done():
                        ready.set_result(self._same_origin(event.data))
                    elif event.kind == "message":
                        await self._receive(event.data.encode())
        except httpx.HTTPError as err:
            why = f"its stream broke off: {err}"
        except Lost as err:
            why = str(err)
        if not ready.done():
            ready.set_exception(Lost(why))
        await self._lost(why)

    def _same_origin(self, endpoint: str) -> str:
        """Raises Lost for an endpoint elsewhere: it would get the credentials."""
        found = urljoin(self._url, endpoint.strip())
        if urlsplit(found)[:2] != urlsplit(self._url)[:2]:
            raise Lost("it names an endpoint on another host")
        return found

    async def _post_old(self, data: bytes) -> None:
        headers = {**self._headers, "content-type": "application/json"}
        answer = await self._http.post(self._endpoint, content=data, headers=headers)
        if answer.status_code >= 300:
            raise Lost(f"it answers with the status {answer.status_code}")


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


def _header_value(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    plain = (
        text.isascii() and text.isprintable() and text == text.strip() and not text.startswith("=?base64?")
    )
    return text if plain else f"=?base64?{base64.b64encode(text.encode()).decode()}?="


def _answers(data: str, number: Any) -> bool:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return False
    batch = found if isinstance(found, list) else [found]
    return any(isinstance(one, dict) and one.get("id") == number and "method" not in one for one in batch)


async def _body(answer: httpx.Response) -> bytes:
    """Raises Lost for one that is too long."""
    found = b""
    async for piece in answer.aiter_bytes():
        found += piece
        if len(found) > MAX_BYTES:
            raise Lost(f"it sent more than {MAX_BYTES} bytes")
    return found


async def _lines(answer: httpx.Response) -> AsyncIterator[str]:
    """Raises Lost for a line that is too long."""
    rest = b""
    async for piece in answer.aiter_bytes():
        rest = (rest + piece).replace(b"\r\n", b"\n")
        *whole, rest = rest.split(b"\n")
        for line in whole:
            yield line.removesuffix(b"\r").decode("utf-8", "replace")
        if len(rest) > MAX_BYTES:
            raise Lost(f"it sent a line longer than {MAX_BYTES} bytes")


async def _events(answer: httpx.Response) -> AsyncIterator[_Event]:
    """The events of a stream (https://html.spec.whatwg.org/multipage/server-sent-events.html)."""
    event, size, lines = _Event(), 0, list[str]()
    async for line in _lines(answer):
        if not line:
            event.data = "\n".join(lines)
            if event.data or event.id:
                yield event
            event, size, lines = _Event(retry_s=event.retry_s), 0, []
            continue
        key, _, value = line.partition(":")
        value = value.removeprefix(" ")
        size += len(value)
        if size > MAX_BYTES:
            raise Lost(f"it sent an event longer than {MAX_BYTES} bytes")
        if key == "data":
            lines.append(value)
        elif key == "event":
            event.kind = value
        elif key == "id":
            event.id = value
        elif key == "retry" and value.isdecimal():
            event.retry_s = int(value[:9]) / 1000
