"""Reads the examples that the matcher learns from: `skills/*/examples.txt` and `skills/none.txt`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

NONE = "none"
"""The class of what no skill answers."""
_MARK = re.compile(r"\{(?P<name>[a-z]+):(?P<words>[^{}=]*(?:=(?=[^{}]*=)[^{}=]*)*)(?:=(?P<value>[^{}]*))?\}")


@dataclass(frozen=True, kw_only=True)
class Mark:
    name: str
    start: int
    end: int
    value: str
    """As the script gets it."""


@dataclass(frozen=True, kw_only=True)
class Example:
    skill: str
    text: str
    marks: tuple[Mark, ...] = ()


def read_examples(folder: Path) -> list[Example]:
    """All examples below the folder of skills, sorted by file; of equal ones the first."""
    found: dict[str, Example] = {}
    for path in files_of(folder):
        skill = NONE if path.name == "none.txt" else path.parent.name
        for example in parsed(skill, path.read_text(encoding="utf-8")):
            found.setdefault(" ".join(example.text.casefold().split()), example)
    return list(found.values())


def files_of(folder: Path) -> list[Path]:
    return sorted([*folder.glob("*/examples.txt"), folder / "none.txt"])


def parsed(skill: str, text: str) -> Iterator[Example]:
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        if skill == NONE:
            yield Example(skill=skill, text=line.strip())
            continue
        plain, marks, at = "", [], 0
        for match in _MARK.finditer(line):
            plain += line[at : match.start()]
            words = match["words"]
            marks.append(
                Mark(
                    name=match["name"],
                    start=len(plain),
                    end=len(plain) + len(words),
                    value=match["value"] or words,
                )
            )
            plain += words
            at = match.end()
        yield Example(skill=skill, text=plain + line[at:], marks=tuple(marks))
