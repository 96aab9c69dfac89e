"""Every operation of the daemon, once. The control planes translate names, types and errors, no more.

Each operation takes the caller first and checks what he may do before anything else. Operations raise
LightagentError only.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from lightagentd import __version__, api
from lightagentd.agents.tool_calls.by_person import call_as_person
from lightagentd.control.authz import Caller, Operation
from lightagentd.control.operations.agents import AgentOperations
from lightagentd.control.operations.approvals import ApprovalOperations
from lightagentd.control.operations.doctor import CheckupOperations
from lightagentd.control.operations.history import HistoryOperations
from lightagentd.control.operations.inputs import InputOperations
from lightagentd.control.operations.memory import MemoryOperations
from lightagentd.control.operations.models import ModelOperations
from lightagentd.control.operations.plans import PlanOperations
from lightagentd.control.operations.policy import PolicyOperations
from lightagentd.control.operations.safety import SafetyOperations
from lightagentd.control.operations.session_care import SessionCareOperations
from lightagentd.control.operations.tools import ToolOperations
from lightagentd.control.operations.undo import UndoOperations
from lightagentd.control.operations.usage import UsageOperations
from lightagentd.control.presentation import broken_skill_info, skill_info, tool_info
from lightagentd.errors import InvalidArgument, SkillNotFound, ToolNotFound
from lightagentd.redaction import Redactor

if TYPE_CHECKING:
    from lightagentd.daemon.daemon import Daemon


class Service(
    AgentOperations,
    SessionCareOperations,
    PlanOperations,
    InputOperations,
    MemoryOperations,
    ModelOperations,
    ToolOperations,
    UsageOperations,
    HistoryOperations,
    ApprovalOperations,
    PolicyOperations,
    SafetyOperations,
    CheckupOperations,
    UndoOperations,
):
    """The operations. The daemon makes it and owns everything that it works on."""

    def __init__(self, daemon: Daemon) -> None:
        super().__init__()
        self._daemon = daemon
        self._registry = daemon.registry
        self._history = daemon.history
        self._feed = daemon.feed
        self._managing = asyncio.Lock()
        """Held while agents are made, removed, started, stopped or read again: one such change at a time."""

    @property
    def redactor(self) -> Redactor:
        """What takes secrets out of whatever leaves the daemon."""
        return self._history.redactor

    # The daemon

    async def status(self, caller: Caller) -> api.Status:
        """How the daemon is. Agents that the caller may not look at are in the numbers, and not named."""
        caller = await self._admit(caller, Operation.INSPECT)
        daemon, agents = self._daemon, list(self._registry.agents.values())
        if daemon.polkit is not None and caller.is_administrator:  # whoever else asks: it was just asked
            daemon.polkit.look_soon()
        pool, definitions = daemon.pool, self._registry.definitions
        seen = await self._inspectable(caller, {*definitions.paths, *self._registry.agents})
        hidden = {*definitions.paths, *self._registry.agents} - seen
        return api.Status(
            version=__version__,
            pid=os.getpid(),
            state="draining" if daemon.draining else "panicked" if daemon.panic.on else "running",
            panic=self._panic_info(),
            started_us=daemon.started_us,
            uptime_s=round(time.time() - daemon.started_us / 1e6, 3),
            model=daemon.config.models.default,
            agents_running=sum(agent.state == "running" for agent in agents),
            agents_total=len(self._registry.definitions.paths),
            sessions=sum(len(self._visible(caller, agent)) for agent in agents if agent.name in seen),
            turns_running=sum(agent.turns_running - agent.turns_waiting for agent in agents),
            turns_queued=sum(agent.turns_queued for agent in agents),
            turns_waiting=sum(agent.turns_waiting for agent in agents),
            sandbox=pool.backend.name,
            journal=daemon.journal is not None,
            journal_dropped=daemon.journal.dropped if daemon.journal else 0,
            history=api.HistoryStatus(
                path=str(daemon.paths.history),
                events=self._history.environment.entries(),
                size_bytes=(daemon.paths.history / "data.mdb").stat().st_blocks * 512,
                disk_low=self._history.disk_low,
            ),
            workers=[
                api.WorkerStatus(
                    agent=worker.agent,
                    effect=worker.where.value,
                    backend=worker.backend.name,
                    enforced=worker.backend.enforced,
                    pid=worker.pid,
                    busy=worker.busy,
                )
                for worker in pool.workers()
                if worker.agent not in hidden
            ],
            problems=_without(daemon.problems(), hidden),
        )

    async def reload(self, caller: Caller) -> api.Reloaded:
        await self._admit(caller, Operation.ADMINISTER)
        return await self.reload_content()

    async def reload_content(self) -> api.Reloaded:
        """What SIGHUP asks for, and an administrator."""
        async with self._managing:
            return await self._daemon.reload()

    # Tools and skills

    async def list_tools(self, caller: Caller) -> list[api.Tool]:
        await self._admit(caller, Operation.INSPECT)
        return [tool_info(tool) for tool in self._registry.toolbox.tools.values()]

    async def get_tool(self, caller: Caller, name: str) -> api.Tool:
        await self._admit(caller, Operation.INSPECT)
        tool = self._registry.toolbox.tools.get(name)
        if tool is None:
            raise ToolNotFound(f"There is no tool {name[:60]!r}.", suggestion="Run: lactl tools list")
        return tool_info(tool)

    async def call_tool(
        self, caller: Caller, *, agent: str, tool: str, action: str, args: Any
    ) -> AsyncGenerator[api.TurnEvent, None]:
        caller = await self._admit(caller, Operation.PROMPT, agent=agent)
        self._check_open()
        self._daemon.panic.check()
        if not isinstance(args, dict):
            raise InvalidArgument("args must be an object.", field="args")
        running = self._registry.get(agent)
        may_approve = await self._may_approve(caller, agent)
        called = call_as_person(running, caller.uid, tool, action, args, may_approve=may_approve)
        async with aclosing(called) as events:
            async for event in events:
                yield await self._for_caller(event, caller, running.name)

    async def list_skills(self, caller: Caller) -> list[api.Skill]:
        await self._admit(caller, Operation.INSPECT)
        catalog = self._registry.skills
        found = [skill_info(skill, body="") for skill in catalog.skills.values()]
        found += [broken_skill_info(name, why) for name, why in catalog.broken.items()]
        return sorted(found, key=lambda skill: skill.name)

    async def get_skill(self, caller: Caller, name: str) -> api.Skill:
        await self._admit(caller, Operation.INSPECT)
        catalog = self._registry.skills
        if name in catalog.broken:
            return broken_skill_info(name, catalog.broken[name])
        if name not in catalog.skills:
            raise SkillNotFound(f"There is no skill {name[:60]!r}.", suggestion="Run: lactl skills list")
        return skill_info(catalog.skills[name], body=catalog.skills[name].body)


def _without(problems: list[str], agents: set[str]) -> list[str]:
    """The problems but those of certain agents."""
    about = tuple(
        start for one in agents for start in (f"The agent {one} ", f"The watches of the agent {one} ")
    )
    return [problem for problem in problems if not problem.startswith(about)] if about else problems
