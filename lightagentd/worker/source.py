"""The source of the pool's workers: the daemon starts them (`local`), or systemd does, as units (`units`).

The pool makes one `Source` and owns it; the source owns its children.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from lightagentd.tool import Effect, Place
from lightagentd.varlink.server import VarlinkConnection
from lightagentd.worker.lockdown import MACHINE
from lightagentd.worker.sandbox import Backend

HOOKS = "hooks@"
"""Begins the name of those who are no agents: the hooks, whose workers run nothing else."""


@dataclass(frozen=True)
class Whom:
    """Whom a worker serves, and with what rights. Two that differ share no worker, except that a watcher is
    the worker of observe where systemd runs them, and that for a server the one of its effect. An idle worker
    may be handed over (`may_follow`).
    """

    agent: str
    """Empty where all agents share the worker, and in the worker that describes the tools."""
    where: Effect | Place
    owner: int = 0
    """The uid of the person on whose behalf the agent works. A worker for change serves all of them."""
    server: str = ""
    """The tool that keeps a program between calls, if the worker is for that alone."""

    @classmethod
    def of(cls, agent: str, where: Effect | Place, owner: int, server: str = "") -> Whom:
        if where in MACHINE:
            return cls("", where)
        return cls(agent, where, 0 if where is Effect.CHANGE else owner, server)

    @property
    def unit(self) -> Whom:
        """Whose worker it is where systemd runs them."""
        return replace(self, where=Effect.OBSERVE if self.where is Place.WATCHER else self.where, server="")

    def may_follow(self, other: Whom) -> bool:
        """Whether an idle worker of `other` may serve them: another agent's, of the same person, in the same
        sandbox. Who asks for what is in each call, and a call leaves nothing in its worker.
        """
        return bool(
            self.where in (Effect.OBSERVE, Effect.REACH)
            and self.agent
            and other.agent
            and not self.server
            and not self.agent.startswith(HOOKS)
            and not other.agent.startswith(HOOKS)
            and replace(other, agent=self.agent) == self
        )


class Child(Protocol):
    """One worker. Hold its `lock` to connect to it and to end it."""

    agent: str
    """Whose it is, which `Source.hand_over` changes; empty where all agents share it."""
    backend: Backend
    lock: asyncio.Lock
    outdated: bool
    """The files that it loaded may have changed: its connections are closed after their calls."""

    @property
    def pid(self) -> int:
        """The process id of the worker or its keeper; 0 if unknown."""

    @property
    def service(self) -> str:
        """The unit that it is; empty where the daemon started it."""

    def answers(self, connection: VarlinkConnection, /) -> bool:
        """Whether the worker can answer on this connection."""

    @property
    def stopped(self) -> bool:
        """Whether it was stopped (SIGSTOP), so that waiting for its answer is in vain."""

    async def connect(self) -> VarlinkConnection:
        """Connect, and wait for its first answer. Hold its `lock`. Raises WorkerUnavailable."""

    async def discard(self, *, at_once: bool) -> None:
        """Discard a newly opened worker that cannot be connected to or is not wanted."""

    async def end(self) -> None:
        """End the worker with all that it runs. Hold its `lock`."""

    async def end_hung(self) -> None:
        """End a worker that hangs in a call."""


class Source(Protocol):
    """Opens workers. `backend` is the sandbox of the workers of observe and reach."""

    backend: Backend
    shares: bool
    """Whether all calls for the same `Whom` go to one worker."""

    verifies: bool
    """Whether the workers for change run only what the approver signed or a rule of root's allows."""

    def has(self, agent: str, where: Effect | Place) -> bool:
        """Whether there can be such a worker: an administrator must enable CHANGE, and some machines have no
        INSPECT.
        """

    def how_to_give_change(self, agent: str, /) -> str:
        """How an administrator gives an agent a worker for change, as a sentence."""

    def holds_change(self, agent: str, /) -> tuple[str, str]:
        """The name of the sandbox of a worker for change, and remarks about it."""

    async def open(self, whom: Whom) -> Child:
        """A worker to connect to. Raises WorkerUnavailable."""

    def holds(self, whom: Whom, /) -> bool:
        """Whether they have their one unit already, even if nothing is connected to it."""

    def hand_over(self, child: Child, whom: Whom, /) -> None:
        """Another agent's idle worker is theirs from now on; they hold none."""

    async def end_agent(self, agent: str) -> None:
        """Release the resources of a stopping agent. No connection to its workers is left."""

    async def end_unconnected(self, connected: Callable[[], Collection[Child]]) -> None:
        """End workers that run without a connection: they may have loaded older files."""

    async def kill_all(self, connected: Collection[Child], /) -> tuple[int, list[str]]:
        """In an emergency stop: kill every worker with all that it runs, without grace.

        `connected` are the workers that had connections. Gives the number of workers, and a sentence for each
        that may still run.
        """

    def leave(self) -> None:
        """The daemon is being stopped."""

    async def close(self) -> None:
        """The pool has ended the workers."""


async def greeted(path: Path) -> VarlinkConnection:
    """A connection after the peer's first answer. Raises OSError, Unavailable."""
    connection = await VarlinkConnection.connect(path)
    try:
        await connection.call("org.varlink.service.GetInfo")
    except BaseException:
        connection.close()
        raise
    return connection
