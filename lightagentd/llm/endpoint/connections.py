"""The connections of one agent to one model server: a transport of httpx whose HTTP/1.1 is that of aiohttp.

It takes about half of the CPU of the transport of httpx, which still serves calls through a proxy.
Requests and responses, timeouts and errors are those of httpx. The owner closes it; that ends the answers
that are being read. aiohttp connects, keeps a pool and parses. What it leaves unbounded is bounded
here: the time for writing, and what a server sends outside of the body of an answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import select
import socket
import ssl
from collections.abc import AsyncIterator, Iterator

import aiohttp
import httpx
from aiohttp.client_proto import ResponseHandler
from aiohttp.http_exceptions import HttpProcessingError
from yarl import URL

_MOST_CONNECTIONS = 256
_KEEP_S = 5.0
"""How long an unused connection is kept. Servers keep theirs for 5 s or longer."""
_LINE_BYTES = 64 << 10
_HEAD_BYTES = 128 << 10
"""How much may come outside of a body: heads, also informational ones, and what nobody asked for."""
_PIECE_BYTES = 256 << 10
"""What is longer is written in pieces of this size, so that the connection takes it as it can."""


class Connections(httpx.AsyncBaseTransport):
    """`tls` is for URLs of https."""

    def __init__(self, tls: ssl.SSLContext | None) -> None:
        connector = aiohttp.TCPConnector(
            ssl=tls or True,
            limit=0,
            keepalive_timeout=_KEEP_S,
            use_dns_cache=False,
            resolver=aiohttp.ThreadedResolver(),  # the machine's, also where aiodns is installed
        )
        connector._factory = functools.partial(_Bounded, loop=asyncio.get_running_loop())  # type: ignore[assignment]
        self._free = asyncio.Semaphore(_MOST_CONNECTIONS)
        self._open: set[_Body] = set()
        self._session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            skip_auto_headers=("Accept", "Accept-Encoding", "User-Agent", "Content-Type"),
            max_line_size=_LINE_BYTES,
            max_field_size=_LINE_BYTES,
        )

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request that has its whole content. Raises httpx.TransportError."""
        timeout = request.extensions["timeout"]
        await self._wait_for_a_connection(timeout["pool"])
        body: _Body | None = None
        try:
            with _told_by_httpx():
                answer = await self._session.request(
                    request.method,
                    _without_user(request.url),
                    headers=request.headers.multi_items(),
                    data=_written(request.content),
                    allow_redirects=False,
                    timeout=aiohttp.ClientTimeout(connect=timeout["connect"], sock_read=timeout["read"]),
                )
            body = _Body(answer, self._open, self._free)
        finally:
            if body is None:
                self._free.release()
        return httpx.Response(answer.status, headers=answer.raw_headers, stream=body, request=request)

    async def aclose(self) -> None:
        for body in list(self._open):
            await body.aclose()
        await self._session.close()

    async def _wait_for_a_connection(self, timeout_s: float | None) -> None:
        try:
            async with asyncio.timeout(timeout_s if self._free.locked() else None):
                await self._free.acquire()
        except TimeoutError:
            raise httpx.PoolTimeout("") from None


class _Body(httpx.AsyncByteStream):
    """The body of one response, in pieces of all chunks of HTTP that are there.

    While it is open, it is in `open_bodies` and holds one of `free`.
    """

    def __init__(
        self, answer: aiohttp.ClientResponse, open_bodies: set[_Body], free: asyncio.Semaphore
    ) -> None:
        self._answer = answer
        self._open = open_bodies
        self._free = free
        self.chunks = 1
        """Of how many chunks the last piece is made."""
        self._open.add(self)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        content = self._answer.content
        with _told_by_httpx():
            while True:
                try:
                    piece, ends_chunk = await content.readchunk()
                    self.chunks = 1 + len(content._buffer)
                    if content._buffer:
                        piece += content._read_nowait(-1)
                except (aiohttp.ClientError, OSError, HttpProcessingError):
                    if not content._buffer:
                        raise
                    piece, ends_chunk = content._read_nowait(-1), True  # what came before the failure
                if piece:
                    yield piece
                elif not ends_chunk:
                    return

    async def aclose(self) -> None:
        if self in self._open:
            self._open.remove(self)
            self._free.release()
            self._answer.close()  # keeps the connection if the body was read to its end


class _Bounded(ResponseHandler):
    """One connection, with bounds."""

    _outside_bytes = 0
    """What came since the last request outside of a body."""

    def is_connected(self) -> bool:
        """Whether it can be used again: the event loop may not know yet that the server closed it."""
        if self.transport is None or not super().is_connected():
            return False
        poll = select.poll()
        poll.register(self.transport.get_extra_info("socket").fileno(), select.POLLIN)
        return not poll.poll(0)

    def set_response_params(self, **params: object) -> None:
        self._outside_bytes = 0
        super().set_response_params(**params)  # type: ignore[arg-type]
        self.start_timeout()  # the time for writing; once all is written, aiohttp starts it again for reading

    def data_received(self, data: bytes) -> None:
        if self._payload is None or self._payload.is_eof():
            if self._outside_bytes > _HEAD_BYTES:
                self.set_exception(HttpProcessingError(message="its head does not come to an end"))
                self.close()
                return
            self._outside_bytes += len(data)
        super().data_received(data)

    def close(self) -> None:
        """Close at once, without a farewell of TLS for which a silent server could be waited."""
        transport = self.transport
        super().close()
        if transport is not None:
            transport.abort()


def _without_user(url: httpx.URL) -> URL:
    """The URL, encoded already, without user and password: they are no part of a request without a client."""
    return URL(f"{url.scheme}://{url.netloc.decode()}{url.raw_path.decode()}", encoded=True)


def _written(content: bytes) -> bytes | AsyncIterator[bytes]:
    return content if len(content) <= _PIECE_BYTES else _in_pieces(content)


async def _in_pieces(content: bytes) -> AsyncIterator[bytes]:
    for begin in range(0, len(content), _PIECE_BYTES):
        yield content[begin : begin + _PIECE_BYTES]


@contextlib.contextmanager
def _told_by_httpx() -> Iterator[None]:
    """Raise the error of httpx for one of aiohttp, with the cause that the system or OpenSSL gave."""
    try:
        yield
    except aiohttp.ConnectionTimeoutError as err:
        raise httpx.ConnectTimeout(str(err)) from err
    except aiohttp.ServerTimeoutError as err:
        raise httpx.ReadTimeout(str(err)) from err
    except aiohttp.ClientConnectorError as err:
        raise httpx.ConnectError(str(err.__cause__)) from err.__cause__
    except UnicodeError as err:  # for a name that DNS cannot have, the resolver says nothing else
        raise httpx.ConnectError(str(err)) from socket.gaierror(socket.EAI_NONAME, "it is no name of DNS")
    except (aiohttp.ClientResponseError, HttpProcessingError) as err:
        raise httpx.RemoteProtocolError(err.message.splitlines()[0]) from err
    except aiohttp.InvalidURL as err:
        raise httpx.UnsupportedProtocol(str(err)) from err
    except (aiohttp.ClientError, OSError) as err:
        raise httpx.ReadError("") from err
