"""The emergency stop.

Its order matters: refuse in memory, mark on disk, kill, and only then the steps that take time or may fail,
such as storing how the turns ended.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from lightagentd import api
from lightagentd.control.authz import Caller
from lightagentd.control.operations.access import Access
from lightagentd.control.operations.declared import Operations, method
from lightagentd.control.presentation import shown
from lightagentd.errors import Conflict, LightagentError
from lightagentd.events.types.daemon import PanicEnded, Panicked
from lightagentd.host.users import called
from lightagentd.policy.operation import Operation

if TYPE_CHECKING:
    from lightagentd.daemon.runtime import Runtime
    from lightagentd.policy.panic import Stop

_log = logging.getLogger(__name__)

MARK_PATIENCE_S = 0.2
"""How long the mark on the disk may keep the killing waiting: a disk can hang."""
STORE_PATIENCE_S = 5.0
"""How long the answer waits until it is stored how the turns ended; that goes on afterwards."""


class Safety(Operations, interface="org.lightagent1.Manager"):
    """Stop everything, and allow it again."""

    def __init__(self, access: Access, runtime: Runtime) -> None:
        self._access, self._panic = access, runtime.panic
        self._registry, self._pool, self._history = runtime.registry, runtime.pool, runtime.history
        self._state = runtime.paths.state
        self._stopping: set[asyncio.Task[list[str]]] = set()
        """What is still being stored of an emergency stop."""

    @method("Panic", returns="stopped")
    async def panic(self, caller: Caller, reason: str = "") -> api.Stopped:
        """End every turn and kill every worker at once, and refuse new ones until EndPanic, also after a
        restart. Everything that only looks goes on working.
        """
        caller = await self._access.admit(caller, Operation.ADMINISTER)
        return await self.stop_everything(caller.uid, reason)

    async def stop_everything(self, by: int | None, reason: str) -> api.Stopped:
        """The work of `panic` and of SIGUSR1, which names no caller. Failures are in the answer."""
        stop = self._panic.begin(by, reason)
        _log.critical("emergency stop by %s: %s", "a signal" if by is None else called(by), stop.reason)
        await self._panic.store(MARK_PATIENCE_S)
        telling = asyncio.create_task(self._tell_approver(stop), name="panic-approver")
        agents = list(self._registry.agents.values())
        killing = asyncio.create_task(self._pool.kill_all(), name="panic-kill")
        await asyncio.sleep(0)  # the workers are told to die before the turns hang up on them
        why = self._panic.error()
        queued = sum(agent.turns_queued for agent in agents)
        turns = queued + sum(agent.cancel_running(why) for agent in agents)
        workers = await killing
        storing = asyncio.create_task(self._store_stop(stop, turns, workers), name="panic-store")
        self._stopping.add(storing)
        storing.add_done_callback(self._stopping.discard)
        done, _ = await asyncio.wait([storing], timeout=STORE_PATIENCE_S)
        problems = storing.result() if done else ["It is still being stored how the turns ended."]
        problems += [*self._pool.kill_problems, *await telling]
        if not self._panic.marked:
            problems.append(f"The stop would not outlast a restart: no mark can be written in {self._state}.")
        return api.Stopped(
            panic=shown(api.EmergencyStop, stop), turns=turns, workers=workers, problems=problems
        )

    @method("EndPanic")
    async def end_panic(self, caller: Caller) -> None:
        """Allow turns and workers again, which no agent's command may. What was asked for before the stop is
        not taken up.
        """
        # Where it cannot be stored how the turns ended, the stop goes on: they would run at the next start.
        caller, _ = await self._access.admit_person(caller, Operation.ADMINISTER)
        if not self._panic.on:
            raise Conflict("There is no emergency stop to end.", suggestion="lactl status says what is.")
        asked = self._panic.asked
        if self._stopping:
            await asyncio.wait(self._stopping)
        await self._registry.end_all_turns()
        await self._history.append(PanicEnded(by=caller.uid).event())
        if self._panic.asked != asked:
            raise Conflict(
                "An emergency stop was asked for meanwhile; it goes on.",
                suggestion="lactl panic --off ends it.",
            )
        self._panic.end()
        _log.warning("the emergency stop was ended by %s", called(caller.uid))
        if self._registry.shared.content.toolbox_problem:
            await self._registry.read_content()

    async def _tell_approver(self, stop: Stop) -> list[str]:
        """Where it signs what the workers run; gives the problems with that."""
        if not self._pool.source.verifies:
            return []
        return await self._registry.shared.dispatcher.approver.stop(stop.reason)

    async def close(self) -> None:
        """Wait until it is stored how a stop ended the turns."""
        while self._stopping:
            await asyncio.wait(self._stopping)

    async def _store_stop(self, stop: Stop, turns: int, workers: int) -> list[str]:
        """Store the stop and the end of each turn; returns the parts that could not be stored."""
        problems: list[str] = []
        try:
            panicked = Panicked(by=stop.by, message=stop.reason, turns=turns, workers=workers)
            await self._history.append(panicked.event())
        except LightagentError as err:
            problems.append(f"The stop is not in the history: {err.message}")
        try:
            await self._registry.end_all_turns()
        except LightagentError as err:
            problems.append(f"It could not be stored how the turns ended: {err.message}")
        return problems
