"""The examples of the man pages are what they say: they load by the real loaders, and run."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from lightagentd.agents.definition import AgentFrontMatter, AgentLimits, load_definition
from lightagentd.config.configuration import Config
from lightagentd.policy.rulefiles import load_texts
from lightagentd.policy.rules import Rule
from lightagentd.skills import FrontMatter, load_skill
from lightagentd.unattended.prompt_file import PromptFile
from lightagentd.worker.loader import load_tool
from tests.conftest import DaemonProcess, write

_CHARACTERS = {r"\-": "-", r"\(aq": "'", r"\(ga": "`", r"\(ha": "^", r"\(ti": "~", r"\&": "", r"\e": "\\"}


def plain(page: Path) -> str:
    text = page.read_text()
    for sequence, char in _CHARACTERS.items():
        text = text.replace(sequence, char)
    return text


def example(page: Path, beginning: str) -> str:
    """The one example of a page that begins so."""
    found = re.findall(r"^\.EX\n(.*?)^\.EE$", plain(page), re.MULTILINE | re.DOTALL)
    (text,) = [each for each in found if each.startswith(beginning)]
    return str(text)


@pytest.fixture
def skill(generated: Path, tmp_path: Path) -> Path:
    """The example of lightagent-skill(5)."""
    page = generated / "man/lightagent-skill.5"
    write(tmp_path / "skills/old-files/SKILL.md", example(page, "---\n"))
    script = tmp_path / "skills/old-files/scripts/old_files.py"
    return write(script, example(page, "import argparse")).parents[1]


@pytest.fixture
def tool(generated: Path, tmp_path: Path) -> Path:
    """The example of lightagent-tool(5)."""
    return write(
        tmp_path / "tools/uptime.py",
        example(generated / "man/lightagent-tool.5", '"""How long'),
    )


def test_the_example_of_a_skill_and_of_a_tool_load(skill: Path, tool: Path) -> None:
    found = load_skill(skill)
    assert found.runbook is not None
    assert list(found.args) == ["path"]
    assert load_tool(tool).error == ""
    assert list(load_tool(tool).actions) == ["show"]


@pytest.mark.usefixtures("sandboxed")
def test_they_run_in_the_sandbox_by_the_lines_that_the_pages_give(
    skill: Path, tool: Path, daemon_process: DaemonProcess, tmp_path: Path
) -> None:
    config = daemon_process.paths.config
    config.mkdir(parents=True, exist_ok=True)
    for path in (skill.parent, tool.parent):
        path.rename(config / path.name)
    tmp_path.chmod(0o755)
    daemon_process.start()
    called = daemon_process.lactl("tools", "call", "ops", "uptime.show", "unit=days")
    assert (called.returncode, called.stderr) == (0, "")
    assert re.fullmatch(r"[\d.]+ days", called.stdout.strip())
    answer = daemon_process.lactl("prompt", "ops", "which files in /etc are the oldest")
    assert answer.returncode == 0
    assert answer.stdout.startswith("The oldest file in /etc is ")


def test_every_key_that_a_page_describes_exists_and_the_other_way_round(generated: Path) -> None:
    page = plain(generated / "man/lightagent-skill.5")
    keys = page.partition('.SH "FRONT MATTER"')[2].partition(".SH")[0]
    assert re.findall(r"^\.TP\n\\fB(\w+)\\fR$", keys, re.MULTILINE) == list(FrontMatter.model_fields)
    daemon = plain(generated / "man/lightagentd.8")
    agents = daemon.partition('.SH "AGENTS"')[2].partition(".SH")[0]
    for name in (*AgentFrontMatter.model_fields, *AgentLimits.model_fields):
        assert re.search(rf"\b{name}\b", agents)
    policy = daemon.partition('.SH "POLICY"')[2].partition(".SH")[0]
    for name in Rule.model_fields:
        assert re.search(rf"\b{name}\b", policy)
    prompts = daemon.partition('.SH "PROMPTS ON A CALENDAR"')[2].partition(".SH")[0]
    for name in PromptFile.model_fields:
        assert re.search(rf"\b{name}\b", prompts)


def test_the_other_examples_of_files_are_taken(generated: Path, tmp_path: Path) -> None:
    daemon = generated / "man/lightagentd.8"
    rules = load_texts({"rules.toml": example(daemon, "[[rule]]")})
    assert [loaded.rule.name for loaded in rules.rules] == ["restart-web"]
    agent = write(tmp_path / "web/AGENT.md", example(daemon, "---\n"))
    assert load_definition(agent).front.limits.max_steps == 20
    PromptFile.model_validate(tomllib.loads(example(daemon, 'agent = "ops"')))
    Config.model_validate(tomllib.loads(example(generated / "man/lightagentd.toml.5", "[limits]")))
