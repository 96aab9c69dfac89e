"""Serves method calls of peers: admits them by the header alone, then decodes and answers them.

A `Calls` belongs to one `Bus` and owns the tasks that answer. It asks its `Door` about each call before the
body is read: the door may refuse the call, or declare its body useless, which is then discarded. The handler
can reject a wrong signature without looking at the arguments.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

from dbus_next.constants import MessageFlag, MessageType
from dbus_next.message import Message

from lightagentd import errors
from lightagentd.bus.decoding import decode
from lightagentd.bus.errors import dbus_name_of
from lightagentd.bus.header import Header, skip
from lightagentd.bus.messages import clean, encode, make_message
from lightagentd.errors import LightagentError
from lightagentd.limits import MAX_MESSAGE_BYTES

CALLS_LIMIT = 256
CALL_VALUES = 100_000
"""The most values that the arguments of a call may hold, in all depths."""
NO_REPLY = int(MessageFlag.NO_REPLY_EXPECTED.value)
INTERACTIVE = int(MessageFlag.ALLOW_INTERACTIVE_AUTHORIZATION.value)
_log = logging.getLogger(__name__)


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
    """The answer to a call. With `error`, a D-Bus error name, `args` is its text."""

    signature: str = ""
    args: Sequence[Any] = ()
    error: str = ""
    after: Callable[[], None] | None = None
    """Called when the reply is queued, or could not be: what a signal that follows the reply waits for."""


Handler = Callable[[Call], Awaitable[Reply]]


class Entrance:
    """One call that was let in: a block around decoding it, answering it and sending the reply."""

    wants_body = True

    async def __aenter__(self) -> Entrance:
        """Wait until it is this call's turn. Raises LightagentError, which is its answer."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, err: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Called when the reply is on its way, or there is none."""

    def decoded(self) -> None:
        """Called when the arguments are decoded, before the handler."""

    def left(self) -> None:
        """Called when the call is over, even if its turn never came."""


class Door:
    """Decides which callers are admitted. This one admits everybody."""

    def enter(self, call: Call, body_bytes: int) -> Entrance:
        """`call` is the header: it has no arguments yet. Raises LightagentError to refuse; never waits."""
        if body_bytes > MAX_MESSAGE_BYTES:
            raise errors.MessageTooLarge(
                f"The arguments of {call.member} are larger than {MAX_MESSAGE_BYTES >> 20} MiB."
            )
        return Entrance()


def error_reply(err: LightagentError) -> Reply:
    """The one place where an error becomes a D-Bus error, whose one text holds the suggestion too."""
    return Reply(error=dbus_name_of(err), args=[clean(" ".join(filter(None, (err.message, err.suggestion))))])


class Calls:
    """End with `close()`."""

    def __init__(
        self,
        send: Callable[[bytes], Awaitable[int]],
        send_now: Callable[[bytes], None],
        next_serial: Callable[[], int],
    ) -> None:
        """`send` waits for room in the socket, `send_now` drops what has none."""
        self._send, self._send_now, self._next_serial = send, send_now, next_serial
        self._handler: Handler | None = None
        self._door = Door()
        self._limit = CALLS_LIMIT
        self._tasks: set[asyncio.Task[None]] = set()

    def serve(self, handler: Handler, limit: int, door: Door) -> None:
        self._handler, self._limit, self._door = handler, limit, door

    async def close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def take(self, reader: asyncio.StreamReader, head: Header) -> bool:
        """Take the call whose body comes next, or refuse it; says whether it is answered from now on."""
        call = Call(
            sender=head.sender,
            path=head.path,
            interface=head.interface,
            member=head.member,
            signature=head.signature,
            args=[],
            interactive=bool(head.flags & INTERACTIVE),
        )
        try:
            if len(self._tasks) >= self._limit:
                raise errors.LimitExceeded("Too many calls at a time.", suggestion="Wait for some of them.")
            entrance = self._door.enter(call, head.body_bytes)
        except LightagentError as err:
            await skip(reader, head.body_bytes)
            if not head.flags & NO_REPLY:
                self._send_now(self._packed(head, error_reply(err)))
            return False
        body = b""
        try:
            if entrance.wants_body and self._handler is not None:
                body = await reader.readexactly(head.body_bytes)
            else:
                await skip(reader, head.body_bytes)
        except BaseException:
            entrance.left()
            raise
        task = asyncio.create_task(self._answer(head, call, body, entrance), name=f"bus call {call.member}")
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._over(done, entrance))
        return True

    def _over(self, task: asyncio.Task[None], entrance: Entrance) -> None:
        self._tasks.discard(task)
        entrance.left()

    async def _answer(self, head: Header, call: Call, body: bytes, entrance: Entrance) -> None:
        try:
            async with entrance:
                if body:
                    args = await decode(body, head.order, head.signature, CALL_VALUES)
                    call, body = replace(call, args=args), b""
                entrance.decoded()
                await self._reply(head, call)
        except LightagentError as err:  # its turn did not come, or its arguments are too many
            await self._deliver(head, self._packed(head, error_reply(err)))

    async def _reply(self, head: Header, call: Call) -> None:
        reply = Reply()
        try:
            reply = await self._reply_to(call)
            data = self._packed(head, reply)
        except LightagentError as err:
            data = self._packed(head, error_reply(err))
        except Exception:  # noqa: BLE001 - the boundary of a request
            _log.exception("Answering %s.%s of %s failed", call.interface, call.member, call.sender)
            text = "The call failed inside the service; its journal says why."
            data = self._packed(head, Reply(error=errors.DBUS_PREFIX + "Internal", args=[text]))
        try:
            await self._deliver(head, data)
        finally:
            if reply.after is not None:
                reply.after()

    async def _deliver(self, head: Header, data: bytes) -> None:
        if not head.flags & NO_REPLY:
            with contextlib.suppress(errors.Unavailable):
                await self._send(data)

    async def _reply_to(self, call: Call) -> Reply:
        if call.interface == "org.freedesktop.DBus.Peer" and call.member == "Ping":
            return Reply()
        if self._handler is None:
            text = f"There is no method {call.interface}.{call.member} here."
            return Reply(error="org.freedesktop.DBus.Error.UnknownMethod", args=[text])
        return await self._handler(call)

    def _packed(self, head: Header, reply: Reply) -> bytes:
        """The reply as bytes. Raises InvalidArgument for what does not fit its signature, MessageTooLarge."""
        made: Message = make_message(
            message_type=MessageType.ERROR if reply.error else MessageType.METHOD_RETURN,
            destination=head.sender or None,
            reply_serial=head.serial,
            error_name=reply.error or None,
            signature="s" if reply.error else reply.signature,
            body=list(reply.args),
            serial=self._next_serial(),
        )
        return encode(made)
