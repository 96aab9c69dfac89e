"""The pool's connections to its workers, in one lane for each agent, owner, and effect or place.

`pool` owns everything here; its callers pass a `Call` and get a `Checked`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lightagentd.tool import Effect, Place
from lightagentd.varlink.server import VarlinkConnection
from lightagentd.worker.lockdown import MACHINE
from lightagentd.worker.sandbox import Backend
from lightagentd.worker.source import Child, Whom

SHARED_CONNECTIONS = 16
"""How many calls the one worker of a place runs at once."""


@dataclass(frozen=True, kw_only=True)
class Checked:
    """The checked arguments of a call, and its preview (`lightagentd.tool.Preview`)."""

    args: dict[str, Any]
    preview: str = ""
    expected: dict[str, Any] = field(default_factory=dict)


@dataclass(kw_only=True, eq=False)
class WorkerProcess:
    """A connection to a running worker, owned by the pool. The only worker of a place has several."""

    whom: Whom
    child: Child
    connection: VarlinkConnection
    busy: bool = False
    outdated: bool = False
    """The files that it loaded may have changed: it is ended after its call."""
    idle_since: float = field(default_factory=time.monotonic)

    @property
    def agent(self) -> str:
        return self.whom.agent

    @property
    def where(self) -> Effect | Place:
        return self.whom.where

    @property
    def owner(self) -> int:
        return self.whom.owner

    @property
    def backend(self) -> Backend:
        return self.child.backend

    @property
    def unit(self) -> str:
        """The name of its systemd unit; empty where the daemon started it."""
        return self.child.service

    @property
    def pid(self) -> int:
        """The process id of the worker or its keeper; 0 if unknown."""
        return self.child.pid

    @property
    def stale(self) -> bool:
        """Whether it ends after its current call."""
        return self.outdated or self.child.outdated

    @property
    def running(self) -> bool:
        """Whether the worker can answer."""
        return self.child.answers(self.connection)


def distinct(connections: Sequence[WorkerProcess]) -> list[WorkerProcess]:
    """One entry for each worker of these connections; busy if any of its connections is.

    A watcher shares the worker unit of observe, and is then shown as observe.
    """
    found: dict[int, WorkerProcess] = {}
    for worker in connections:
        seen = found.setdefault(id(worker.child), worker)
        if seen is not worker:
            shown = seen if isinstance(seen.where, Effect) else worker
            found[id(worker.child)] = replace(shown, busy=seen.busy or worker.busy)
    return list(found.values())


class Lane:
    """The workers of one agent, owner and effect, or of a place, and the callers that wait for one.

    Several owners share those of the machine's places and for change. Of each one only a few calls run or are
    in the line, so that nobody waits behind all that another one asks for.
    """

    def __init__(self, whom: Whom, limit: int, *, shared: bool) -> None:
        self.free = asyncio.Semaphore(limit)
        self._each = limit
        if whom.where in MACHINE:
            self._each = limit // 4
        elif whom.where is Effect.CHANGE:
            self._each = max(1, limit - 1)
        self._turns: dict[int, asyncio.Semaphore] = {}
        self.workers: list[WorkerProcess] = []
        self.shared = shared
        self.starting = asyncio.Lock()
        """Held while a shared worker is started, so that there is only one."""

    def turn(self, owner: int) -> asyncio.Semaphore:
        """An owner's calls here; hold it before `free`."""
        if (turn := self._turns.get(owner)) is None:
            turn = self._turns[owner] = asyncio.Semaphore(self._each)
        return turn

    def add(self, whom: Whom, child: Child, connection: VarlinkConnection) -> WorkerProcess:
        """A new, busy connection to a worker."""
        self.workers.append(WorkerProcess(whom=whom, child=child, connection=connection, busy=True))
        return self.workers[-1]


class Lanes:
    """All lanes of a pool."""

    def __init__(self) -> None:
        self._lanes: dict[Whom, Lane] = {}

    def lane(self, whom: Whom, limit: int, *, shared: bool) -> Lane:
        """Theirs, which is made with the first call."""
        if (lane := self._lanes.get(whom)) is None:
            lane = self._lanes[whom] = Lane(whom, limit, shared=shared)
        return lane

    def connections(self) -> list[WorkerProcess]:
        return [worker for lane in self._lanes.values() for worker in lane.workers]

    def of(self, child: Child) -> list[WorkerProcess]:
        """All connections to one worker."""
        return [one for one in self.connections() if one.child is child]

    def remove(self, worker: WorkerProcess) -> bool:
        """Close a connection that is in its lane; says whether it was. The connection of one that is not may
        be another one's by now (`restore`).
        """
        lane = self._lanes.get(worker.whom)
        if lane is None or worker not in lane.workers:
            return False
        lane.workers.remove(worker)
        worker.connection.close()
        return True

    def drop(self, child: Child) -> None:
        """Close all connections to a worker."""
        for one in self.of(child):
            self.remove(one)

    async def kill(self, worker: WorkerProcess) -> None:
        """Kill a worker that hangs; it goes down with all of its calls."""
        self.drop(worker.child)
        worker.connection.close()
        await worker.child.end_hung()

    def restore(self, worker: WorkerProcess) -> None:
        """Put a connection that was removed back into its lane."""
        self._lanes[worker.whom].workers.append(worker)

    def clear(self) -> None:
        self._lanes.clear()

    def may_serve(self, whom: Whom, idle: WorkerProcess) -> bool:
        """Whether an idle worker may be handed over to another agent (`Whom.may_follow`)."""
        held = self.of(idle.child)
        return idle.running and not idle.stale and all(whom.may_follow(one.whom) for one in held)

    def take(self, child: Child) -> VarlinkConnection:
        """Take an idle worker out of its lanes; gives its connection."""
        first, *others = self.of(child)
        self._lanes[first.whom].workers.remove(first)
        for one in others:
            self.remove(one)
        return first.connection
