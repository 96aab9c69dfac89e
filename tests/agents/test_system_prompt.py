"""The system prompt: which files make it, in which order, and what is missing or unreadable."""

from __future__ import annotations

import platform
from pathlib import Path

from lightagentd.agents.definition import AgentDefinition, AgentFrontMatter
from lightagentd.agents.system_prompt import build
from tests.conftest import REPOSITORY, write


def agent(role: str = "default") -> AgentDefinition:
    front = AgentFrontMatter(role=role)
    return AgentDefinition(name="tester", front=front, prompt="BODY", path=Path("AGENT.md"))


def test_the_parts_come_in_their_order(tmp_path: Path) -> None:
    for name in ("SOUL", "USER", "MEMORY"):
        write(tmp_path / f"{name}.md", f"{name}!")
    write(tmp_path / "roles" / "default.md", "ROLE!")
    prompt = build(agent(), [tmp_path])
    places = [prompt.index(part) for part in ("SOUL!", "ROLE!", "BODY", "USER!", "MEMORY!", "agent tester")]
    assert places == sorted(places)
    assert platform.node() in prompt
    assert "observe, reach" in prompt
    assert "data" in prompt


def test_the_first_folder_that_has_a_file_wins(tmp_path: Path) -> None:
    write(tmp_path / "one" / "USER.md", "mine")
    write(tmp_path / "two" / "USER.md", "shipped")
    write(tmp_path / "two" / "SOUL.md", "soul")
    prompt = build(agent(), [tmp_path / "one", tmp_path / "two"])
    assert "mine" in prompt
    assert "shipped" not in prompt
    assert "soul" in prompt


def test_an_empty_file_of_the_administrator_takes_the_shipped_one_away(tmp_path: Path) -> None:
    write(tmp_path / "one" / "SOUL.md", "")
    write(tmp_path / "two" / "SOUL.md", "shipped")
    assert "shipped" not in build(agent(), [tmp_path / "one", tmp_path / "two"])


def test_files_that_cannot_be_read_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "SOUL.md").mkdir()
    (tmp_path / "USER.md").write_bytes(b"caf\xe9")
    (tmp_path / "MEMORY.md").symlink_to(tmp_path / "MEMORY.md")
    write(tmp_path / "plain", "")
    prompt = build(agent(), [tmp_path / "plain", tmp_path])
    assert prompt.startswith("BODY\n\ncaf\ufffd\n\nYou are")


def test_a_file_is_read_up_to_its_limit(tmp_path: Path) -> None:
    write(tmp_path / "MEMORY.md", "x" * 1_000_000)
    assert len(build(agent(), [tmp_path])) < 70_000


def test_the_shipped_roles_are_there() -> None:
    default, sysadmin = (build(agent(role), [REPOSITORY / "agent"]) for role in ("default", "sysadmin"))
    assert default != sysadmin
    assert "administrator" in sysadmin
