"""The daemon's side of hooks: asks the workers that run them (`worker.hooks`).

The pool owns one `HookWorkers`. Hooks run in workers that no agent has: one for those of the configuration,
and one for each kit, so that the files of two kits never meet in a process. Asking changes nothing, so what a
lost worker did not answer is asked once more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from lightagentd.errors import TimedOut, WorkerUnavailable
from lightagentd.tool import Effect
from lightagentd.varlink.server import PeerLost
from lightagentd.worker.lanes import WorkerProcess
from lightagentd.worker.loader import LOAD_LIMIT_S
from lightagentd.worker.source import HOOKS, Whom

_MORE_S = 5.0
"""How much longer than the hooks' own time the daemon waits for an answer, before it ends the worker."""


class HookWorkers:
    """`worker` gives a block with a worker, `end` ends one, `kill` one that hangs."""

    def __init__(
        self,
        worker: Callable[[Whom], AbstractAsyncContextManager[WorkerProcess]],
        end: Callable[[WorkerProcess], Awaitable[None]],
        kill: Callable[[WorkerProcess], Awaitable[None]],
    ) -> None:
        self._worker, self._end, self._kill = worker, end, kill
        self.folders: dict[str, str] = {}
        """The folders of hooks, by the kit that has one; that of the configuration by an empty name."""

    async def describe(self, kit: str, *, anew: bool = False) -> list[dict[str, Any]]:
        """The hook files of a kit as a worker describes them, in their order: objects {name, phases,
        on_error, timeout_s, agents, sha256, problem, line}.

        `anew`: as they lie there now, read by a worker that is ended afterwards.

        Raises WorkerUnavailable, TimedOut.
        """
        found: list[dict[str, Any]] = await self._ask(kit, "Describe", 2 * LOAD_LIMIT_S, anew=anew)
        return found

    async def run(
        self, kit: str, phase: str, payload: dict[str, Any], agent: str, *, limit_s: float
    ) -> dict[str, Any]:
        """Ask the hooks of a kit, which may take `limit_s` in sum; gives {payload, decided}, where the
        payload is None when it did not change (see `hooks.run_hooks`).

        Raises WorkerUnavailable, TimedOut, MessageTooLarge.
        """
        limit_s += LOAD_LIMIT_S
        answer: dict[str, Any] = await self._ask(
            kit, "Run", limit_s, phase=phase, payload=payload, agent=agent
        )
        return answer

    async def _ask(
        self, kit: str, method: str, limit_s: float, *, anew: bool = False, **parameters: Any
    ) -> Any:
        lost: PeerLost | None = None
        whom = Whom(f"{HOOKS}{'?' if anew else ''}{kit}", Effect.OBSERVE)
        for _ in range(2):
            async with self._worker(whom) as worker:
                try:
                    async with asyncio.timeout(limit_s + _MORE_S):
                        reply = await worker.connection.call(
                            f"org.lightagent1.WorkerHooks.{method}", folder=self.folders[kit], **parameters
                        )
                    (found,) = reply.values()
                    if anew:
                        await self._end(worker)
                    return found
                except TimeoutError:
                    await self._kill(worker)
                    raise TimedOut(f"The hooks in {self.folders[kit]} did not answer in time.") from None
                except PeerLost as err:
                    await self._end(worker)
                    lost = err
                except BaseException:
                    await self._end(worker)  # its answer may still be on the way
                    raise
        raise WorkerUnavailable(f"The hooks in {self.folders[kit]} end the worker that runs them.") from lost
