"""Lines of JSON on standard input and output, as a transport of `acp.connection.Connection`.

That class takes any JSON for a message, and its own transport has no bound. So what is no message of JSON-RPC
2.0 is answered here, and never gets there.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import stat
import sys
from typing import Any

from lightagentd.errors import InvalidArgument
from lightagentd.limits import MAX_MESSAGE_BYTES
from lightagentd.text.jsonrpc import INVALID_REQUEST, PARSE_ERROR, lines
from lightagentd.text.reason import reason

_CLOSE_TIMEOUT_S = 2.0
_log = logging.getLogger(__name__)


class Lines:
    """Reads until standard input ends or `end` is called."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._lines = lines(reader)

    def end(self) -> None:
        """Have `receive` say that nothing more comes."""
        self._reader.feed_eof()

    async def send(self, message: dict[str, Any]) -> None:
        """Raises ConnectionError when nobody reads any more."""
        self._writer.write(json.dumps(message, separators=(",", ":")).encode() + b"\n")
        try:
            await self._writer.drain()
        except ConnectionError:
            self.end()
            raise

    async def receive(self) -> dict[str, Any] | None:
        """The next message; None at the end."""
        async for line in self._lines:
            if not line:
                await self._refuse(INVALID_REQUEST, f"A line has more than {MAX_MESSAGE_BYTES} bytes.")
            elif (message := await self._message(line)) is not None:
                return message
        return None

    async def close(self) -> None:
        """Send what is still to be sent, for a while."""
        self._writer.close()
        with contextlib.suppress(OSError, TimeoutError):
            await asyncio.wait_for(self._writer.wait_closed(), _CLOSE_TIMEOUT_S)

    async def _message(self, line: bytes) -> dict[str, Any] | None:
        """The message in a line; None for what is none, which is answered."""
        try:
            found = json.loads(line)
        except (ValueError, RecursionError) as err:
            await self._refuse(PARSE_ERROR, f"The line is not JSON: {reason(err)}.")
            return None
        if isinstance(found, dict) and isinstance(found.get("id"), int | str | None):
            if isinstance(found.get("method"), str):
                return found
            if "method" not in found and "id" in found:
                if isinstance(found.get("error", {}), dict):
                    return found
                _log.warning("The answer to request %s is neither a result nor an error.", found["id"])
                return None
        await self._refuse(INVALID_REQUEST, "The line is not one request, notification or answer.")
        return None

    async def _refuse(self, code: int, message: str) -> None:
        _log.warning("%s", message)
        await self.send({"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": message}})


async def standard_streams() -> Lines:
    """Those of this process; what else it prints goes to standard error from now on. Raises InvalidArgument
    where one is no pipe.
    """
    if sys.stdin is None or not (_is_pipe(0) and _is_pipe(1)):
        raise InvalidArgument(
            "Standard input and output must be pipes: an editor starts this command.",
            suggestion="Try it by hand with: cat | lactl acp | cat",
        )
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=MAX_MESSAGE_BYTES)
    given, taken = os.fdopen(os.dup(0), "rb", 0), os.fdopen(os.dup(1), "wb", 0)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), given)
    transport, protocol = await loop.connect_write_pipe(
        lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), taken
    )
    os.dup2(2, 1)
    return Lines(reader, asyncio.StreamWriter(transport, protocol, None, loop))


def _is_pipe(number: int) -> bool:
    mode = os.fstat(number).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(number)
