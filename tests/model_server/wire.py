"""How an answer gets over the wire: whole and at once, or slowly, in part, packed, or not at all."""

from __future__ import annotations

import asyncio
import gzip
import socket
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from tests.model_server.said import Said

Ending = Literal["whole", "close", "reset", "silence", "endless"]
"""What comes behind the last byte that is sent: the proper end; the end of the connection (FIN, or RST);
nothing at all, with the connection open; the last piece again and again."""
Packing = Literal["", "gzip", "gzip_garbage"]


@dataclass(frozen=True, kw_only=True)
class Wire:
    """All of it goes together. Lengths in bytes, and times in seconds."""

    status: int = 200
    content_type: str = "text/event-stream"
    headers: Sequence[tuple[str, str]] = ()
    chunked: bool = True
    """Else with a content-length."""
    wait_s: float = 0.0
    """Before the first byte."""
    pause_s: float = 0.0
    """Between the pieces."""
    one_chunk: bool = False
    """Send all pieces as one chunk."""
    packing: Packing = ""
    head_bytes: int | None = None
    """Send no more of the head than this, and nothing of the body."""
    body_bytes: int | None = None
    """Send no more of the body than this."""
    ending: Ending = "whole"


@dataclass(frozen=True, kw_only=True)
class Complaint:
    """An error as endpoints word it, each in its dialect: a whole body, or an event of a stream."""

    message: str = "scripted failure"
    kind: str = "server_error"
    code: str = ""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What the model says, or a body that no model would write; and how it is sent."""

    said: Said | None = None
    drop: int = 0
    """How many of the last pieces of `said` are left out."""
    complaint: Complaint | None = None
    """Behind `said`; the whole body where the content type is JSON."""
    body: Sequence[bytes] = ()
    """Behind all that."""
    wire: Wire = Wire()

    def over(self, **changes: Any) -> Answer:
        """The same answer, over a wire with these changes: faults go together."""
        return replace(self, wire=replace(self.wire, **changes))


async def send(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, wire: Wire, pieces: Sequence[bytes]
) -> bool:
    """Send an answer; gives whether the connection can be used again."""
    await asyncio.sleep(wire.wait_s)
    body = _packed(pieces, wire)
    head = _head(wire, body)
    if wire.head_bytes is not None:
        writer.write(head[: wire.head_bytes])
        await writer.drain()
        return await _end(reader, writer, wire.ending)
    writer.write(head)
    for piece in _up_to(body, wire.body_bytes):
        if writer.is_closing():
            return False
        writer.write(_framed(piece, wire))
        if wire.pause_s:
            await writer.drain()
            await asyncio.sleep(wire.pause_s)
    while wire.ending == "endless" and not writer.is_closing():
        writer.write(_framed(body[-1], wire))
        await writer.drain()
        await asyncio.sleep(wire.pause_s)
    if wire.ending == "whole" and wire.chunked:
        writer.write(b"0\r\n\r\n")
    await writer.drain()
    return wire.ending == "whole" or await _end(reader, writer, wire.ending)


def _packed(pieces: Sequence[bytes], wire: Wire) -> list[bytes]:
    if wire.packing == "gzip":
        return [gzip.compress(b"".join(pieces))]
    if wire.packing == "gzip_garbage":
        return [b"\x1f\x8b\x08\x00" + bytes(range(256))]
    return [b"".join(pieces)] if wire.one_chunk else list(pieces)


def _head(wire: Wire, body: Sequence[bytes]) -> bytes:
    lines = [f"HTTP/1.1 {wire.status} Scripted", f"content-type: {wire.content_type}"]
    lines += [f"{name}: {value}" for name, value in wire.headers]
    if wire.packing:
        lines.append("content-encoding: gzip")
    lines.append("transfer-encoding: chunked" if wire.chunked else f"content-length: {sum(map(len, body))}")
    return "\r\n".join([*lines, "", ""]).encode()


def _framed(piece: bytes, wire: Wire) -> bytes:
    return b"%x\r\n%b\r\n" % (len(piece), piece) if wire.chunked and piece else piece


def _up_to(body: Sequence[bytes], limit: int | None) -> Iterator[bytes]:
    """The pieces; with a limit in bytes no more than that, the last one cut."""
    left = sum(map(len, body)) if limit is None else limit
    for piece in body:
        if left <= 0:
            return
        yield piece[:left]
        left -= len(piece)


async def _end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, ending: Ending) -> bool:
    if ending == "silence":
        await reader.read(1)  # the client asks nothing meanwhile: this ends when it closes
    elif ending == "reset":
        connection: socket.socket = writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
    return False
