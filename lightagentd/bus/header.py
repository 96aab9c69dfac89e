"""Reads the header of a D-Bus message before its body, to decide what the body may cost.

Any user of the machine can send any message to any name on the system bus. So each field costs only a few
steps, and an unwanted body is discarded as it arrives, without being stored.

Specification: https://dbus.freedesktop.org/doc/dbus-specification.html#message-protocol-messages
"""

from __future__ import annotations

import asyncio
import functools
import logging
import struct
from dataclasses import dataclass
from typing import Any

from dbus_next.constants import MessageType

from lightagentd import errors

HEADER_LIMIT_BYTES = 16 * 1024
"""A message with a larger one is skipped: names have 255 bytes at most, and no path of a real object 4096."""
_MESSAGE_LIMIT_BYTES = 128 * 1024 * 1024
"""The largest message that the specification allows."""
_CHUNK_BYTES = 256 * 1024
ORDERS = {ord("l"): "<", ord("B"): ">"}
_NAMES = {
    1: "path",
    2: "interface",
    3: "member",
    4: "error_name",
    5: "reply_serial",
    6: "destination",
    7: "sender",
    8: "signature",
}
_REQUIRED = {
    MessageType.METHOD_CALL: ("path", "member"),
    MessageType.METHOD_RETURN: ("reply_serial",),
    MessageType.ERROR: ("error_name", "reply_serial"),
    MessageType.SIGNAL: ("path", "interface", "member"),
}
_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Header:
    """The header of a message. A missing field is empty."""

    order: str
    """`<` or `>`, as the module struct has it."""
    kind: MessageType
    flags: int
    serial: int
    body_bytes: int
    path: str = ""
    interface: str = ""
    member: str = ""
    error_name: str = ""
    reply_serial: int = 0
    destination: str = ""
    sender: str = ""
    signature: str = ""


async def read_header(reader: asyncio.StreamReader) -> Header | None:
    """The next header, after which the body is to be read or skipped; None for a message that was skipped.

    Raises EOFError, OSError, and MalformedMessage for bytes after which no message can be found any more.
    """
    head = await reader.readexactly(16)
    order = ORDERS.get(head[0])
    if order is None:
        raise errors.MalformedMessage("the bus sent bytes that are no D-Bus message")
    body_bytes, serial, fields_bytes = struct.unpack_from(order + "III", head, 4)
    padded_bytes = fields_bytes + -fields_bytes % 8
    if padded_bytes + body_bytes > _MESSAGE_LIMIT_BYTES:
        raise errors.MalformedMessage(f"the bus announced a message of {padded_bytes + body_bytes} bytes")
    if fields_bytes > HEADER_LIMIT_BYTES:
        _log.info("A D-Bus message with a header of %s bytes is skipped", fields_bytes)
        await skip(reader, padded_bytes + body_bytes)
        return None
    data = await reader.readexactly(padded_bytes)
    try:
        kind = MessageType(head[1])
        found = fields(data[:fields_bytes], order).copy()
        if head[3] != 1 or any(not found.get(name) for name in _REQUIRED[kind]):
            raise ValueError("a required field is missing, or this is another version of the protocol")
        found |= {"flags": head[2], "serial": serial, "body_bytes": body_bytes}
        return Header(order=order, kind=kind, **found)
    except (ValueError, IndexError, struct.error) as err:
        _log.info("A D-Bus message could not be decoded and is skipped: %s", err)
        await skip(reader, body_bytes)
        return None


async def skip(reader: asyncio.StreamReader, size_bytes: int) -> None:
    """Throw away what comes next, without holding more than a piece of it."""
    while size_bytes:
        data = await reader.read(min(size_bytes, _CHUNK_BYTES))
        if not data:
            raise EOFError
        size_bytes -= len(data)


@functools.lru_cache(maxsize=256)
def fields(data: bytes, order: str) -> dict[str, Any]:
    """The known fields by name; those of other codes are passed over, as the specification asks.

    A flood is of messages that are all alike: one that is refused should cost next to nothing.
    """
    found: dict[str, Any] = {}
    offset, uint32 = 0, struct.Struct(order + "I")
    while offset < len(data):
        offset += -offset % 8
        code, signature = data[offset], data[offset + 1 : offset + 4]
        offset += 4
        value: str | int
        if signature in (b"\x01s\0", b"\x01o\0"):
            [length] = uint32.unpack_from(data, offset)
            value = _text(data, offset + 4, length)
            offset += 4 + length + 1
        elif signature == b"\x01g\0":
            length = data[offset]
            value = _text(data, offset + 1, length)
            offset += 1 + length + 1
        elif signature == b"\x01u\0":
            [value] = uint32.unpack_from(data, offset)
            offset += 4
        else:
            raise ValueError(f"field {code} has a type that no field of the specification has")
        name = _NAMES.get(code)
        if name is not None:
            if isinstance(value, int) != (name == "reply_serial"):
                raise ValueError(f"{name} is of the wrong type")
            if name in found:
                raise ValueError(f"{name} stands there twice")
            found[name] = value
    return found


def _text(data: bytes, start: int, length: int) -> str:
    if start + length >= len(data):  # the NUL after it is there, too
        raise ValueError("a field is longer than the header")
    return data[start : start + length].decode()
