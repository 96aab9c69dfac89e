"""What `lactl skills check` says of a skill beyond whether it can be loaded."""

from __future__ import annotations

import ast
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from lightagentd.errors import ConfigError, InvalidArgument
from lightagentd.skills.catalog import load_skill
from lightagentd.skills.examples import EXAMPLES_FILE, Example
from lightagentd.skills.interpreters import interpreter, is_script
from lightagentd.skills.skill import Skill
from lightagentd.text.reason import reason

_PARSED_BYTES = 1 << 20
_NAMED = 3
"""How many examples that another skill has are named."""


@dataclass(frozen=True, kw_only=True)
class Checked:
    """What was found. Its sentences begin with the file, and the line if known."""

    name: str
    folder: Path
    problem: str = ""
    """Why the skill cannot be used."""
    warnings: list[str] = field(default_factory=list)
    runbook: bool = False
    scripts: int = 0
    examples: int = 0


def check(folder: Path, others: Iterable[Skill] = ()) -> Checked:
    """Look at one skill folder. `others` are those that its examples are compared with."""
    try:
        skill = load_skill(folder)
    except ConfigError as err:
        return Checked(name=folder.name, folder=folder, problem=err.message)
    scripts = [path for name in skill.files() if is_script(path := folder / name) or path == skill.runbook]
    warnings = [*skill.warnings, *(found for path in scripts for found in _of_script(path))]
    warnings += _taken(skill, others)
    if skill.runbook and not skill.examples:
        warnings.append(f"{folder / EXAMPLES_FILE}: without examples the model runbook does not find it.")
    if loose := skill.loose():
        warnings.append(_of_loose(loose, folder))
    return Checked(
        name=skill.name,
        folder=folder,
        warnings=warnings,
        runbook=skill.runbook is not None,
        scripts=len(scripts),
        examples=len(skill.examples),
    )


def _of_script(path: Path) -> Iterator[str]:
    try:
        runs = interpreter(path)
        if runs and path.suffix == ".py" and path.stat().st_size < _PARSED_BYTES:
            ast.parse(path.read_bytes(), filename=str(path))
    except InvalidArgument as err:
        yield f"{path}: {err.message}"
    except SyntaxError as err:
        yield f"{path}, line {err.lineno}: {err.msg}."
    except (OSError, ValueError, RecursionError, MemoryError) as err:
        yield f"{path} cannot be read: {reason(err)}."


def _of_loose(loose: Path, folder: Path) -> str:
    top = shlex.quote(str(folder if loose.is_relative_to(folder) else loose))
    return (
        f"{loose}: others can write it, so the skill sees no processes of others, and runs no other scripts. "
        f"Mend it: chown -R --no-dereference --reference={shlex.quote(str(folder.parent))} {top}; "
        f"chmod -R go-w {top}"
    )


def _taken(skill: Skill, others: Iterable[Skill]) -> Iterator[str]:
    """For each other skill with examples of this one, the first of them."""
    own = {_pattern(example): example.text for example in skill.examples}
    for other in others:
        theirs = set(map(_pattern, other.examples))
        both = [text for pattern, text in own.items() if pattern in theirs]
        if both and other.name != skill.name:
            named = ", ".join(map(repr, both[:_NAMED]))
            more = f" and {len(both) - _NAMED} more" if len(both) > _NAMED else ""
            yield f"{skill.folder / EXAMPLES_FILE}: the skill {other.name} has {named}{more}, too."


def _pattern(example: Example) -> str:
    """The example with names in place of what is marked: two that differ in nothing else are one."""
    text = example.text
    for mark in reversed(example.marks):
        text = f"{text[: mark.start]}{{{mark.name}}}{text[mark.end :]}"
    return " ".join(text.casefold().split())
