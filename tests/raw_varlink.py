"""A client of a Varlink socket for tests that need the bytes: it sends anything and checks nothing."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Self

PREFIX = "org.lightagent1."
REPLY_LIMIT = 64 << 20


class Raw:
    """One connection, as an async context manager."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.reader: asyncio.StreamReader
        self.writer: asyncio.StreamWriter

    async def __aenter__(self) -> Self:
        self.reader, self.writer = await asyncio.open_unix_connection(self._path, limit=REPLY_LIMIT)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.hang_up()

    async def hang_up(self) -> None:
        """Close the whole connection at once."""
        self.writer.transport.abort()
        try:
            await self.writer.wait_closed()
        except OSError:
            return

    def half_close(self) -> None:
        """shutdown(SHUT_WR): nothing more is sent, replies are still read."""
        self.writer.write_eof()

    async def send(self, *messages: bytes) -> None:
        """Each of the messages with its NUL, in one write."""
        self.writer.write(b"".join(message + b"\0" for message in messages))
        await self.writer.drain()

    async def reply(self) -> dict[str, Any]:
        """The next reply as it came."""
        found: dict[str, Any] = json.loads((await self.reader.readuntil(b"\0"))[:-1])
        return found

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One call and its reply, errors as they came."""
        await self.send(message(method, **parameters))
        return await self.reply()

    async def stream(self, method: str, **parameters: Any) -> AsyncIterator[dict[str, Any]]:
        """One call with `more` and its replies, the last one included."""
        await self.send(message(method, more=True, **parameters))
        while True:
            reply = await self.reply()
            yield reply
            if not reply.get("continues"):
                return


def message(method: str, *, more: bool = False, oneway: bool = False, **parameters: Any) -> bytes:
    """The bytes of a call without its NUL; a name without a dot at its front gets the daemon's prefix."""
    call: dict[str, Any] = {
        "method": method if method.startswith("org.") else PREFIX + method,
        "parameters": parameters,
    }
    if more:
        call["more"] = True
    if oneway:
        call["oneway"] = True
    return json.dumps(call).encode()


def code(reply: dict[str, Any]) -> str:
    """The stable code of an error reply, `ok` for another, the error's name for one of Varlink's own."""
    if "error" not in reply:
        return "ok"
    return str(reply.get("parameters", {}).get("code", reply["error"]))


def small_buffers(writer: asyncio.StreamWriter) -> None:
    """Let the kernel hold as little as it can of what this end did not read."""
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
