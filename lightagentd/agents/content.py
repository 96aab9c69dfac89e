"""The content read from files: agent definitions, skills, and tools as a worker describes them; also what an
agent has of its own.

The daemon makes one `Content`; the registry reads it at the start and at each reload.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from lightagentd.agents.builtin import Builtins
from lightagentd.agents.definition import (
    AgentDefinition,
    Definitions,
    load_definitions,
    roles_in,
    take_agent,
)
from lightagentd.agents.kits.folder import is_kit
from lightagentd.agents.kits.own import Own, read_own
from lightagentd.agents.tool_calls.kept_description import KeptDescription
from lightagentd.agents.tool_calls.toolbox import Toolbox, toolbox_of
from lightagentd.config.memory import MemoryPolicy
from lightagentd.errors import LightagentError
from lightagentd.host.paths import Paths, content_folders
from lightagentd.policy.in_force import Actions
from lightagentd.skills import Skill, SkillCatalog, load_skills
from lightagentd.worker.pool import Pool

_log = logging.getLogger(__name__)


class Content:
    """The definitions, skills and tools of the last read."""

    def __init__(self, paths: Paths) -> None:
        self.definitions = Definitions()
        self.skills = SkillCatalog()
        """Those of all agents, as the `toolbox`."""
        self.toolbox = Toolbox()
        self.toolbox_problem = ""
        """Why the tools could not be described; then those of before stay."""
        self.own: dict[str, Own] = {}
        """What agents with a kit have of their own, by their names."""
        self.from_memory = False
        """The toolbox is as it was kept; no worker has looked at the tools since."""
        self._paths = paths
        self._description = KeptDescription(paths)
        self._described: list[dict[str, Any]] = []
        """What the toolbox was made of."""
        self._unused_files: list[str] = []
        """Tool files with the name of a built-in tool, as sentences."""
        self._toolboxes: dict[str, tuple[Toolbox, Own, Toolbox]] = {}
        self._catalogs: dict[str, tuple[SkillCatalog, Own, frozenset[str] | None, SkillCatalog]] = {}

    async def read(self, pool: Pool, builtins: Builtins, *, first: bool = False) -> None:
        """Read everything again. Running agents keep the definition that they started with."""
        definitions, self.skills, _ = await asyncio.gather(
            asyncio.to_thread(load_definitions, content_folders("agent", self._paths)),
            asyncio.to_thread(load_skills, content_folders("skills", self._paths)),
            self.read_tools(pool, builtins, first=first),
        )
        own = await self._read_own(pool, definitions, definitions.agents)
        self.definitions, self.own = definitions, own
        pool.servers.forget()
        pool.own_tools.kits.clear()
        pool.own_tools.kits.update(self._kits(own))
        for skill in self.skills.skills.values():
            for warning in skill.warnings:
                _log.warning("%s", warning)

    async def read_agent(self, pool: Pool, path: Path) -> None:
        """Read one agent and the members of its kit again, or for the first time."""
        name = path.parent.name
        found = Definitions()
        roles = await asyncio.to_thread(roles_in, content_folders("agent", self._paths))
        await asyncio.to_thread(take_agent, found, path, roles)
        own = await self._read_own(pool, found, found.agents)
        self.forget([name, *self.definitions.members(name)], pool)
        self.definitions.agents.update(found.agents)
        self.definitions.broken.update(found.broken)
        self.definitions.paths.update(found.paths)
        self.own.update(own)
        pool.own_tools.kits.update(self._kits(own))

    def forget(self, names: Collection[str], pool: Pool) -> None:
        """Agents that are gone."""
        for name in names:
            for known in (self.definitions.agents, self.definitions.broken, self.definitions.paths):
                known.pop(name, None)
            for held in (self.own, pool.own_tools.kits, self._toolboxes, self._catalogs):
                held.pop(name, None)

    async def _read_own(self, pool: Pool, definitions: Definitions, names: Collection[str]) -> dict[str, Own]:
        """What these agents have of their own. One whose tools are broken is broken, and so are the members
        of its kit.
        """
        kits = [name for name in names if is_kit(definitions.agents[name].folder)]
        folders = [definitions.agents[name].folder.resolve() for name in kits]
        reads = [read_own(folder, pool, self.toolbox) for folder in folders]
        found = dict(zip(kits, await asyncio.gather(*reads), strict=True))
        for name, own in found.items():
            if own.unknown and name in self.own:
                found[name] = replace(self.own[name], unknown=own.unknown)
            if own.problems:
                definitions.broken[name] = " ".join(own.problems)
        for name in [name for name in definitions.agents if name not in definitions.broken]:
            kit = definitions.agents[name].kit
            if kit in definitions.broken:
                definitions.broken[name] = f"It is a member of the kit {kit}, which is disabled."
        for name in definitions.broken:
            definitions.agents.pop(name, None)
        return {name: own for name, own in found.items() if name in definitions.agents}

    def kit_folders(self) -> dict[str, Path]:
        """The folders of the agents that are kits."""
        return {name: self.definitions.agents[name].folder.resolve() for name in self.own}

    def _kits(self, own: Mapping[str, Own]) -> dict[str, str]:
        """The folders from which workers of these agents load something."""
        needed = [name for name, one in own.items() if one.in_workers]
        return {name: str(self.definitions.agents[name].folder.resolve()) for name in needed}

    async def read_tools(
        self, pool: Pool, builtins: Builtins, *, first: bool = False, anew: bool = False
    ) -> None:
        """Have the tools described, unless their description was kept, for the same files, and `anew` is not
        set. `first` is set at the daemon's start.
        """
        kept = None if anew else await asyncio.to_thread(self._description.read)
        self.from_memory = kept is not None
        try:
            if kept is None:
                files = await asyncio.to_thread(self._description.files)
                kept = await pool.describe()
                await asyncio.to_thread(self._description.keep, kept, files)
            elif first:
                await pool.end_agent("")  # the worker that would describe them has begun (`first_units`)
            described, self._unused_files = builtins.beside(kept)
            # The built-in tools come last: of two functions with one name the later one counts.
            described = [*described, *builtins.described()]
            if described != self._described:
                self.toolbox, self._described = toolbox_of(described), described
            self.toolbox_problem = ""
        except LightagentError as err:
            self.toolbox_problem = f"The tools could not be described: {err.message}"
            _log.error("%s", self.toolbox_problem)

    def actions(self) -> Actions:
        """The argument names of every action, to check rules against."""
        found: dict[tuple[str, str], set[str]] = {}
        for toolbox in (self.toolbox, *(own.toolbox for own in self.own.values())):
            for one in toolbox.functions.values():
                found.setdefault((one.tool, one.name), set()).update(one.schema.get("properties", {}))
        return found

    def toolbox_of(self, agent: str) -> Toolbox:
        """The tools of an agent, with its own; the same object until they change."""
        own = self.own_of(agent)
        if not own.toolbox.tools and not self.toolbox.narrow:
            return self.toolbox
        known = self._toolboxes.get(agent)
        if known is None or known[0] is not self.toolbox or known[1] is not own:
            whole = Toolbox({**self.toolbox.of(agent), **own.toolbox.of(agent)})
            known = self._toolboxes[agent] = (self.toolbox, own, whole)
        return known[2]

    def skill_of(self, agent: str, name: str) -> Skill | None:
        """A skill of an agent: its own wins."""
        own = self.own_of(agent).skills
        if name in own.broken:
            return None
        return own.skills.get(name) or self.skills.skills.get(name)

    def trusts_skill(self, agent: str, name: str) -> bool:
        return self.trusted_skill(agent, name) is not None

    def trusted_skill(self, agent: str, name: str) -> Skill | None:
        """The skill, if others cannot write it."""
        found = self.skill_of(agent, name)
        return found if found is not None and found.trusted() else None

    def catalog_of(self, definition: AgentDefinition) -> Callable[[], SkillCatalog]:
        """The skills of an agent; the same object until they change."""
        front = definition.front
        allowed = None if front.skills is None else frozenset(front.skills)
        return lambda: self._skills_for(definition.name, allowed)

    def _skills_for(self, agent: str, allowed: frozenset[str] | None) -> SkillCatalog:
        own = self.own_of(agent)
        if allowed is None and own is _NONE:
            return self.skills
        cached = self._catalogs.get(agent)
        if cached is None or cached[0] is not self.skills or cached[1] is not own or cached[2] != allowed:
            whole = self.skills.with_own(own.skills)
            kept = whole if allowed is None else whole.only(allowed)
            cached = self._catalogs[agent] = (self.skills, own, allowed, kept)
        return cached[3]

    def memory_policy_of(self, agent: str) -> MemoryPolicy | None:
        """What an agent's definition says of its memory; None for an agent that is gone."""
        found = self.definitions.agents.get(agent)
        return found.front.memory if found is not None else None

    def own_of(self, agent: str) -> Own:
        """What an agent has of its own; nothing for one without a kit."""
        return self.own.get(agent, _NONE)

    def all_skills_of(self, agent: str) -> SkillCatalog:
        """The skills that an agent could use, whatever its definition names."""
        return self.skills.with_own(self.own_of(agent).skills)

    def skill_names(self, definition: AgentDefinition) -> list[str]:
        """The skills that an agent's model may use unasked, by name."""
        found = self.catalog_of(definition)().skills.values()
        return sorted(skill.name for skill in found if skill.for_models)

    def members_of(self, definition: AgentDefinition) -> dict[str, str]:
        """The agents that an agent may ask: the names that it may write, with the names that these have."""
        wanted, known = definition.front.agents, self.definitions.askable(definition)
        return {
            short: known[short]
            for short in sorted(known)
            if wanted is None or not {short, known[short]}.isdisjoint(wanted)
        }

    def skills_of_team(self, definition: AgentDefinition) -> dict[str, SkillCatalog]:
        """The skills of the agents that an agent may ask."""
        agents = self.definitions.agents
        return {short: self.catalog_of(agents[name])() for short, name in self.members_of(definition).items()}

    def problems_of(self, definition: AgentDefinition) -> list[str]:
        """What an agent's definition names and cannot use, as sentences."""
        toolbox, own = self.toolbox_of(definition.name), self.own_of(definition.name)
        skills = self.all_skills_of(definition.name)
        tools = {tool.name: {one.name for one in tool.actions} for tool in toolbox.tools.values()}
        agents = {*self.definitions.askable(definition), *self.definitions.broken}
        found = definition.problems(tools, {*skills.skills, *skills.broken}, agents)
        context = skills.skills.get(definition.front.context_skill)
        if context is not None and context.runbook is None:
            found.append(f"The context_skill {context.name} of the agent {definition.name} has no runbook.")
        return [*found, own.unknown] if own.unknown else found

    def problems(self) -> list[str]:
        """The files that cannot be used, as sentences."""
        found = [f"The agent {name} is disabled: {why}" for name, why in self.definitions.broken.items()]
        for definition in self.definitions.agents.values():
            found += self.problems_of(definition)
        found += [f"The skill {name} is disabled: {why}" for name, why in self.skills.broken.items()]
        found += [
            f"The agent {agent} cannot use its skill {name}: {why}"
            for agent, own in self.own.items()
            for name, why in own.skills.broken.items()
        ]
        found += [
            f"The tool {tool.name} is disabled: {tool.path}: {tool.problem}"
            for tool in self.toolbox.tools.values()
            if tool.problem
        ]
        return found + self._unused_files


_NONE = Own()
