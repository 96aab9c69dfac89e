"""Which commands work on another host (`--host`), and the user's own configuration of lactl.

The file is `lightagent/lactl.toml` below $XDG_CONFIG_HOME, else ~/.config. `default_agent` is the agent that
is meant where none is named; under `[hosts]` each key is the name of a group and holds a list of hosts.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lightagentd.client.remote import wrong_host
from lightagentd.errors import ConfigError, NotFound

if TYPE_CHECKING:
    from lightagentd.cli.options import Settings

HERE = {
    "bridge": "it is what runs there",
    "config check": "it reads files",
    "config show": "it reads files",
    "eval run": "the check commands of cases run where lactl runs",
    "history backup": "it reads the store's files",
    "history export": "it reads the store's files",
    "history import": "it writes the store's files",
    "history restore": "it writes the store's files",
    "kits check": "it reads files",
    "notify list": "it reads files",
    "notify test": "it writes files",
    "policy check": "it reads files",
    "setup": "it writes files",
    "skills add": "it writes files",
    "skills check": "it reads files",
    "skills new": "it writes files",
    "skills remove": "it writes files",
    "tools install": "it writes files",
    "triggers check": "it reads files",
}
"""The commands that work on the machine itself, and why."""
SEVERAL = ("prompt", "status")
"""The commands that ask several hosts at once."""


def check_place(context: click.Context, settings: Settings) -> None:
    """Raises UsageError for a command or an option that works on the machine itself, or takes one host."""
    name = context.command_path.partition(" ")[2]
    stored = "--stored and --state-dir read the store's files" if settings.store or settings.state_dir else ""
    if why := HERE.get(name) or stored:
        there = settings.host or settings.hosts[0]
        raise click.UsageError(
            f"This works on the machine itself: {why}. Run it there: ssh {there} lactl {name}", context
        )
    if settings.hosts and name not in SEVERAL:
        raise click.UsageError(f"'{name}' takes one host: --host HOST.", context)


def file() -> Path:
    """The user's own configuration of lactl."""
    folder = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(folder) / "lightagent" / "lactl.toml"


@dataclass(frozen=True, kw_only=True)
class Own:
    """What the file says. `default_agent` is empty where it names none."""

    hosts: dict[str, tuple[str, ...]] = field(default_factory=dict)
    default_agent: str = ""


def own() -> Own:
    """The user's own configuration; empty without a file. Raises ConfigError."""
    path = file()
    if not path.exists():
        return Own()
    from pydantic import Field

    from lightagentd.config.configuration import load_one
    from lightagentd.config.section import Section

    class File(Section):
        hosts: dict[str, list[str]] = Field(default_factory=dict)
        default_agent: str = Field(default="", pattern=r"^[a-z][a-z0-9.-]*$", max_length=63)

    found = load_one(path, File)
    return Own(hosts=_checked(path, found.hosts), default_agent=found.default_agent)


def _checked(path: Path, found: dict[str, list[str]]) -> dict[str, tuple[str, ...]]:
    """The groups of hosts. Raises ConfigError."""
    from lightagentd.config.configuration import place_of

    for name, hosts in found.items():
        for host in hosts:
            if host.startswith("@") or host in found:
                why = f"{host[:60]!r} is a group, and groups hold hosts alone"
            elif not (why := wrong_host(host)):
                continue
            place = place_of(("hosts", name), {}, path)
            raise ConfigError(f"{place}: {why}.", suggestion="Write the hosts themselves.", field="hosts")
    return {name: tuple(hosts) for name, hosts in found.items()}


def hosts_of(text: str) -> tuple[str, ...]:
    """The hosts that `web1,@db` names, each once: `@db` is a group, and so is `db` if one has that name.

    Raises NotFound, ConfigError, UsageError.
    """
    known = own().hosts
    found: list[str] = []
    for word in text.split(","):
        name = word.strip()
        if (group := name.removeprefix("@")) in known:
            found += known[group]
        elif name.startswith("@"):
            have = f"There are: {', '.join(sorted(known))}." if known else "There are none yet."
            raise NotFound(
                f"There is no group of hosts {group[:60]!r}.",
                suggestion=f"{have} They are in {file()}.",
                field="hosts",
            )
        elif why := wrong_host(name):
            raise click.UsageError(f"{why}.")
        else:
            found.append(name)
    if not found:
        raise click.UsageError(f"{text[:60]!r} has no hosts in it.")
    return tuple(dict.fromkeys(found))
