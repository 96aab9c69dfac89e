"""`lactl config`: the configuration files, read here without a daemon.

It also reads the variables about models: for root from the file `environment` beside the configuration, which
the daemon's unit reads, if it exists; else from the environment of lactl and, for a user's own daemon, from
`.env`, as a daemon started here would.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lightagentd.cli.named_file import check_readable
from lightagentd.cli.options import Group, Settings, files
from lightagentd.cli.output import dump, fields, print_json, table, warn

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
def check(settings: Settings, folder: str | None) -> None:
    """Check the configuration files, agents' definitions, and prompts on a calendar (prompts/*.toml).

    The exit status is 78 when the daemon, or lightagent-prompt@.service, would refuse one of them. What the
    daemon starts with all the same, and says in its status, is shown and is no failure.
    """
    place, found = _load(folder)
    from lightagentd.config.configuration import files
    from lightagentd.llm.in_force import unserved
    from lightagentd.unattended.prompt_file import check as check_prompt
    from lightagentd.unattended.prompt_file import prompt_files

    prompts = prompt_files(place)
    for path in prompts:
        check_prompt(path)
    models = [(model, f"{why} {why.suggestion}") for model, why in unserved(found.config.models).items()]
    agents = _problems_of_agents(place)
    read = [str(path) for path in [*files(place), *prompts]]
    if settings.json:
        problems = [*found.problems, *(problem for _, problem in models), *agents]
        print_json({"ok": True, "folder": str(place), "files": read, "problems": problems})
    else:
        fields(
            [
                ("folder", place),
                ("files", read or "none: the defaults apply"),
                *(("environment", problem) for problem in found.problems),
                *((model, problem) for model, problem in models),
                *(("agents", problem) for problem in agents),
                ("result", "ok"),
            ]
        )


@command.command("show")
@_FOLDER
@click.pass_obj
def show(settings: Settings, folder: str | None) -> None:
    """Show each setting, its value, and the file or the variable that it comes from.

    Variables are those of this shell and, for a user's own daemon, of the file .env in this folder; for root
    those of the file "environment" beside the configuration, if there is one. Keys are never shown.
    """
    _, found = _load(folder)
    values = _flat(found.config.model_dump(mode="json"))
    rows = [(key, value, str(found.origins.get(key, "default"))) for key, value in values]
    if settings.json:
        print_json({key: {"value": value, "origin": origin} for key, value, origin in rows})
    else:
        shown = ((key, dump(value), origin) for key, value, origin in rows)
        table(("KEY", "VALUE", "ORIGIN"), shown, spare=("ORIGIN",))
        for problem in found.problems:
            warn(problem)


def _load(folder: str | None) -> tuple[Path, InForce]:
    """The folder, and the configuration with where each key was set. Raises ConfigError, `unreadable`."""
    from lightagentd.config.configuration import load
    from lightagentd.host.paths import ENVIRONMENT_FILE, default_paths
    from lightagentd.llm.environment import own_environment, read_environment
    from lightagentd.llm.in_force import in_force

    if folder:
        check_readable(folder, "folder")
    place = Path(folder) if folder else default_paths().config
    unit_file = place / ENVIRONMENT_FILE
    if os.geteuid() == 0 and unit_file.exists():
        environment = read_environment({}, unit_file)
    else:
        environment = own_environment()
    return place, in_force(*load(place), environment)


def _problems_of_agents(place: Path) -> list[str]:
    """What is wrong with the definitions, as far as files tell: only workers know a tool's actions."""
    from lightagentd.agents.definition import BUILT_IN, load_definitions
    from lightagentd.host.paths import content_folders, default_paths
    from lightagentd.skills import load_skills

    paths = replace(default_paths(), config=place)
    tools = [file.stem for folder in content_folders("tools", paths) for file in folder.glob("*.py")]
    catalog = load_skills(content_folders("skills", paths))
    found = load_definitions(content_folders("agent", paths))
    problems = [f"The agent {name} is disabled: {why}" for name, why in found.broken.items()]
    for definition in found.agents.values():
        problems += definition.problems(
            dict.fromkeys((*tools, *BUILT_IN), ()), {*catalog.skills, *catalog.broken}
        )
    return problems


def _flat(section: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in section.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
