"""The one place that touches dbus-next (with `bus_messages`), for the control plane and for the tools.

Taken from dbus-next are its messages, signatures and (un)marshalling. Its connection is not used: that of
0.2.3 loses messages when the socket's buffer is full (its writer takes BlockingIOError for the end of the
connection), spins for ever when the bus hangs up during authentication, lets one message with an unknown
header field end the connection, answers an unexpected exception with a traceback, and never closes its
socket. Here asyncio's streams carry the bytes, and a full socket makes the sender wait.

`connect()` owns everything that it makes: the socket, the task that reads, the tasks that answer calls and
the subscriptions end when its block ends. Nothing is acquired before.

Queues and what happens when they are full:

- **Outgoing**: `OUTBOX_LIMIT_BYTES` wait for the socket, and at most one message of each sender beyond that.
  Whoever sends then waits, and after its `timeout_s` fails with `TimedOut`. Nothing is dropped silently.
- **Signals**: each subscription holds `limit` signals. When it is full, later ones are dropped and counted;
  after the last one held the iterator raises `LimitExceeded` once, with the count, and then goes on.
- **Calls to us**: at most `CALLS_LIMIT` are answered at a time; a further one gets LimitsExceeded.

Specification: https://dbus.freedesktop.org/doc/dbus-specification.html
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dbus_next.constants import MessageFlag, MessageType
from dbus_next.message import Message
from dbus_next.signature import Variant

from lightagentd import errors
from lightagentd.bus_address import address_of, open_bus_socket
from lightagentd.bus_descriptors import send_with_descriptors
from lightagentd.bus_errors import dbus_name_of, error_for
from lightagentd.bus_messages import clean, encode, holds_nul, make_message, plain, read_message
from lightagentd.bus_signals import Signal, Signals, match_rule
from lightagentd.errors import LightagentError

__all__ = [
    "Bus",
    "Call",
    "Reply",
    "Signal",
    "Signals",
    "Variant",
    "address_of",
    "clean",
    "connect",
    "error_for",
    "error_reply",
    "plain",
]

OUTBOX_LIMIT_BYTES = 4 * 1024 * 1024
SIGNALS_LIMIT = 10_000
CALLS_LIMIT = 256
CALL_TIMEOUT_S = 25.0
"""What libdbus waits for a reply too."""
_FLUSH_S = 2.0
"""How long closing waits for what is still queued."""
_DAEMON = "org.freedesktop.DBus"
_DAEMON_PATH = "/org/freedesktop/DBus"

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Call:
    """A method call that a peer made to us; `sender` is its unique name, which the bus vouches for."""

    sender: str
    path: str
    interface: str
    member: str
    signature: str
    args: list[Any]
    interactive: bool = False
    """The peer allows that a person is asked for authorization."""


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What a call is answered with; with `error`, a D-Bus error name, `args` is its text."""

    signature: str = ""
    args: Sequence[Any] = ()
    error: str = ""
    after: Callable[[], None] | None = None
    """Called when the reply is queued, or could not be: what a signal that follows the reply waits for."""


Handler = Callable[[Call], Awaitable[Reply]]


def error_reply(err: LightagentError) -> Reply:
    """The one place where an error becomes a D-Bus error, whose one text holds the suggestion too."""
    return Reply(error=dbus_name_of(err), args=[clean(" ".join(filter(None, (err.message, err.suggestion))))])


@contextlib.asynccontextmanager
async def connect(kind: str = "system", *, timeout_s: float = 10.0) -> AsyncIterator[Bus]:
    """A connection to the `system` or `session` bus or to an address, for the length of the block.

    Raises Unavailable where no bus answers, PermissionDenied where it refuses us.
    """
    address = address_of(kind)
    reader, writer = await open_bus_socket(address, timeout_s)
    bus = Bus(reader, writer, address)
    try:
        async with asyncio.timeout(timeout_s):
            await bus.start()
        yield bus
    except TimeoutError as err:
        if bus.unique_name:
            raise  # it came out of the block
        raise errors.Unavailable(f"The bus at {address} did not greet within {timeout_s:g} s.") from err
    finally:
        await bus.close()


class Bus:
    """One open connection; made by `connect()`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, address: str) -> None:
        self.unique_name = ""
        self._reader = reader
        self._writer = writer
        self._address = address
        self._serial = 0
        self._pending: dict[int, asyncio.Future[Message]] = {}
        self._subscriptions: list[Signals] = []
        self._handler: Handler | None = None
        self._calls_limit = CALLS_LIMIT
        self._answers: set[asyncio.Task[None]] = set()
        self._reading: asyncio.Task[None] | None = None
        self._lost: LightagentError | None = None
        self._takes_fds = False

    async def start(self) -> None:
        """Authenticate with our user id and greet; afterwards messages flow."""
        self._writer.transport.set_write_buffer_limits(high=OUTBOX_LIMIT_BYTES, low=OUTBOX_LIMIT_BYTES // 4)
        try:
            self._writer.write(b"\0AUTH EXTERNAL " + str(os.geteuid()).encode().hex().encode() + b"\r\n")
            said = await self._reader.readuntil(b"\r\n")
            if not said.startswith(b"OK "):
                raise errors.PermissionDenied(
                    f"The bus at {self._address} refuses this user (uid {os.geteuid()})."
                )
            self._writer.write(b"NEGOTIATE_UNIX_FD\r\n")
            self._takes_fds = (await self._reader.readuntil(b"\r\n")).startswith(b"AGREE_UNIX_FD")
            self._writer.write(b"BEGIN\r\n")
        except (OSError, EOFError, asyncio.LimitOverrunError) as err:
            raise errors.Unavailable(
                f"The bus at {self._address} closed the connection at once: {err}"
            ) from err
        self._reading = asyncio.create_task(self._read(), name="bus reader")
        [self.unique_name] = await self.call(_DAEMON, _DAEMON_PATH, _DAEMON, "Hello")

    async def close(self) -> None:
        """Send what is queued, then end the tasks, the subscriptions and the socket. May be called again."""
        tasks = [task for task in (*self._answers, self._reading) if task is not None]
        with contextlib.suppress(OSError, TimeoutError):
            if self._lost is None and self.unique_name:
                self._writer.transport.set_write_buffer_limits(high=0)
                async with asyncio.timeout(_FLUSH_S):
                    await self._writer.drain()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._lose("it was closed here")
        self._writer.transport.abort()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    async def wait_lost(self) -> LightagentError:
        """Wait until the connection ends, and say why; the connection does not come back."""
        if self._reading is not None:
            await asyncio.wait([self._reading])
        return self._lost or errors.Unavailable("The connection to the bus is not open.")

    @property
    def queued_bytes(self) -> int:
        """What waits for the socket now."""
        return self._writer.transport.get_write_buffer_size()

    async def call(
        self,
        destination: str,
        path: str,
        interface: str,
        member: str,
        signature: str = "",
        args: Sequence[Any] = (),
        timeout_s: float = CALL_TIMEOUT_S,
        fds: Sequence[int] = (),
    ) -> list[Any]:
        """Call a method and return the plain values of its reply (no `Variant`).

        An argument of the type `v` is given as `Variant(signature, value)`, one of the type `h` as an index
        into `fds`, which stay the caller's. Raises what `error_for` makes of an error reply, InvalidArgument
        for names or arguments that do not fit, TimedOut, Unavailable.
        """
        if holds_nul(args):  # the bus would end the connection
            raise errors.InvalidArgument(f"The arguments of {member} hold a NUL character.")
        message = self._make(MessageType.METHOD_CALL, destination, path, interface, member, signature, args)
        message.unix_fds = list(fds)
        future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._pending[message.serial] = future
        try:
            async with asyncio.timeout(timeout_s):
                await self._send(message)
                reply = await future
        except TimeoutError as err:
            raise errors.TimedOut(
                f"{destination} did not answer {interface}.{member} within {timeout_s:g} s."
            ) from err
        finally:
            self._pending.pop(message.serial, None)
            if future.done() and not future.cancelled():
                future.exception()  # so that asyncio does not report it when we were cancelled meanwhile
        if reply.message_type is MessageType.ERROR:
            text = reply.body[0] if reply.body and isinstance(reply.body[0], str) else ""
            raise error_for(str(reply.error_name), text, destination)
        return [plain(value) for value in reply.body]

    def tell(
        self, destination: str, path: str, interface: str, member: str, signature: str, args: Sequence[Any]
    ) -> None:
        """Call a method and want no answer, where nothing may be awaited, as after a cancel."""
        if self._lost is None:
            kind = MessageType.METHOD_CALL
            message = self._make(kind, destination, path, interface, member, signature, args)
            message.flags = MessageFlag.NO_REPLY_EXPECTED
            self._writer.write(encode(message))

    async def properties(
        self, destination: str, path: str, interface: str, timeout_s: float = CALL_TIMEOUT_S
    ) -> dict[str, Any]:
        """All properties of one interface of an object, as plain values."""
        args = (destination, path, "org.freedesktop.DBus.Properties", "GetAll", "s", [interface], timeout_s)
        [found] = await self.call(*args)
        return dict(found)

    async def emit(
        self,
        path: str,
        interface: str,
        member: str,
        signature: str = "",
        args: Sequence[Any] = (),
        destination: str | None = None,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> int:
        """Send a signal to `destination` alone or to all who subscribed; it is queued when this returns.

        Gives its size in bytes.
        """
        message = self._make(MessageType.SIGNAL, destination, path, interface, member, signature, args)
        try:
            async with asyncio.timeout(timeout_s):
                return await self._send(message)
        except TimeoutError as err:
            raise errors.TimedOut(
                f"The bus took no signal {interface}.{member} within {timeout_s:g} s."
            ) from err

    async def request_name(self, name: str) -> None:
        """Own a bus name from now on, or raise Conflict when another connection owns it."""
        do_not_queue = 4
        [answer] = await self.call(_DAEMON, _DAEMON_PATH, _DAEMON, "RequestName", "su", [name, do_not_queue])
        if answer not in (1, 4):
            raise errors.Conflict(
                f"The bus name {name} belongs to another process.",
                suggestion=f"See who it is: busctl status {name}",
            )

    @contextlib.asynccontextmanager
    async def signals(
        self,
        *,
        sender: str = "",
        path: str = "",
        interface: str = "",
        member: str = "",
        arg0: str = "",
        limit: int = SIGNALS_LIMIT,
    ) -> AsyncIterator[Signals]:
        """Subscribe for the length of the block; an empty argument matches everything.

        With a well-known name as `sender`, only signals of the connection that owns it now count.
        """
        found = Signals(sender=sender, path=path, interface=interface, member=member, arg0=arg0, limit=limit)
        by_name = bool(sender) and not sender.startswith(":") and sender != _DAEMON
        rules = [found.rule]
        if by_name:
            rules.append(
                match_rule(sender=_DAEMON, interface=_DAEMON, member="NameOwnerChanged", arg0=sender)
            )
        added: list[str] = []
        self._subscriptions.append(found)
        try:
            for rule in rules:
                await self._ask_daemon("AddMatch", "s", [rule])
                added.append(rule)
            if by_name:
                owner = await self._owner_of(sender)
                found.owner = owner if found.owner is None else found.owner
            yield found
        finally:
            self._subscriptions.remove(found)
            for rule in added:
                self._remove_match(rule)

    def serve(self, handler: Handler, limit: int = CALLS_LIMIT) -> None:
        """Answer method calls with `handler` from now on, each in a task of its own, `limit` at a time.

        What the handler raises is answered as an error: a LightagentError by its name in `errors.table()`,
        anything else as Internal, with the traceback in the journal only.
        """
        self._handler, self._calls_limit = handler, limit

    async def _ask_daemon(self, member: str, signature: str, args: list[Any]) -> list[Any]:
        return await self.call(_DAEMON, _DAEMON_PATH, _DAEMON, member, signature, args)

    async def _owner_of(self, name: str) -> str:
        try:
            [owner] = await self._ask_daemon("GetNameOwner", "s", [name])
        except errors.Unavailable:
            if self._lost is not None:
                raise
            return ""  # nobody owns it yet; NameOwnerChanged will say
        return str(owner)

    def _remove_match(self, rule: str) -> None:
        """Without waiting for the answer: it runs while a block is left, perhaps by a cancel."""
        self.tell(_DAEMON, _DAEMON_PATH, _DAEMON, "RemoveMatch", "s", [rule])

    def _make(
        self,
        kind: MessageType,
        destination: str | None,
        path: str,
        interface: str,
        member: str,
        signature: str,
        args: Sequence[Any],
    ) -> Message:
        try:
            made = make_message(
                message_type=kind,
                destination=destination,
                path=path,
                interface=interface,
                member=member,
                signature=signature,
                body=list(args),
            )
        except (ValueError, TypeError) as err:
            raise errors.InvalidArgument(f"This is no valid D-Bus message: {err}.") from err
        made.serial = self._next_serial()
        return made

    def _next_serial(self) -> int:
        self._serial = self._serial % 0xFFFFFFFF + 1
        return self._serial

    async def _send(self, message: Message) -> int:
        return await self._send_bytes(encode(message), message.unix_fds)

    async def _send_bytes(self, data: bytes, fds: Sequence[int] = ()) -> int:
        if fds and not self._takes_fds:
            raise errors.Unavailable(f"The bus at {self._address} passes no file descriptors on.")
        try:
            if self._lost is None:
                await self._writer.drain()
                if fds:
                    await send_with_descriptors(self._writer, data, fds, OUTBOX_LIMIT_BYTES)
                    return len(data)
        except OSError as err:
            self._lose(str(err))
        if self._lost is not None:
            raise self._lost
        self._writer.write(data)
        return len(data)

    async def _read(self) -> None:
        why = "the task that reads ended"
        try:
            while True:
                message = await read_message(self._reader)
                if message is not None:
                    self._dispatch(message)
        except (EOFError, OSError, errors.MalformedMessage) as err:
            why = "the bus closed it" if isinstance(err, EOFError) else str(err)
        finally:
            self._lose(why)

    def _lose(self, why: str) -> None:
        if self._lost is None:
            self._lost = errors.Unavailable(f"The connection to the bus at {self._address} is gone: {why}.")
        for future in self._pending.values():
            if not future.done():
                future.set_exception(self._lost)
        for subscription in self._subscriptions:
            subscription.end(self._lost)

    def _dispatch(self, message: Message) -> None:
        if message.message_type is MessageType.SIGNAL:
            self._take_signal(message)
        elif message.message_type is MessageType.METHOD_CALL:
            self._take_call(message)
        else:
            future = self._pending.pop(message.reply_serial, None)
            if future is not None and not future.done():
                future.set_result(message)

    def _take_signal(self, message: Message) -> None:
        signal = Signal(
            sender=message.sender or "",
            path=message.path,
            interface=message.interface,
            member=message.member,
            signature=message.signature,
            args=[plain(value) for value in message.body],
        )
        if signal.sender == _DAEMON and signal.member == "NameOwnerChanged":
            name, _, owner = signal.args
            for subscription in self._subscriptions:
                if subscription.sender == name:
                    subscription.owner = owner
        for subscription in self._subscriptions:
            subscription.offer(signal)

    def _take_call(self, message: Message) -> None:
        if len(self._answers) >= self._calls_limit:
            refusal = Reply(
                error="org.freedesktop.DBus.Error.LimitsExceeded", args=["Too many calls at a time."]
            )
            if self.queued_bytes < OUTBOX_LIMIT_BYTES:
                self._writer.write(encode(self._as_message(message, refusal)))
            return
        task = asyncio.create_task(self._answer(message), name=f"bus call {message.member}")
        self._answers.add(task)
        task.add_done_callback(self._answers.discard)

    async def _answer(self, message: Message) -> None:
        reply = Reply()
        try:
            reply = await self._reply_to(message)
            data = encode(self._as_message(message, reply))
        except LightagentError as err:
            data = encode(self._as_message(message, error_reply(err)))
        except Exception:
            log.exception("Answering %s.%s of %s failed", message.interface, message.member, message.sender)
            text = "The call failed inside the service; its journal says why."
            failed = Reply(error=errors.DBUS_PREFIX + "Internal", args=[text])
            data = encode(self._as_message(message, failed))
        try:
            if not message.flags & MessageFlag.NO_REPLY_EXPECTED:
                with contextlib.suppress(errors.Unavailable):
                    await self._send_bytes(data)
        finally:
            if reply.after is not None:
                reply.after()

    async def _reply_to(self, message: Message) -> Reply:
        if message.interface == "org.freedesktop.DBus.Peer" and message.member == "Ping":
            return Reply()
        if self._handler is None:
            text = f"There is no method {message.interface}.{message.member} here."
            return Reply(error="org.freedesktop.DBus.Error.UnknownMethod", args=[text])
        call = Call(
            sender=message.sender,
            path=message.path,
            interface=message.interface or "",
            member=message.member,
            signature=message.signature,
            args=[plain(value) for value in message.body],
            interactive=bool(message.flags & MessageFlag.ALLOW_INTERACTIVE_AUTHORIZATION),
        )
        return await self._handler(call)

    def _as_message(self, message: Message, reply: Reply) -> Message:
        return make_message(
            message_type=MessageType.ERROR if reply.error else MessageType.METHOD_RETURN,
            destination=message.sender,
            reply_serial=message.serial,
            error_name=reply.error or None,
            signature="s" if reply.error else reply.signature,
            body=list(reply.args),
            serial=self._next_serial(),
        )
