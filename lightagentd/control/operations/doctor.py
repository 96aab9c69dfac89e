"""The daemon's half of `lactl doctor`: tests each worker's sandbox, and reports what only the daemon knows.

Each tested worker is an event `daemon.doctor`, before and after the test.
"""

from __future__ import annotations

import asyncio
import os
import resource
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from lightagentd import __version__, api
from lightagentd.agents.agent import Agent
from lightagentd.config.models import Provider
from lightagentd.control.authz import Caller
from lightagentd.control.operations.access import Access
from lightagentd.control.operations.declared import Operations, method
from lightagentd.doctor import Running, look
from lightagentd.doctor.finding import BAD, in_order, note, ok, where_logs_are, wrong
from lightagentd.doctor.history import of_running
from lightagentd.doctor.models import reached
from lightagentd.doctor.sandbox import SandboxDoctor
from lightagentd.events.model import within
from lightagentd.events.types.daemon import SandboxExamined, SandboxExamining
from lightagentd.llm.circuit import endpoint_of, endpoint_of_url
from lightagentd.policy.operation import Operation
from lightagentd.tool import Effect
from lightagentd.worker.pool import Pool

if TYPE_CHECKING:
    from lightagentd.daemon.runtime import Runtime

AT_ONCE = 2
"""How many workers are tried at the same time."""
_FEW_DESCRIPTORS = 512
_SANDBOX = "sandbox"
_PROGRAMS = ("lightagentd.worker.keeper", "lightagentd.worker.program")


class Doctor(Operations, interface="org.lightagent1.Manager"):
    """Find out whether what is promised holds."""

    def __init__(self, access: Access, runtime: Runtime) -> None:
        self._access, self._runtime = access, runtime

    @method("Diagnose", returns="diagnosis")
    async def diagnose(self, caller: Caller, agent: str = "", *, models: bool = False) -> api.Diagnosis:
        """Have each worker (of one agent, or of all) try what its effect may not do, and look at the rest of
        the daemon and the machine. With models, try whether the endpoints of models can be reached; nothing
        is asked of them. Changes nothing, and takes some seconds.
        """
        caller = await self._access.admit(caller, Operation.ADMINISTER)
        runtime = self._runtime
        if runtime.polkit is not None:
            await runtime.polkit.look()
        registry = runtime.registry
        agents = [registry.get(agent)] if agent else list(registry.agents.values())
        room = asyncio.Semaphore(AT_ONCE)
        keys = [
            provider.api_key_file
            for provider in runtime.now.config.models.providers.values()
            if provider.api_key_file is not None
        ]
        doctor = SandboxDoctor(runtime.pool, runtime.paths, key_files=keys)

        async def examine(one: Agent, effect: Effect) -> api.Examined:
            async with room:
                return await self._examine(doctor, caller, one, effect)

        workers = await asyncio.gather(
            *(examine(one, effect) for one in agents for effect in self._effects_of(one))
        )
        checks = [
            *self._daemon_checks(),
            *(self._agent_check(one) for one in agents),
            *await asyncio.to_thread(of_running, runtime.history, runtime.now.config.history),
            await asyncio.to_thread(_leftovers),
        ]
        running = Running(pid=os.getpid(), seq=runtime.history.head_seq)
        checks += await look(runtime.paths, running, in_daemon=True, reach=models)
        if models:
            checks += await self._endpoints(agents)
        findings = [*checks, *(finding for worker in workers for finding in worker.findings)]
        bad = any(finding.status in BAD for finding in findings)
        return api.Diagnosis(ok=not bad, workers=list(workers), checks=in_order(checks))

    def _effects_of(self, agent: Agent) -> list[Effect]:
        definition = self._runtime.registry.shared.content.definitions.agents.get(agent.name)
        return [effect for effect in Effect if definition and effect in definition.front.effects]

    async def _examine(
        self, doctor: SandboxDoctor, caller: Caller, agent: Agent, effect: Effect
    ) -> api.Examined:
        pool = self._runtime.pool
        why, remedy, status = "", "", "not_tried"
        if self._runtime.panic.on:
            why, remedy = "everything is stopped", "End it with: lactl panic --off"
        elif agent.state != "running":
            why, remedy = f"the agent is {agent.state}", f"Start it: lactl agents start {agent.name}"
        elif effect is Effect.CHANGE and not pool.has_change(agent.name):
            why, status = "no worker for change is enabled for this agent, so it can change nothing", "note"
            remedy = f"To allow it: systemctl enable --now lightagent-change@{agent.name}.socket"
        if why:
            findings = [api.Finding(name="all", status=status, detail=why, group=_SANDBOX, remedy=remedy)]
        else:
            with within(agent=agent.name):
                await self._runtime.history.append(
                    SandboxExamining(effect=effect.value, by=caller.uid).event()
                )
                findings = await doctor.examine(agent.name, effect)
                backend, _ = _held_by(pool, agent.name, effect)
                findings = [_with_remedy(each, agent.name, effect, backend) for each in findings]
                held = [finding.name for finding in findings if finding.status == "not_held"]
                examined = SandboxExamined(effect=effect.value, by=caller.uid, not_held=held)
                await self._runtime.history.append(examined.event())
        backend, reason = _held_by(pool, agent.name, effect)
        return api.Examined(
            agent=agent.name,
            effect=effect.value,
            backend=backend,
            enforced=pool.backend.enforced and effect is not Effect.CHANGE,
            reason=reason,
            findings=findings,
        )

    def _daemon_checks(self) -> list[api.Finding]:
        runtime = self._runtime
        found = [ok("daemon", "version", __version__)]
        history = runtime.paths.history
        if runtime.history.disk_low:
            remedy = f"Make room on the file system of {history}."
            found.append(wrong("disk", "reserve", f"the reserve for {history} cannot be kept", remedy))
        else:
            found.append(ok("disk", "reserve", "the history's reserve is there"))
        if runtime.now.journal is None:
            found.append(note("journal", "journald", "does not run here; the history has every event", ""))
        elif problem := runtime.now.journal.problem():
            found.append(wrong("journal", "journald", problem, "systemctl restart systemd-journald"))
        else:
            found.append(ok("journal", "journald", "takes every event"))
        if problem := runtime.bus_link.problem:
            remedy = "The daemon tries again by itself; look at: systemctl status dbus"
            found.append(wrong("bus", "the daemon's connection", problem, remedy))
        if runtime.polkit is not None and (problem := runtime.polkit.problem):
            remedy = "Look at: systemctl status polkit"
            found.append(wrong("polkit", "the daemon's questions", problem, remedy))
        found.append(self._descriptors())
        told = [one.detail for one in found if one.status in BAD]
        more = [text for text in runtime.problems() if not any(detail in text for detail in told)]
        return found + [wrong("daemon", f"problem {number}", text, "") for number, text in enumerate(more, 1)]

    def _descriptors(self) -> api.Finding:
        """The limit on the daemon's open descriptors, compared with the number of clients it is to serve."""
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        wanted = self._runtime.now.config.daemon.max_connections
        detail = f"{limit} open files for at most {wanted} connections"
        if limit < _FEW_DESCRIPTORS:
            remedy = "Raise it: systemctl edit lightagentd, LimitNOFILE=4096"
            return wrong("daemon", "open files", detail, remedy)
        return ok("daemon", "open files", detail)

    async def _endpoints(self, agents: Iterable[Agent]) -> list[api.Finding]:
        """Those of agents' models that no provider of the configuration has."""
        providers = self._runtime.now.config.models.providers.values()
        known = {"", *(endpoint_of_url(provider.base_url) for provider in providers)}
        own = {
            endpoint: agent.name
            for agent in agents
            for client in (agent.parts.clients if agent.parts else ())
            if (endpoint := endpoint_of(client)) not in known
        }
        asked = (reached(f"agent {name}", Provider(base_url=url)) for url, name in own.items())
        return await asyncio.gather(*asked)

    def _agent_check(self, agent: Agent) -> api.Finding:
        """The models of an agent. None is called, because that costs money."""
        name = f"agent {agent.name}"
        if agent.state != "running":
            detail = f"is {agent.state}{f': {agent.problem}' if agent.problem else ''}"
            return wrong("agents", name, detail, f"Start it: lactl agents start {agent.name}")
        clients = agent.parts.clients if agent.parts else []
        models = ", ".join(client.name for client in clients)
        return ok("agents", name, f"runs; its model: {models} (not asked)")


def _with_remedy(finding: api.Finding, agent: str, effect: Effect, backend: str) -> api.Finding:
    """A failure of a sandbox, with a remedy."""
    unit = f"lightagent-{effect}@{agent if effect is Effect.CHANGE else ''}.service"
    look = f"Look at: {where_logs_are(unit.replace('@.', '@*.'))}"
    if backend == "systemd":
        not_held = f"See what is in force: systemctl cat {unit}; undo overrides: systemctl revert {unit}"
    else:
        not_held = "See what this machine lacks: lactl status"
    remedy = {"not_held": not_held, "wrong": look, "not_tried": look}.get(finding.status, "")
    return replace(finding, group=_SANDBOX, remedy=finding.remedy or remedy)


def _leftovers() -> api.Finding:
    """Worker processes that no daemon owns any more."""
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
        pids = " ".join(str(pid) for pid in sorted(left))
        return wrong("daemon", "workers left over", f"no daemon holds {pids}", f"End them: kill -9 {pids}")
    return ok("daemon", "workers left over", "none")


def _of_a_unit(pid: int) -> bool:
    """Whether the process belongs to a systemd unit."""
    try:
        return "/lightagent-" in Path(f"/proc/{pid}/cgroup").read_text(errors="replace")
    except OSError:
        return True  # it has ended


def _held_by(pool: Pool, agent: str, effect: Effect) -> tuple[str, str]:
    """The name of a worker's sandbox, and remarks about it."""
    if effect is not Effect.CHANGE:
        return pool.backend.name, pool.backend.reason
    return pool.source.holds_change(agent)
