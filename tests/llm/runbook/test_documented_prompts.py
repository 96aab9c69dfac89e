"""The prompts of the documentation find a skill."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lightagentd.llm.runbook.matching import SkillIndex
from lightagentd.skills import load_skills

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "packaging" / "examples" / "skills"
"""What an administrator may add."""


@pytest.fixture(scope="module")
def index() -> SkillIndex:
    return SkillIndex(load_skills([ROOT / "skills", EXAMPLES]).skills.values())


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
