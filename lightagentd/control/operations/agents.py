"""The operations on agents: list, make, remove, start and stop them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from lightagentd import api
from lightagentd.agents.definition import AgentDefinition, AgentFrontMatter
from lightagentd.agents.kits.kits import Kits
from lightagentd.agents.model_setting import set_model
from lightagentd.control.authz import Caller
from lightagentd.control.operations.access import Access
from lightagentd.control.operations.declared import Operations, method
from lightagentd.control.operations.skills import listed
from lightagentd.control.operations.tools import described
from lightagentd.control.presentation import shown
from lightagentd.errors import InvalidArgument
from lightagentd.llm.providers import RUNBOOK
from lightagentd.policy.operation import Operation

if TYPE_CHECKING:
    from lightagentd.daemon.runtime import Runtime


class Agents(Operations, interface="org.lightagent1.Agents"):
    """The named agents."""

    def __init__(self, access: Access, runtime: Runtime, managing: asyncio.Lock) -> None:
        """`managing` is held while agents are made, removed, started, stopped or read again."""
        self._access, self._managing = access, managing
        self._registry, self._pool, self._now = runtime.registry, runtime.pool, runtime.now
        self._content = runtime.registry.shared.content
        self._kits = Kits(runtime.registry)

    @method("List", returns="agents")
    async def listed(self, caller: Caller) -> list[api.Agent]:
        """All agents, broken and stopped ones too."""
        caller = await self._access.admit(caller, Operation.INSPECT, viewing=True)
        seen = await self._access.inspectable(caller, self._content.definitions.paths)
        return [await self._agent(caller, name, seen) for name in sorted(seen)]

    @method("Get", returns="agent")
    async def get(self, caller: Caller, name: str) -> api.Agent:
        """One agent."""
        caller = await self._access.admit(caller, Operation.INSPECT, agent=name)
        if name not in self._content.definitions.paths:
            self._registry.get(name)
        return await self._agent(caller, name)

    @method("Tools", returns="tools")
    async def tools(self, caller: Caller, name: str) -> list[api.Tool]:
        """The tools that there are for an agent: those of all agents, and its own."""
        await self._access.admit(caller, Operation.INSPECT, agent=name)
        self._registry.get(name)
        return [described(tool) for tool in self._content.toolbox_of(name).tools.values()]

    @method("UsableTools", returns="tools")
    async def usable_tools(self, caller: Caller, name: str) -> list[api.Tool]:
        """As Tools, with the actions alone that the agent may use now: without those that its definition, its
        workers or policy rule out, whatever their arguments.
        """
        await self._access.admit(caller, Operation.INSPECT, agent=name)
        definition, toolbox = (
            self._registry.get(name).running_parts().definition,
            self._content.toolbox_of(name),
        )
        functions = self._registry.shared.offers.allowed(
            toolbox, definition, change=self._pool.has_change(name), plan="", child=False
        )
        usable = {function.name for function in functions}
        kept = (
            replace(tool, actions=tuple(one for one in tool.actions if one.function in usable))
            for tool in toolbox.tools.values()
        )
        return [described(tool) for tool in kept if tool.actions]

    @method("Skills", returns="skills")
    async def skills(self, caller: Caller, name: str) -> list[api.Skill]:
        """The skills that there are for an agent, without their bodies: its own, and those of all agents."""
        await self._access.admit(caller, Operation.INSPECT, agent=name)
        self._registry.get(name)
        return listed(self._content.all_skills_of(name))

    @method("Create", returns="agent")
    async def create(
        self,
        caller: Caller,
        *,
        name: str,
        description: str = "",
        role: str = "",
        model: str = "",
        base_url: str = "",
        api_key_file: str = "",
        prompt: str = "",
        folder: str = "",
    ) -> api.Agent:
        """Define an agent, keep the definition across restarts, and start it. prompt is its system prompt.
        model is runbook, PROVIDER/MODEL, or with a base_url the model's name alone. With folder it is what
        that folder holds, which stays where it is, and nothing else is given. Only an administrator may name
        a folder or an api_key_file.
        """
        caller = await self._access.admit(caller, Operation.MANAGE_AGENTS, agent=name)
        if folder:  # its tools and scripts are programs
            caller = await self._access.admit(caller, Operation.ADMINISTER)
            await self._access.check_open(caller)
            given = (description, role, model, base_url, api_key_file, prompt)
            await self._create_from(name, folder, alone=not any(given))
            return await self._agent(caller, name)
        if api_key_file:  # what stands in a file of the daemon would be sent to wherever base_url says
            caller = await self._access.admit(caller, Operation.ADMINISTER)
        await self._access.check_open(caller)
        _check_no_nul(description=description, api_key_file=api_key_file, prompt=prompt)
        try:
            front = AgentFrontMatter(
                description=description,
                role=role or "default",
                model=model,
                base_url=base_url,
                api_key_file=Path(api_key_file) if api_key_file else None,
            )
        except ValidationError as err:
            first = err.errors(include_url=False)[0]
            field = ".".join(str(part) for part in first["loc"])
            said = first["msg"].removeprefix("Value error, ")
            raise InvalidArgument(f"{field}: {said}.", field=field) from err
        for field in ("base_url", "api_key_file"):
            if getattr(front, field) and (front.model or self._now.config.models.default) == RUNBOOK:
                raise InvalidArgument(
                    f"{field} is for a language model, and the agent's model is the {RUNBOOK}.",
                    field=field,
                    suggestion="Name the model, too: with base_url by its name alone, or as PROVIDER/MODEL.",
                )
        async with self._managing:
            await self._registry.create(name, front, prompt)
        return await self._agent(caller, name)

    @method("Set", returns="agent")
    async def set(self, caller: Caller, name: str, *, model: str) -> api.Agent:
        """Have an agent ask this model first from its next turn on, in place of the one that its definition
        names: runbook, PROVIDER/MODEL, or at an endpoint of its own the model's name alone. Empty or default
        takes that back. It stays across restarts and reloads; the definition is not changed. Other providers
        than that of its definition are asked with their own keys.
        """
        caller = await self._access.admit(caller, Operation.MANAGE_AGENTS, agent=name)
        async with self._managing:
            await set_model(self._registry, name, model, by=caller.uid)
        return await self._agent(caller, name)

    async def _create_from(self, name: str, folder: str, *, alone: bool) -> None:
        if not alone:
            raise InvalidArgument(
                "A folder has an AGENT.md of its own, so nothing else can be given.",
                field="folder",
                suggestion="Write it there.",
            )
        async with self._managing:
            await self._kits.create_from(name, folder)

    @method("Delete")
    async def delete(self, caller: Caller, name: str) -> None:
        """Stop an agent that was made with Create and forget its definition; its history stays."""
        caller = await self._access.admit(caller, Operation.MANAGE_AGENTS, agent=name)
        async with self._managing:
            await self._registry.delete(name)

    @method("Start", returns="agent")
    async def start(self, caller: Caller, name: str) -> api.Agent:
        """Start a stopped agent."""
        caller = await self._access.admit(caller, Operation.MANAGE_AGENTS, agent=name)
        await self._access.check_open(caller)
        async with self._managing:
            await self._registry.get(name).start()
        return await self._agent(caller, name)

    @method("Stop", returns="agent")
    async def stop(self, caller: Caller, name: str) -> api.Agent:
        """Cancel an agent's turns and stop it, until it is started again or the daemon restarts."""
        caller = await self._access.admit(caller, Operation.MANAGE_AGENTS, agent=name)
        async with self._managing:
            await self._registry.get(name).stop()
            await self._pool.end_agent(name)
        return await self._agent(caller, name)

    @method("Restart", returns="agent")
    async def restart(self, caller: Caller, name: str) -> api.Agent:
        """Stop and start an agent; its sessions stay."""
        caller = await self._access.admit(caller, Operation.MANAGE_AGENTS, agent=name)
        await self._access.check_open(caller)
        async with self._managing:
            await self._registry.get(name).stop()
            await self._pool.end_agent(name)
            await self._registry.get(name).start()
        return await self._agent(caller, name)

    async def _agent(self, caller: Caller, name: str, seen: frozenset[str] | None = None) -> api.Agent:
        """`seen` are the agents that the caller may inspect, where that is known."""
        caller = await self._access.viewing(caller)
        definitions = self._content.definitions
        path = str(definitions.paths.get(name, ""))
        definition = definitions.agents.get(name)
        if definition is None:
            front = AgentFrontMatter()
            problem, state, running = definitions.broken.get(name, ""), "broken", None
        else:
            front, running = definition.front, self._registry.agents.get(name)
            problem, state = (running.problem, running.state) if running else ("", "stopped")
            problem = problem or " ".join(self._content.problems_of(definition))
        chosen = self._registry.shared.model_clients.chosen.get(name, "")
        model = chosen or front.model or self._now.config.models.default
        model_from = "set" if chosen else "definition" if front.model else "configuration"
        own, toolbox = self._content.own_of(name), self._content.toolbox_of(name)
        catalog = self._content.all_skills_of(name)
        return shown(
            api.Agent,
            front,
            name=name,
            model=model,
            model_from=model_from,
            tools=sorted(toolbox.tools) if front.tools is None else front.tools,
            skills=sorted(catalog.skills) if front.skills is None else front.skills,
            agents=await self._asked(caller, definition, seen),
            kit=name.partition(".")[0] if "." in name else "",
            own_tools=sorted(own.toolbox.tools),
            own_skills=sorted(own.skills.skills),
            covered_skills=sorted(own.skills.skills.keys() & self._content.skills.skills.keys()),
            effects=[effect.value for effect in front.effects],
            max_steps=front.limits.max_steps or self._now.config.limits.max_steps,
            origin=path,
            state=state,
            restarts=running.restarts if running else 0,
            sessions=len(self._access.visible(caller, running)) if running else 0,
            problem=problem,
        )

    async def _asked(
        self, caller: Caller, definition: AgentDefinition | None, seen: frozenset[str] | None
    ) -> list[str]:
        """The agents that one may ask, without those that the caller may not inspect."""
        found = set(self._content.members_of(definition).values() if definition is not None else ())
        return sorted(found & (await self._access.inspectable(caller, found) if seen is None else seen))


def _check_no_nul(**texts: str) -> None:
    for field, text in texts.items():
        if "\0" in text:
            raise InvalidArgument(f"{field} holds a NUL byte.", field=field, suggestion="Remove it.")
