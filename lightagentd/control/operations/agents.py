"""The operations on agents, a part of `Service`: list, make, remove, start and stop them."""

from __future__ import annotations

import asyncio
from pathlib import Path

from pydantic import ValidationError

from lightagentd import api
from lightagentd.agents.definition import AgentFrontMatter
from lightagentd.control.authz import Caller, Operation
from lightagentd.control.operations.checks import Operations
from lightagentd.errors import InvalidArgument


class AgentOperations(Operations):
    """The named agents."""

    _managing: asyncio.Lock
    """Held while agents are made, removed, started, stopped or read again: one such change at a time."""

    async def list_agents(self, caller: Caller) -> list[api.Agent]:
        caller = await self._admit(caller, Operation.INSPECT)
        seen = await self._inspectable(caller, self._registry.definitions.paths)
        return [self._agent(caller, name) for name in sorted(seen)]

    async def get_agent(self, caller: Caller, name: str) -> api.Agent:
        caller = await self._admit(caller, Operation.INSPECT, agent=name)
        if name not in self._registry.definitions.paths:
            self._registry.get(name)
        return self._agent(caller, name)

    async def create_agent(
        self,
        caller: Caller,
        *,
        name: str,
        description: str,
        role: str,
        model: str,
        base_url: str,
        api_key_file: str,
        prompt: str,
    ) -> api.Agent:
        caller = await self._admit(caller, Operation.MANAGE_AGENTS, agent=name)
        if api_key_file:  # what stands in a file of the daemon would be sent to wherever base_url says
            caller = await self._admit(caller, Operation.ADMINISTER)
        self._check_open()
        _check_no_nul(description=description, api_key_file=api_key_file, prompt=prompt)
        try:
            front = AgentFrontMatter(
                description=description,
                role=role,
                model=model,
                base_url=base_url,
                api_key_file=Path(api_key_file) if api_key_file else None,
            )
        except ValidationError as err:
            first = err.errors(include_url=False)[0]
            field = ".".join(str(part) for part in first["loc"])
            said = first["msg"].removeprefix("Value error, ")
            raise InvalidArgument(f"{field}: {said}.", field=field) from err
        async with self._managing:
            await self._registry.create(name, front, prompt)
        return self._agent(caller, name)

    async def delete_agent(self, caller: Caller, name: str) -> None:
        caller = await self._admit(caller, Operation.MANAGE_AGENTS, agent=name)
        async with self._managing:
            await self._registry.delete(name)

    async def start_agent(self, caller: Caller, name: str) -> api.Agent:
        caller = await self._admit(caller, Operation.MANAGE_AGENTS, agent=name)
        self._check_open()
        async with self._managing:
            await self._registry.get(name).start()
        return self._agent(caller, name)

    async def stop_agent(self, caller: Caller, name: str) -> api.Agent:
        caller = await self._admit(caller, Operation.MANAGE_AGENTS, agent=name)
        async with self._managing:
            await self._registry.get(name).stop()
            await self._daemon.pool.end_agent(name)
        return self._agent(caller, name)

    async def restart_agent(self, caller: Caller, name: str) -> api.Agent:
        caller = await self._admit(caller, Operation.MANAGE_AGENTS, agent=name)
        self._check_open()
        async with self._managing:
            await self._registry.get(name).stop()
            await self._daemon.pool.end_agent(name)
            await self._registry.get(name).start()
        return self._agent(caller, name)

    def _agent(self, caller: Caller, name: str) -> api.Agent:
        definitions = self._registry.definitions
        path = str(definitions.paths.get(name, ""))
        definition = definitions.agents.get(name)
        if definition is None:
            blank = AgentFrontMatter()
            problem, state, running = definitions.broken.get(name, ""), "broken", None
        else:
            blank, running = definition.front, self._registry.agents.get(name)
            problem, state = (running.problem, running.state) if running else ("", "stopped")
        return api.Agent(
            name=name,
            description=blank.description,
            role=blank.role,
            model=blank.model or self._daemon.config.models.default,
            fallback=blank.fallback,
            tools=blank.tools if blank.tools is not None else sorted(self._registry.toolbox.tools),
            skills=blank.skills if blank.skills is not None else sorted(self._registry.skills.skills),
            effects=[effect.value for effect in blank.effects],
            max_steps=blank.limits.max_steps or self._daemon.config.limits.max_steps,
            origin=path,
            state=state,
            restarts=running.restarts if running else 0,
            sessions=len(self._visible(caller, running)) if running else 0,
            problem=problem,
        )


def _check_no_nul(**texts: str) -> None:
    for field, text in texts.items():
        if "\0" in text:
            raise InvalidArgument(f"{field} holds a NUL byte.", field=field, suggestion="Remove it.")
