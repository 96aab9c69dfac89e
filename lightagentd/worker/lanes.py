"""What the pool keeps of its workers: connections to them, in one lane for each agent and effect or place.

`pool` owns everything here; `Call` and `Checked` are what its callers give and get.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lightagentd.tool import Effect, Place
from lightagentd.varlink.server import VarlinkConnection
from lightagentd.worker.sandbox import Backend
from lightagentd.worker.source import Child

SHARED_CONNECTIONS = 16
"""How many calls the one worker of a place runs at once."""

OWN_PREVIEWS = frozenset({("file", "undo")})
"""Actions that look at what only the worker for change can read, to say what they would do."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """One tool call as a worker gets it."""

    call_id: str
    tool: str
    action: str
    args: dict[str, Any]
    agent: str
    session: str
    effect: Effect
    timeout_s: float
    owner: int = 0
    """The uid on whose behalf it runs."""
    place: Place | None = None
    expected: dict[str, Any] = field(default_factory=dict)
    """What an approved call's preview rested on."""

    def to_wire(self) -> dict[str, Any]:
        """What the worker is told; it knows its place by itself."""
        found = {**vars(self), "effect": self.effect.value}
        del found["place"]
        return found


@dataclass(frozen=True, kw_only=True)
class Checked:
    """A call's arguments as its action will get them, and what it would do (`lightagentd.tool.Preview`)."""

    args: dict[str, Any]
    preview: str = ""
    expected: dict[str, Any] = field(default_factory=dict)


@dataclass(kw_only=True, eq=False)
class WorkerProcess:
    """A connection to a running worker; where a place has one worker, several share it. The pool owns it."""

    agent: str
    where: Effect | Place
    child: Child
    connection: VarlinkConnection
    busy: bool = False
    outdated: bool = False
    """The files that it loaded may have changed: it is ended after its call."""
    idle_since: float = field(default_factory=time.monotonic)

    @property
    def backend(self) -> Backend:
        return self.child.backend

    @property
    def pid(self) -> int:
        """The worker, or what holds it; 0 where that is not known."""
        return self.child.pid

    @property
    def stale(self) -> bool:
        """Whether it is to be ended after its call."""
        return self.outdated or self.child.outdated

    @property
    def running(self) -> bool:
        """Whether the worker is there to answer."""
        return self.child.answers(self.connection)


def distinct(connections: Sequence[WorkerProcess]) -> list[WorkerProcess]:
    """One entry for each worker behind them, busy if any of its connections is.

    A watcher's worker unit is that of observe, and then shown as such.
    """
    found: dict[int, WorkerProcess] = {}
    for worker in connections:
        seen = found.setdefault(id(worker.child), worker)
        if seen is not worker:
            shown = seen if isinstance(seen.where, Effect) else worker
            found[id(worker.child)] = replace(shown, busy=seen.busy or worker.busy)
    return list(found.values())


class Lane:
    """The workers of one agent and effect, or of a place, and who waits for one."""

    def __init__(self, limit: int, *, shared: bool) -> None:
        self.free = asyncio.Semaphore(limit)
        self.workers: list[WorkerProcess] = []
        self.shared = shared
        self.starting = asyncio.Lock()
        """Held while a shared worker is started, so that there is only one."""
