"""One skill that could be loaded: what its files say, and how its script is run."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from lightagentd.errors import InvalidArgument
from lightagentd.skills.arguments import ArgSpec
from lightagentd.skills.examples import Example
from lightagentd.skills.front_matter import FrontMatter
from lightagentd.skills.interpreters import interpreter

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
    sees: str = ""
    """What the script wants to see beyond file modes (`Runbook.sees`)."""
    compares: bool = False
    """Whether it gets a snapshot of the machine's state (`Runbook.compares`)."""
    args: Mapping[str, ArgSpec] = field(default_factory=dict)
    read_examples: Callable[[], tuple[Example, ...]] = field(default=tuple, repr=False, compare=False)
    """Gives `examples`; raises ConfigError."""

    @cached_property
    def examples(self) -> tuple[Example, ...]:
        """The prompts of its `examples.txt`."""
        return self.read_examples()

    @property
    def for_models(self) -> bool:
        """Whether models may use it unasked, as far as its author says."""
        return self.front.extra.get("disable-model-invocation") is not True

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
                f"The skill {self.name} has no runbook.",
                suggestion="Read its text, and name a file of it as script.",
            )
        for name, value in args.items():
            self._declared(name).check(name, value)
        runs = interpreter(self.runbook, python=("-I", "-B"))
        return [*runs, str(self.runbook), *(self._option(name, value) for name, value in args.items())]

    def _option(self, name: str, value: str) -> str:
        return f"--{name}" if self._declared(name).kind == "flag" else f"--{name}={value}"

    def script_command(self, script: str, arguments: Sequence[str]) -> list[str]:
        """The argv that runs a script of the folder, such as `scripts/x.py`, with these arguments.

        Raises InvalidArgument for a path that is no file of the skill, files that others can write, and
        a script that nothing here runs.
        """
        path = self.file(script, field="script")
        if not self.trusted():
            raise InvalidArgument(
                f"Others can write {self.loose()}, so the scripts of the skill {self.name} do not run.",
                field="script",
                suggestion=f"'lactl skills check {self.name}' says how to mend that.",
            )
        return [*interpreter(path), str(path), *arguments]

    def file(self, name: str, *, field: str) -> Path:
        """A file of the folder by its relative path. Raises InvalidArgument about `field`."""
        path = self.folder / name
        try:
            inside = path.resolve().is_relative_to(self.folder.resolve())
            found = inside and path.is_file() and os.access(path, os.R_OK)
        except (OSError, ValueError):  # a name that is too long, or has a NUL
            found = False
        if not found:
            raise InvalidArgument(
                f"The skill {self.name} has no file {name[:200]!r}.",
                field=field,
                suggestion="Load the skill to see its files.",
            )
        return path

    def files(self) -> list[str]:
        """The paths of its files below its folder."""
        return sorted(
            str(path.relative_to(self.folder))
            for path in self.folder.rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        )

    def effect_of(self, args: Mapping[str, str]) -> str:
        """`observe` or `reach`: the greater of the skill's effect and those of the arguments given."""
        effects = {self.effect, *(self._declared(name).effect for name in args)}
        return "reach" if "reach" in effects else "observe"

    def trusted(self) -> bool:
        """Whether only root, this process's user or the owner of the skills folder can have written it."""
        return self.loose() is None

    def loose(self) -> Path | None:
        """A file or folder of it that others can write.

        Looks at the folder that holds the skill, at everything in the skill's folder and at the modules
        that scripts share: none may belong to somebody else or be writable by group or others.
        """
        share = self.folder.parent
        path = share
        try:
            owners = {0, os.geteuid(), share.stat().st_uid}
            for path in (share, *self._written()):
                if not _only_written_by(path, owners):
                    return path
        except OSError:
            return path
        return None

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

    def _written(self) -> Iterator[Path]:
        for top in (self.folder, self.folder.parent / SHARED_FOLDER):
            if top.exists():
                yield top
                yield from top.rglob("*")


def _only_written_by(path: Path, owners: set[int]) -> bool:
    info = path.stat()
    return info.st_uid in owners and not stat.S_IMODE(info.st_mode) & 0o022
