"""Sends a D-Bus message with file descriptors over the socket of an asyncio stream, for `bus/connection.py`.

Descriptors travel beside the first byte of their message (SCM_RIGHTS, unix(7)), which asyncio's streams
cannot do: so such a message is sent past the stream, when nothing waits in it. Descriptors that a peer sends
to us are never received: `recv` without room for them has the kernel close them.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Sequence

from lightagentd import errors
from lightagentd.text.reason import reason


async def send_with_descriptors(
    writer: asyncio.StreamWriter, data: bytes, fds: Sequence[int], high: int
) -> None:
    """Send it whole; `high` is the stream's usual limit. The descriptors stay the caller's.

    Raises ConnectionError when the connection is gone, Unavailable when only this message cannot be sent.
    """
    try:
        with writer.transport.get_extra_info("socket").dup() as sock:
            sock.setblocking(False)
            await _send(writer, sock, data, fds, high)
    except ConnectionError:
        raise
    except OSError as err:
        raise errors.Unavailable(f"No file descriptor could be sent over the bus: {reason(err)}.") from err


async def _send(
    writer: asyncio.StreamWriter, sock: socket.socket, data: bytes, fds: Sequence[int], high: int
) -> None:
    while not writer.transport.is_closing():
        if writer.transport.get_write_buffer_size():
            await _drained(writer, high)
            continue
        try:
            sent = socket.send_fds(sock, [data], fds)
        except BlockingIOError:
            await _writable(sock)
            continue
        # Nothing was awaited since, so no other message gets in between.
        if sent < len(data):
            writer.write(data[sent:])
        return
    raise BrokenPipeError("the connection is closed")


async def _drained(writer: asyncio.StreamWriter, high: int) -> None:
    """Wait until the stream holds nothing; others who wait for room in it wait for that too."""
    writer.transport.set_write_buffer_limits(high=0)
    try:
        await writer.drain()
    finally:
        writer.transport.set_write_buffer_limits(high=high, low=high // 4)


async def _writable(sock: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        with contextlib.suppress(asyncio.InvalidStateError):
            ready.set_result(None)

    loop.add_writer(sock.fileno(), wake)
    try:
        await ready
    finally:
        loop.remove_writer(sock.fileno())
