"""Responses that a client may come back to: the chats of AI SDK clients, and OpenAI's responses.

A turn is read by a task of its own: whoever reads gets all chunks from the beginning. When nobody reads any
more, the task goes on or ends, as configured; ending it ends the turn where that began here. `Lives` owns the
tasks. All is forgotten with the process; the conversations are the daemon's.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Coroutine, Sequence
from typing import Any

from lightagentd.errors import LightagentError

Chunk = dict[str, Any]
MAX_CHARS = 4 << 20
"""So much may one turn say; the chunks of all that run are held in memory."""
KEPT_CHARS = 64 << 20
"""So much is kept of all."""
_REPLAY_CHARS = 64 << 10
"""So much is kept of a turn that waits for a person, for a client that loads its page anew."""
STORED_CHARS = 256 << 10
"""So much is kept of one that is `stored`, with all that its client sent along."""
_CHUNK_CHARS = 200


def _size(chunk: Chunk) -> int:
    return _CHUNK_CHARS + len(str(chunk))


class Live:
    """A response that is being made, or that was made."""

    def __init__(self, *, goes_on: bool, before: Sequence[Chunk] = (), stored: bool = False) -> None:
        """`goes_on`: also without readers. `before` are chunks that its message has had already. One that is
        `stored` keeps its chunks when it has ended, the last one alone if they are many.
        """
        self.session, self.trace_id = "", ""
        self.waits = False
        """Whether it ended with a question to a person."""
        self.chunks = list(before)
        self.first = len(self.chunks)
        """Where the chunks of this response begin."""
        self.failure: LightagentError | None = None
        """Why there is no response at all."""
        self.ended = False
        self.task: asyncio.Task[None] | None = None
        self._goes_on, self._readers, self._stored = goes_on, 0, stored
        self.chars = sum(map(_size, before))
        self._changed = asyncio.Event()

    def add(self, chunk: Chunk) -> None:
        """Once it is full, only what ends the response should follow."""
        self.chars += _size(chunk)
        self.chunks.append(chunk)
        self.change()

    @property
    def full(self) -> bool:
        """Whether the turn said more than may be kept."""
        return self.chars > MAX_CHARS

    def change(self) -> None:
        """Wake those who wait."""
        self._changed.set()
        self._changed = asyncio.Event()

    def end(self) -> None:
        """Nothing more comes; what is not needed for a client that comes back is forgotten."""
        self.ended = True
        self.change()
        self._forget()

    @property
    def replay(self) -> list[Chunk]:
        """What is kept when it has ended: what a message has that goes on after an answer."""
        if self._stored:
            return self.chunks if self.chars <= STORED_CHARS else self.chunks[-1:]
        kept = self.waits and self.chars <= _REPLAY_CHARS
        return [one for one in self.chunks if one["type"] != "finish"] if kept else []

    async def over(self) -> None:
        """Wait for its end."""
        while not self.ended:
            await self._changed.wait()

    async def begun(self) -> None:
        """Wait for the first chunk. Raises why there is none."""
        while len(self.chunks) == self.first and not self.ended:
            await self._changed.wait()
        if self.failure is not None:
            raise self.failure

    def enter(self) -> None:
        """Somebody reads."""
        self._readers += 1

    def leave(self) -> None:
        """They do no more."""
        self._readers -= 1
        if not self._readers and not self.ended and not self._goes_on and self.task is not None:
            self.task.cancel()
        self._forget()

    def _forget(self) -> None:
        if self.ended and not self._readers:
            self.chunks = self.replay
            self.chars = sum(map(_size, self.chunks))

    async def read(self, at: int) -> AsyncGenerator[Chunk]:
        """The chunks from a place on, to the end."""
        while True:
            while at < len(self.chunks):
                yield self.chunks[at]
                at += 1
            if self.ended:
                return
            await self._changed.wait()


class Lives:
    """The newest `most` responses, by the caller's key and a name."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._newest: OrderedDict[tuple[str, str], Live] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()

    def get(self, key: str, name: str) -> Live | None:
        return self._newest.get((key, name))

    def put(self, key: str, name: str, live: Live | None) -> None:
        """Keep a response by this name, or with None none. What has ended makes room, the oldest first."""
        self._newest.pop((key, name), None)
        if live is not None:
            self._newest[key, name] = live
        chars = sum(one.chars for one in self._newest.values())
        for oldest, one in [*self._newest.items()] if chars > KEPT_CHARS or len(self) > self._most else ():
            if one.ended and one is not live and (chars > KEPT_CHARS or len(self) > self._most):
                chars -= one.chars
                del self._newest[oldest]

    def __len__(self) -> int:
        return len(self._newest)

    def begin(self, live: Live, work: Coroutine[Any, Any, None]) -> None:
        """Have a task fill a response, which has a reader from now on."""
        live.task = asyncio.create_task(_filled(live, work))
        self._tasks.add(live.task)
        live.task.add_done_callback(self._tasks.discard)
        live.enter()

    async def close(self) -> None:
        """End all tasks."""
        for one in self._tasks:
            one.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def _filled(live: Live, work: Coroutine[Any, Any, None]) -> None:
    try:
        await work
    except LightagentError as err:
        live.failure = err
    finally:
        live.end()
