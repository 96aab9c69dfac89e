"""`lactl hooks`: an administrator's functions around turns and calls."""

from __future__ import annotations

import json
from typing import Any

import click

from lightagentd.cli.named_file import read_file
from lightagentd.cli.options import Group, Settings, agent_names, files
from lightagentd.cli.output import Columns, as_json, fields, listing, say
from lightagentd.errors import ConfigError, HookBlocked, InvalidArgument
from lightagentd.toolkit.hook import PHASES

_COLUMNS: Columns = {
    "NAME": lambda one: f"{one['kit']}/{one['name']}" if one["kit"] else one["name"],
    "PHASES": "phases",
    "AGENTS": lambda one: one["agents"] or ([one["kit"]] if one["kit"] else "all"),
    "ON ERROR": "on_error",
    "SECONDS": "timeout_s",
    "PROBLEM": lambda one: one["problem"] or "-",
}
_SPARE = ("SECONDS", "ON ERROR")


@click.group("hooks", cls=Group)
def command() -> None:
    """List, check and try the hooks around turns and calls.

    A hook is a Python function, named after its phase, in a file of /etc/lightagentd/hooks or of hooks/ in a
    kit. lightagent-hook(5) says what each phase is given and may answer.
    """


@command.command("list")
@click.pass_obj
def list_hooks(settings: Settings) -> None:
    """List the hook files in force, in the order in which they are asked.

    The columns: name, phases, agents, what an error does (block or go on), how many seconds a call may take,
    and what is wrong with the file.
    """
    listing(settings, settings.call("Hooks.List"), _COLUMNS, spare=_SPARE, empty="There are no hooks.")


@command.command("check")
@click.pass_obj
def check(settings: Settings) -> None:
    """Load the hook files as they are now, in the sandbox, and say what is wrong with them.

    The daemon goes on with those that it has; 'lactl reload' takes these. The exit status is 78 when a file
    cannot be used: after a reload it would block its agents.
    """
    found = settings.call("Hooks.List", anew=True)
    broken = [one["problem"] for one in found if one["problem"]]
    listing(settings, found, _COLUMNS, spare=_SPARE, empty="There are no hooks.")
    if broken:
        raise ConfigError(" ".join(broken), suggestion="Mend it, then: lactl hooks check")


@command.command("test")
@click.argument("phase", type=click.Choice(list(PHASES)), metavar="PHASE")
@click.option(
    "--payload",
    "path",
    required=True,
    metavar="FILE",
    shell_complete=files,
    help="A JSON object; - reads it.",
)
@click.option("--agent", metavar="NAME", shell_complete=agent_names, help="With the hooks of this agent.")
@click.pass_obj
def test(settings: Settings, phase: str, path: str, agent: str | None) -> None:
    """Ask the hooks in force about a payload, and show what they decide.

    Nothing is stored, and nothing runs but the hooks. The exit status is 77 when they block it.

    \b
      echo '{"tool": "bash", "args": {"command": "df -h"}}' |
        lactl hooks test before_tool_call --agent ops --payload -
    """
    try:
        payload: Any = json.loads(read_file(path))
    except ValueError as err:
        raise InvalidArgument(f"{path} is not JSON: {err}.", suggestion="Write one JSON object.") from err
    found = settings.call("Hooks.Test", phase=phase, payload=payload, agent=agent)
    if not as_json(settings, found):
        fields([("asked", found["asked"] or "no hook"), *_said(found)])
        say(json.dumps(found["payload"], indent=2, ensure_ascii=False))
    if found["blocked"]:
        raise HookBlocked("A hook blocks it.")


def _said(found: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        (one["hook"] or "-", " ".join(filter(None, (one["decision"], *one["keys"], one["reason"]))))
        for one in found["decided"]
    ]
