"""What keeps a kit from being used: all that `lactl kits check` and `lactl kits add` say of one.

Works on a folder that need not be in its place yet, and without a daemon: whoever asks says what the kit
would have around it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from lightagentd.agents.definition import AgentDefinition, Definitions, check_name, take_agent
from lightagentd.agents.kits.folder import PARTS, KitFolder, check_owned, look, tool_files
from lightagentd.agents.kits.own import Own, read_own
from lightagentd.agents.tool_calls.toolbox import Toolbox
from lightagentd.config.flows.checking import Known, read_flow
from lightagentd.config.flows.definition import FLOWS
from lightagentd.errors import ConfigError
from lightagentd.skills import SkillCatalog
from lightagentd.worker.pool import Pool


@dataclass(frozen=True, kw_only=True)
class Around:
    """What all agents share, and the other agents."""

    toolbox: Toolbox
    skills: SkillCatalog
    definitions: Definitions
    roles: Mapping[str, Path]


@dataclass(frozen=True, kw_only=True)
class Checked:
    """What was found; the sentences begin with the file, and the line if known."""

    name: str
    contents: KitFolder | None = None
    definitions: Definitions = field(default_factory=Definitions)
    own: dict[str, Own] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    """Why it cannot be used."""
    warnings: list[str] = field(default_factory=list)
    unknown: str = ""
    """Why its tools could not be looked at."""

    def shown_as(self, folder: Path, shown: str) -> Checked:
        """With another path of the folder in the sentences; without one, paths are from its top."""

        def told(sentences: list[str]) -> list[str]:
            inside = f"{shown}/" if shown else ""
            return [
                one.replace(f"{folder}/", inside).replace(str(folder), shown or folder.name)
                for one in sentences
            ]

        return replace(self, problems=told(self.problems), warnings=told(self.warnings))


async def check(folder: Path, pool: Pool | None, around: Around, *, name: str = "") -> Checked:
    """Look at a kit as the agent `name`, that of its folder unless given. Raises InvalidArgument for a name
    that no agent can have. Without a pool no tool is loaded.
    """
    name = name or folder.name
    check_name(name)
    try:
        await asyncio.to_thread(check_owned, folder)
        contents = await asyncio.to_thread(look, folder)
    except ConfigError as err:
        return Checked(name=name, problems=[err.message])
    found = Definitions()
    await asyncio.to_thread(take_agent, found, folder / "AGENT.md", around.roles, name=name)
    problems, own = list(found.broken.values()), {}
    for one in found.agents.values():
        own[one.name] = await read_own(one.folder, pool, around.toolbox)
        problems += own[one.name].problems
        problems += own[one.name].skills.broken.values()
    everyone = Definitions(agents={**_others(around.definitions, name), **found.agents})
    for one in found.agents.values():
        problems += _missing(one, own[one.name], around, everyone)
        problems += await asyncio.to_thread(_wrong_flows, one, everyone)
    skills = [skill for each in own.values() for skill in each.skills.skills.values()]
    return Checked(
        name=name,
        contents=contents,
        definitions=found,
        own=own,
        problems=problems,
        warnings=[*_unused(folder), *(warning for skill in skills for warning in skill.warnings)],
        unknown=next((each.unknown for each in own.values() if each.unknown), ""),
    )


def _others(definitions: Definitions, name: str) -> dict[str, AgentDefinition]:
    """The agents that are not of this kit, which may be there already."""
    mine = {name, *definitions.members(name)}
    return {key: one for key, one in definitions.agents.items() if key not in mine}


def _missing(one: AgentDefinition, own: Own, around: Around, everyone: Definitions) -> list[str]:
    tools = {**around.toolbox.tools, **own.toolbox.tools}
    skills = around.skills.with_own(own.skills)
    broken: dict[str, set[str]] = {path.stem: set() for path in tool_files(one.folder)}
    return one.problems(
        broken | {tool.name: {action.name for action in tool.actions} for tool in tools.values()},
        {*skills.skills, *skills.broken},
        everyone.askable(one),
    )


def _wrong_flows(one: AgentDefinition, everyone: Definitions) -> list[str]:
    known = Known(agents=everyone.agents)
    paths = sorted((one.folder / FLOWS).glob("*.toml"))
    return [fault for path in paths for fault in read_flow(path, known, agent=one.name).faults]


def _unused(folder: Path) -> list[str]:
    """Folders that somebody may have meant to be parts of a kit."""
    known = ", ".join(PARTS)
    return [
        f"{one}: nothing looks into this folder; those of a kit are {known}."
        for one in sorted(folder.iterdir())
        if one.is_dir() and one.name not in PARTS
    ]
