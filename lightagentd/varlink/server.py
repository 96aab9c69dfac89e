"""Varlink over Unix sockets: the server that the daemon and the workers share, and a small client.

The interfaces, types and transport are those of asyncvarlink (https://varlink.org/); what a system service
needs around them is here: the peer's credentials from the kernel, bounds on messages, connections and memory
(`varlink_serving`, `varlink_bounds`), an error for each malformed message (`varlink_wire`), and an end of a
running stream when its reader hangs up. The owner of a `VarlinkServer` closes it, which ends its connections.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from typing import Any

from asyncvarlink import VarlinkInterface, VarlinkInterfaceRegistry
from asyncvarlink.serviceinterface import VarlinkServiceInterface

from lightagentd import __version__
from lightagentd.errors import LimitExceeded, MessageTooLarge, Unavailable, from_varlink
from lightagentd.host.peer import Peer
from lightagentd.limits import MAX_MESSAGE_BYTES
from lightagentd.text.reason import reason
from lightagentd.varlink.bounds import Account, Bounds, Ledger
from lightagentd.varlink.connection import READ_BYTES, AtOnce, Connection, HangupWatch, Outgoing, Transport
from lightagentd.varlink.wire import encode_message, error_reply, reply_of

__all__ = ["Peer", "PeerLost", "VarlinkConnection", "VarlinkServer", "error_reply"]

_log = logging.getLogger(__name__)

_CLOSE_S = 1.0
"""How long closing waits for peers to take what was sent to them."""
_LAST_ANSWERS_S = 0.5
"""How long a stop waits for the last answers of calls that end by themselves."""
_ACCEPT_RETRY_S = 1.0
_WARN_S = 60.0
"""How often the journal is told that somebody was turned away."""


class VarlinkServer:
    """Serves connections on listening sockets, each with a queue of its own. `interfaces_for` makes the
    interfaces of one connection.
    """

    def __init__(
        self,
        socks: Sequence[socket.socket],
        interfaces_for: Callable[[Peer], Sequence[VarlinkInterface]],
        *,
        product: str,
        max_connections: int = 1024,
        bounds: Bounds | None = None,
        outgoing: Outgoing | None = None,
    ) -> None:
        self._outgoing = outgoing
        self._socks = socks
        self._interfaces_for = interfaces_for
        self._product = product
        self._ledger = Ledger(max_connections, bounds or Bounds())
        self._warned_at = float("-inf")
        self._transports: dict[Transport, Connection] = {}
        self._hangups: HangupWatch | None = None

    @property
    def connections(self) -> int:
        return len(self._transports)

    @property
    def waiting_bytes(self) -> int:
        """The charged waiting bytes of all connections."""
        return self._ledger.waiting_bytes

    def start(self) -> None:
        """Listen, in the running event loop."""
        loop = asyncio.get_running_loop()
        self._hangups = HangupWatch()
        for sock in self._socks:
            sock.setblocking(False)
            sock.listen(1024)
            loop.add_reader(sock.fileno(), self._on_connect, sock)

    def stop_listening(self) -> None:
        for sock in self._socks:
            if sock.fileno() >= 0:
                asyncio.get_running_loop().remove_reader(sock.fileno())
                sock.close()

    async def close(self) -> None:
        """Stop listening, cancel the calls that do not end by themselves, close the connections.

        The caller must first end what the calls wait for; their last answers are then on the way.
        """
        self.stop_listening()
        connections = list(self._transports.items())
        if answering := [task for _, connection in connections if (task := connection.answering)]:
            await asyncio.wait(answering, timeout=_LAST_ANSWERS_S)
        running = [task for _, connection in connections if (task := connection.cancel())]
        if running:
            await asyncio.wait(running)
        for transport, _ in connections:
            transport.close()
        if connections:
            await asyncio.wait([transport.closed_future for transport, _ in connections], timeout=_CLOSE_S)
        for transport, _ in connections:
            transport.cut()
        if self._hangups is not None:
            self._hangups.close()
            self._hangups = None

    def _on_connect(self, sock: socket.socket) -> None:
        """Take one connection: so the sockets have turns, and a full queue keeps no other waiting."""
        try:
            conn, _ = sock.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError as err:
            _log.error("cannot accept a connection: %s", err)
            self._accept_later(sock)
            return
        peer = Peer.of(conn)
        try:
            account = self._ledger.open(peer.uid)
        except LimitExceeded as err:
            if peer.process is not None:
                peer.process.close()
            self._turn_away(conn, err)
            return
        peer.passed.count_for = account.move
        conn.setblocking(False)
        registry = VarlinkInterfaceRegistry()
        registry.register_interface(
            VarlinkServiceInterface("lightagentd", self._product, __version__, "", registry)
        )
        at_once = None
        for interface in self._interfaces_for(peer):
            registry.register_interface(interface)
            at_once = interface if isinstance(interface, AtOnce) else at_once
        assert self._hangups is not None
        connection = Connection(self._hangups, conn, registry, peer, account, self._outgoing, at_once)
        transport = Transport(asyncio.get_running_loop(), conn, conn, connection)
        self._transports[transport] = connection
        transport.closed_future.add_done_callback(lambda _: self._on_closed(transport, account))

    def _on_closed(self, transport: Transport, account: Account) -> None:
        account.close()
        self._transports.pop(transport, None)

    def _accept_later(self, sock: socket.socket) -> None:
        """Out of descriptors or memory: the socket stays readable, so stop watching it for a while."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(sock.fileno())
        loop.call_later(_ACCEPT_RETRY_S, self._accept_again, sock)

    def _accept_again(self, sock: socket.socket) -> None:
        if sock.fileno() >= 0:
            asyncio.get_running_loop().add_reader(sock.fileno(), self._on_connect, sock)

    def _turn_away(self, conn: socket.socket, why: LimitExceeded) -> None:
        if time.monotonic() - self._warned_at >= _WARN_S:
            self._warned_at = time.monotonic()
            _log.warning("a connection was turned away, and maybe more after it: %s", why.message)
        with conn, contextlib.suppress(OSError):
            conn.setblocking(False)
            conn.send(encode_message(error_reply(why).toreply().tojson()))


class PeerLost(Unavailable):
    """The peer hung up before its answer. It has no name on the wire: no peer says this of itself."""


class _Replies(asyncio.BufferedProtocol):
    """Cuts what a peer sends into messages; what waits is about one of the largest of them at most.

    Its buffer is small and made once: asyncio's streams have the kernel map 256 KiB anew for each read.
    """

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.ended: Exception | None = None
        """Why no more comes, once it is so."""
        self._buffer = memoryview(bytearray(READ_BYTES))
        self._received = bytearray()
        self._waits: asyncio.Future[None] | None = None

    async def next(self) -> bytes:
        """The next message without its NUL. Raises EOFError, OSError, and ValueError for one too large."""
        searched = 0
        while (end := self._received.find(b"\0", searched)) < 0:
            searched = len(self._received)
            if searched > MAX_MESSAGE_BYTES:
                raise ValueError(f"its answer is larger than {MAX_MESSAGE_BYTES >> 20} MiB")
            if self.ended is not None:
                raise self.ended
            self._waits = asyncio.get_running_loop().create_future()
            await self._waits
        with memoryview(self._received) as received:
            message = bytes(received[:end])
        del self._received[: end + 1]
        if len(self._received) <= MAX_MESSAGE_BYTES:
            self.transport.resume_reading()
        return message

    # What the transport calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the transport's call
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._received += self._buffer[:nbytes]
        if len(self._received) > MAX_MESSAGE_BYTES:
            self.transport.pause_reading()
        self._wake()

    def eof_received(self) -> None:
        self.ended = EOFError("it hung up")
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended = exc or self.ended or EOFError("the connection is closed")
        self._wake()

    def _wake(self) -> None:
        if self._waits is not None and not self._waits.done():
            self._waits.set_result(None)


class VarlinkConnection:
    """The calling end, for the daemon's own use: one call at a time over one connection."""

    def __init__(self, replies: _Replies) -> None:
        self._replies = replies

    @staticmethod
    async def connect(path: Path) -> VarlinkConnection:
        """Raises OSError."""
        _, replies = await asyncio.get_running_loop().create_unix_connection(_Replies, str(path))
        return VarlinkConnection(replies)

    @property
    def closed(self) -> bool:
        """Whether one of the two ends has hung up, as far as the event loop has noticed."""
        return self._replies.ended is not None or self._replies.transport.is_closing()

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One call with one reply. Raises the error of the reply, PeerLost when the peer is gone."""
        reply = await self._exchange({"method": method, "parameters": parameters})
        found: dict[str, Any] = reply["parameters"]
        return found

    async def stream(self, method: str, **parameters: Any) -> AsyncGenerator[dict[str, Any], None]:
        """One call with many replies. Leaving the loop early leaves the connection unusable: close it."""
        reply = await self._exchange({"method": method, "parameters": parameters, "more": True})
        yield reply["parameters"]
        while reply.get("continues"):
            reply = await self._reply(method)
            yield reply["parameters"]

    async def _exchange(self, message: dict[str, Any]) -> dict[str, Any]:
        """Send a message; gives its first reply. Raises as `call`, and MessageTooLarge."""
        data = encode_message(message)
        if len(data) > MAX_MESSAGE_BYTES:
            raise MessageTooLarge(
                f"The call of {message['method']} is larger than {MAX_MESSAGE_BYTES >> 20} MiB."
            )
        if self._replies.ended is None:
            self._replies.transport.write(data)
        return await self._reply(message["method"])

    async def _reply(self, method: str) -> dict[str, Any]:
        try:
            reply = reply_of(await self._replies.next())
        except (OSError, EOFError, ValueError, RecursionError) as err:
            raise PeerLost(f"The peer broke off during {method}: {reason(err)}.") from err
        if "error" in reply:
            raise from_varlink(str(reply["error"]), reply["parameters"])
        return reply

    def close(self) -> None:
        """Hang up; a stream that runs at the other end is cancelled by that."""
        self._replies.transport.close()
