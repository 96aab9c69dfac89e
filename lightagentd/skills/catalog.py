"""Loads skills from the folders of the search path.

The catalog holds values only; nothing here stays open. The caller of `Skill.command` runs the script.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from lightagentd import frontmatter
from lightagentd.errors import ConfigError
from lightagentd.host.paths import share_folder
from lightagentd.skills.examples import EXAMPLES_FILE, read_examples
from lightagentd.skills.front_matter import NAME, FrontMatter, warnings_of
from lightagentd.skills.runbook import Runbook, read_runbook
from lightagentd.skills.skill import Skill


@dataclass(frozen=True, kw_only=True)
class SkillCatalog:
    """The skills of the search path: the usable ones by name, and why the others are unusable."""

    skills: dict[str, Skill] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)

    def with_own(self, own: SkillCatalog) -> SkillCatalog:
        """These and an agent's own, which win."""
        named = {*own.skills, *own.broken}
        return SkillCatalog(
            skills={name: one for name, one in self.skills.items() if name not in named} | own.skills,
            broken={name: why for name, why in self.broken.items() if name not in named} | own.broken,
        )

    def only(self, names: Collection[str]) -> SkillCatalog:
        """Those with these names."""
        return SkillCatalog(
            skills={name: skill for name, skill in self.skills.items() if name in names},
            broken={name: why for name, why in self.broken.items() if name in names},
        )


def load_skills(folders: Sequence[Path], *, only: str = "") -> SkillCatalog:
    """Load each skill of the search path, or the one that `only` names; the first folder that has a name
    wins, broken or not.

    A folder that does not exist is passed over. A skill that cannot be loaded disables only itself.
    """
    catalog = SkillCatalog()
    for origin in folders:
        for folder in sorted(origin.iterdir()) if origin.is_dir() else []:
            name = folder.name
            if name.startswith(("_", ".")) or not folder.is_dir() or (only and name != only):
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
    front = frontmatter.read(folder / "SKILL.md", quote=True)
    matter = front.parse(FrontMatter)
    if matter.name != folder.name or not NAME.fullmatch(matter.name):
        raise ConfigError(
            f"{front.path}, line {front.lines['name']}: name is {matter.name!r}, but the folder is "
            f"{folder.name!r}; both must be the same, of a-z, 0-9, - and _, at most 64."
        )
    plain = Skill(
        name=matter.name,
        description=" ".join("".join(c if c.isprintable() else " " for c in matter.description).split()),
        body=front.body,
        folder=folder,
        origin=origin or str(folder.parent),
        front=matter,
        warnings=tuple(warnings_of(front, matter)),
    )
    skill = _with_runbook(plain, read_runbook(front))
    if folder.parent != share_folder() / "skills":  # thousands of lines, which were read when it was built
        _ = skill.examples
    return skill


def _with_runbook(plain: Skill, found: tuple[Runbook, Path] | None) -> Skill:
    args = found[0].args if found is not None else {}
    skill = replace(plain, read_examples=partial(read_examples, plain.folder / EXAMPLES_FILE, args))
    if found is None:
        return skill
    runbook, script = found
    return replace(
        skill,
        runbook=script,
        effect=runbook.effect,
        timeout_s=runbook.timeout_s,
        sees=runbook.sees,
        compares=runbook.compares,
        args=runbook.args,
    )
