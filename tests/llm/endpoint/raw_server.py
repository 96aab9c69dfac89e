"""A server on loopback that takes HTTP requests and sends bytes as they are, over TLS too; and a small proxy.

async with RawServer([Reply(b"HTTP/1.1 200 OK\\r\\n…")]) as server:
    … server.base_url … server.requests …
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self


@dataclass(frozen=True)
class Reply:
    """What is sent for a request, piece by piece, and what becomes of the connection then."""

    pieces: Iterable[bytes]
    then: str = "close"
    """keep, close, reset or hang."""
    read: bool = True
    """Whether the request is read before anything is sent."""
    pause_s: float = 0.0
    """Between two pieces."""


def response(body: bytes, *, status: str = "200 OK", **headers: str) -> bytes:
    """A whole response with a length."""
    named = {"content_type": "text/event-stream", **headers}
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in named.items())
    return f"HTTP/1.1 {status}\r\n{lines}content-length: {len(body)}\r\n\r\n".encode() + body


HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


def chunked(piece: bytes) -> bytes:
    """One chunk of HTTP/1.1."""
    return b"%x\r\n%b\r\n" % (len(piece), piece)


class _Serving:
    """What both servers are: connections in tasks that end with the server."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.port = 0
        self.connections = 0
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self.connections += 1
        try:
            with contextlib.suppress(OSError, EOFError, asyncio.CancelledError):
                await self.serve(reader, writer)
        finally:
            writer.close()

    @property
    def busy(self) -> int:
        """How many connections are open here."""
        return len(self._tasks)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        raise NotImplementedError


@dataclass(kw_only=True)
class Asked:
    """One request as it came."""

    line: str
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


async def read_request(reader: asyncio.StreamReader) -> Asked:
    """Read one request. Raises EOFError at the end of the connection."""
    line, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = {name.lower(): value for name, _, value in (found.partition(": ") for found in lines) if name}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Asked(line=line, headers=headers, body=body)


class RawServer(_Serving):
    """Each request takes the next reply; the last one is repeated."""

    def __init__(self, replies: Sequence[Reply], tls: ssl.SSLContext | None = None) -> None:
        super().__init__(tls)
        self.replies = replies
        self.requests: list[Asked] = []
        self.host = "127.0.0.1"

    @property
    def base_url(self) -> str:
        return f"{'http' if self._tls is None else 'https'}://{self.host}:{self.port}/v1"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            reply = self.replies[min(len(self.requests), len(self.replies) - 1)]
            if reply.read:
                self.requests.append(await read_request(reader))
            for piece in reply.pieces:
                writer.write(piece)
                await writer.drain()
                if reply.pause_s:
                    await asyncio.sleep(reply.pause_s)
            if reply.then == "keep":
                continue
            if reply.then == "hang":
                await reader.read()  # until the client closes
            elif reply.then == "reset":
                writer.transport.abort()
            return


class TLSRefuser(_Serving):
    """Fails the handshake of clients and tells them why, as most servers do; asyncio only hangs up."""

    def __init__(self, context: ssl.SSLContext) -> None:
        super().__init__()
        self._context = context

    @property
    def base_url(self) -> str:
        return f"https://127.0.0.1:{self.port}/v1"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = self._context.wrap_bio(incoming, outgoing, server_side=True)
        failed = False
        while data := await reader.read(65536):  # until the client closes
            if failed:
                continue
            incoming.write(data)
            try:
                tls.do_handshake()
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError:
                failed = True
            writer.write(outgoing.read())
            await writer.drain()


class Proxy(_Serving):
    """A proxy for CONNECT, and for plain HTTP by the whole URL; with `password` it wants one, Basic."""

    def __init__(self, *, authorization: str = "", refuses: str = "") -> None:
        super().__init__()
        self._authorization = authorization
        self._refuses = refuses
        self.asked: list[Asked] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = await read_request(reader)
        self.asked.append(asked)
        status = self._refuses
        if self._authorization and asked.headers.get("proxy-authorization") != self._authorization:
            status = "407 Proxy Authentication Required"
        if status:
            writer.write(f"HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n".encode())
            await writer.drain()
            return
        method, target, _ = asked.line.split(" ")
        if method == "CONNECT":
            host, _, port = target.partition(":")
            there, back = await asyncio.open_connection(host, int(port))
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        else:
            host, _, rest = target.removeprefix("http://").partition("/")
            name, _, port = host.partition(":")
            there, back = await asyncio.open_connection(name, int(port))
            back.write(f"{method} /{rest} HTTP/1.1\r\ncontent-length: {len(asked.body)}\r\n\r\n".encode())
            back.write(asked.body)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(_relay(reader, back))
                group.create_task(_relay(there, writer))
        finally:
            back.close()


async def _relay(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(65536):
            sink.write(data)
            await sink.drain()
    sink.close()
