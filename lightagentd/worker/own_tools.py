"""The daemon's side of the tools of kits: which agents have a kit, and what a worker says of its tools.

The pool owns one `OwnTools`. What is asked about a kit runs in a worker that is ended afterwards, so that the
files of two kits never meet in a process.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from lightagentd.errors import ToolNotFound
from lightagentd.tool import Effect, Place
from lightagentd.varlink.server import PeerLost
from lightagentd.worker.lanes import WorkerProcess
from lightagentd.worker.loader import LOAD_LIMIT_S
from lightagentd.worker.lockdown import MACHINE
from lightagentd.worker.source import Whom

DESCRIBE_S = 2 * LOAD_LIMIT_S
"""How long a worker may take to describe one tool of a kit."""
ALL_S = 60.0
"""How long it may take for all of them."""


class OwnTools:
    """`worker` gives a block with a worker; `alone` says whether there is one for all."""

    def __init__(
        self,
        worker: Callable[[Whom], AbstractAsyncContextManager[WorkerProcess]],
        alone: Callable[[], bool],
    ) -> None:
        self.kits: dict[str, str] = {}
        """The agents with a kit, and its folder."""
        self._worker, self._is_alone = worker, alone
        self._looked_at: list[str] = []
        self._alone = asyncio.Lock()

    def folders(self) -> list[str]:
        """Those that workers must be able to read."""
        return [*self.kits.values(), *self._looked_at]

    def kit_for(self, agent: str, where: Effect | Place) -> str:
        """The folder of an agent's kit, for a worker that is its own."""
        return "" if where in MACHINE else self.kits.get(agent, "")

    async def describe(self, kit: str, tools: Sequence[str]) -> list[dict[str, Any]]:
        """A worker's description of some tools of a kit. One that ends its worker, or keeps it from
        answering, has a `problem`, as one that cannot be loaded, and is the last one.

        Raises WorkerUnavailable.
        """
        self._looked_at.append(kit)
        try:
            async with self._alone if self._is_alone() else contextlib.nullcontext():
                return await self._describe(kit, tools)
        finally:
            self._looked_at.remove(kit)

    async def _describe(self, kit: str, tools: Sequence[str]) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        clock = asyncio.get_running_loop().time
        until = clock() + ALL_S
        async with self._worker(Whom("", Effect.OBSERVE)) as worker:
            worker.outdated = True  # it ends with this, also when that is cancelled
            for tool in tools:
                if clock() > until:
                    found.append(_not_described(tool, kit, f"the tools before it took {ALL_S:g} s to load"))
                    break
                try:
                    async with asyncio.timeout(DESCRIBE_S):
                        reply = await worker.connection.call(
                            "org.lightagent1.Worker.DescribeOwn", kit=kit, tool=tool
                        )
                    found.append(reply["tool"])
                except ToolNotFound:
                    found.append(_not_described(tool, kit, "a worker cannot read it"))
                except (TimeoutError, PeerLost):
                    why = "it ended the worker that loaded it, or kept it from answering"
                    found.append(_not_described(tool, kit, why))
                    break
        return found


def _not_described(tool: str, kit: str, problem: str) -> dict[str, Any]:
    path = f"{kit}/tools/{tool}.py"
    return {"name": tool, "description": "", "path": path, "problem": problem, "line": 0, "actions": []}
