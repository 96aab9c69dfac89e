"""The live end of the history: wakes those who follow it.

A follower holds a position, not a queue: it reads stored events from its position on and sleeps here when
it has seen them all. So a slow follower costs no memory, misses nothing and sees nothing twice.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

from lightagentd.events.layout import BATCH
from lightagentd.events.queries import Filter

if TYPE_CHECKING:
    from lightagentd.events.history import History
    from lightagentd.events.model import Event


class Feed:
    """Follows one history. `notify` is called in any thread after a commit."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._changed = asyncio.Event()
        self._closed = False
        self._followers = 0

    def notify(self) -> None:
        """Wake the followers, if there are any: something was stored."""
        if not self._followers:
            return
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody follows any more
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def close(self) -> None:
        """End every `follow`."""
        self._closed = True
        self._wake()

    async def follow(
        self, history: History, wanted: Filter, from_seq: int, last_seq: int | None = None
    ) -> AsyncGenerator[Event, None]:
        """The stored events from a number on that fit, up to `last_seq`; without it each new one too, until
        the feed is closed.
        """
        self._followers += 1
        try:
            async for event in self._read(history, wanted, from_seq, last_seq):
                yield event
        finally:
            self._followers -= 1

    async def _read(
        self, history: History, wanted: Filter, position: int, last_seq: int | None
    ) -> AsyncGenerator[Event, None]:
        while True:
            changed = self._changed
            found = history.range(position, BATCH)
            for event in found:
                if last_seq is not None and event.seq > last_seq:
                    return
                position = event.seq + 1
                if wanted.wants(event):
                    yield event
            if found:
                await asyncio.sleep(0)
            elif self._closed or last_seq is not None:
                return
            else:
                await changed.wait()
