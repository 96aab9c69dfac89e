"""`lactl kits`: agents with skills, tools, agents, flows, evals, hooks and references of their own.

`check` works on files with the rights of the user who runs lactl, and needs no daemon.
"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lightagentd.cli.asynchronous import run as run_async
from lightagentd.cli.named_file import check_readable
from lightagentd.cli.options import Group, Named, Settings, files, names_of
from lightagentd.cli.output import Columns, as_json, fields, listing, told, warn
from lightagentd.errors import ConfigError, NotFound

if TYPE_CHECKING:
    from lightagentd.agents.kits.checking import Checked
    from lightagentd.cli.kit_files import Source

_HOLDS = ("skills", "tools", "agents", "flows", "evals", "hooks", "references")
kit_names = names_of("Kits.List", "name")


@click.group("kits", cls=Group)
def command() -> None:
    """List, check, add and remove agents with skills, tools and agents of their own."""


@command.command("list")
@click.pass_obj
def list_kits(settings: Settings) -> None:
    """List all kits.

    The columns: name, how many skills, tools, agents and flows it holds, its folder, and the description or
    what is wrong.
    """
    columns: Columns = {
        "NAME": "name",
        **{part.upper(): _count(part) for part in ("skills", "tools", "agents", "flows")},
        "FOLDER": "folder",
        "DESCRIPTION": lambda kit: " ".join(kit["problems"]) or kit["description"],
    }
    none = "There are no kits. Add one with: lactl kits add DIR"
    listing(
        settings,
        settings.call("Kits.List"),
        columns,
        spare=("FOLDER", "FLOWS", "AGENTS", "TOOLS", "SKILLS"),
        empty=none,
    )


@command.command("show")
@click.argument("name", cls=Named, lists={"Kits.List": "name"}, nouns="kits")
@click.pass_obj
def show(settings: Settings, name: str) -> None:
    """Show one kit and what it holds."""
    _print(settings, settings.call("Kits.Get", name=name))


@command.command("add")
@click.argument("source", metavar="DIR|ARCHIVE", type=click.Path(path_type=Path), shell_complete=files)
@click.option("--name", metavar="NAME", default="", help="The agent's name, in place of that of the folder.")
@click.option("--replace", is_flag=True, help="Replace a kit of that name; its turns are cancelled.")
@click.pass_obj
def add(settings: Settings, source: Path, name: str, replace: bool) -> None:
    """Add a kit: a folder with an AGENT.md, or a tar, tar.gz, tar.xz or zip archive of one.

    The daemon checks it first, and keeps it across restarts. It is for administrators: read what a kit from
    elsewhere says and runs before. Its agent is there at once, under the name of the folder.
    """
    from lightagentd.cli.kit_files import content_of

    check_readable(source, "folder" if source.is_dir() else "file")
    archive = base64.b64encode(content_of(source)).decode()
    kit = settings.call("Kits.Add", archive=archive, name=name, replace=replace, timeout_s=None)
    for sentence in kit["warnings"]:
        warn(sentence)
    held = ", ".join(f"{len(kit[part])} {part}" for part in _HOLDS if kit[part]) or "nothing but its agent"
    then = f"Try: lactl prompt {kit['name']} …"
    told(settings, kit, f"The kit {kit['name']} is added, with {held}. {then}", kit["name"], kit["folder"])


@command.command("check")
@click.argument("what", metavar="[DIR|ARCHIVE|NAME]", required=False, shell_complete=files)
@click.option("--name", metavar="NAME", default="", help="The name that its agent would get.")
@click.pass_obj
def check(settings: Settings, what: str | None, name: str) -> None:
    """Check a kit by its folder, its archive or its name, or all that the daemon finds.

    The columns: name, result, how many skills, tools, agents and flows. What is wrong or odd is on standard
    error, with file and line. Its tools are loaded, in the sandbox of a worker. The exit status is 78 when a
    kit cannot be used. The daemon need not run.
    """
    from lightagentd.cli.kit_files import look
    from lightagentd.host.paths import default_paths

    found = run_async(look(_sources(what, name), default_paths()))
    rows = [_row(one) for one in found]
    columns: Columns = {
        "NAME": "name",
        "RESULT": lambda one: "broken" if one["problems"] else "warnings" if one["warnings"] else "ok",
        **{part.upper(): _count(part) for part in ("skills", "tools", "agents", "flows")},
    }
    listing(settings, rows, columns, empty="There are no kits.")
    for sentence in (each for one in rows for each in (*one["problems"], *one["warnings"])):
        if not settings.json:
            warn(sentence)
    if broken := [one["name"] for one in rows if one["problems"]]:
        raise ConfigError(
            f"Not to be used: {', '.join(broken)}.", suggestion="Mend the files that are named."
        )


@command.command("remove")
@click.argument("name", shell_complete=kit_names)
@click.pass_obj
def remove(settings: Settings, name: str) -> None:
    """Stop the agents of a kit that was added, and forget them; their history stays."""
    settings.call("Kits.Remove", name=name)
    told(settings, {"removed": name}, f"The kit {name} is removed.")


def _count(part: str) -> Any:
    return lambda kit: len(kit[part])


def _row(found: Checked) -> dict[str, Any]:
    holds = {part: list(getattr(found.contents, part)) if found.contents else [] for part in _HOLDS}
    problems = [*found.problems, *([found.unknown] if found.unknown else [])]
    return {"name": found.name, **holds, "problems": problems, "warnings": found.warnings}


def _sources(what: str | None, name: str) -> list[Source]:
    """The kits to check. Raises NotFound."""
    from lightagentd.cli.kit_files import Source, kits_in
    from lightagentd.host.paths import default_paths

    if what is not None and Path(what).exists():
        return [Source(path=Path(what), name=name)]
    known = kits_in(default_paths())
    if what is None:
        return list(known.values())
    if what not in known:
        raise NotFound(
            f"There is no kit {what[:60]!r}, and no folder or archive of that name.",
            suggestion="See: lactl kits list",
        )
    return [known[what]]


def _print(settings: Settings, kit: dict[str, Any]) -> None:
    if as_json(settings, kit):
        return
    fields((key.replace("_", " "), value) for key, value in kit.items() if value not in ("", []))
