"""`lactl config`: the configuration files, read here and not by the daemon, so that it need not run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lightagentd.cli.options import Group, Settings
from lightagentd.cli.output import dump, fields, print_json, table

if TYPE_CHECKING:
    from lightagentd.config import Config

_FOLDER = click.option(
    "--folder", metavar="PATH", help="The folder with lightagentd.toml, instead of the usual one."
)


@click.group("config", cls=Group)
def command() -> None:
    """Check and show the configuration."""


@command.command("check")
@_FOLDER
@click.pass_obj
def check(settings: Settings, folder: str | None) -> None:
    """Check the configuration files, and those of prompts on a calendar (prompts/*.toml).

    The exit status is 78 when the daemon, or lightagent-prompt@.service, would refuse one of them.
    """
    place, _, _ = _load(folder)
    from lightagentd.config import files
    from lightagentd.unattended.prompt_file import check as check_prompt
    from lightagentd.unattended.prompt_file import prompt_files

    prompts = prompt_files(place)
    for path in prompts:
        check_prompt(path)
    found = [str(path) for path in [*files(place), *prompts]]
    if settings.json:
        print_json({"ok": True, "folder": str(place), "files": found})
    else:
        fields([("folder", place), ("files", found or "none: the defaults apply"), ("result", "ok")])


@command.command("show")
@_FOLDER
@click.pass_obj
def show(settings: Settings, folder: str | None) -> None:
    """Show each setting, its value, and the file that it comes from."""
    _, config, origins = _load(folder)
    rows = [
        (key, value, str(origins.get(key, "default"))) for key, value in _flat(config.model_dump(mode="json"))
    ]
    if settings.json:
        print_json({key: {"value": value, "origin": origin} for key, value, origin in rows})
    else:
        table(("KEY", "VALUE", "ORIGIN"), ((key, dump(value), origin) for key, value, origin in rows))


def _load(folder: str | None) -> tuple[Path, Config, dict[str, Path]]:
    """The folder, the configuration, and where each key was set. Raises ConfigError."""
    from lightagentd.config import load
    from lightagentd.paths import default_paths

    place = Path(folder) if folder else default_paths().config
    config, origins = load(place)
    return place, config, origins


def _flat(section: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in section.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
