"""One skill that could be loaded: what its files say, and how its script is run."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from lightagentd.errors import InvalidArgument
from lightagentd.skills.arguments import ArgSpec
from lightagentd.skills.examples import Example
from lightagentd.skills.front_matter import FrontMatter

SYSTEM_PYTHON = Path("/usr/bin/python3")
SHARED_FOLDER = "_lib"
"""Modules that the scripts of one search folder share; folders that begin with `_` or `.` are not skills."""
PROMPTS_SHOWN = 10


@dataclass(frozen=True, kw_only=True)
class Skill:
    """One skill that could be loaded."""

    name: str
    description: str
    body: str
    folder: Path
    origin: str
    """The folder of the search path that the skill came from."""
    front: FrontMatter
    warnings: tuple[str, ...] = ()
    """What is odd about its files, as sentences with file and line."""
    runbook: Path | None = None
    """The script."""
    effect: str = "observe"
    timeout_s: float = 30.0
    args: Mapping[str, ArgSpec] = field(default_factory=dict)
    examples: tuple[Example, ...] = ()

    @property
    def prompts(self) -> tuple[str, ...]:
        """Some examples to show: those without an argument first."""
        plain_first = sorted(self.examples, key=lambda example: bool(example.marks))
        return tuple(example.text for example in plain_first[:PROMPTS_SHOWN])

    def command(self, args: Mapping[str, str]) -> list[str]:
        """The argv that runs the script with these arguments; each value is inside its own `--name=value`, a
        flag is `--name`.

        Raises InvalidArgument for a name that the skill does not declare, a value that does not fit its
        kind, and a skill without a script.
        """
        if self.runbook is None:
            raise InvalidArgument(
                f"The skill {self.name} has no script to run.", suggestion="Read its text instead."
            )
        for name, value in args.items():
            self._declared(name).check(name, value)
        python = str(SYSTEM_PYTHON) if SYSTEM_PYTHON.exists() else sys.executable
        interpreter = ["/bin/sh"] if self.runbook.suffix == ".sh" else [python, "-I", "-B"]
        return [*interpreter, str(self.runbook), *(self._option(name, value) for name, value in args.items())]

    def _option(self, name: str, value: str) -> str:
        return f"--{name}" if self._declared(name).kind == "flag" else f"--{name}={value}"

    def effect_of(self, args: Mapping[str, str]) -> str:
        """`observe` or `reach`: the greater of the skill's effect and those of the arguments given."""
        effects = {self.effect, *(self._declared(name).effect for name in args)}
        return "reach" if "reach" in effects else "observe"

    def trusted(self) -> bool:
        """Whether only root, this process's user or the owner of the skills folder can have written it.

        Looks at the folder that holds the skill, at everything in the skill's folder and at the modules
        that scripts share: none may belong to somebody else or be writable by group or others.
        """
        share = self.folder.parent
        try:
            owners = {0, os.geteuid(), share.stat().st_uid}
            return all(_only_written_by(path, owners) for path in (share, *self._files()))
        except OSError:
            return False

    def _declared(self, name: str) -> ArgSpec:
        try:
            return self.args[name]
        except KeyError:
            known = ", ".join(sorted(self.args)) or "none"
            raise InvalidArgument(
                f"The skill {self.name} has no argument {name!r}.",
                field=name,
                suggestion=f"It takes: {known}.",
            ) from None

    def _files(self) -> Iterator[Path]:
        for top in (self.folder, self.folder.parent / SHARED_FOLDER):
            if top.exists():
                yield top
                yield from top.rglob("*")


def _only_written_by(path: Path, owners: set[int]) -> bool:
    info = path.stat()
    return info.st_uid in owners and not stat.S_IMODE(info.st_mode) & 0o022
