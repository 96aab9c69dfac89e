"""`lactl skills`: what the embedded model can run, and language models can read.

`add`, `check`, `new` and `remove` work on files with the rights of the user who runs lactl, and need no
daemon; one that runs is told to read its files again.
"""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lightagentd.cli.content import own_folder, reload_daemon
from lightagentd.cli.named_file import check_readable, read_file
from lightagentd.cli.options import Group, Named, Settings, files, of_agent, words_of
from lightagentd.cli.output import Columns, as_json, fields, listing, say, told, warn
from lightagentd.errors import (
    ConfigError,
    InvalidArgument,
    SkillNotFound,
)

if TYPE_CHECKING:
    from lightagentd.skills import Skill


@click.group("skills", cls=Group)
def command() -> None:
    """List, read, check, add and make skills."""


@command.command("list")
@of_agent
@click.pass_obj
def list_skills(settings: Settings, agent: str) -> None:
    """List all skills.

    The columns: name, whether it is a runbook, effect, origin, and the description or what is wrong.
    """
    columns: Columns = {
        "NAME": "name",
        "RUNBOOK": "runbook",
        "EFFECT": "effect",
        "ORIGIN": "origin",
        "DESCRIPTION": lambda skill: skill["problem"] or skill["description"],
    }
    listing(
        settings,
        settings.call("Agents.Skills", name=agent) if agent else settings.call("Skills.List"),
        columns,
        spare=("ORIGIN", "RUNBOOK", "EFFECT"),
        empty="There are no skills.",
    )


@command.command("show")
@click.argument("name", cls=Named, lists={"Skills.List": "name"}, nouns="skills")
@click.pass_obj
def show(settings: Settings, name: str) -> None:
    """Show one skill with its body."""
    skill = settings.call("Skills.Get", name=name)
    if as_json(settings, skill):
        return
    fields((key, value) for key, value in skill.items() if key != "body" and (value or key != "problem"))
    if skill["body"]:
        say()
        say(skill["body"].rstrip("\n"))


@command.command("add")
@click.argument("source", metavar="DIR|ARCHIVE", type=click.Path(path_type=Path), shell_complete=files)
@click.option("--force", is_flag=True, help="Replace a skill of that name.")
@click.pass_obj
def add(settings: Settings, source: Path, force: bool) -> None:
    """Install a skill: a folder with a SKILL.md, or a tar, tar.gz or zip archive of one.

    It is checked first. The daemon's folder for skills is root's, so that takes sudo. Read what a skill from
    elsewhere says and runs before: agents will follow it.
    """
    check_readable(source, "folder" if source.is_dir() else "file")
    _install(settings, source, force=force)


@command.command("check")
@click.argument("what", metavar="[DIR|NAME]", required=False, shell_complete=files)
@click.pass_obj
def check(settings: Settings, what: str | None) -> None:
    """Check a skill by its folder or its name, or all that the daemon finds.

    The columns: name, result, whether it is a runbook, how many scripts, how many examples. What is wrong or
    odd is on standard error, with file and line. The exit status is 78 when a skill cannot be used. The
    daemon need not run.
    """
    from lightagentd.host.paths import content_folders, default_paths, share_folder
    from lightagentd.skills import load_skills
    from lightagentd.skills.checking import check as look

    catalog = load_skills(content_folders("skills", default_paths())).skills.values()
    shipped = share_folder() / "skills"
    own = [skill for skill in catalog if skill.folder.parent != shipped]
    found = [look(each, own if each.parent == shipped else catalog) for each in _folders(what)]
    columns: Columns = {
        "NAME": "name",
        "RESULT": lambda one: "broken" if one["problem"] else "warnings" if one["warnings"] else "ok",
        "RUNBOOK": "runbook",
        "SCRIPTS": "scripts",
        "EXAMPLES": "examples",
    }
    listing(settings, [{**asdict(one), "folder": str(one.folder)} for one in found], columns)
    for sentence in (
        each for one in found for each in (one.problem, *one.warnings) if each and not settings.json
    ):
        warn(sentence)
    if broken := [one.name for one in found if one.problem]:
        raise ConfigError(
            f"Not to be used: {', '.join(broken)}.", suggestion="Mend the files that are named."
        )


@command.command("new")
@click.argument("name")
@click.option("--shell", is_flag=True, help="With a script in shell; in Python unless given.")
@click.option(
    "--from",
    "source",
    metavar="FILE",
    type=click.Path(path_type=Path),
    shell_complete=files,
    help="Made from a Markdown page with fenced commands, or from a shell script.",
)
@click.option("--force", is_flag=True, help="Replace a skill of that name.")
@click.pass_obj
def new(settings: Settings, name: str, shell: bool, source: Path | None, force: bool) -> None:
    """Make a skill: a template to change, or from a written procedure.

    From a procedure, the commands that only look become the steps of the skill's runbook. What may change
    something stays text, and the report names it as not run.

    \b
      sudo lactl skills new raid-check --shell
      sudo lactl skills new mail-queue --from runbook.md
    """
    from lightagentd.cli.skill_files import from_procedure, template
    from lightagentd.skills.front_matter import NAME

    if not NAME.fullmatch(name):
        raise InvalidArgument(
            f"{name[:60]!r} is not a name for a skill.", suggestion="Use a-z, 0-9, - and _.", field="name"
        )
    if source is None:
        made = template(name, shell=shell)
    else:
        made = from_procedure(name, source.name, read_file(str(source)).decode(errors="replace"))
    with tempfile.TemporaryDirectory() as draft:
        for path, text in made.items():
            target = Path(draft, path)
            target.parent.mkdir(exist_ok=True)
            target.write_text(text)
            target.chmod(0o755 if path.startswith("scripts/") else 0o644)
        _install(settings, Path(draft), force=force, shown=name)
    if source is not None and "runbook.yaml" not in made:
        warn(f"No command of {source} is known to only look, so the skill {name} is text alone.")


@command.command("remove")
@click.argument("name", shell_complete=words_of(lambda: _own()))
@click.pass_obj
def remove_skill(settings: Settings, name: str) -> None:
    """Remove a skill from the daemon's folder; one of that name that is shipped counts again."""
    from lightagentd.skills.install import remove

    folder = own_folder("skills")
    remove(name, folder)
    reload_daemon(settings, "skills")
    told(settings, {"removed": name}, f"The skill {name} is removed from {folder}.")


def _install(settings: Settings, source: Path, *, force: bool, shown: str = "") -> None:
    from lightagentd.host.paths import content_folders, default_paths
    from lightagentd.skills.checking import check as look
    from lightagentd.skills.install import install

    skill = install(source, own_folder("skills"), replace=force, shown=shown)
    folders = content_folders("skills", default_paths())
    covered = [each / skill.name for each in folders if (each / skill.name).is_dir()][1:]
    warnings = look(skill.folder).warnings
    warnings += [f"It is used in place of the shipped skill {each}." for each in covered]
    read = reload_daemon(settings, "skills") and _is_read(settings, skill)
    for sentence in warnings:
        warn(sentence)
    found = {"name": skill.name, "folder": str(skill.folder), "warnings": warnings, "in_force": read}
    then = _next(skill) if read else " A daemon reads it when it starts."
    told(settings, found, f"The skill {skill.name} is in {skill.folder}.{then}", skill.name, skill.folder)


def _is_read(settings: Settings, skill: Skill) -> bool:
    """Whether the daemon that answers has its skills where this one was put."""
    try:
        if settings.call("Skills.Get", name=skill.name)["origin"] == str(skill.folder):
            return True
    except SkillNotFound:
        pass
    where = f"The daemon that answers does not read {skill.folder.parent}."
    warn(where, "Give the folder of its configuration in LIGHTAGENT_CONFIG_DIR.")
    return False


def _next(skill: Skill) -> str:
    return f" Try: lactl prompt ops {skill.prompts[0]!r}" if skill.runbook and skill.prompts else ""


def _own() -> list[str]:
    """The names of the skills that can be removed."""
    from lightagentd.host.paths import default_paths

    folder = default_paths().config / "skills"
    return [each.name for each in folder.iterdir()] if folder.is_dir() else []


def _folders(what: str | None) -> list[Path]:
    """The folders of the skills to check. Raises SkillNotFound."""
    from lightagentd.host.paths import content_folders, default_paths

    if what is not None and (Path(what) / "SKILL.md").exists():
        return [Path(what).resolve()]
    named = what is not None and not Path(what).is_dir()
    places = content_folders("skills", default_paths()) if named or what is None else [Path(what)]
    found: dict[str, Path] = {}
    for folder in (each for place in places if place.is_dir() for each in sorted(place.iterdir())):
        if folder.is_dir() and not folder.name.startswith(("_", ".")):
            found.setdefault(folder.name, folder)
    if named:
        found = {name: folder for name, folder in found.items() if name == what}
    if not found and what is not None:
        raise SkillNotFound(f"There is no skill {what[:60]!r}.", suggestion="Run: lactl skills list")
    return list(found.values())
