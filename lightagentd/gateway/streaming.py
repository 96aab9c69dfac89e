"""Answers that are streams of server-sent events, for clients that read slowly or hang up.

An `EventStream` owns the generator of its pieces and closes it in each case: at its end, when the client
hangs up, and when the client reads nothing for the time of the configuration.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator
from typing import Any

from starlette.responses import Response

from lightagentd.gateway.asked import Asked, disconnected

ALIVE_S = 15.0
"""How long there may be nothing to send; then a comment is sent, for proxies that give up silent streams."""
_ALIVE = b": alive\n\n"


def event(data: Any, name: str = "") -> bytes:
    """A server-sent event."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(data, ensure_ascii=False, separators=(',', ':'))}\n\n".encode()


class EventStream(Response):
    """A response with pieces of bytes, each one or more whole events."""

    def __init__(
        self,
        asked: Asked,
        key: str,
        pieces: AsyncGenerator[bytes],
        held: contextlib.AsyncExitStack,
        headers: dict[str, str] | None = None,
        alive: bytes = _ALIVE,
    ) -> None:
        """`key` is whose bytes these are; `held` is closed after the pieces, in each case; `alive` is sent
        while there are none.
        """
        self.status_code, self.background, self.body = 200, None, b""
        self.media_type = "text/event-stream"
        self.init_headers({**(headers or {}), "X-Accel-Buffering": "no"})
        self.raw_headers = [pair for pair in self.raw_headers if pair[0] != b"content-length"]
        self._asked, self._key, self._pieces, self._held = asked, key, pieces, held
        self._alive = alive

    async def __call__(self, _scope: Any, receive: Any, send: Any) -> None:
        gone = asyncio.create_task(disconnected(receive))
        pump = asyncio.create_task(self._pump(send))
        try:
            await asyncio.wait([gone, pump], return_when=asyncio.FIRST_COMPLETED)
            if not pump.done():
                self._asked.shared.metrics.gone.inc()
        finally:
            for one in (gone, pump):
                one.cancel()
            await asyncio.gather(gone, return_exceptions=True)
            await asyncio.wait([pump])
            await self._held.aclose()
        if not pump.cancelled():
            pump.result()

    async def _pump(self, send: Any) -> None:
        shared, sent = self._asked.shared, 0
        try:
            async with (
                contextlib.aclosing(self._pieces) as pieces,
                contextlib.aclosing(with_signs_of_life(pieces, self._alive)) as sending,
            ):
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                async for piece in sending:
                    sent += len(piece)
                    shared.metrics.chunks.inc()
                    async with asyncio.timeout(shared.gateway.write_timeout_s):
                        await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except TimeoutError:  # of the client, who reads nothing
            self._asked.shared.metrics.gone.inc()
            self._asked.connection.hang_up()
        finally:
            shared.limits.sent(self._key, sent)


async def with_signs_of_life(pieces: AsyncGenerator[bytes], alive: bytes = _ALIVE) -> AsyncGenerator[bytes]:
    """The pieces, and signs of life while there are none."""
    following: asyncio.Task[bytes] | None = None
    try:
        while True:
            following = following or asyncio.ensure_future(anext(pieces))
            done, _ = await asyncio.wait([following], timeout=ALIVE_S)
            if not done:
                yield alive
                continue
            piece, following = following, None
            try:
                found = piece.result()
            except StopAsyncIteration:
                return
            yield found
    finally:
        if following is not None:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
