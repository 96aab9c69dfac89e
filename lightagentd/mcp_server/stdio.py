"""Serves a client on standard input and output: one message a line."""

from __future__ import annotations

import asyncio
import os
import select
import stat
import sys

from lightagentd.mcp_server.request import Connect
from lightagentd.mcp_server.server import Server
from lightagentd.text.jsonrpc import INVALID_REQUEST, MAX_BYTES, RpcError, encode, error_of


async def serve(connect: Connect, agent: str) -> None:
    """Serve until the input ends. Raises OSError when the output cannot be written."""
    writing = asyncio.Lock()

    async def send(data: bytes) -> None:
        async with writing:  # in a thread: a client that does not read must not stop what is read here
            await asyncio.to_thread(_write, data + b"\n")

    reader = await _standard_input()
    server = Server(connect, agent, send)
    try:
        while (line := await _line(reader)) is not None:
            if line:
                await server.receive(line)
            else:
                why = f"A message is longer than {MAX_BYTES} bytes."
                await send(encode(error_of(RpcError(INVALID_REQUEST, why))))
    finally:
        await server.close()


async def _line(reader: asyncio.StreamReader) -> bytes | None:
    """The next line; empty for one that is too long, which is skipped, and None at the end."""
    skipped = False
    while True:
        try:
            line = await reader.readuntil(b"\n")
        except asyncio.IncompleteReadError as err:
            return err.partial if err.partial.strip() and not skipped else None
        except asyncio.LimitOverrunError as err:
            await reader.readexactly(err.consumed)
            skipped = True
            continue
        if skipped:
            return b""
        if line.strip():
            return line


async def _standard_input() -> asyncio.StreamReader:
    loop, number = asyncio.get_running_loop(), sys.stdin.fileno()
    reader = asyncio.StreamReader(limit=MAX_BYTES, loop=loop)
    mode = os.fstat(number).st_mode
    if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(number):
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader, loop=loop), sys.stdin)
    else:  # a file never has one wait
        reader.feed_data(await asyncio.to_thread(sys.stdin.buffer.read))
        reader.feed_eof()
    return reader


def _write(data: bytes) -> None:
    left = memoryview(data)
    while left:
        try:
            left = left[os.write(sys.stdout.fileno(), left) :]
        except BlockingIOError:  # it is one with standard input, which does not block
            select.select([], [sys.stdout.fileno()], [])
