"""The one place that touches dbus-next, for the control plane and for the tools.

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
import io
import logging
import os
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dbus_next._private.unmarshaller import Unmarshaller
from dbus_next.constants import MessageFlag, MessageType
from dbus_next.message import Message
from dbus_next.signature import Variant

from lightagentd import errors
from lightagentd.bus_address import address_of, open_bus_socket
from lightagentd.bus_errors import error_for
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
    "connect",
    "error_for",
    "plain",
]

OUTBOX_LIMIT_BYTES = 4 * 1024 * 1024
SIGNALS_LIMIT = 10_000
CALLS_LIMIT = 256
CALL_TIMEOUT_S = 25.0
"""What libdbus waits for a reply too."""
_FLUSH_S = 2.0
"""How long closing waits for what is still queued."""
_MESSAGE_LIMIT_BYTES = 128 * 1024 * 1024
"""The largest message that the specification allows."""
_DAEMON = "org.freedesktop.DBus"
_DAEMON_PATH = "/org/freedesktop/DBus"

log = logging.getLogger(__name__)
_unmarshaller: Any = Unmarshaller  # the library has no annotations, or wrong ones
_message: Callable[..., Message] = Message


def plain(value: Any) -> Any:
    """A decoded value without `Variant` around any part of it; `ay` stays bytes."""
    if isinstance(value, Variant):
        return plain(value.value)
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return value


@dataclass(frozen=True, kw_only=True)
class Call:
    """A method call that a peer made to us; `sender` is its unique name, which the bus vouches for."""

    sender: str
    path: str
    interface: str
    member: str
    signature: str
    args: list[Any]
    interactive: bool
    """The peer allows that a person is asked for authorization."""


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What a call is answered with; with `error`, a D-Bus error name, `args` is its text."""

    signature: str = ""
    args: Sequence[Any] = ()
    error: str = ""


Handler = Callable[[Call], Awaitable[Reply]]


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
        self._answers: set[asyncio.Task[None]] = set()
        self._reading: asyncio.Task[None] | None = None
        self._lost: LightagentError | None = None

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
    ) -> list[Any]:
        """Call a method and return the plain values of its reply (no `Variant`).

        An argument of the type `v` is given as `Variant(signature, value)`. Raises what `error_for` makes of
        an error reply, InvalidArgument for names or arguments that do not fit, TimedOut, Unavailable.
        """
        message = self._make(MessageType.METHOD_CALL, destination, path, interface, member, signature, args)
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
    ) -> None:
        """Send a signal to `destination` alone or to all who subscribed; it is queued when this returns."""
        message = self._make(MessageType.SIGNAL, destination, path, interface, member, signature, args)
        try:
            async with asyncio.timeout(timeout_s):
                await self._send(message)
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

    def serve(self, handler: Handler) -> None:
        """Answer method calls with `handler` from now on, each in a task of its own.

        What the handler raises is answered as an error: a LightagentError by its name in `errors.table()`,
        anything else as Internal, with the traceback in the journal only.
        """
        self._handler = handler

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
        if self._lost is None:
            kind = MessageType.METHOD_CALL
            message = self._make(kind, _DAEMON, _DAEMON_PATH, _DAEMON, "RemoveMatch", "s", [rule])
            message.flags = MessageFlag.NO_REPLY_EXPECTED
            self._writer.write(_encode(message))

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
            made = _message(
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

    async def _send(self, message: Message) -> None:
        data = _encode(message)
        try:
            if self._lost is None:
                await self._writer.drain()
        except OSError as err:
            self._lose(str(err))
        if self._lost is not None:
            raise self._lost
        self._writer.write(data)

    async def _read(self) -> None:
        why = "the task that reads ended"
        try:
            while True:
                message = await _read_message(self._reader)
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
        if len(self._answers) >= CALLS_LIMIT:
            refusal = Reply(
                error="org.freedesktop.DBus.Error.LimitsExceeded", args=["Too many calls at a time."]
            )
            if self.queued_bytes < OUTBOX_LIMIT_BYTES:
                self._writer.write(_encode(self._as_message(message, refusal)))
            return
        task = asyncio.create_task(self._answer(message), name=f"bus call {message.member}")
        self._answers.add(task)
        task.add_done_callback(self._answers.discard)

    async def _answer(self, message: Message) -> None:
        try:
            reply = await self._reply_to(message)
            data = self._as_message(message, reply)
            _encode(data)
        except LightagentError as err:
            row = next(row for row in errors.table() if row.cls in type(err).__mro__ and row.code == err.code)
            data = self._as_message(message, Reply(error=row.dbus, args=[err.message]))
        except Exception:
            log.exception("Answering %s.%s of %s failed", message.interface, message.member, message.sender)
            text = "The call failed inside the service; its journal says why."
            data = self._as_message(message, Reply(error=errors.DBUS_PREFIX + "Internal", args=[text]))
        if not message.flags & MessageFlag.NO_REPLY_EXPECTED:
            with contextlib.suppress(errors.Unavailable):
                await self._send(data)

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
        return _message(
            message_type=MessageType.ERROR if reply.error else MessageType.METHOD_RETURN,
            destination=message.sender,
            reply_serial=message.serial,
            error_name=reply.error or None,
            signature="s" if reply.error else reply.signature,
            body=list(reply.args),
            serial=self._next_serial(),
        )


def _encode(message: Message) -> bytes:
    try:
        marshall: Any = message._marshall
        return bytes(marshall())
    except (ValueError, TypeError) as err:
        what = message.member or "the reply"
        raise errors.InvalidArgument(
            f"The arguments of {what} do not fit the signature {message.signature!r}: {err}"
        ) from err


async def _read_message(reader: asyncio.StreamReader) -> Message | None:
    """The next message, or None for one that dbus-next cannot decode; that one is skipped whole."""
    head = await reader.readexactly(16)
    order = {ord("l"): "<", ord("B"): ">"}.get(head[0])
    if order is None:
        raise errors.MalformedMessage("the bus sent bytes that are no D-Bus message")
    body_bytes, _, fields_bytes = struct.unpack_from(order + "III", head, 4)
    rest_bytes = fields_bytes + -fields_bytes % 8 + body_bytes
    if rest_bytes > _MESSAGE_LIMIT_BYTES:
        raise errors.MalformedMessage(f"the bus announced a message of {rest_bytes} bytes")
    data = head + await reader.readexactly(rest_bytes)
    try:
        message: Message | None = _unmarshaller(io.BytesIO(data)).unmarshall()
    except Exception:
        log.warning("A D-Bus message could not be decoded and is skipped", exc_info=True)
        return None
    return message
