"""Connects to a D-Bus daemon, for the control plane and for the tools.

It uses the messages, signatures and marshalling of dbus-next. It does not use its unmarshalling, with which a
peer could block the event loop for half a minute, nor its connection: that of 0.2.3 loses messages when the
socket's buffer is full (its writer takes BlockingIOError for the end of the connection), spins for ever when
the bus hangs up during authentication, lets one message with an unknown header field end the connection,
answers an unexpected exception with a traceback, and never closes its socket. Here asyncio's streams carry
the bytes, and a full socket makes the sender wait.

`connect()` owns everything that it makes: the socket, the task that reads, the tasks that answer calls and
the subscriptions end when its block ends. Nothing is acquired before.

Queues and what happens when they are full:

- **Outgoing**: `OUTBOX_LIMIT_BYTES` wait for the socket, and at most one message of each sender beyond that.
  Whoever sends then waits, and after its `timeout_s` fails with `TimedOut`. Nothing is dropped silently.
- **Signals**: each subscription holds `limit` signals. When it is full, later ones are dropped and counted;
  after the last one held the iterator raises `LimitExceeded` once, with the count, and then goes on.
- **Calls to us**: at most `CALLS_LIMIT` are answered at a time; a further one gets LimitExceeded, decided by
  its header (`calls`). So do arguments with more than `CALL_VALUES` values.
- **Incoming**: what a peer sends is decoded only where somebody waits for it (`header`), in steps
  (`decoding`), and the task that reads gives way after as much work as one step is.

Specification: https://dbus.freedesktop.org/doc/dbus-specification.html
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

from dbus_next.constants import MessageFlag, MessageType
from dbus_next.message import Message
from dbus_next.signature import Variant

from lightagentd import errors
from lightagentd.bus.address import address_of, open_bus_socket
from lightagentd.bus.calls import (
    CALLS_LIMIT,
    Call,
    Calls,
    Door,
    Entrance,
    Handler,
    Reply,
    error_reply,
)
from lightagentd.bus.decoding import STEP_VALUES, decode
from lightagentd.bus.descriptors import send_with_descriptors
from lightagentd.bus.errors import NoAnswer, error_for
from lightagentd.bus.header import Header, read_header, skip
from lightagentd.bus.messages import clean, encode, holds_nul, make_message, plain
from lightagentd.bus.signals import Signal, Signals, match_rule
from lightagentd.errors import LightagentError
from lightagentd.host.users import called
from lightagentd.text.reason import reason

__all__ = [
    "CALLS_LIMIT",
    "Bus",
    "Call",
    "Door",
    "Entrance",
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
SIGNAL_VALUES = 100_000
REPLY_VALUES, REPLY_VALUES_OF_NAME = 100_000, 2_000_000
"""The most values that a reply may hold: of a program that is known by its unique name alone, which may be
anybody's, and of a service (ListUnits has 12 for each unit)."""
_MESSAGE_COST, _TAKEN_COST = 10, 100
"""What a message costs beside its values, in values; and a call that is answered."""
CALL_TIMEOUT_S = 25.0
"""What libdbus waits for a reply too."""
_FLUSH_S = 2.0
"""How long closing waits for what is still queued."""
_DAEMON = "org.freedesktop.DBus"
_DAEMON_PATH = "/org/freedesktop/DBus"

log = logging.getLogger(__name__)


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
        self._pending: dict[int, asyncio.Future[tuple[Header, bytes]]] = {}
        self._subscriptions: list[Signals] = []
        self._calls = Calls(self._send_bytes, self._send_now, self._next_serial)
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
                raise errors.PermissionDenied(f"The bus at {self._address} refuses {called(os.geteuid())}.")
            self._writer.write(b"NEGOTIATE_UNIX_FD\r\n")
            self._takes_fds = (await self._reader.readuntil(b"\r\n")).startswith(b"AGREE_UNIX_FD")
            self._writer.write(b"BEGIN\r\n")
        except (OSError, EOFError, asyncio.LimitOverrunError) as err:
            raise errors.Unavailable(
                f"The bus at {self._address} closed the connection at once: {reason(err)}."
            ) from err
        self._reading = asyncio.create_task(self._read(), name="bus reader")
        [self.unique_name] = await self.call(_DAEMON, _DAEMON_PATH, _DAEMON, "Hello")

    async def close(self) -> None:
        """Send what is queued, then end the tasks, the subscriptions and the socket. May be called again."""
        with contextlib.suppress(OSError, TimeoutError):
            if self._lost is None and self.unique_name:
                self._writer.transport.set_write_buffer_limits(high=0)
                async with asyncio.timeout(_FLUSH_S):
                    await self._writer.drain()
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
        await self._calls.close()
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
        """The bytes that wait for the socket."""
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
        for names or arguments that do not fit, MessageTooLarge for a reply of too many values, TimedOut,
        Unavailable.
        """
        if holds_nul(args):  # the bus would end the connection
            raise errors.InvalidArgument(f"The arguments of {member} hold a NUL character.")
        message = self._make(MessageType.METHOD_CALL, destination, path, interface, member, signature, args)
        message.unix_fds = list(fds)
        future: asyncio.Future[tuple[Header, bytes]] = asyncio.get_running_loop().create_future()
        limit = REPLY_VALUES if destination.startswith(":") else REPLY_VALUES_OF_NAME
        self._pending[message.serial] = future
        try:
            async with asyncio.timeout(timeout_s):
                await self._send(message)
                reply, body = await future
                values = await decode(body, reply.order, reply.signature, limit)
        except TimeoutError as err:
            raise errors.TimedOut(
                f"{destination} did not answer {interface}.{member} within {timeout_s:g} s."
            ) from err
        finally:
            self._pending.pop(message.serial, None)
            if future.done() and not future.cancelled():
                future.exception()  # so that asyncio does not report it when we were cancelled meanwhile
        if reply.kind is MessageType.ERROR:
            text = values[0] if values and isinstance(values[0], str) else ""
            raise error_for(reply.error_name, text, destination)
        return values

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

    def serve(self, handler: Handler, limit: int = CALLS_LIMIT, door: Door | None = None) -> None:
        """Answer method calls with `handler` from now on, each in a task of its own, `limit` at a time, where
        the `door` lets them in.

        What the handler raises is answered as an error: a LightagentError by its name in `errors.table()`,
        anything else as Internal, with the traceback in the journal only.
        """
        self._calls.serve(handler, limit, door or Door())

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
            self._lose(reason(err))
        if self._lost is not None:
            raise self._lost
        self._writer.write(data)
        return len(data)

    def _send_now(self, data: bytes) -> None:
        if self._lost is None and self.queued_bytes < OUTBOX_LIMIT_BYTES:
            self._writer.write(data)

    async def _read(self) -> None:
        why, spent = "the task that reads ended", 0
        try:
            while True:
                head = await read_header(self._reader)
                spent += _MESSAGE_COST + (await self._dispatch(head) if head is not None else 0)
                if spent >= STEP_VALUES:
                    spent = 0
                    await asyncio.sleep(0)
        except (EOFError, OSError, errors.MalformedMessage) as err:
            why = "the bus closed it" if isinstance(err, EOFError) else reason(err)
        finally:
            self._lose(why)

    def _lose(self, why: str) -> None:
        if self._lost is None:
            self._lost = NoAnswer(f"The connection to the bus at {self._address} is gone: {why}.")
        for future in self._pending.values():
            if not future.done():
                future.set_exception(self._lost)
        for subscription in self._subscriptions:
            subscription.end(self._lost)

    async def _dispatch(self, head: Header) -> int:
        """Take the message whose body comes next; gives what it cost beside the usual, in values."""
        if head.kind is MessageType.METHOD_CALL:
            return _TAKEN_COST if await self._calls.take(self._reader, head) else 0
        if head.kind is MessageType.SIGNAL:
            return await self._take_signal(head)
        future = self._pending.pop(head.reply_serial, None)
        if future is None or future.done():
            await skip(self._reader, head.body_bytes)
        else:
            future.set_result((head, await self._reader.readexactly(head.body_bytes)))
        return 0

    async def _take_signal(self, head: Header) -> int:
        """Decode a signal for those who wait for it. Any peer may send us any signal, wanted or not."""
        signal = Signal(
            sender=head.sender,
            path=head.path,
            interface=head.interface,
            member=head.member,
            signature=head.signature,
            args=[],
        )
        of_names = head.sender == _DAEMON and head.member == "NameOwnerChanged"
        wanted = [one for one in self._subscriptions if one.fits(signal)]
        if not wanted and not of_names:
            await skip(self._reader, head.body_bytes)
            return 0
        body = await self._reader.readexactly(head.body_bytes)
        try:
            args = await decode(body, head.order, head.signature, SIGNAL_VALUES)
        except errors.InvalidArgument as err:
            log.warning("The signal %s of %s is lost: %s", head.member, head.sender, err.message)
            for subscription in wanted:
                subscription.dropped += 1
            return SIGNAL_VALUES
        if of_names:
            name, _, owner = args
            for subscription in self._subscriptions:
                if subscription.sender == name:
                    subscription.owner = owner
        for subscription in self._subscriptions:
            subscription.offer(replace(signal, args=args))
        return len(body) // 8
