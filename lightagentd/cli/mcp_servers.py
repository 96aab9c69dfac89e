"""`lactl mcp list|show|test|add|approve|remove`: the MCP servers whose tools agents have."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Set
from pathlib import Path
from typing import Any

import click

from lightagentd.cli.content import own_folder, reload_daemon
from lightagentd.cli.difference import say_difference
from lightagentd.cli.options import Command, Settings, agent_names, names_of
from lightagentd.cli.output import Columns, as_json, cell, fields, listing, say, told
from lightagentd.cli.terminal import BOLD, is_terminal, style
from lightagentd.errors import ConfigError, Conflict, InvalidArgument, LightagentError, PermissionDenied

_COLUMNS: Columns = {
    "NAME": lambda one: f"{one['kit']}/{one['name']}" if one["kit"] else one["name"],
    "FUNCTIONS": "functions",
    "AGENTS": lambda one: one["agents"] or ([one["kit"]] if one["kit"] else "all"),
    "REACHED": "reached",
    "PROBLEM": lambda one: one["problem"] or "-",
}
_LOOK_S = 90.0
_HINTS = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")
_names = names_of("Mcp.List", "name")
_agent = click.option(
    "--agent", metavar="NAME", shell_complete=agent_names, help="The agent whose kit has it."
)


@click.command("list", cls=Command)
@click.pass_obj
def list_servers(settings: Settings) -> None:
    """List the servers.

    The columns: name, how many functions it makes, agents, its command or URL, and what is wrong with it.
    """
    listing(
        settings,
        settings.call("Mcp.List"),
        _COLUMNS,
        spare=("REACHED",),
        empty="There are no MCP servers. Add one: lactl mcp add --help",
    )


@click.command("show", cls=Command)
@click.argument("name", shell_complete=_names)
@_agent
@click.pass_obj
def show(settings: Settings, name: str, agent: str | None) -> None:
    """Start a server, and show what it offers beside what was approved.

    The hints are what a tool says of itself. Nothing believes them: the effect comes from the server's file.
    """
    found = settings.call("Mcp.Look", timeout_s=_LOOK_S, name=name, agent=agent)
    if as_json(settings, found):
        return
    _show(found)
    if not found["in_force"]:
        say(f"An administrator approves this: lactl mcp approve {name} --digest {found['digest']}")


@click.command("test", cls=Command)
@click.argument("name", shell_complete=_names)
@_agent
@click.pass_obj
def test(settings: Settings, name: str, agent: str | None) -> None:
    """Start a server and say whether it works, and whether its tools are those that were approved.

    The exit status is 73 when they are not.
    """
    found = settings.call("Mcp.Look", timeout_s=_LOOK_S, name=name, agent=agent)
    if not as_json(settings, found):
        fields([("server", found["server"]), ("version", found["version"]), ("tools", len(found["tools"]))])
    if not found["in_force"]:
        raise Conflict(f"Not all that {name} offers is approved.", suggestion=f"See: lactl mcp show {name}")


@click.command("approve", cls=Command)
@click.argument("name", shell_complete=_names)
@click.option("--digest", metavar="SHA256", help="The digest that was shown; without it you are asked.")
@_agent
@click.pass_obj
def approve(settings: Settings, name: str, digest: str | None, agent: str | None) -> None:
    """Approve what a server offers now, as administrator: its tools are functions from then on.

    The approval is written beside the server's file, with the rights of the user who runs lactl.
    """
    _approve(settings, name, digest, agent, how=f"Approve it: lactl mcp approve {name}")


@click.command("add", cls=Command)
@click.argument("name")
@click.argument("words", nargs=-1, metavar="[-- COMMAND...]")
@click.option("--url", default="", help="Where it is reached, instead of a command.")
@click.option("--effect", "effects", multiple=True, metavar="TOOL=EFFECT", help="observe, reach or change.")
@click.option(
    "--listed-in", default="", metavar="EFFECT", help="The sandbox in which it says what it offers."
)
@click.option("--only", multiple=True, metavar="TOOL", help="These tools and no others.")
@click.option("--agent", "agents", multiple=True, metavar="NAME", help="For these agents alone.")
@click.option("--credential", "credentials", multiple=True, metavar="NAME", help="One of the daemon's.")
@click.option("--env", "environment", multiple=True, metavar="NAME=VALUE", help="In its environment.")
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="{CREDENTIAL} stands for one.")
@click.option("--digest", metavar="SHA256", help="Approve this, without being asked.")
@click.pass_obj
def add(
    settings: Settings,
    /,
    name: str,
    words: tuple[str, ...],
    url: str,
    effects: tuple[str, ...],
    listed_in: str,
    environment: tuple[str, ...],
    headers: tuple[str, ...],
    digest: str | None,
    **lists: tuple[str, ...],
) -> None:
    """Add a server, as administrator: write its file, show what it offers, and approve that.

    A credential NAME is the daemon's tool.SERVER.NAME (LoadCredential= in systemd.exec(5)).

    \b
      sudo lactl mcp add files --effect read=observe -- /opt/mcp-files /srv
      sudo lactl mcp add tracker --url https://tracker.example/mcp \\
          --credential TOKEN --header "Authorization=Bearer {TOKEN}"
    """
    if not words and not url:
        raise click.UsageError("Name the server's program and its arguments after --, or its --url.")
    values = {"command": list(words), "url": url, "effect": listed_in} | {
        key: list(one) for key, one in lists.items()
    }
    tables = {"tools": effects, "environment": environment, "headers": headers}
    lines = [f"{key} = {json.dumps(value)}" for key, value in values.items() if value]
    for table, given in tables.items():
        lines += [f"\n[{table}]"] if given else []
        lines += [f"{json.dumps(key)} = {json.dumps(value)}" for key, value in map(_pair, given)]
    path = _file(name)
    if path.exists():
        raise Conflict(
            f"There is {path} already.", suggestion=f"Change it, or: lactl mcp remove {name}", field="name"
        )
    _write(path, "\n".join(lines) + "\n")
    try:
        _check(path)
        reload_daemon(settings, "tools")
        named = {*(_pair(one)[0] for one in effects), *lists["only"]}
        _approve(settings, name, digest, None, named=named, how="Repeat the command with")
    except BaseException:
        path.unlink(missing_ok=True)
        reload_daemon(settings, "tools")
        raise


@click.command("remove", cls=Command)
@click.argument("name", shell_complete=_names)
@click.pass_obj
def remove(settings: Settings, name: str) -> None:
    """Remove a server and its approval, as administrator."""
    path = _file(name)
    try:
        path.unlink()
        path.with_suffix(".approved").unlink(missing_ok=True)
    except FileNotFoundError as err:
        raise InvalidArgument(
            f"There is no file {path}.", suggestion="See: lactl mcp list", field="name"
        ) from err
    except OSError as err:
        raise _denied(path, err) from err
    reload_daemon(settings, "tools")
    told(settings, {"removed": name}, f"The MCP server {name} is removed.")


def _file(name: str, agent: str | None = None) -> Path:
    """The file of a server of the configuration, or of an agent's folder there. It is not asked for: root
    writes beside it. Raises InvalidArgument, PermissionDenied.
    """
    if any(not re.fullmatch(r"[a-z][a-z0-9_-]*", one) for one in (name, *([agent] if agent else []))):
        raise InvalidArgument(f"{name[:60]!r} is not a name for an MCP server.", field="name")
    folder = own_folder("agent") / agent / "mcp" if agent else own_folder("mcp.d")
    return folder / f"{name}.toml"


def _check(path: Path) -> None:
    """Raises ConfigError."""
    from lightagentd.toolkit.mcp.server_file import read_server

    try:
        read_server(path)
    except ConfigError as err:
        raise ConfigError(f"{path.name}: {err.message}.", suggestion="It is not written.") from None


def _approve(
    settings: Settings,
    name: str,
    digest: str | None,
    agent: str | None,
    *,
    how: str,
    named: Set[str] = frozenset(),
) -> None:
    """`named` are tools that the server must have; `how` says what is done where nobody can be asked."""
    found = settings.call("Mcp.Look", timeout_s=_LOOK_S, name=name, agent=agent)
    _check_shown(found)
    offered = {one["name"] for one in found["tools"]}
    if wrong := sorted(named - offered):
        raise InvalidArgument(
            f"The MCP server {name} has no tool {wrong[0][:60]!r}.",
            suggestion=f"It has: {', '.join(sorted(offered))}"[:1000],
            field="effect",
        )
    if digest is None:
        _show(found)
        if not is_terminal() or settings.json:
            raise InvalidArgument(
                "Nobody is there to be asked.",
                suggestion=f"{how} --digest {found['digest']}",
                field="digest",
            )
        click.confirm("Approve these tools as they are?", abort=True)
    elif digest.removeprefix("sha256:").lower() != found["digest"]:
        raise Conflict(
            f"The MCP server {name} offers something else than what was shown: it has another digest.",
            suggestion=f"Look again: lactl mcp show {name}",
            field="digest",
        )
    server = _file(name, agent)
    if not server.exists():
        raise InvalidArgument(f"There is no file {server}.", suggestion="See: lactl mcp list", field="name")
    path = server.with_suffix(".approved")
    _write(path, json.dumps(found["approval"], indent=1, ensure_ascii=True) + "\n")
    reload_daemon(settings, "tools")
    count = len(found["approval"]["tools"])
    result = {"name": name, "path": str(path), "tools": count, "digest": found["digest"]}
    told(settings, result, f"{count} tools of {name} are approved.", name, path)


def _check_shown(found: dict[str, Any]) -> None:
    """The daemon says what a server offers: what it shows has to be what is written. Raises Conflict."""
    from lightagentd.toolkit.mcp.server_file import digest

    shown = [one["told"] for one in found["tools"] if one["state"] not in ("gone", "unwanted")]
    if digest(found["approval"]) != found["digest"] or shown != found["approval"]["tools"]:
        raise Conflict("The daemon shows other tools than those that would be approved.")


def _write(path: Path, text: str) -> None:
    """Raises PermissionDenied."""
    from lightagentd.host.atomic_file import write_whole

    try:
        path.parent.mkdir(mode=0o755, exist_ok=True)
        write_whole(path, text.encode(), mode=0o644, replace=True)
    except OSError as err:
        raise _denied(path, err) from err


def _denied(path: Path, err: OSError) -> LightagentError:
    return PermissionDenied(
        f"{path} cannot be written: {err.strerror}.",
        suggestion="Only an administrator can do that: use sudo.",
    )


def _pair(given: str) -> tuple[str, str]:
    key, equals, value = given.partition("=")
    if not key or not equals:
        raise InvalidArgument(f"{given[:60]!r} is not NAME=VALUE.")
    return key, value


def _show(found: dict[str, Any]) -> None:
    fields(
        [("server", found["server"] or found["name"]), ("version", found["version"]), ("file", found["path"])]
    )
    for tool in found["tools"]:
        told_of, was = tool["told"] or tool["approved"], tool["approved"]
        say()
        say(style(cell(tool["name"]), BOLD), f"  [{tool['effect']}]  {tool['state']}")
        say(f"  {cell(told_of.get('description') or told_of.get('title') or '')}")
        hints = told_of.get("annotations")
        if isinstance(hints, dict) and (given := [f"{one}: {hints[one]}" for one in _HINTS if one in hints]):
            say(f"  says of itself: {cell(given)}")
        for line in _schema_lines(told_of.get("inputSchema")):
            say(f"  {line}")
        if tool["state"] == "changed":
            say_difference(_lines(was), _lines(tool["told"]), ("approved", "now"))
    say()
    more = [part for part in ("resources", "prompts") if found[part]]
    fields([*([("also", ", ".join(more))] if more else []), ("sha256", found["digest"])])


def _schema_lines(schema: Any) -> Iterator[str]:
    """All that a model may read of the arguments, each a line."""
    if not isinstance(schema, dict):
        return
    properties = schema.get("properties")
    for argument, described in properties.items() if isinstance(properties, dict) else ():
        more = dict(described) if isinstance(described, dict) else {}
        kind = more.pop("type", "any")
        yield f"{cell(argument)}: {cell(kind)}  {cell(more) if more else ''}".rstrip()
    for key in sorted(schema.keys() - {"type", "properties", "required", "$schema", "additionalProperties"}):
        yield f"{cell(key)}: {cell(schema[key])}"  # what references lead to, above all


def _lines(value: Any) -> list[str]:
    return json.dumps(value, indent=1, sort_keys=True).splitlines()


COMMANDS = (list_servers, show, test, add, approve, remove)
"""The commands of `lactl mcp` that are about the servers of others."""
