"""AGENT.md: what it may say, and how its mistakes are told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lightagentd.agents.definition import (
    AgentFrontMatter,
    check_name,
    load_definition,
    load_definitions,
    write_definition,
)
from lightagentd.errors import ConfigError, InvalidArgument
from lightagentd.tool import Effect
from tests.conftest import REPOSITORY, write


def define(folder: Path, front: str, name: str = "tester", body: str = "Be brief.") -> Path:
    return write(folder / name / "AGENT.md", f"---\n{front}\n---\n{body}\n")


def problem_of(folder: Path, front: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_definition(define(folder, front))
    return caught.value.message


def test_every_key_is_read(tmp_path: Path) -> None:
    front = """
description: Tests things.
role: sysadmin
model: corp/big-model/v2
fallback: [openai/small, runbook]
base_url: https://models.example.org/v1
api_key_file: key
tools: [file, bash.exec]
skills: [disk-check]
effects: [observe]
limits: {max_steps: 5, turn_timeout_s: 60, max_queue: 2}
""".strip()
    found = load_definition(define(tmp_path, front))
    assert (found.name, found.prompt) == ("tester", "Be brief.")
    assert found.front.model == "corp/big-model/v2"
    assert found.front.effects == [Effect.OBSERVE]
    assert found.front.limits.max_steps == 5
    assert found.offers("file", "read")
    assert found.offers("bash", "exec")
    assert not found.offers("proc", "list")
    assert not found.offers("bash", "other")


@pytest.mark.parametrize(
    ("front", "told"),
    [
        ("", []),
        ("tools: []\nskills: []", []),
        ("tools: [skill.load]\nskills: [disk-check]", []),
        (
            "tools: [file.read, file.rede, nosuch.x, off.any]",
            ["tools that do not exist: file.rede, nosuch.x."],
        ),
        ("skills: [disk-check, x]", ["skills that do not exist: x."]),
        ("agents: [dba, x, y]", ["agents that do not exist: x, y."]),
        ("tools: [skill.list]\nskills: [disk-check]", ["skills, but not the tool skill"]),
    ],
)
def test_what_an_agent_names_and_cannot_use_is_told(tmp_path: Path, front: str, told: list[str]) -> None:
    tools = {"file": ["read"], "off": [], "skill": ["list", "load"]}
    found = load_definition(define(tmp_path, front)).problems(tools, ["disk-check"], ["dba"])
    assert len(found) == len(told)
    assert all(part in sentence for part, sentence in zip(told, found, strict=True))


def test_everything_has_a_default(tmp_path: Path) -> None:
    front = load_definition(define(tmp_path, "")).front
    assert front.role == "default"
    assert (front.tools, front.skills) == (None, None)
    assert front.effects == [Effect.OBSERVE, Effect.REACH, Effect.CHANGE]


@pytest.mark.parametrize(
    ("front", "told"),
    [
        ("description: x\ntool: [bash]", "line 3: the key tool is not known"),
        ("model: gpt", "line 2: the key model"),
        ("parallel: maybe", "line 2: the key parallel"),
        ("description: x\nfallback: [runbook, '/x']", "line 3: the key fallback"),
        ("base_url: ftp://x", "line 2: the key base_url"),
        ("base_url: h.example/v1", "the key base_url: it has no scheme: write https:// before it"),
        ("effects: [write]", "the key effects.0"),
        ("limits: {steps: 3}", "the key limits.steps is not known"),
        ("limits: {max_steps: 0}", "the key limits.max_steps"),
        ("role: ../secret", "the key role"),
        ("tools:", "the key tools"),
        ("skills:", "the key skills"),
        ("tools: bash", "the key tools"),
        ("description: [x", "not YAML|expected|line"),
    ],
)
def test_a_mistake_is_told_with_its_file_and_key(tmp_path: Path, front: str, told: str) -> None:
    message = problem_of(tmp_path, front)
    assert "AGENT.md" in message
    assert any(part in message for part in told.split("|"))


def test_a_folder_whose_name_is_no_agents_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Tester"):
        load_definition(define(tmp_path, "", name="Tester"))


@pytest.mark.parametrize("name", ["", "A", "1a", "a_b", "a/b", "..", "a" * 32, "a\n", "ä"])
def test_names_that_no_unit_can_have_are_refused(name: str) -> None:
    with pytest.raises(InvalidArgument):
        check_name(name)


def test_the_first_folder_wins_even_when_its_definition_is_broken(tmp_path: Path) -> None:
    own, shipped = tmp_path / "own", tmp_path / "shipped"
    write(shipped / "roles" / "default.md", "R")
    define(shipped, "description: shipped", name="one")
    define(shipped, "description: shipped", name="two")
    define(own, "description: own", name="one")
    define(own, "nonsense: 1", name="two")
    found = load_definitions([own, shipped])
    assert found.agents["one"].front.description == "own"
    assert "two" not in found.agents
    assert "nonsense" in found.broken["two"]
    assert found.paths["two"] == own / "two" / "AGENT.md"


def test_a_role_that_does_not_exist_disables_the_agent(tmp_path: Path) -> None:
    write(tmp_path / "roles" / "default.md", "R")
    define(tmp_path, "role: defualt")
    broken = load_definitions([tmp_path]).broken["tester"]
    assert "'defualt'" in broken
    assert "there are: default" in broken


def test_the_shipped_agent_is_usable() -> None:
    found = load_definitions([REPOSITORY / "agent"])
    assert not found.broken
    assert found.agents["ops"].front.effects == [*Effect]  # so that enabling its worker for change is enough


@pytest.mark.parametrize(
    "front",
    [
        {},
        {"description": "first\n---\nsecond", "model": "a/b"},
        {"tools": [], "effects": ["observe", "change"], "limits": {"max_steps": 3}},
        {"description": "ümlaut: 'quoted' # not a comment"},
    ],
)
@pytest.mark.parametrize("prompt", ["", "Be brief.", "one\n---\ntwo"])
def test_what_is_written_is_read_again(tmp_path: Path, front: dict[str, Any], prompt: str) -> None:
    wanted = AgentFrontMatter(**front)
    found = write_definition(tmp_path / "agent", "made", wanted, prompt)
    assert found.front == wanted
    assert found.prompt == prompt
    assert [path.name for path in found.path.parent.iterdir()] == ["AGENT.md"]


def test_a_model_at_an_own_endpoint_needs_no_provider() -> None:
    front = AgentFrontMatter(model="a", fallback=["b", "work/c", "runbook"], base_url="http://localhost:1/v1")
    assert (front.model, front.fallback) == ("endpoint/a", ["endpoint/b", "work/c", "runbook"])
    assert AgentFrontMatter(base_url="http://localhost:1/v1").model == "", "the default"
