"""`AsyncClient`: the client library for programs that run on asyncio; `client` has the blocking one.

    async with AsyncClient() as client:
        async for reply in client.sessions_prompt(agent="ops", text="check disk"):
            print(reply["event"])

It is a module of its own because `lactl` imports `client`, and asyncio would be the larger half of its start.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncGenerator, Mapping
from typing import TYPE_CHECKING, Any, Self

from lightagentd.client.approver import (
    Question,
    answered,
    approval_id,
    approve_parameters,
    asks_approver,
    beside,
    question_of,
    unanswerable,
    without_request,
)
from lightagentd.client.blocking import (
    CHUNK_BYTES,
    Reply,
    Wire,
    connect_control,
    connect_error,
    placed,
    with_interaction,
)
from lightagentd.errors import ApprovalNotFound, DaemonUnreachable, LightagentError, PermissionDenied

if TYPE_CHECKING:
    from lightagentd.client.methods import AsyncMethods
    from lightagentd.client.remote import Remote, Tunnel
else:
    from lightagentd.client.blocking import Methods as AsyncMethods

__all__ = ["AsyncClient"]

_BUSY_S = 0.02
"""How soon connecting to a busy socket is tried again."""


class AsyncClient(AsyncMethods):
    """Like `client.Client`; `timeout_s` limits connecting and each `call` as a whole.

    A cancelled call leaves its connection closed.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | Remote | None = None,
        *,
        timeout_s: float | None = None,
        interactive: bool = False,
    ) -> None:
        self.path, self._remote = placed(path)
        self.timeout_s = timeout_s
        self.interactive = interactive
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._tunnel: Tunnel | None = None
        self._wire = Wire(self.path)

    async def __aenter__(self) -> Self:
        """Raises DaemonUnreachable, PermissionDenied, TimedOut; for another machine MalformedMessage, too."""
        if self._remote is not None:
            await self._go_through(self._remote)
            return self
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.setblocking(False)
        busy: BlockingIOError | None = None
        try:
            async with asyncio.timeout(self.timeout_s):
                # asyncio takes a full queue of the listener, EAGAIN, for a connection under way.
                while (busy := _refused(sock, self.path)) is not None:  # noqa: ASYNC110 - the kernel tells nobody
                    await asyncio.sleep(_BUSY_S)
                self._streams = await asyncio.open_unix_connection(sock=sock)
        except OSError as err:
            raise connect_error(self.path, busy or err) from err
        finally:
            if self._streams is None:
                sock.close()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection; unread messages of the daemon are lost."""
        streams, self._streams = self._streams, None
        if streams is not None:
            streams[1].close()
            with contextlib.suppress(OSError):
                await streams[1].wait_closed()
        tunnel, self._tunnel = self._tunnel, None
        if tunnel is not None:
            await asyncio.to_thread(tunnel.close)

    @property
    def is_free(self) -> bool:
        """Whether it is connected, and no answer is still to come."""
        return self._streams is not None and not self._wire.expecting and not self._streams[0].at_eof()

    def hang_up(self) -> None:
        """As `close`, without waiting."""
        streams, self._streams = self._streams, None
        if streams is not None:
            streams[1].close()

    async def call(self, method: str, /, **parameters: Any) -> dict[str, Any]:
        """Call a method and return the parameters of its reply. Raises the errors of `client.Client.call`."""
        try:
            async with asyncio.timeout(self.timeout_s):
                await self._send(method, parameters, more=False)
                return (await self._receive())[0]
        except TimeoutError as err:
            raise connect_error(self.path, err) from err
        finally:
            if self._wire.expecting:
                await self.close()

    async def call_with(self, fd: int, method: str, /, **parameters: Any) -> dict[str, Any]:
        """As `call`, with a descriptor (unix(7), SCM_RIGHTS); for the first call on a connection."""
        try:
            async with asyncio.timeout(self.timeout_s):
                with self._connection()[1].get_extra_info("socket").dup() as sock:
                    socket.send_fds(sock, [self._wire.call(method, parameters, more=False)], [fd])
                return (await self._receive())[0]
        except (TimeoutError, OSError) as err:
            raise connect_error(self.path, err) from err
        finally:
            if self._wire.expecting:
                await self.close()

    async def stream(self, method: str, /, **parameters: Any) -> AsyncGenerator[dict[str, Any], None]:
        """Call a streaming method and yield the parameters of each reply. Raises the errors of
        `client.Client.call`.
        """
        try:
            await self._send(method, parameters, more=True)
            continues = True
            while continues:
                reply, continues = await self._receive()
                yield reply
        finally:
            if self._wire.expecting:
                await self.close()

    async def question(self, found: Mapping[str, Any]) -> dict[str, Any]:
        """An approval (`api.Approval`), or a turn event that asks for one, as a person has to be shown it:
        where the approver answers it, with its `args`, `preview` and terms from there, and `request`, all
        that is there. Nothing has to be connected. Raises ApprovalMismatch where the daemon says something
        else, DaemonUnreachable.
        """
        if not asks_approver(found):
            return found if isinstance(found, Question) else without_request(found)
        reply = await self._of_approver("Approver.Get", approval=approval_id(found))
        return question_of(without_request(found), reply["request"])

    async def asked(self, event: Mapping[str, Any]) -> dict[str, Any]:
        """A turn event, with the question as `question` has it; where that fails with the `problem`, and
        nobody may answer.
        """
        try:
            return await self.question(event)
        except LightagentError as err:
            return unanswerable(event, err)

    async def approve(self, found: Mapping[str, Any], **given: Any) -> dict[str, Any]:
        """Allow what `found` asks about, an approval or a turn event as a person was shown it, where that is
        answered; `given` is what Approvals.Approve takes beside. Gives the approval as it is then. Raises
        ApprovalMismatch where something else would run than what `found` says, ApprovalClosed, and
        PermissionDenied for a program that speaks for no person.
        """
        if not found.get("approver"):
            asked = {"approval": approval_id(found), "digest": found["digest"], **given}
            return dict((await self.call("Approvals.Approve", **asked))["approval"])
        shown = await self.question(found)
        reply = await self._of_approver("Approver.Approve", **approve_parameters(shown, given))
        return answered(shown, reply["request"])

    async def deny(self, found: Mapping[str, Any], note: str | None = None) -> dict[str, Any]:
        """Refuse it, where it is answered; at the daemon where the approver does not take that."""
        name = approval_id(found)
        if found.get("approver"):
            with contextlib.suppress(DaemonUnreachable, ApprovalNotFound, PermissionDenied):
                reply = await self._of_approver("Approver.Deny", approval=name, note=note)
                return answered(found, reply["request"])
        return dict((await self.call("Approvals.Deny", approval=name, note=note))["approval"])

    async def _of_approver(self, method: str, /, **parameters: Any) -> dict[str, Any]:
        place = beside(self.path if self._remote is None else self._remote)
        async with AsyncClient(place, timeout_s=self.timeout_s, interactive=self.interactive) as client:
            return await client.call(method, **parameters)

    async def _go_through(self, remote: Remote) -> None:
        """Connect to another machine. Raises as `client.remote.Tunnel.wait`."""
        from lightagentd.client.remote import GREETING_S, Tunnel

        self._tunnel = tunnel = Tunnel(remote)
        try:
            async with asyncio.timeout(GREETING_S if self.timeout_s is None else self.timeout_s):
                self._streams = await asyncio.open_unix_connection(sock=tunnel.sock)
                while not tunnel.greeted:
                    tunnel.take(await self._streams[0].read(CHUNK_BYTES))
        except TimeoutError as err:
            raise tunnel.silent() from err
        finally:
            if not tunnel.greeted:
                await self.close()
        self._wire = Wire(self.path, tunnel.broken)

    def _connection(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._streams is None:
            raise RuntimeError("the client is not connected: enter it with 'async with' first")
        return self._streams

    async def _send(self, method: str, parameters: dict[str, Any], *, more: bool) -> None:
        _, writer = self._connection()
        writer.write(self._wire.call(method, with_interaction(parameters, self.interactive), more=more))
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            await writer.drain()  # if it fails, the daemon may have sent the reason before it hung up

    async def _receive(self) -> Reply:
        reader, _ = self._connection()
        try:
            while (reply := self._wire.reply()) is None:
                self._wire.feed(await reader.read(CHUNK_BYTES))
        except OSError as err:
            raise self._wire.lost(err) from err
        return reply


def _refused(sock: socket.socket, path: str) -> BlockingIOError | None:
    """Connect a socket that does not block; what the kernel says where the listener's queue is full. Raises
    OSError.
    """
    try:
        connect_control(sock, path)
    except BlockingIOError as err:
        return err
    return None
