"""The content read from files: agent definitions, skills, and tools as a worker describes them.

The daemon makes one `Content`; the registry reads it at the start and at each reload.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from lightagentd.agents.builtin import Builtins
from lightagentd.agents.definition import AgentDefinition, Definitions, load_definitions
from lightagentd.agents.tool_calls.toolbox import Toolbox, toolbox_of
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
        self.toolbox = Toolbox()
        self.toolbox_problem = ""
        """Why the tools could not be described; then those of before stay."""
        self._paths = paths
        self._unused_files: list[str] = []
        """Tool files with the name of a built-in tool, as sentences."""
        self._allowed_skills: dict[frozenset[str], tuple[SkillCatalog, SkillCatalog]] = {}

    async def read(self, pool: Pool, builtins: Builtins) -> None:
        """Read everything again. Running agents keep the definition that they started with."""
        self.definitions, self.skills, _ = await asyncio.gather(
            asyncio.to_thread(load_definitions, content_folders("agent", self._paths)),
            asyncio.to_thread(load_skills, content_folders("skills", self._paths)),
            self._read_tools(pool, builtins),
        )
        for skill in self.skills.skills.values():
            for warning in skill.warnings:
                _log.warning("%s", warning)

    async def _read_tools(self, pool: Pool, builtins: Builtins) -> None:
        try:
            described, self._unused_files = builtins.beside(await pool.describe())
            # The built-in tools come last: of two functions with one name the later one counts.
            self.toolbox = toolbox_of([*described, *builtins.described()])
            self.toolbox_problem = ""
        except LightagentError as err:
            self.toolbox_problem = f"The tools could not be described: {err.message}"
            _log.error("%s", self.toolbox_problem)

    def actions(self) -> Actions:
        """The argument names of every action, to check rules against."""
        known = self.toolbox.functions.values()
        return {(one.tool, one.name): set(one.schema.get("properties", {})) for one in known}

    def trusts_skill(self, name: str) -> bool:
        return name in self.skills.skills and self.skills.skills[name].trusted()

    def trusted_skill(self, name: str) -> Skill | None:
        """The skill, if others cannot write it."""
        return self.skills.skills[name] if self.trusts_skill(name) else None

    def catalog_of(self, definition: AgentDefinition) -> Callable[[], SkillCatalog]:
        """The skills of an agent; the same object until they change."""
        front = definition.front
        allowed = None if front.skills is None else frozenset(front.skills)
        return lambda: self._skills_for(allowed)

    def _skills_for(self, allowed: frozenset[str] | None) -> SkillCatalog:
        if allowed is None:
            return self.skills
        cached = self._allowed_skills.get(allowed)
        if cached is not None and cached[0] is self.skills:
            return cached[1]
        kept = self.skills.only(allowed)
        self._allowed_skills[allowed] = (self.skills, kept)
        return kept

    def members_of(self, definition: AgentDefinition) -> list[str]:
        """The agents that an agent may ask, by name."""
        wanted = definition.front.agents
        others = [name for name in self.definitions.agents if name != definition.name]
        return sorted(name for name in others if wanted is None or name in wanted)

    def problems_of(self, definition: AgentDefinition) -> list[str]:
        """What an agent's definition names and cannot use, as sentences."""
        tools = {tool.name: {one.name for one in tool.actions} for tool in self.toolbox.tools.values()}
        agents = {*self.definitions.agents, *self.definitions.broken}
        found = definition.problems(tools, {*self.skills.skills, *self.skills.broken}, agents)
        context = self.skills.skills.get(definition.front.context_skill)
        if context is not None and context.runbook is None:
            found.append(f"The context_skill {context.name} of the agent {definition.name} has no runbook.")
        return found

    def problems(self) -> list[str]:
        """The files that cannot be used, as sentences."""
        found = [f"The agent {name} is disabled: {why}" for name, why in self.definitions.broken.items()]
        for definition in self.definitions.agents.values():
            found += self.problems_of(definition)
        found += [f"The skill {name} is disabled: {why}" for name, why in self.skills.broken.items()]
        found += [
            f"The tool {tool.name} is disabled: {tool.path}: {tool.problem}"
            for tool in self.toolbox.tools.values()
            if tool.problem
        ]
        return found + self._unused_files
