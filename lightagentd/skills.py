"""Loads skills: folders with a `SKILL.md` and, for a runbook, a script that answers it.

`SKILL.md` is YAML front matter between two lines `---`, then a Markdown body for language models. The keys of
the front matter; any other is refused by name:

    name: disk-check                # must equal the folder's name
    description: Says how full ...  # one sentence
    prompts: [check disk, ...]      # examples of what people ask
    runbook: scripts/disk_check.py  # optional: a skill without one is only text
    effect: observe                 # what the script does to the system: observe (default) or reach
    timeout_s: 30                   # how long the script may take
    args:                           # name -> kind, description, and the effect of a call that gives it
      path: {kind: path, description: "...", effect: observe}
    words:                          # weight -> words and phrases that point at this skill, for the matcher
      4: [disk, inodes]             # 4 decides alone, 2 and 1 need company, a negative weight points away

A value of kind `time` is what `--since` of the shipped scripts takes: `boot`, `today`, `yesterday`, either
followed by ` HH:MM`, a span back from now (`-30s`, `-15min`, `-2h`, `-7d`), or `YYYY-MM-DD`, optionally
followed by ` HH:MM`; times are local.

The catalog holds values only; nothing here stays open. The caller of `Skill.command` runs the script.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from lightagentd import frontmatter
from lightagentd.errors import ConfigError, InvalidArgument

Kind = Literal["unit", "path", "host", "pid", "port", "time"]
SYSTEM_PYTHON = Path("/usr/bin/python3")
SHARED_FOLDER = "_lib"
"""Modules that the scripts of one search folder share; folders that begin with `_` or `.` are not skills."""

_NAME = re.compile(r"[a-z][a-z0-9-]{0,63}")
_HOST = re.compile(
    r"(?:[A-Za-z0-9_][A-Za-z0-9_.-]{0,252}|\[[0-9A-Fa-f:.]{2,45}\])(?::(?P<port>\d{1,5}))?|"
    r"[0-9A-Fa-f:.]{2,45}"
)
_SHAPES: dict[str, tuple[re.Pattern[str], str]] = {
    "unit": (
        re.compile(r"(?:-\.(?:mount|slice)|[A-Za-z0-9_][A-Za-z0-9:_.\\@-]{0,254})"),
        "a unit such as nginx.service",
    ),
    "path": (re.compile(r"/[^\0\n\r]{0,4095}"), "an absolute path such as /var/log"),
    "host": (_HOST, "a host name or address, optionally with :port, such as example.org:443"),
    "pid": (re.compile(r"[1-9]\d{0,6}"), "a process id such as 4242"),
    "port": (re.compile(r"[1-9]\d{0,4}"), "a port from 1 to 65535"),
    "time": (
        re.compile(
            r"boot|(?:today|yesterday)(?: \d\d:\d\d)?|-[1-9]\d{0,5}(?:s|min|h|d)"
            r"|\d{4}-\d\d-\d\d(?: \d\d:\d\d)?"
        ),
        "boot, today, yesterday 14:00, -30min, -2h, -7d or 2025-01-31 14:00",
    ),
}


class ArgSpec(BaseModel):
    """One argument of a runbook, as the front matter declares it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Kind
    description: str = Field(min_length=1)
    effect: Literal["observe", "reach"] = "observe"
    """The effect that a call needs at least when this argument is given."""

    def check(self, name: str, value: str) -> None:
        """Raise InvalidArgument unless `value` is of this kind."""
        shape, wanted = _SHAPES[self.kind]
        found = shape.fullmatch(value)
        port = value if self.kind == "port" else (found.groupdict().get("port") if found else None)
        if found is None or (port is not None and not 0 < int(port) < 65536):
            raise InvalidArgument(
                f"{name}={value!r} is not a {self.kind}.", field=name, suggestion=f"Give {wanted}."
            )


class FrontMatter(BaseModel):
    """The YAML at the top of a SKILL.md."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    description: str = Field(min_length=1)
    prompts: list[str] = Field(default_factory=list)
    runbook: str | None = None
    effect: Literal["observe", "reach"] = "observe"
    timeout_s: float = Field(default=30.0, gt=0, le=600)
    args: dict[str, ArgSpec] = Field(default_factory=dict)
    words: dict[int, list[str]] = Field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Skill:
    """One skill that could be loaded."""

    name: str
    description: str
    prompts: tuple[str, ...]
    runbook: Path | None
    effect: str
    timeout_s: float
    args: Mapping[str, ArgSpec]
    body: str
    folder: Path
    origin: str
    """The folder of the search path that the skill came from."""
    words: Mapping[str, int] = field(default_factory=dict)
    """Word or phrase -> weight; see the module's docstring."""

    def command(self, args: Mapping[str, str]) -> list[str]:
        """The argv that runs the script with these arguments; each value is inside its own `--name=value`.

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
        return [*interpreter, str(self.runbook), *(f"--{name}={value}" for name, value in args.items())]

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


@dataclass(frozen=True, kw_only=True)
class SkillCatalog:
    """The skills of the search path: the usable ones by name, and why the others are unusable."""

    skills: dict[str, Skill] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)

    def only(self, names: Collection[str]) -> SkillCatalog:
        """Those with these names."""
        return SkillCatalog(
            skills={name: skill for name, skill in self.skills.items() if name in names},
            broken={name: why for name, why in self.broken.items() if name in names},
        )


def load_skills(folders: Sequence[Path]) -> SkillCatalog:
    """Load each skill of the search path; the first folder that has a name wins, broken or not.

    A folder that does not exist is passed over. A skill that cannot be loaded disables only itself.
    """
    catalog = SkillCatalog()
    for origin in folders:
        for folder in sorted(origin.iterdir()) if origin.is_dir() else []:
            name = folder.name
            if name.startswith(("_", ".")) or not folder.is_dir():
                continue
            if name in catalog.skills or name in catalog.broken:
                continue
            try:
                catalog.skills[name] = load_skill(folder, origin=str(origin))
            except ConfigError as err:
                catalog.broken[name] = err.message
    return catalog


def load_skill(folder: Path, *, origin: str = "") -> Skill:
    """Load one skill folder. Raises ConfigError whose message names the file and the line or the key."""
    front = frontmatter.read(folder / "SKILL.md")
    matter = front.parse(FrontMatter)
    if matter.name != folder.name or not _NAME.fullmatch(matter.name):
        raise ConfigError(
            f"{front.path}, line {front.lines['name']}: name is {matter.name!r}, but the folder is "
            f"{folder.name!r}; both must be the same, of a-z, 0-9 and -."
        )
    return Skill(
        name=matter.name,
        description=matter.description,
        prompts=tuple(matter.prompts),
        runbook=_script(front, folder, matter.runbook),
        effect=matter.effect,
        timeout_s=matter.timeout_s,
        args=matter.args,
        words={word: weight for weight in sorted(matter.words, key=abs) for word in matter.words[weight]},
        body=front.body,
        folder=folder,
        origin=origin or str(folder.parent),
    )


def _script(front: frontmatter.FrontMatterFile, folder: Path, runbook: str | None) -> Path | None:
    if runbook is None:
        return None
    script = folder / runbook
    where = f"{front.path}, line {front.lines['runbook']}"
    if not script.resolve().is_relative_to(folder.resolve()):
        raise ConfigError(f"{where}: the runbook {runbook} is outside of the skill's folder.")
    if not script.is_file():
        raise ConfigError(f"{where}: the runbook {runbook} does not exist in {folder}.")
    return script


def _only_written_by(path: Path, owners: set[int]) -> bool:
    info = path.stat()
    return info.st_uid in owners and not stat.S_IMODE(info.st_mode) & 0o022
