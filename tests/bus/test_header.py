"""Headers of D-Bus messages: what cannot be used is skipped, and does not end the connection."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Any

import pytest
from dbus_next.constants import MessageType
from dbus_next.message import Message

from lightagentd import errors
from lightagentd.bus import messages as bus_messages
from lightagentd.bus.connection import Bus
from lightagentd.bus.header import HEADER_LIMIT_BYTES, Header, read_header, skip

PATH, INTERFACE = "/org/example/Peer", "org.example.Peer"


def signal(**more: Any) -> bytes:
    made = {"path": PATH, "interface": INTERFACE, "member": "Tick", "signature": "u", "body": [7]} | more
    return bytes(
        bus_messages.encode(bus_messages.make_message(message_type=MessageType.SIGNAL, serial=3, **made))
    )


async def headers_of(*messages: bytes) -> list[Header | None]:
    """What is read of these messages, the bodies skipped; each must be cut off where it ends."""
    reader = asyncio.StreamReader()
    reader.feed_data(b"".join(messages))
    reader.feed_eof()
    found = []
    for _ in messages:
        head = await read_header(reader)
        found.append(head)
        if head is not None:
            await skip(reader, head.body_bytes)
    assert reader.at_eof()
    return found


async def test_all_fields_are_read() -> None:
    call: Any = Message(
        destination="org.example.Name",
        path=PATH,
        interface=INTERFACE,
        member="Do",
        sender=":1.7",
        signature="s",
        body=["x"],
        serial=9,
    )
    answer = Message.new_error(call, "org.example.Error", "no")
    answer.serial = 10
    found, error = await headers_of(bytes(call._marshall()), bytes(bus_messages.encode(answer)))
    assert found is not None
    assert (found.kind, found.serial, found.body_bytes, found.signature) == (
        MessageType.METHOD_CALL,
        9,
        6,
        "s",
    )
    assert (found.destination, found.path, found.interface, found.member) == (
        "org.example.Name",
        PATH,
        INTERFACE,
        "Do",
    )
    assert error is not None
    assert (error.kind, error.reply_serial, error.error_name) == (MessageType.ERROR, 9, "org.example.Error")


async def test_a_message_whose_header_cannot_be_used_is_skipped_and_the_next_one_is_read() -> None:
    whole = signal()
    for bad in (
        whole.replace(b"\x02\x01s\x00", b"\x63\x01s\x00", 1),  # no interface
        whole.replace(b"\x02\x01s\x00", b"\x02\x01q\x00", 1),
        whole.replace(b"\x08\x01g\x00", b"\x05\x01g\x00", 1),
        whole.replace(INTERFACE.encode(), b"\xff" * len(INTERFACE)),
        whole[:1] + b"\x09" + whole[2:],
        whole[:3] + b"\x02" + whole[4:],
        signal(path="/x" * HEADER_LIMIT_BYTES),
    ):
        assert bad != whole
        first, second = await headers_of(bad, whole)
        assert first is None
        assert second is not None
        assert second.member == "Tick"


async def test_a_field_of_an_unknown_code_is_passed_over() -> None:
    unknown = signal(error_name="org.example.Unknown").replace(b"\x04\x01s\x00", b"\x63\x01s\x00", 1)
    [found] = await headers_of(unknown)
    assert found is not None
    assert (found.member, found.error_name) == ("Tick", "")


async def test_bytes_that_are_no_message_end_the_connection() -> None:
    for head in (b"x" * 16, struct.pack("<BBBBIII", ord("l"), 1, 0, 1, 1 << 28, 1, 0)):
        reader = asyncio.StreamReader()
        reader.feed_data(head)
        with pytest.raises(errors.MalformedMessage):
            await read_header(reader)


async def test_a_body_that_ends_early_is_the_end() -> None:
    reader = asyncio.StreamReader()
    reader.feed_data(b"xx")
    reader.feed_eof()
    with pytest.raises(EOFError):
        await skip(reader, 3)


async def test_whoever_reads_gives_way_between_messages() -> None:
    """What is in the buffer already is no reason to hold the event loop until it is all read."""
    ours, theirs = socket.socketpair()
    _, writer = await asyncio.open_connection(sock=ours)
    reader = asyncio.StreamReader()
    reader.feed_data(signal() * 2000)
    reader.feed_eof()
    bus = Bus(reader, writer, "test")
    reading = asyncio.create_task(bus._read())
    turns = 0
    while not reading.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns >= 20
    theirs.close()
    await bus.close()
