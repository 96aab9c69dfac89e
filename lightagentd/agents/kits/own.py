"""What an agent has of its own: the skills and tools in its folder, beside those that all agents share.

`Content` reads it with everything else, and `kits` before it takes a kit. Values only; nothing stays open.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

from lightagentd.agents.definition import BUILT_IN
from lightagentd.agents.kits.believed import believed
from lightagentd.agents.kits.folder import SKILLS, tool_files
from lightagentd.agents.tool_calls.described import ToolInfo
from lightagentd.agents.tool_calls.toolbox import Toolbox
from lightagentd.errors import LightagentError
from lightagentd.skills import SkillCatalog, load_skills
from lightagentd.worker.loader import line_of_class
from lightagentd.worker.pool import Pool


@dataclass(frozen=True, kw_only=True)
class Own:
    """What an agent has of its own."""

    skills: SkillCatalog = field(default_factory=SkillCatalog)
    toolbox: Toolbox = field(default_factory=Toolbox)
    """Its own tools alone."""
    problems: tuple[str, ...] = ()
    """What is wrong with its tools, as sentences with file and line: the agent cannot work."""
    unknown: str = ""
    """Why no worker could describe the tools."""

    @property
    def in_workers(self) -> bool:
        """Whether a worker of the agent loads anything of it; flows and cases of assessments it does not."""
        return bool(self.toolbox.tools or self.skills.skills or self.skills.broken or self.unknown)


async def read_own(folder: Path, pool: Pool | None, common: Toolbox) -> Own:
    """Read a folder; `common` are the tools of all agents, whose names are taken. Without a pool no tool is
    loaded, and only their names are known.
    """
    files = await asyncio.to_thread(tool_files, folder)
    skills = await asyncio.to_thread(load_skills, [folder / SKILLS])
    taken = {*common.tools, *BUILT_IN}
    problems = [
        _at(path, line_of_class(path), f"there is a tool {path.stem} for all agents, so take another name")
        for path in files
        if path.stem in taken
    ]
    paths = {path.stem: path for path in files if path.stem not in taken}
    if pool is None:
        named = {name: _unknown(name, path) for name, path in paths.items()}
        return Own(skills=skills, toolbox=Toolbox(named), problems=tuple(problems))
    try:
        described = await pool.own_tools.describe(str(folder), list(paths)) if paths else []
    except LightagentError as err:
        return Own(skills=skills, unknown=f"The tools in {folder} could not be described: {err.message}")
    tools: dict[str, ToolInfo] = {}
    for (name, path), said in zip(paths.items(), described, strict=False):
        found = str(said["problem"]) if said.get("problem") else believed(said, name, path)
        if isinstance(found, str):
            line = said.get("line")
            problems.append(_at(path, line if isinstance(line, int) else 0, found))
        else:
            tools[name] = found
    problems += _covering(tools, common)
    return Own(skills=skills, toolbox=Toolbox(tools), problems=tuple(problems))


def _unknown(name: str, path: Path) -> ToolInfo:
    return ToolInfo(name=name, description="", path=str(path), problem="", actions=())


def _covering(tools: dict[str, ToolInfo], common: Toolbox) -> list[str]:
    """Functions that have the name of another one."""
    found, seen = [], dict.fromkeys(common.functions, "all agents")
    for tool in tools.values():
        for action in tool.actions:
            if whose := seen.get(action.function):
                why = f"{action.name} makes the function {action.function}, which {whose} has already"
                found.append(_at(tool.path, line_of_class(Path(tool.path)), why))
            seen[action.function] = f"the tool {tool.name}"
    return found


def _at(path: Path | str, line: int, problem: str) -> str:
    """A sentence; what a tool's file raised may have anything in it."""
    where = f"{path}, line {line}" if line else str(path)
    said = " ".join("".join(char if char.isprintable() else " " for char in problem[:1000]).split())
    return f"{where}: {said.rstrip('.')}."
