"""The section of the system prompt that names the skills of an agent, so that a model knows what to load.

Of each skill it has the name and the description; the text, the files and the arguments come with a call.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from lightagentd.agents.definition import AgentDefinition
from lightagentd.skills import Skill, SkillCatalog

MOST_CHARS = 6000
LEAST_CHARS = 600
_CHARS_PER_TOKEN = 1 / 8
"""How much of a small window the section may take: a twenty-fourth, of some three characters a token."""
_DESCRIPTION_CHARS = 160
_NAMES_PART = 1 / 4
"""How much of the section names may take whose descriptions have no room."""


def skills_section(
    catalog: SkillCatalog, agent: AgentDefinition, *, window_tokens: int, shipped: Path
) -> str:
    """The section; empty for an agent without skills, or without a language model (`window_tokens` is 0).

    Skills that are not from `shipped` come first.
    """
    load, run = agent.offers("skill", "load"), agent.offers("skill", "run")
    offered = [one for one in catalog.skills.values() if one.for_models and (load or (run and one.runbook))]
    if not offered or not window_tokens:
        return ""
    room = max(LEAST_CHARS, min(MOST_CHARS, int(window_tokens * _CHARS_PER_TOKEN)))
    offered.sort(key=lambda one: (Path(one.origin) == shipped, one.name))
    lines, left = _lines(offered, room)
    how = " or ".join(["read it with skill_load"] * load + ["run it with skill_run"] * run)
    head = f"When one of these fits what you are asked, {how} before you do it another way."
    if left:
        lines.append(f"Others: {', '.join(_names(left, int(room * _NAMES_PART)))}")
    return "\n".join(["# Skills", "", head, "", *lines])


def _lines(skills: Iterable[Skill], room: int) -> tuple[list[str], list[Skill]]:
    """A line for each skill as long as there is room, and the skills without."""
    lines: list[str] = []
    left: list[Skill] = []
    for skill in skills:
        line = f"- {skill.name}: {_short(skill.description)}"
        room -= len(line) + 1
        if room < 0:
            left.append(skill)
        else:
            lines.append(line)
    return lines, left


def _short(description: str) -> str:
    if len(description) <= _DESCRIPTION_CHARS:
        return description
    return description[:_DESCRIPTION_CHARS].rpartition(" ")[0].rstrip(",;:") + " …"


def _names(skills: list[Skill], room: int) -> list[str]:
    found: list[str] = []
    for number, skill in enumerate(skills):
        room -= len(skill.name) + 2
        if room < 0:
            return [*found, f"and {len(skills) - number} more, which skill_list names."]
        found.append(skill.name)
    return found
