"""Reads the body of one response until a deadline. The maker of a `Body` closes it and its response.

The deadline is checked between chunks. It limits the reading itself only once it is nearer than the timeout
between chunks: a timer for each chunk would cost as much as its decoding.

Available data is read without waiting, which would block other tasks, so they get their turn now and then.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator

import httpx

from lightagentd.llm.endpoint.compression import Decompressor

CHUNK_BYTES = 64
"""What a chunk counts beside its bytes: to take it costs as much time, however small it is."""
_TURN_S = 0.02
"""How long chunks are read and decoded before other tasks get a turn."""


class Body:
    """`deadline` is a time of the event loop; `idle_s` is the request's timeout between chunks.

    Raises NotReadable for an encoding that the request did not ask for.
    """

    def __init__(self, response: httpx.Response, deadline: float, idle_s: float) -> None:
        self._response = response
        self._deadline = deadline
        self._idle_s = idle_s
        self._chunks: AsyncGenerator[bytes, None] | None = None
        self._pieces: AsyncIterator[bytes] | None = None
        self.received = 0
        """The number of bytes received, decompressed ones included; each chunk adds CHUNK_BYTES."""

    def hurry(self, seconds: float) -> None:
        """Limit the remaining time."""
        self._deadline = min(self._deadline, asyncio.get_running_loop().time() + seconds)

    def __aiter__(self) -> AsyncIterator[bytes]:
        """The bytes as they come. Raises TimeoutError at the deadline, httpx.HTTPError, NotReadable."""
        self._chunks = self._read()
        return self._chunks

    async def close(self) -> None:
        """End the response; an unfinished response closes its connection."""
        if self._chunks is not None:
            await self._chunks.aclose()
        await self._response.aclose()
        if self._pieces is not None:
            # httpcore reads through nested generators, which end when they read from a closed response.
            # Otherwise each would be ended by a task of its own later.
            with contextlib.suppress(httpx.HTTPError, OSError):
                async for _ in self._pieces:
                    pass

    async def _read(self) -> AsyncGenerator[bytes, None]:
        encoding = self._response.headers.get("content-encoding", "identity")
        unpack = None if encoding.strip().lower() in ("identity", "") else Decompressor(encoding)
        source = self._response.stream
        assert isinstance(source, httpx.AsyncByteStream)
        self._pieces = pieces = aiter(source)
        time = asyncio.get_running_loop().time
        turn = time()
        while True:
            if (now := time()) - turn > _TURN_S:
                await asyncio.sleep(0)
                turn = now
            left = self._deadline - now
            try:
                if left > self._idle_s:
                    chunk = await anext(pieces)
                else:
                    async with asyncio.timeout(left):
                        chunk = await anext(pieces)
            except StopAsyncIteration:
                return
            self.received += len(chunk) + CHUNK_BYTES * getattr(source, "chunks", 1)
            if unpack is None:
                yield chunk
                continue
            for piece in unpack.pieces(chunk):
                self.received += len(piece)
                yield piece
                await asyncio.sleep(0)
            yield b""  # so that the limits also count empty chunks
