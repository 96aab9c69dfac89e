"""`lactl health`: what is wrong with this machine?"""

from __future__ import annotations

import json
import time
from typing import Any

import click

from lightagentd import errors
from lightagentd.cli.options import Command, Settings
from lightagentd.cli.output import print_json, say, say_markdown
from lightagentd.cli.terminal import Styled, is_terminal
from lightagentd.errors import ToolError

PROBLEMS, WARNINGS = 2, 1
"""The exit statuses of a machine on which something is wrong."""
_CLEAR = "\x1b[H\x1b[2J"


@click.command("health", cls=Command)
@click.option("--agent", default="ops", show_default=True, help="The agent whose sandbox the checks run in.")
@click.option("--full", is_flag=True, help="All findings, however many.")
@click.option(
    "--watch", "every_s", type=click.IntRange(1, 86400), metavar="SECONDS", help="Check again and again."
)
@click.pass_obj
@click.pass_context
def command(context: click.Context, settings: Settings, agent: str, full: bool, every_s: int | None) -> None:
    """Say what is wrong with this machine, the worst first.

    Every cheap check of the skill health is made at once, without a model. The exit status is 0 when nothing
    is wrong, 1 with warnings, and 2 with problems. With --json: the findings, the checks that were made, and
    those that could not be, each with the reason.
    """
    while True:
        found = _checked(settings, agent, full=full)
        if every_s is not None and is_terminal() and not settings.json:
            say(Styled(_CLEAR), end="")
        if settings.json:
            print_json({key: value for key, value in found.items() if key != "report"})
        else:
            say_markdown(found["report"])
        if every_s is None:
            break
        time.sleep(every_s)
    severities = {finding["severity"] for finding in found["findings"]}
    context.exit(PROBLEMS if "problem" in severities else WARNINGS if severities else 0)


def _checked(settings: Settings, agent: str, *, full: bool) -> dict[str, Any]:
    """What the script of the skill health tells as JSON."""
    args = {"json": "yes", **({"full": "yes"} if full else {})}
    call = {"agent": agent, "tool": "skill", "action": "run", "args": {"name": "health", "args": args}}
    text = ""
    with settings.client() as client:
        for reply in client.stream("Tools.Call", **call):
            event = reply["event"]
            if event["type"] == "error":
                raise errors.from_dict(event)
            if event["type"] == "done":
                text = event.get("text") or ""
    try:
        found: dict[str, Any] = json.loads(text)
    except ValueError as err:
        raise ToolError("The checks gave no answer that can be read.") from err
    return found
