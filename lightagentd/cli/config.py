"""`lactl config`: the configuration files, read here without a daemon.

It also reads the variables about models: for root from the file `environment` beside the configuration, which
the daemon's unit reads, if it exists; else from the environment of lactl and, for a user's own daemon, from
`.env`, as a daemon started here would.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lightagentd.cli.named_file import check_readable
from lightagentd.cli.options import Group, Settings, files
from lightagentd.cli.output import dump, fields, print_json, table, warn
from lightagentd.errors import ConfigError

if TYPE_CHECKING:
    from lightagentd.llm.in_force import InForce
_FOLDER = click.option(
    "--folder",
    metavar="PATH",
    shell_complete=files,
    help="The folder with lightagentd.toml, instead of the usual one.",
)


@click.group("config", cls=Group)
def command() -> None:
    """Check and show the configuration."""


@command.command("check")
@_FOLDER
@click.pass_obj
def check(settings: Settings, folder: str | None) -> int:
    """Check the configuration files, the rules (policy.d/*.toml), agents' definitions and the prompts on a
    calendar (prompts/*.toml), and report all that is wrong with them.

    The exit status is 78 when the daemon, or lightagent-prompt@.service, would refuse one of them. What the
    daemon starts with all the same, and says in its status, is shown and is no failure.
    """
    from lightagentd.llm.in_force import unserved

    place = _place(folder)
    read, faults = _checked(place)
    problems: list[tuple[str, str]] = []
    if not faults:
        found = _load(place)
        problems = [("environment", problem) for problem in found.problems]
        problems += [(name, f"{why} {why.suggestion}") for name, why in unserved(found.config.models).items()]
    problems += [("agents", problem) for problem in _problems_of_agents(place)]
    if settings.json:
        wrong = [fault.to_dict() for fault in faults]
        said = [text for _, text in problems]
        print_json({"ok": not faults, "folder": str(place), "files": read, "problems": said, "errors": wrong})
    else:
        result = "ok" if not faults else f"{len(faults)} {'error' if len(faults) == 1 else 'errors'}"
        files = read or "none: the defaults apply"
        fields([("folder", place), ("files", files), *problems, ("result", result)])
        for fault in faults:
            warn(fault.message, fault.suggestion)
    return faults[0].exit_status if faults else 0


def _checked(place: Path) -> tuple[list[str], list[ConfigError]]:
    """The files of a folder that are read, and all that is wrong with them."""
    from lightagentd.config import configuration, triggers, unattended
    from lightagentd.policy import rulefiles

    faults = configuration.faults(place)
    rules = rulefiles.rule_files(place / rulefiles.POLICY_FOLDER)
    asked: list[tuple[Path, Callable[[Path], object]]]
    asked = [(path, unattended.check) for path in unattended.prompt_files(place)]
    asked += [(path, triggers.check_trigger) for path in triggers.trigger_files(place)]
    good: list[Path] = []
    for path in rules:
        with _collected(faults):
            rulefiles.load_texts(rulefiles.read_files([path]))
            good.append(path)
    with _collected(faults):  # two files may have a rule of one name
        rulefiles.load_texts(rulefiles.read_files(good))
    for path, check in asked:
        with _collected(faults):
            check(path)
    named = [path for path, _ in asked]
    return [str(path) for path in (*configuration.files(place), *rules, *named)], faults


@contextlib.contextmanager
def _collected(faults: list[ConfigError]) -> Iterator[None]:
    try:
        yield
    except ConfigError as err:
        faults.append(err)


@command.command("show")
@_FOLDER
@click.pass_obj
def show(settings: Settings, folder: str | None) -> None:
    """Show each setting, its value, and the file or the variable that it comes from.

    Variables are those of this shell and, for a user's own daemon, of the file .env in this folder; for root
    those of the file "environment" beside the configuration, if there is one. Keys are never shown.
    """
    found = _load(_place(folder))
    values = _flat(found.config.model_dump(mode="json"))
    rows = [(key, value, str(found.origins.get(key, "default"))) for key, value in values]
    if settings.json:
        print_json({key: {"value": value, "origin": origin} for key, value, origin in rows})
    else:
        shown = ((key, dump(value), origin) for key, value, origin in rows)
        table(("KEY", "VALUE", "ORIGIN"), shown, spare=("ORIGIN",))
        for problem in found.problems:
            warn(problem)


def _place(folder: str | None) -> Path:
    """Raises what `check_readable` does for a folder that was named."""
    from lightagentd.host.paths import default_paths

    if folder:
        check_readable(folder, "folder")
    return Path(folder) if folder else default_paths().config


def _load(place: Path) -> InForce:
    """The configuration with where each key was set. Raises ConfigError."""
    from lightagentd.config.configuration import load
    from lightagentd.host.paths import ENVIRONMENT_FILE
    from lightagentd.llm.environment import own_environment, read_environment
    from lightagentd.llm.in_force import in_force

    unit_file = place / ENVIRONMENT_FILE
    if os.geteuid() == 0 and unit_file.exists():
        environment = read_environment({}, unit_file)
    else:
        environment = own_environment()
    return in_force(*load(place), environment)


def _problems_of_agents(place: Path) -> list[str]:
    """What is wrong with the definitions, as far as files tell: only workers know a tool's actions."""
    from lightagentd.agents.definition import BUILT_IN, load_definitions
    from lightagentd.agents.kits.folder import SKILLS, tool_files
    from lightagentd.host.paths import content_folders, default_paths
    from lightagentd.skills import load_skills

    paths = replace(default_paths(), config=place)
    files = [(content_folders("tools", paths), "*.py"), (content_folders("mcp.d", paths), "*.toml")]
    tools = [file.stem for folders, kind in files for folder in folders for file in folder.glob(kind)]
    catalog = load_skills(content_folders("skills", paths))
    found = load_definitions(content_folders("agent", paths))
    problems = [f"The agent {name} is disabled: {why}" for name, why in found.broken.items()]
    for definition in found.agents.values():
        own = [path.stem for path in tool_files(definition.folder)]
        skills = catalog.with_own(load_skills([definition.folder / SKILLS]))
        problems += definition.problems(
            dict.fromkeys((*tools, *own, *BUILT_IN), ()),
            {*skills.skills, *skills.broken},
            {*found.askable(definition), *found.broken},
        )
    return problems


def _flat(section: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in section.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
