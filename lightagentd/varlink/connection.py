"""One served Varlink connection, and the watch that notices when its peer hangs up.

A `Connection` belongs to its transport, and that to the `varlink.VarlinkServer` that made it. It owns the
task that answers, while there is something to answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import select
import socket
import struct
import termios
from collections.abc import AsyncGenerator, Callable
from typing import Any

from asyncvarlink import (
    AnnotatedResult,
    VarlinkErrorReply,
    VarlinkInterfaceRegistry,
    VarlinkMethodCall,
    VarlinkMethodReply,
    VarlinkMethodSignature,
    VarlinkTransport,
)
from asyncvarlink.protocol import VarlinkBaseProtocol
from asyncvarlink.types import FileDescriptorArray

from lightagentd.errors import LightagentError, LimitExceeded, MessageTooLarge
from lightagentd.host.peer import Peer
from lightagentd.limits import MAX_MESSAGE_BYTES
from lightagentd.varlink.bounds import FREE_BYTES, Account
from lightagentd.varlink.interaction import INTERACTION
from lightagentd.varlink.wire import (
    SMALL_BYTES,
    call_of,
    check_size,
    decode_message,
    encode_message,
    error_reply,
    parameters_of,
    split_interaction,
)

_log = logging.getLogger(__name__)

Outgoing = Callable[[str, dict[str, Any]], dict[str, Any]]
"""Of a method's name and a reply to it: the reply as it may go out."""

READ_BYTES = 64 << 10
"""Less than what the C library has the kernel map by itself (mallopt(3)): that takes longer than a read."""
UNREAD_S, UNREAD_MOST_S = 0.001, 0.1
"""How soon a peer that has not read is looked at again: first, and after a while."""
LINGER_S = 5.0
"""How long a peer that sent too much gets to stop sending and read why, before it is cut off."""


class AtOnce:
    """An interface that answers some messages as they come, without a task: those of a peer that it trusts,
    and that waits for each answer. A connection has one such interface at most.
    """

    def at_once(self, message: bytes) -> dict[str, Any] | None:
        """Of a whole message: the parameters of its reply, or None if it is to go the way of all others."""
        raise NotImplementedError


class HangupWatch:
    """Tells connections that their peer closed its whole end, even while nothing is read from them."""

    def __init__(self) -> None:
        """In the running event loop; `close` lets go of the descriptor."""
        self._epoll = select.epoll()
        self._connections: dict[int, Connection] = {}
        asyncio.get_running_loop().add_reader(self._epoll.fileno(), self._on_events)

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._epoll.fileno())
        self._epoll.close()

    def add(self, fd: int, connection: Connection) -> None:
        # No event is asked for: EPOLLHUP is always reported (epoll_ctl(2)), when both ends are shut.
        self._epoll.register(fd, select.EPOLLET)
        self._connections[fd] = connection

    def remove(self, fd: int, connection: Connection) -> None:
        # The descriptor may be closed by now, and its number be that of another connection.
        if self._connections.get(fd) is connection:
            del self._connections[fd]
            with contextlib.suppress(OSError, ValueError):
                self._epoll.unregister(fd)

    def _on_events(self) -> None:
        for fd, event in self._epoll.poll(0):
            connection = self._connections.get(fd)
            if connection is not None and event & (select.EPOLLHUP | select.EPOLLERR):
                connection.on_hangup()


class Transport(VarlinkTransport):
    """Reads once for each time that the socket is readable, so that no peer can hold the event loop."""

    def _handle_read_socket_peek(self) -> None:
        sock, protocol = self._recvfd, self._protocol
        assert isinstance(sock, socket.socket)
        if isinstance(protocol, Connection) and protocol.answering is not None:
            self.pause_reading()  # only now: most peers send nothing before they have their answer
            return
        try:
            data = protocol.receive(sock) if isinstance(protocol, Connection) else sock.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError as err:
            self._close_receiver(err)
            return
        if data:
            protocol.message_received(data, None)
        else:
            self._loop.remove_reader(sock)
            self._loop.call_soon(self._eof_received)

    def send_message(self, data: bytes, fds: list[int] | None = None) -> asyncio.Future[None]:
        """As in the library, but what the socket takes at once is sent at once."""
        sock = self._sendfd
        if self._sendqueue or fds or self._closing or not isinstance(sock, socket.socket):
            return super().send_message(data, fds)
        try:
            sent = sock.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            return super().send_message(data, fds)  # which meets the same error and reports it
        if sent < len(data):
            return super().send_message(data[sent:], fds)
        done = self._loop.create_future()
        done.set_result(None)
        return done

    def cut(self) -> None:
        """Close at once; what waits to be sent is lost. `close` alone waits for a peer that never reads."""
        self.abort()
        self._close_sender()


class Connection(VarlinkBaseProtocol):
    """One peer. Cuts what it sends into messages and answers one after the other.

    Nothing is read while a message waits for its answer, and a message is answered only after the peer has
    read the last answer. So a peer that never reads, or sends without end, costs a bounded amount of memory.
    Waiting bytes count in its account; a peer that exceeds its limit gets an error and is cut off.
    """

    def __init__(
        self,
        hangups: HangupWatch,
        sock: socket.socket,
        registry: VarlinkInterfaceRegistry,
        peer: Peer,
        account: Account,
        outgoing: Outgoing | None = None,
        at_once: AtOnce | None = None,
    ) -> None:
        self._outgoing = outgoing
        self._at_once = at_once
        self._method = ""
        """The method that is being answered."""
        self._hangups = hangups
        self._peer = peer
        self._account = account
        self._sock = sock
        self._fd = sock.fileno()
        self._registry = registry
        self._transport: Transport | None = None
        self._received = bytearray()
        self._answering: asyncio.Task[None] | None = None
        self._streaming = False
        self._refusal: LightagentError | None = None
        self._linger: asyncio.TimerHandle | None = None
        self._hung_up = False

    # What the transport calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, Transport)
        self._transport = transport
        self._hangups.add(self._fd, self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the transport's call
        self._hangups.remove(self._fd, self)
        if self._peer.process is not None:
            self._peer.process.close()
        self._peer.passed.close()
        self._transport = None
        self._received = bytearray()
        if self._linger is not None:
            self._linger.cancel()
        self.cancel()

    def receive(self, sock: socket.socket) -> bytes:
        """What has come; a descriptor with it is kept, where one is wanted. Raises OSError."""
        return self._peer.passed.receive(sock, READ_BYTES)

    def eof_received(self) -> None:
        """Nothing more comes; all that came was answered, since nothing is read before that."""
        if self._transport is not None:
            self._transport.close()

    def message_received(self, data: bytes, fds: FileDescriptorArray | None) -> None:  # noqa: ARG002 - as above
        if self._refusal is not None:
            return
        self._received += data
        try:
            self._account.take(len(data))
        except LimitExceeded as err:
            self._account.give(len(self._received) - len(data))
            self._refuse(err)
        if len(self._received) > MAX_MESSAGE_BYTES and b"\0" not in data:
            self._refuse_large()
        if self._at_once is not None and data.endswith(b"\0") and self._answered(self._at_once):
            return
        if (b"\0" in data or self._refusal is not None) and self._answering is None:
            self._answering = asyncio.create_task(self._answer_all(), name=f"varlink-{self._fd}")
            self._answering.add_done_callback(self._all_answered)

    def _answered(self, asked: AtOnce) -> bool:
        """Whether all that came is one message, and it has its answer already, without a task."""
        message, transport = self._received, self._transport
        if self._answering is not None or self._refusal is not None or transport is None:
            return False
        if message.find(b"\0") + 1 != len(message):
            return False
        if (parameters := asked.at_once(bytes(message[:-1]))) is None:
            return False
        self._account.give(len(message))
        self._received = bytearray()
        try:
            data = self._encoded({"parameters": parameters})
        except MessageTooLarge as err:
            data = self._encoded(error_reply(err).toreply().tojson())
        transport.send_message(data).add_done_callback(_retrieve)
        return True

    def _refuse_large(self) -> None:
        self._account.give(len(self._received))
        self._refuse(
            MessageTooLarge(
                f"A message is larger than {MAX_MESSAGE_BYTES >> 20} MiB.", suggestion="Send less at once."
            )
        )

    def _refuse(self, why: LightagentError) -> None:
        """Discard all further input, because the begin of the next message cannot be trusted."""
        self._refusal = why
        self._received = bytearray()

    def _next(self) -> bytes | None:
        """Cut off the next whole message; it stays in the account until it is decoded."""
        end = self._received.find(b"\0")
        if end > MAX_MESSAGE_BYTES:
            self._refuse_large()
        if not 0 <= end <= MAX_MESSAGE_BYTES:
            return None
        with memoryview(self._received) as received:
            message = bytes(received[:end])
        del self._received[: end + 1]
        self._account.give(1)
        return message

    # What the server calls

    def on_hangup(self) -> None:
        """The peer closed its whole end: nobody reads what a stream would still say.

        A call with one answer goes on, so that no change is left half done; a person who is asked whether
        it may begin is asked no longer.
        """
        self._hung_up = True
        if self._peer.process is not None:
            self._peer.process.gone.set()
        if self._streaming:
            self.cancel()

    @property
    def answering(self) -> asyncio.Task[None] | None:
        """The task that answers what came, if anything did."""
        return self._answering

    def cancel(self) -> asyncio.Task[None] | None:
        """Cancel the running call and forget those that wait; gives the task to wait for."""
        if self._answering is not None:
            self._answering.cancel()
        return self._answering

    # Answering

    async def _answer_all(self) -> None:
        first = True
        while (message := self._next()) is not None:
            if not first:
                await asyncio.sleep(0)  # thousands of small messages must not hold the event loop
            first = False
            await self._until_read()
            size = len(message)
            try:
                if self._hung_up and b"oneway" not in message:
                    continue
                decoded = await self._decode(message)
            except LightagentError as err:
                await self._send_error(error_reply(err))
                continue
            finally:
                del message  # a call may run for an hour
                self._account.give(size)
            async with self._account.working():
                await self._answer(decoded)
        if self._refusal is not None:
            await self._send_error(error_reply(self._refusal))

    async def _until_read(self) -> None:
        """Wait until the peer has read all answers, or is gone; nothing tells when, so look now and then."""
        pause_s = UNREAD_S
        while not self._hung_up and _unread(self._sock):
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, UNREAD_MOST_S)

    def _all_answered(self, task: asyncio.Task[None]) -> None:
        self._answering = None
        if (whole := self._received.rfind(b"\0") + 1) > 0:  # it was cancelled, or failed
            del self._received[:whole]
            self._account.give(whole)
        if not task.cancelled() and (failure := task.exception()) is not None:
            _log.error("a connection failed in a way that nobody expected", exc_info=failure)
        if self._transport is not None:
            self._transport.resume_reading()
            if self._refusal is not None:
                loop = asyncio.get_running_loop()
                self._linger = loop.call_later(LINGER_S, self._transport.cut)

    async def _decode(self, message: bytes) -> dict[str, Any]:
        """Raises MalformedMessage, MessageTooLarge."""
        if len(message) <= SMALL_BYTES:
            return decode_message(message)
        async with self._account.turn():
            await check_size(message)
            return decode_message(message)

    async def _answer(self, message: dict[str, Any]) -> None:
        oneway = message.get("oneway") is True
        if self._hung_up and not oneway:
            return
        try:
            self._method = str(message.get("method", ""))
            await self._run(call_of(message))
            return
        except VarlinkErrorReply as err:
            error = err
        except LightagentError as err:
            error = error_reply(err)
        except Exception:  # noqa: BLE001 - the boundary of a request
            _log.exception("a call failed in a way that nobody expected")
            error = error_reply(
                LightagentError("The call failed inside the daemon.", suggestion="The journal says why.")
            )
        if not oneway:
            await self._send_error(error)

    async def _run(self, call: VarlinkMethodCall) -> None:
        """Raises VarlinkErrorReply, LightagentError."""
        method, signature = self._registry.lookup_method(call)
        given, interactive = split_interaction(call.parameters)
        parameters = parameters_of(signature, given)
        INTERACTION.set(interactive)  # of the task that answers this connection, for this call
        if signature.more:
            self._streaming = True
            try:
                await self._relay(method(**parameters), signature)
            finally:
                self._streaming = False
            return
        result = await method(**parameters) if signature.asynchronous else method(**parameters)
        if not call.oneway:
            await self._send(VarlinkMethodReply(signature.return_type.tojson(result.parameters)))

    async def _relay(
        self, results: AsyncGenerator[AnnotatedResult, None], signature: VarlinkMethodSignature
    ) -> None:
        """Send each result; the generator is closed before the call ends, however it ends."""
        async with contextlib.aclosing(results):
            async for result in results:
                reply = VarlinkMethodReply(
                    signature.return_type.tojson(result.parameters), continues=result.continues
                )
                if not await self._send(reply):
                    return

    async def _send_error(self, error: VarlinkErrorReply) -> None:
        try:
            await self._send(error.toreply())
        except LightagentError as err:  # it repeats something that is too large
            await self._send(error_reply(err).toreply())

    def _encoded(self, message: dict[str, Any]) -> bytes:
        """Raises MessageTooLarge."""
        data = encode_message(message)
        if len(data) > MAX_MESSAGE_BYTES:
            raise MessageTooLarge(
                f"The answer is larger than {MAX_MESSAGE_BYTES >> 20} MiB.",
                suggestion="Ask for less at once, for example with a smaller limit.",
            )
        return data

    async def _send(self, reply: VarlinkMethodReply) -> bool:
        """Send a reply and wait until it is out; False when the peer is gone.

        Raises MessageTooLarge, and LimitExceeded when too much waits to be read already.
        """
        message = reply.tojson()
        if self._outgoing is not None:
            message = self._outgoing(self._method, message)
        data = self._encoded(message)
        if self._transport is None or self._hung_up:
            return False
        charged = len(data) if len(data) > FREE_BYTES else 0
        self._account.take(charged)
        try:
            sent = self._transport.send_message(data)
            del data
            if sent.done() and sent.exception() is None:
                return True
            sent.add_done_callback(_retrieve)  # in case that a cancel leaves it to nobody
            # Not awaited itself, since a cancel must not reach the transport's future.
            await asyncio.wait([sent])
        finally:
            self._account.give(charged)
        if sent.exception() is not None:
            self._hung_up = True
        return not self._hung_up


def _unread(sock: socket.socket) -> bool:
    """Whether the peer of an open Unix socket has not read all that was sent to it (unix(7), SIOCOUTQ)."""
    if sock.fileno() < 0:
        return False
    [waiting] = struct.unpack("i", fcntl.ioctl(sock, termios.TIOCOUTQ, bytes(4)))
    return bool(waiting)


def _retrieve(sent: asyncio.Future[None]) -> None:
    if not sent.cancelled():
        sent.exception()
