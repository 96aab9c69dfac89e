"""Varlink over Unix sockets: the server that the daemon and the workers share, and a small client.

The server is asyncvarlink (https://varlink.org/) with what a system service needs around it: the peer's
credentials from the kernel, a bound on messages and connections, an error for each malformed message,
and an end of the running call when its caller hangs up, although nothing is read from a connection
while a call runs on it. The owner of a `VarlinkServer` closes it; that ends its connections and calls.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import select
import socket
import struct
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asyncvarlink import (
    AnnotatedResult,
    GenericVarlinkErrorReply,
    VarlinkErrorReply,
    VarlinkInterface,
    VarlinkInterfaceRegistry,
    VarlinkInterfaceServerProtocol,
    VarlinkMethodCall,
    VarlinkMethodReply,
    VarlinkMethodSignature,
    VarlinkTransport,
)
from asyncvarlink.serviceinterface import VarlinkServiceInterface
from asyncvarlink.types import FileDescriptorArray, JSONObject

from lightagentd import __version__
from lightagentd.config import MAX_MESSAGE_BYTES
from lightagentd.errors import LightagentError, MalformedMessage, MessageTooLarge, Unavailable, from_varlink

_log = logging.getLogger(__name__)

_READ_BYTES = 256 << 10
_LINGER_S = 5.0
"""How long a peer that sent too much gets to stop sending and read why, before it is cut off."""


@dataclass(frozen=True, kw_only=True)
class Peer:
    """The other end of a connection, as the kernel knew it when it connected (unix(7), SO_PEERCRED)."""

    uid: int
    gid: int
    pid: int

    @staticmethod
    def of(sock: socket.socket) -> Peer:
        size = struct.calcsize("3i")
        pid, uid, gid = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
        return Peer(uid=uid, gid=gid, pid=pid)


class _Transport(VarlinkTransport):
    """Reads once for each time that the socket is readable, so that no peer can hold the event loop."""

    def _handle_read_socket_peek(self) -> None:
        sock = self._recvfd
        assert isinstance(sock, socket.socket)
        try:
            data = sock.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError as err:
            self._close_receiver(err)
            return
        if data:
            self._protocol.message_received(data, None)
        else:
            self._loop.remove_reader(sock)
            self._loop.call_soon(self._eof_received)


class _Connection(VarlinkInterfaceServerProtocol):
    """One peer. Collects its messages, and runs one call after the other."""

    def __init__(
        self, server: VarlinkServer, sock: socket.socket, registry: VarlinkInterfaceRegistry
    ) -> None:
        super().__init__(registry)
        self._server = server
        self._sock = sock
        self._fd = sock.fileno()
        self._pieces: list[bytes] = []
        self._pieces_bytes = 0
        self._discarding = False
        self._call: asyncio.Future[None] | None = None
        self.hung_up = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._server.watch(self._fd, self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.unwatch(self._fd)
        self.cancel_call()
        super().connection_lost(exc)

    def cancel_call(self) -> None:
        if self._call is not None:
            self._call.cancel()

    def on_hangup(self) -> None:
        """The peer closed its whole end: nobody reads what the running call answers."""
        self.hung_up = True
        self.cancel_call()

    def message_received(self, data: bytes, _fds: FileDescriptorArray | None) -> None:
        if self._discarding:
            return
        self._pieces.append(data)
        self._pieces_bytes += len(data)
        if b"\0" in data:
            whole = b"".join(self._pieces)
            end = whole.rindex(b"\0") + 1
            rest = whole[end:]
            self._pieces, self._pieces_bytes = [rest] if rest else [], len(rest)
            for message in whole[: end - 1].split(b"\0"):
                self._one_message(message)
        elif self._pieces_bytes > MAX_MESSAGE_BYTES:
            self._refuse()

    def _one_message(self, message: bytes) -> None:
        if self._discarding or len(message) > MAX_MESSAGE_BYTES:
            self._refuse()
            return
        try:
            super().message_received(message + b"\0", None)
        except UnicodeDecodeError:
            self._answer_error(MalformedMessage("The message is not UTF-8."))
        except RecursionError:
            self._answer_error(MalformedMessage("The message is nested too deeply."))

    def _refuse(self) -> None:
        if self._discarding:
            return
        self._discarding = True
        self._pieces.clear()
        self._answer_error(
            MessageTooLarge(
                f"A message is larger than {MAX_MESSAGE_BYTES >> 20} MiB.", suggestion="Send less at once."
            )
        )
        asyncio.get_running_loop().call_later(_LINGER_S, self.close)

    def error_received(self, err: Exception, _data: bytes, _fds: FileDescriptorArray | None) -> None:
        self._answer_error(MalformedMessage(f"The message is not a JSON object: {err}"))

    def request_received(
        self, obj: JSONObject, fds: FileDescriptorArray | None
    ) -> asyncio.Future[None] | None:
        try:
            VarlinkMethodCall.fromjson(obj)
        except (TypeError, ValueError) as err:
            self._answer_error(MalformedMessage(f"The message is not a Varlink call: {err}."))
            return None
        answered: asyncio.Future[None] | None = super().request_received(obj, fds)
        return answered

    def call_received(
        self, call: VarlinkMethodCall, fds: FileDescriptorArray | None
    ) -> asyncio.Future[None] | None:
        running = super().call_received(call, fds)
        if running is None:
            return None
        self._call = running
        return asyncio.ensure_future(self._until_done(running))

    async def _until_done(self, running: asyncio.Future[None]) -> None:
        """Wait for the call; a cancel of it by `cancel_call` ends here, one of the server goes through."""
        try:
            await asyncio.wait([running])
        except asyncio.CancelledError:
            running.cancel()
            await asyncio.wait([running])
            raise
        finally:
            self._call = None
        if not running.cancelled():
            running.result()

    async def _call_async_method_more(
        self,
        method: Callable[..., AsyncGenerator[AnnotatedResult, None]],
        signature: VarlinkMethodSignature,
        pyparams: dict[str, Any],
    ) -> None:
        """As in the library, but the method's generator is closed before the call ends, however it ends."""
        results = method(**pyparams)
        try:
            async for result in results:
                parameters = signature.return_type.tojson(result.parameters)
                sent = self.send_reply(VarlinkMethodReply(parameters, continues=result.continues))
                try:
                    await sent
                except OSError:
                    return
        except VarlinkErrorReply as err:
            self.send_error(err)
        finally:
            await results.aclose()

    def handle_call_exception(self, exc: BaseException, oneway: bool) -> None:
        _log.error("a call failed in a way that nobody expected", exc_info=exc)
        if not oneway:
            self._answer_error(
                LightagentError("The call failed inside the daemon.", suggestion="The journal says why.")
            )

    def _answer_error(self, err: LightagentError) -> None:
        self.send_error(error_reply(err))


def error_reply(err: LightagentError) -> GenericVarlinkErrorReply:
    """The one place where an error becomes a Varlink error."""
    return GenericVarlinkErrorReply(
        err.varlink_name(),
        {"code": err.code, "message": err.message, "field": err.field, "suggestion": err.suggestion},
    )


class VarlinkServer:
    """Serves connections on a listening socket. `interfaces_for` makes the interfaces of one connection."""

    def __init__(
        self,
        sock: socket.socket,
        interfaces_for: Callable[[Peer], Sequence[VarlinkInterface]],
        *,
        product: str,
        max_connections: int = 1024,
    ) -> None:
        self._sock = sock
        self._interfaces_for = interfaces_for
        self._product = product
        self._max_connections = max_connections
        self._transports: dict[_Transport, _Connection] = {}
        self._hangups: select.epoll | None = None
        self._watched: dict[int, _Connection] = {}

    @property
    def connections(self) -> int:
        return len(self._transports)

    def start(self) -> None:
        """Listen, in the running event loop."""
        loop = asyncio.get_running_loop()
        self._sock.setblocking(False)
        self._sock.listen(1024)
        self._hangups = select.epoll()
        loop.add_reader(self._hangups.fileno(), self._on_hangups)
        loop.add_reader(self._sock.fileno(), self._on_connect)

    def stop_listening(self) -> None:
        if self._sock.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._sock.fileno())
            self._sock.close()

    async def close(self) -> None:
        """Stop listening, cancel the running calls, close the connections."""
        self.stop_listening()
        for transport, connection in list(self._transports.items()):
            connection.cancel_call()
            transport.close()
        for transport in list(self._transports):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await transport.closed_future
        if self._hangups is not None:
            asyncio.get_running_loop().remove_reader(self._hangups.fileno())
            self._hangups.close()
            self._hangups = None

    def watch(self, fd: int, connection: _Connection) -> None:
        # No event is asked for: EPOLLHUP is always reported (epoll_ctl(2)), when both ends are shut.
        if self._hangups is not None:
            self._hangups.register(fd, select.EPOLLET)
            self._watched[fd] = connection

    def unwatch(self, fd: int) -> None:
        if self._watched.pop(fd, None) is not None and self._hangups is not None:
            self._hangups.unregister(fd)

    def _on_hangups(self) -> None:
        assert self._hangups is not None
        for fd, event in self._hangups.poll(0):
            connection = self._watched.get(fd)
            if connection is not None and event & (select.EPOLLHUP | select.EPOLLERR):
                connection.on_hangup()

    def _on_connect(self) -> None:
        try:
            conn, _ = self._sock.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError as err:
            _log.error("cannot accept a connection: %s", err)
            return
        if len(self._transports) >= self._max_connections:
            _log.warning("more than %d connections: one was closed", self._max_connections)
            conn.close()
            return
        conn.setblocking(False)
        registry = VarlinkInterfaceRegistry()
        registry.register_interface(
            VarlinkServiceInterface(
                "lightagentd", self._product, __version__, "https://lightagentd.example.org/", registry
            )
        )
        for interface in self._interfaces_for(Peer.of(conn)):
            registry.register_interface(interface)
        connection = _Connection(self, conn, registry)
        transport = _Transport(asyncio.get_running_loop(), conn, conn, connection)
        self._transports[transport] = connection
        transport.closed_future.add_done_callback(lambda _: self._transports.pop(transport, None))


class VarlinkConnection:
    """The calling end, for the daemon's own use: one call at a time over one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @staticmethod
    async def connect(path: Path) -> VarlinkConnection:
        """Raises OSError."""
        return VarlinkConnection(*await asyncio.open_unix_connection(path, limit=MAX_MESSAGE_BYTES))

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One call with one reply. Raises the error of the reply, Unavailable when the peer is gone."""
        async for reply in self._exchange({"method": method, "parameters": parameters}):
            return reply
        raise Unavailable(f"The peer closed the connection during {method}.")

    async def stream(self, method: str, **parameters: Any) -> AsyncIterator[dict[str, Any]]:
        """One call with many replies. Leaving the loop early leaves the connection unusable: close it."""
        async for reply in self._exchange({"method": method, "parameters": parameters, "more": True}):
            yield reply

    async def _exchange(self, message: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        data = json.dumps(message, separators=(",", ":")).encode() + b"\0"
        if len(data) > MAX_MESSAGE_BYTES:
            raise MessageTooLarge(
                f"The call of {message['method']} is larger than {MAX_MESSAGE_BYTES >> 20} MiB."
            )
        try:
            self._writer.write(data)
            await self._writer.drain()
            while True:
                reply = json.loads((await self._reader.readuntil(b"\0"))[:-1])
                if "error" in reply:
                    raise from_varlink(reply["error"], reply.get("parameters") or {})
                yield reply.get("parameters") or {}
                if not reply.get("continues"):
                    return
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError) as err:
            raise Unavailable(f"The peer broke off during {message['method']}: {err}") from err

    def close(self) -> None:
        """Hang up; a call that runs at the other end is cancelled by that."""
        self._writer.close()
