"""Where the pool has its workers from: the daemon starts them (`local`), or systemd does, as units (`units`).

The pool makes one `Source` and owns it; the source owns its children.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Protocol

from lightagentd.tool import Effect, Place
from lightagentd.varlink.server import VarlinkConnection
from lightagentd.worker.sandbox import Backend


class Child(Protocol):
    """One worker. Its `lock` is held while somebody connects to it and while it is ended."""

    backend: Backend
    lock: asyncio.Lock
    outdated: bool
    """The files that it loaded may have changed: its connections are closed after their calls."""

    @property
    def pid(self) -> int:
        """The worker, or what holds it; 0 where that is not known."""

    def answers(self, connection: VarlinkConnection, /) -> bool:
        """Whether the worker is there to answer on this connection."""

    async def connect(self) -> VarlinkConnection:
        """Connect, and wait for its first answer. Hold its `lock`. Raises WorkerUnavailable."""

    async def discard(self, *, at_once: bool) -> None:
        """Let go of a worker that was just opened, and that could not be connected to or is not wanted."""

    async def end(self) -> None:
        """End the worker, with all that it runs. Hold its `lock`."""

    async def end_hung(self) -> None:
        """End a worker that does not come back from a call."""


class Source(Protocol):
    """Opens workers. `backend` is what holds the workers of observe and reach."""

    backend: Backend

    def has(self, agent: str, where: Effect | Place) -> bool:
        """Whether there can be such a worker: for CHANGE an administrator gives it, and not each machine has
        INSPECT.
        """

    def how_to_give_change(self, agent: str, /) -> str:
        """How an administrator gives an agent a worker for change, as a sentence."""

    def holds_change(self, agent: str, /) -> tuple[str, str]:
        """What a worker for change runs in, in a word, and what there is to say about that."""

    async def open(self, agent: str, where: Effect | Place) -> Child:
        """A worker to connect to. Raises WorkerUnavailable."""

    async def end_agent(self, agent: str) -> None:
        """Let go of what an agent had that stops. No connection to its workers is left."""

    async def end_unconnected(self, connected: Callable[[], Collection[Child]]) -> None:
        """End workers that run without a connection: they may have loaded older files."""

    async def kill_all(self, connected: Collection[Child], /) -> tuple[int, list[str]]:
        """In an emergency stop: kill every worker with all that it runs, without grace.

        `connected` are the workers to which there were connections. Gives how many workers there were, and a
        sentence for each that may still run.
        """

    def leave(self) -> None:
        """The daemon is being stopped."""

    async def close(self) -> None:
        """The pool has ended the workers."""


async def greeted(path: Path) -> VarlinkConnection:
    """A connection whose peer has answered. Raises OSError, Unavailable."""
    connection = await VarlinkConnection.connect(path)
    try:
        await connection.call("org.varlink.service.GetInfo")
    except BaseException:
        connection.close()
        raise
    return connection
