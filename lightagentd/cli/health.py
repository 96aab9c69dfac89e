"""`lactl health`, `changes` and `snapshot`: what is wrong with this machine, and what changed on it?"""

from __future__ import annotations

import json
import re
import time
from datetime import datetime
from typing import Any

import click

from lightagentd import errors
from lightagentd.cli.options import Command, Settings, agent_names, words_of
from lightagentd.cli.output import print_json, say, say_markdown, told
from lightagentd.cli.question import visible
from lightagentd.cli.terminal import Styled, is_terminal
from lightagentd.cli.when import local
from lightagentd.config.service_problem import SERVICES
from lightagentd.errors import AgentNotFound, ToolError

PROBLEMS, WARNINGS = 2, 1
"""The exit statuses of a machine on which something is wrong."""
OPS = "ops"
_CLEAR = "\x1b[H\x1b[2J"


_agent = click.option(
    "--agent",
    metavar="NAME",
    shell_complete=agent_names,
    help="The agent whose sandbox it runs in; else ops, or the first that may run these checks.",
)
_full = click.option("--full", is_flag=True, help="All of it, however long.")


@click.command("health", cls=Command)
@_agent
@_full
@click.option(
    "--watch", "every_s", type=click.IntRange(1, 86400), metavar="SECONDS", help="Check again and again."
)
@click.pass_obj
@click.pass_context
def command(
    context: click.Context, settings: Settings, agent: str | None, full: bool, every_s: int | None
) -> None:
    """Say what is wrong with this machine, the worst first.

    Every cheap check of the skill health is made at once, without a model; a destination of notifications or
    telemetry that fails is a warning, too. The exit status is 0 when nothing
    is wrong, 1 with warnings, and 2 with problems. With --json: the findings, the checks that were made, and
    those that could not be, each with the reason.
    """
    while True:
        found = _told(settings, agent, "health", full=full)
        beside = _of_services(settings)
        found["findings"] += beside
        if every_s is not None and is_terminal() and not settings.json:
            say(Styled(_CLEAR), end="")
        if every_s is not None and not settings.json:
            say(f"{datetime.now().astimezone():%Y-%m-%d %H:%M:%S}, again in {every_s} s:\n")
        _show(settings, found)
        for one in beside if not settings.json else ():
            say(f"\nwarning: {visible(one['text'])}")
        if every_s is None:
            break
        time.sleep(every_s)
    severities = {finding["severity"] for finding in found["findings"]}
    context.exit(PROBLEMS if "problem" in severities else WARNINGS if severities else 0)


@click.command("changes", cls=Command)
@_agent
@click.option(
    "--since",
    default="yesterday",
    show_default=True,
    metavar="TIME",
    shell_complete=words_of(lambda: ("boot", "today", "yesterday")),
    help="yesterday, -2h, 2026-01-31 ...",
)
@_full
@click.pass_obj
def changes(settings: Settings, agent: str | None, since: str, full: bool) -> None:
    """Say what changed on this machine since TIME, next to the first error after it.

    It compares the last snapshot before TIME with now: packages, units, timers, ports, users, sudo, cron,
    mounts, kernel, and the files in /etc. TIME is boot, today, yesterday 14:00, -30min, -2h, -7d or a date.
    """
    since = re.sub(r"^(-\d+)m$", r"\1min", since)  # as other commands take times
    since = re.sub(r"(?<=\d)T(?=\d)", " ", since)
    found = _told(settings, agent, "what-changed", since=since, full=full)
    _show(settings, found)


@click.command("snapshot", cls=Command)
@_agent
@click.pass_obj
def snapshot(settings: Settings, agent: str | None) -> None:
    """Store the state of this machine in the history, for 'lactl changes'.

    The daemon does so once a day. This is for administrators.
    """
    agent = agent or _able(settings, "what-changed")
    taken = settings.call("Manager.TakeSnapshot", timeout_s=None, agent=agent)
    parts = ", ".join(f"{one['count']} of {one['name']}" for one in taken["sections"] if one["count"])
    told(settings, taken, f"Stored as event {taken['seq']}: {parts}.", taken["seq"], local(taken["taken_us"]))


def _of_services(settings: Settings) -> list[dict[str, Any]]:
    """What keeps the services beside the daemon from their work, as findings."""
    problems = settings.call("Manager.GetStatus")["problems"]
    about = tuple(f"{name}: " for name in SERVICES.values())
    return [
        {"text": one, "ask": "", "since": None, "severity": "warning"}
        for one in problems
        if one.startswith(about)
    ]


def _show(settings: Settings, found: dict[str, Any]) -> None:
    if settings.json:
        print_json({key: value for key, value in found.items() if key != "report"})
    else:
        say_markdown(found["report"])


def _able(settings: Settings, skill: str) -> str:
    """The agent `ops`, or the first one that runs and may run a skill. Raises AgentNotFound."""
    agents = settings.call("Agents.List")
    able = [
        agent["name"]  # one with files of its own last: they could tell anything of this machine
        for agent in sorted(agents, key=lambda one: bool(one["own_tools"] or one["own_skills"]))
        if agent["state"] == "running" and skill in agent["skills"] and "skill" in agent["tools"]
    ]
    if not able:
        raise AgentNotFound(
            f"No running agent may run the skill {skill}.",
            suggestion="See: lactl agents list. Another agent can be named with --agent.",
        )
    return OPS if OPS in able else able[0]


def _told(settings: Settings, agent: str | None, skill: str, *, full: bool, **args: str) -> dict[str, Any]:
    """What a skill's script tells as JSON."""
    args = {"json": "yes", **args, **({"full": "yes"} if full else {})}
    call = {
        "agent": agent or _able(settings, skill),
        "tool": "skill",
        "action": "run",
        "args": {"name": skill, "args": args},
    }
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
