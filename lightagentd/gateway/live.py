"""The chats of AI SDK clients: which session each one is, and what its newest turn has said.

A turn is read by a task of its own, so that a client may come back to it: whoever reads gets all chunks from
the beginning. When nobody reads any more, the task goes on or ends, as configured; ending it ends the turn
where that began here. `Chats` owns the tasks. All is forgotten with the process: then a chat's session is
found in its messages, or in the history.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Coroutine, Sequence
from typing import Any

from lightagentd.errors import LightagentError, LimitExceeded

Chunk = dict[str, Any]
MOST = 1024
MAX_CHARS = 4 << 20
"""So much may one turn say; the chunks of all that run are held in memory."""
_KEPT_CHARS = 64 << 10
"""So much is kept of a turn that waits for a person, for a client that loads its page anew."""
_CHUNK_CHARS = 200


class Live:
    """A response that is being made, or the last one of a chat."""

    def __init__(self, *, goes_on: bool, before: Sequence[Chunk] = ()) -> None:
        """`goes_on`: also without readers. `before` are chunks that its message has had already."""
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
        self._goes_on, self._readers = goes_on, 0
        self._chars, self._full = 0, False
        self._changed = asyncio.Event()

    def add(self, chunk: Chunk) -> None:
        """Raises LimitExceeded, once; then only what ends the response should follow."""
        self._chars += _CHUNK_CHARS + len(str(chunk))
        if self._chars > MAX_CHARS and not self._full:
            self._full = True
            raise LimitExceeded(
                "The turn said more than the gateway keeps.", suggestion="Look at the session."
            )
        self.chunks.append(chunk)
        self.change()

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
        """What a message has that goes on after an answer."""
        kept = self.waits and self._chars <= _KEPT_CHARS
        return [one for one in self.chunks if one["type"] != "finish"] if kept else []

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

    async def read(self, at: int) -> AsyncGenerator[Chunk]:
        """The chunks from a place on, to the end."""
        while True:
            while at < len(self.chunks):
                yield self.chunks[at]
                at += 1
            if self.ended:
                return
            await self._changed.wait()


class Chats:
    """By the caller's key and the id of the chat."""

    def __init__(self) -> None:
        self._newest: OrderedDict[tuple[str, str], Live] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()

    def get(self, key: str, chat: str) -> Live | None:
        """The newest response of a chat."""
        return self._newest.get((key, chat))

    def begin(self, key: str, chat: str, live: Live, work: Coroutine[Any, Any, None]) -> None:
        """Have a task fill a response, which is the chat's newest from now on."""
        live.task = asyncio.create_task(self._filled(key, chat, live, work))
        self._tasks.add(live.task)
        live.task.add_done_callback(self._tasks.discard)
        live.enter()

    async def close(self) -> None:
        """End all tasks."""
        for one in self._tasks:
            one.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _filled(self, key: str, chat: str, live: Live, work: Coroutine[Any, Any, None]) -> None:
        before = self._newest.get((key, chat))
        self._newest[key, chat] = live
        self._newest.move_to_end((key, chat))
        while len(self._newest) > MOST:
            self._newest.popitem(last=False)
        try:
            await work
        except LightagentError as err:
            live.failure = err
            if before is not None:
                self._newest[key, chat] = before
        finally:
            live.end()
