"""The matcher of the runbook model against the shipped test data `tests/data/prompts.yaml`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from lightagentd.llm.runbook.matching import SkillIndex
from lightagentd.skills import load_skills

SKILLS = Path(__file__).parents[3] / "skills"
PROMPTS = Path(__file__).parents[2] / "data" / "prompts.yaml"
LEAST_SHARE = 0.95


@pytest.fixture(scope="module")
def entries() -> list[dict[str, Any]]:
    loaded: list[dict[str, Any]] = yaml.safe_load(PROMPTS.read_text(encoding="utf-8"))
    return loaded


@pytest.fixture(scope="module")
def index() -> SkillIndex:
    return SkillIndex(load_skills([SKILLS]).skills.values())


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
