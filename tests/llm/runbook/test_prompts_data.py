"""The matcher of the runbook model against the shipped test data `tests/data/prompts.yaml`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from lightagentd.llm.runbook.matching import SkillIndex
from lightagentd.skills import load_skills

ROOT = Path(__file__).parents[3]
SKILLS = ROOT / "skills"
PROMPTS = Path(__file__).parents[2] / "data" / "prompts.yaml"
LEAST_SHARE = 0.95


@pytest.fixture(scope="module")
def entries() -> list[dict[str, Any]]:
    loaded: list[dict[str, Any]] = yaml.safe_load(PROMPTS.read_text(encoding="utf-8"))
    return loaded


@pytest.fixture(scope="module")
def index() -> SkillIndex:
    return SkillIndex(load_skills([SKILLS]).skills.values())


@pytest.mark.parametrize("place", ["README.md", "docs", "packaging/man", "packaging/manual", "lightagentd"])
def test_each_example_finds_a_skill_or_says_that_it_needs_a_model(index: SkillIndex, place: str) -> None:
    found = ROOT / place
    files = (
        [found] if found.is_file() else [*found.rglob("*.py"), *found.rglob("*.md"), *found.rglob("*.[1-8]")]
    )
    lines = [line for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    asked = [(re.search(r"""lactl prompt (?:-\S+ )*ops ["']([^"'{}…]+)["']""", line), line) for line in lines]
    examples = [(match[1], line) for match, line in asked if match and "language model" not in line]
    assert examples or place == "packaging/man"
    assert not [line for prompt, line in examples if index.match(prompt) is None]


def test_nearly_every_prompt_finds_its_skill_and_its_arguments(
    index: SkillIndex, entries: list[dict[str, Any]]
) -> None:
    asked = [entry for entry in entries if entry["skill"] is not None]
    missed = []
    for entry in asked:
        found = index.match(entry["prompt"])
        got = (found.skill, found.args) if found else None
        if got != (entry["skill"], entry["args"]):
            missed.append(f"{entry['prompt']!r}: {got} instead of {entry['skill']} {entry['args']}")
    assert len(missed) <= (1 - LEAST_SHARE) * len(asked), "\n".join(missed)


def test_no_prompt_that_no_skill_answers_finds_one(index: SkillIndex, entries: list[dict[str, Any]]) -> None:
    others = [entry["prompt"] for entry in entries if entry["skill"] is None]
    found = {prompt: match.skill for prompt in others if (match := index.match(prompt)) is not None}
    assert len(others) >= 40
    assert not found, "\n".join(f"{prompt!r}: {skill} instead of none" for prompt, skill in found.items())
