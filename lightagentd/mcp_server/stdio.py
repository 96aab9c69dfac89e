"""Serves a client on standard input and output: one message a line."""

from __future__ import annotations

import asyncio
import os
import select
import stat
import sys

from lightagentd.mcp_server.request import Connect
from lightagentd.mcp_server.server import Server
from lightagentd.text.jsonrpc import (
    INVALID_REQUEST,
    MAX_BYTES,
    Message,
    RpcError,
    decode,
    encode,
    lines,
    message_of,
)


async def serve(connect: Connect, agent: str) -> None:
    """Serve until the input ends. Raises OSError when the output cannot be written."""
    writing = asyncio.Lock()

    async def send(message: Message) -> None:
        async with writing:  # in a thread: a client that does not read must not stop what is read here
            await asyncio.to_thread(_write, encode(message) + b"\n")

    server = Server(connect, agent, send)
    too_long = RpcError(INVALID_REQUEST, f"A message is longer than {MAX_BYTES} bytes.")
    try:
        async for line in lines(await _standard_input()):
            try:
                if not line:
                    raise too_long
                await server.receive(message_of(decode(line)))
            except RpcError as err:
                await send(Message.refusal(err))
    finally:
        await server.close()


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
