"""How many workers there may be at once, and which one ends when another is needed: the pool's `Room`."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable

from lightagentd.errors import WorkerUnavailable
from lightagentd.worker.lanes import WorkerProcess
from lightagentd.worker.lockdown import MACHINE
from lightagentd.worker.source import Whom

PATIENCE_S = 20.0
"""How long a call waits while all workers are busy that there may be."""
ROOT_RESERVE = 2
"""How many workers beyond the limit there may be for root's calls."""


class Room:
    """The places of machine-wide workers do not count."""

    def __init__(self, limit: int, workers: Callable[[], list[WorkerProcess]]) -> None:
        self._limit = limit
        self._workers = workers
        self._starting: Counter[int] = Counter()
        """By owner, the workers that are about to be."""
        self._lines: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
        """By owner: the calls that wait for a place take turns, so that none waits for ever."""
        self.changed = asyncio.Event()
        """Set when a worker became idle or ended."""

    @contextlib.asynccontextmanager
    async def place(
        self,
        whom: Whom,
        serves: Callable[[WorkerProcess], bool],
        end: Callable[[WorkerProcess], Awaitable[None]],
    ) -> AsyncGenerator[WorkerProcess | None, None]:
        """A block in which another worker may be started; of idle ones the oldest is ended for it. One that
        `serves` them is not ended: they get it instead, before anything else happens.

        Raises WorkerUnavailable when all are busy for too long.
        """
        found = None if whom.where in MACHINE else await self._wait(whom, serves, end)
        self._starting[whom.owner] += 1
        try:
            yield found
        finally:
            self._starting[whom.owner] -= 1
            self.changed.set()

    async def _wait(
        self,
        whom: Whom,
        serves: Callable[[WorkerProcess], bool],
        end: Callable[[WorkerProcess], Awaitable[None]],
    ) -> WorkerProcess | None:
        try:
            async with asyncio.timeout(PATIENCE_S), self._lines[whom.owner]:
                while (crowd := self._crowd(whom)) is not None:
                    self.changed.clear()
                    idle = sorted((one for one in crowd if not one.busy), key=lambda one: one.idle_since)
                    for one in filter(serves, idle):
                        return one
                    if idle:
                        await end(idle[0])
                    else:
                        await self.changed.wait()
                return None
        except TimeoutError as err:
            raise WorkerUnavailable(
                "All the workers that there may be are busy.",
                suggestion="An administrator can allow more: max_workers in [worker] of the configuration.",
            ) from err

    def _crowd(self, whom: Whom) -> list[WorkerProcess] | None:
        """The workers of which one must end before another one may start; None if there is room.

        One owner gets at most half of those that others leave, so that the next one finds room, too. Root
        gets some beyond the limit. Those that are about to start count.
        """
        limit = self._limit + (ROOT_RESERVE if whom.owner == 0 else 0)
        counted = [one for one in self._workers() if one.where not in MACHINE]
        own = [one for one in counted if one.owner == whom.owner]
        total, owned = len(counted) + self._starting.total(), len(own) + self._starting[whom.owner]
        if whom.owner and owned >= max(1, (limit - (total - owned)) // 2):
            return own
        return counted if total >= limit else None
