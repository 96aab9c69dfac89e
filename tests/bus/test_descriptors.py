"""File descriptors over a real bus, to a reader that is another library; nothing else is lost or mixed up."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from dbus_next.aio.message_bus import MessageBus
from dbus_next.constants import MessageType
from dbus_next.message import Message

from lightagentd import errors
from lightagentd.bus.connection import Bus, connect
from lightagentd.bus.descriptors import send_with_descriptors
from tests.fake_systemd import private_bus

PLACE = ("/org/example/Reader", "org.example.Reader")


@pytest.fixture
def address() -> Iterator[str]:
    with private_bus() as found:
        yield found


@pytest.fixture
async def reader(address: str) -> AsyncIterator[str]:
    """Says what it reads from the descriptor that it gets, or how long a text is; gives its unique name."""
    bus: Any = await MessageBus(address, negotiate_unix_fd=True).connect()

    def answer(message: Message) -> Message | None:
        if message.message_type is not MessageType.METHOD_CALL:
            return None
        if message.member == "Length":
            return Message.new_method_return(message, "u", [len(message.body[0])])
        fd = message.unix_fds[message.body[0]]
        text = os.read(fd, 100).decode()
        os.close(fd)
        return Message.new_method_return(message, "s", [text])

    bus.add_message_handler(answer)
    yield bus.unique_name
    bus.disconnect()
    await bus.wait_for_disconnect()
    bus._stream.close()
    bus._sock.close()


async def passed(bus: Bus, reader: str, text: str) -> object:
    """What the reader read from a pipe that holds this text."""
    reading, writing = os.pipe()
    os.write(writing, text.encode())
    os.close(writing)
    try:
        [found] = await bus.call(reader, *PLACE, "Read", "h", [0], fds=[reading])
    finally:
        os.close(reading)
    return found


async def test_a_descriptor_arrives_among_large_messages(address: str, reader: str) -> None:
    text = "x" * 300_000
    async with connect(address) as bus:
        calls: list[Any] = []
        for number in range(20):
            calls.append(bus.call(reader, *PLACE, "Length", "s", [text]))
            calls.append(passed(bus, reader, f"number {number}"))
        found = await asyncio.gather(*calls)
    assert found[0::2] == [[len(text)]] * 20
    assert found[1::2] == [f"number {number}" for number in range(20)]


async def test_what_cannot_be_passed_fails_alone(address: str, reader: str) -> None:
    async with connect(address) as bus:
        with pytest.raises(errors.Unavailable, match="file descriptor"):
            await bus.call(reader, *PLACE, "Read", "h", [0], fds=[1 << 20])
        assert await passed(bus, reader, "still there") == "still there"


async def test_a_message_is_whole_whatever_the_socket_takes_at_once() -> None:
    ours, theirs = socket.socketpair()
    _, writer = await asyncio.open_unix_connection(sock=ours)
    high = 1 << 20
    writer.transport.set_write_buffer_limits(high=high)
    first, second, third = b"a" * 900_000, b"b" * 900_000, b"c" * 10
    writer.write(first)
    reading, writing = os.pipe()
    sending = asyncio.create_task(send_with_descriptors(writer, second, [reading], high))

    def read_all() -> tuple[bytes, list[int]]:
        data, fds = b"", []
        while len(data) < len(first + second + third):
            chunk, got, _, _ = socket.recv_fds(theirs, 1 << 16, 4)
            data += chunk
            fds += got
        return data, fds

    async def then() -> None:
        await sending
        writer.write(third)

    (data, fds), _ = await asyncio.gather(asyncio.to_thread(read_all), then())
    assert data == first + second + third
    assert len(fds) == 1
    for fd in (*fds, reading, writing):
        os.close(fd)
    writer.close()
    await writer.wait_closed()
    theirs.close()
