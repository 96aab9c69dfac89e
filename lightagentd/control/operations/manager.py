"""The operations on the daemon as a whole: its status, and reloading its files."""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING

from lightagentd import __version__, api
from lightagentd.agents.snapshots import take
from lightagentd.control.authz import Caller
from lightagentd.control.operations.access import Access, seen_of
from lightagentd.control.operations.declared import Operations, method
from lightagentd.control.presentation import shown
from lightagentd.policy.operation import Operation

if TYPE_CHECKING:
    from lightagentd.daemon.runtime import Runtime


class Manager(Operations, interface="org.lightagent1.Manager"):
    """The daemon as a whole."""

    def __init__(self, access: Access, runtime: Runtime, managing: asyncio.Lock) -> None:
        """`managing` is held while agents are made, removed, started, stopped or read again."""
        self._access, self._runtime, self._managing = access, runtime, managing

    @method("GetStatus", returns="status")
    async def status(self, caller: Caller) -> api.Status:
        """The state of the daemon, its workers and its history, and what is wrong."""
        # Agents that the caller may not inspect are counted but not named; sessions and turns are their own.
        caller = await self._access.admit(caller, Operation.INSPECT, viewing=True)
        runtime, now, registry = self._runtime, self._runtime.now, self._runtime.registry
        if runtime.polkit is not None and caller.is_administrator:  # whoever else asks: it was just asked
            runtime.polkit.look_soon()
        agents, stop = list(registry.agents.values()), runtime.panic.stop
        names = {*registry.shared.content.definitions.paths, *registry.agents}
        seen = await self._access.inspectable(caller, names)
        hidden = names - seen
        own = [one for agent in agents if agent.name in seen for one in seen_of(caller, agent)]
        return api.Status(
            version=__version__,
            pid=os.getpid(),
            state="draining" if now.draining else "panicked" if runtime.panic.on else "running",
            panic=shown(api.EmergencyStop, stop) if stop is not None else None,
            started_us=now.started_us,
            uptime_s=round(time.time() - now.started_us / 1e6, 3),
            model=now.config.models.default,
            agents_running=sum(agent.state == "running" for agent in agents),
            agents_total=len(registry.shared.content.definitions.paths),
            sessions=sum(len(self._access.visible(caller, agent)) for agent in agents if agent.name in seen),
            turns_running=sum(one.running is not None and not one.waiting for one in own),
            turns_queued=sum(len(one.queue) for one in own),
            turns_waiting=sum(one.waiting for one in own),
            sandbox=runtime.pool.backend.name,
            journal=now.journal is not None,
            journal_dropped=now.journal.dropped if now.journal else 0,
            history=api.HistoryStatus(
                path=str(runtime.paths.history),
                events=runtime.history.environment.entries(),
                size_bytes=(runtime.paths.history / "data.mdb").stat().st_blocks * 512,
                disk_low=runtime.history.disk_low,
                examined_us=now.examined_us,
            ),
            workers=[
                shown(
                    api.WorkerStatus,
                    worker,
                    effect=worker.where.value,
                    backend=worker.backend.name,
                    enforced=worker.backend.enforced,
                )
                for worker in runtime.pool.workers()
                if worker.agent not in hidden and (caller.is_administrator or worker.owner in (0, caller.uid))
            ],
            problems=_without(runtime.problems(), hidden),
        )

    @method("Reload", returns="reloaded")
    async def reload(self, caller: Caller) -> api.Reloaded:
        """Read configuration, rules, agents, skills and tools again, as SIGHUP does; for people alone."""
        await self._access.admit_person(caller, Operation.ADMINISTER)
        return await self.reload_content()

    @method("TakeSnapshot", returns="snapshot")
    async def take_snapshot(self, caller: Caller, *, agent: str) -> api.Snapshot:
        """Store the state of the machine in the history, as the skill what-changed tells it in the sandbox of
        an agent. All that is told later is compared with it, so it is for people who administer.
        """
        caller, _ = await self._access.admit_person(caller, Operation.ADMINISTER, agent=agent)
        await self._access.check_open(caller)
        self._runtime.panic.check()
        event = await take(self._runtime.registry.get(agent), caller.uid)
        counts = (event.data or {})["counts"].items()
        sections = [api.SnapshotSection(name=name, count=count) for name, count in counts]
        return api.Snapshot(seq=event.seq, taken_us=event.time_us, sections=sections)

    async def reload_content(self) -> api.Reloaded:
        """What SIGHUP asks for, and an administrator."""
        async with self._managing:
            return await self._runtime.reload()


def _without(problems: list[str], agents: set[str]) -> list[str]:
    """The problems, without those of certain agents."""
    about = tuple(
        start for one in agents for start in (f"The agent {one} ", f"The watches of the agent {one} ")
    )
    return [problem for problem in problems if not problem.startswith(about)] if about else problems
