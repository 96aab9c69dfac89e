"""Finds the agent that is meant where a command line names none: `lactl "check disk"`, `lactl chat`."""

from __future__ import annotations

import os

import click

from lightagentd.cli.options import Settings
from lightagentd.cli.places import file, own
from lightagentd.errors import AgentNotFound, InvalidArgument

VARIABLE = "LIGHTAGENT_AGENT"
_SHIPPED = "ops"


def default_agent(settings: Settings) -> str:
    """The agent that $LIGHTAGENT_AGENT or `default_agent` in the user's own configuration names, else the
    only one, else `ops`. The members of kits do not count. Raises InvalidArgument, AgentNotFound,
    ConfigError, UsageError for several hosts.
    """
    if named := os.environ.get(VARIABLE) or own().default_agent:
        return named
    if settings.hosts:
        raise click.UsageError(f"With --hosts name the agent: lactl prompt AGENT, or set {VARIABLE}.")
    names = [agent["name"] for agent in settings.call("Agents.List") if not agent["kit"]]
    if not names:
        raise AgentNotFound("There is no agent.", suggestion="Make one with: lactl agents create NAME")
    if len(names) == 1:
        return str(names[0])
    if _SHIPPED in names:
        return _SHIPPED
    raise InvalidArgument(
        f"No agent is the default one, and there are {len(names)}: {', '.join(names[:20])}.",
        suggestion=f'Write default_agent = "{names[0]}" into {file()}, or set {VARIABLE}, or name one.',
        field="agent",
    )
