"""`lactl doctor`'s half inside the daemon: it tries each worker's sandbox, and looks at what only it knows.

A part of `Service`. Each worker that is tried is an event `daemon.doctor`, before and after.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING

from lightagentd import api
from lightagentd.agents.agent import Agent
from lightagentd.checkup import local_checks, note, ok, wrong
from lightagentd.control.authz import Caller, Operation, check
from lightagentd.errors import LightagentError
from lightagentd.events.history import NewEvent
from lightagentd.events.model import within
from lightagentd.events.verification import verify_tail
from lightagentd.tool import Effect
from lightagentd.worker.doctor import SandboxDoctor

if TYPE_CHECKING:
    from lightagentd.daemon import Daemon

TAIL_EVENTS = 1000
"""How many of the newest events are verified; lactl audit verify walks them all."""
AT_ONCE = 2
"""How many workers are tried at the same time."""
_FUTURE_US = 300 * 1_000_000
_PROGRAMS = ("lightagentd.worker.keeper", "lightagentd.worker.program")


class CheckupOperations:
    """Find out whether what is promised holds."""

    _daemon: Daemon

    async def diagnose(self, caller: Caller, agent: str) -> api.Diagnosis:
        """Look at everything; with `agent` try the workers of that one alone. Raises AgentNotFound."""
        check(caller, Operation.ADMINISTER)
        daemon = self._daemon
        registry = daemon.registry
        agents = [registry.get(agent)] if agent else list(registry.agents.values())
        room = asyncio.Semaphore(AT_ONCE)
        keys = [
            provider.api_key_file
            for provider in daemon.config.models.providers.values()
            if provider.api_key_file is not None
        ]
        doctor = SandboxDoctor(daemon.pool, daemon.paths, key_files=keys)

        async def examine(one: Agent, effect: Effect) -> api.Examined:
            async with room:
                return await self._examine(doctor, caller, one, effect)

        workers = await asyncio.gather(
            *(examine(one, effect) for one in agents for effect in self._effects_of(one))
        )
        checks = await asyncio.to_thread(local_checks, daemon.paths)
        checks = [*self._daemon_checks(), *(self._agent_check(one) for one in agents), *checks]
        checks.insert(0, await asyncio.to_thread(self._history_check))
        checks.append(await asyncio.to_thread(_leftovers))
        findings = [*checks, *(finding for worker in workers for finding in worker.findings)]
        bad = any(finding.status in ("not_held", "wrong") for finding in findings)
        return api.Diagnosis(ok=not bad, workers=list(workers), checks=checks)

    def _effects_of(self, agent: Agent) -> list[Effect]:
        definition = self._daemon.registry.definitions.agents.get(agent.name)
        return [effect for effect in Effect if definition and effect in definition.front.effects]

    async def _examine(
        self, doctor: SandboxDoctor, caller: Caller, agent: Agent, effect: Effect
    ) -> api.Examined:
        pool = self._daemon.pool
        why, status = "", "not_tried"
        if self._daemon.panic.on:
            why = "everything is stopped: lactl panic --off"
        elif agent.state != "running":
            why = f"the agent is {agent.state}: lactl agents start {agent.name}"
        elif effect is Effect.CHANGE and not pool.has_change(agent.name):
            why, status = "no worker for change is enabled for this agent, so it can change nothing", "note"
        if why:
            findings = [api.Finding(name="all", status=status, detail=why)]
        else:
            with within(agent=agent.name):
                await self._doctor_event("begun", effect=effect.value, by=caller.uid)
                findings = await doctor.examine(agent.name, effect)
                held = [finding.name for finding in findings if finding.status == "not_held"]
                await self._doctor_event("examined", effect=effect.value, by=caller.uid, not_held=held)
        backend, reason = pool.held_by(agent.name, effect)
        return api.Examined(
            agent=agent.name,
            effect=effect.value,
            backend=backend,
            enforced=pool.backend.enforced and effect is not Effect.CHANGE,
            reason=reason,
            findings=findings,
        )

    def _daemon_checks(self) -> list[api.Finding]:
        daemon = self._daemon
        found = []
        if daemon.panic.on:
            found.append(note("panic", "everything is stopped: lactl panic --off"))
        if daemon.history.disk_low:
            found.append(wrong("disk", f"the reserve for {daemon.paths.history} cannot be kept"))
        else:
            found.append(ok("disk", "the history's reserve is there"))
        if daemon.journal is None:
            found.append(note("journald", "does not run here: events are in the history alone"))
        elif daemon.journal.dropped:
            found.append(wrong("journald", f"did not take {daemon.journal.dropped} events"))
        else:
            found.append(ok("journald", "takes every event"))
        return found + [note("status", text) for text in daemon.problems()]

    def _agent_check(self, agent: Agent) -> api.Finding:
        """Which models an agent has; none is asked, because that costs something."""
        name = f"agent {agent.name}"
        if agent.state != "running":
            return wrong(name, f"is {agent.state}{f': {agent.problem}' if agent.problem else ''}")
        clients = agent.parts.clients if agent.parts else []
        models = ", ".join(client.name for client in clients)
        return ok(name, f"runs; its model: {models} (not asked)")

    def _history_check(self) -> api.Finding:
        """In a thread: whether the newest events can be read and are chained."""
        history = self._daemon.history
        try:
            found = verify_tail(history.environment, TAIL_EVENTS)
            last = history.last()
        except LightagentError as err:
            return wrong("history", err.message)
        if not found.ok:
            return wrong(
                "history", f"altered at event {found.first_bad_seq}: {found.reason}; run: lactl audit verify"
            )
        if last is not None and last.time_us > time.time_ns() // 1000 + _FUTURE_US:
            return wrong("history", f"event {last.seq} is in the future: the clock was set back")
        return ok("history", f"the newest {found.events} events are intact; lactl audit verify walks all")

    async def _doctor_event(self, what: str, **data: object) -> None:
        await self._daemon.history.append(NewEvent(topic="daemon.doctor", type=what, data=data))


def _leftovers() -> api.Finding:
    """Worker processes that no daemon holds any more."""
    parents: dict[int, int] = {}
    words: dict[int, list[str]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words[int(entry.name)] = (entry / "cmdline").read_text(errors="replace").split("\0")
            after_name = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
            parents[int(entry.name)] = int(after_name[1])
        except (OSError, IndexError, ValueError):
            continue  # it has ended
    left = []
    for pid, argv in words.items():
        if not any(program in argv for program in _PROGRAMS) or _of_a_unit(pid):
            continue
        above = parents.get(pid, 0)
        while any(program in words.get(above, []) for program in _PROGRAMS):  # bwrap has it as an argument
            above = parents.get(above, 0)
        if above <= 1:
            left.append(pid)
    if left:
        return wrong("workers left over", f"end them: kill -9 {' '.join(str(pid) for pid in sorted(left))}")
    return ok("workers left over", "none")


def _of_a_unit(pid: int) -> bool:
    """Whether systemd holds it."""
    try:
        return "/lightagent-" in Path(f"/proc/{pid}/cgroup").read_text(errors="replace")
    except OSError:
        return True  # it has ended
