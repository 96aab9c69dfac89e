"""The section of the system prompt about skills: which are named, in which order, and in how much room."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightagentd.agents.definition import AgentDefinition, AgentFrontMatter
from lightagentd.agents.skills_prompt import LEAST_CHARS, MOST_CHARS, skills_section
from lightagentd.host.paths import Paths
from lightagentd.skills import FrontMatter, Skill, SkillCatalog
from tests.agents.scripted import scripted
from tests.agents.test_system_prompt import system_of
from tests.conftest import write
from tests.scripted_model import say

SHIPPED = Path("/usr/share/skills")


def skill(name: str, description: str = "Does.", origin: str = "/etc/skills", asked: bool = False) -> Skill:
    matter = FrontMatter.model_validate(
        {"name": name, "description": description, "disable-model-invocation": asked}
    )
    return Skill(
        name=name, description=description, body="", folder=Path(origin, name), origin=origin, front=matter
    )


def section(*skills: Skill, window: int = 100_000, tools: list[str] | None = None) -> str:
    front = AgentFrontMatter.model_validate({} if tools is None else {"tools": tools})
    definition = AgentDefinition(name="ops", front=front, prompt="", path=Path("AGENT.md"))
    catalog = SkillCatalog(skills={one.name: one for one in skills})
    return skills_section(catalog, definition, window_tokens=window, shipped=SHIPPED)


def test_own_skills_come_before_shipped_ones_each_in_a_line() -> None:
    text = section(skill("a", origin=str(SHIPPED)), skill("z", "Long " + "word " * 60))
    lines = text.splitlines()
    assert lines[2].startswith("When one of these fits what you are asked, read it with skill_load or run it")
    assert lines[4].startswith("- z: Long word")
    assert lines[4].endswith("word …")
    assert len(lines[4]) < 180
    assert lines[5:] == ["- a: Does."]


@pytest.mark.parametrize(
    ("found", "window", "tools"),
    [
        ([], 100_000, None),
        ([skill("a")], 0, None),
        ([skill("a")], 100_000, ["file"]),
        ([skill("a")], 100_000, ["skill.run"]),
        ([skill("a", asked=True)], 100_000, None),
    ],
)
def test_there_is_no_section_where_no_skill_can_be_used(
    found: list[Skill], window: int, tools: list[str] | None
) -> None:
    assert section(*found, window=window, tools=tools) == ""


@pytest.mark.parametrize("window", [4096, 8192, 32_768, 1_000_000])
@pytest.mark.parametrize("count", [3, 35, 2000])
def test_however_many_there_are_the_section_stays_small(window: int, count: int) -> None:
    text = section(*(skill(f"skill-{n}", "word " * 20) for n in range(count)), window=window)
    assert len(text) < 1.25 * max(LEAST_CHARS, min(MOST_CHARS, window / 8)) + 200
    assert text.count("\n- ") >= 3
    if count == 2000:
        assert text.endswith("more, which skill_list names.")


async def test_a_model_is_told_of_the_skills_of_its_agent_alone(paths: Paths) -> None:
    for name in ("water-plants", "feed-cat"):
        write(paths.config / "skills" / name / "SKILL.md", f"---\nname: {name}\ndescription: Tends.\n---\n")
    async with scripted(paths, [say("ok")], front="skills: [feed-cat]\n") as test:
        await test.prompt(await test.session())
        assert "\n- feed-cat: Tends." in system_of(test)
        assert "water-plants" not in system_of(test)
