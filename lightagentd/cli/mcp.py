"""`lactl mcp`: the servers of the Model Context Protocol whose tools agents have."""

from __future__ import annotations

import click

from lightagentd.cli.mcp_servers import COMMANDS
from lightagentd.cli.options import Group


@click.group("mcp", cls=Group)
def command() -> None:
    """List, look at, add and approve MCP servers, whose tools are functions of agents.

    A server is a file in /etc/lightagentd/mcp.d, or in mcp/ of a kit; lightagent-mcp(5) says what is in it.
    It runs in the sandbox of its tools' effects. A tool is used as it was approved: one that says something
    else of itself by now is held back.
    """


for one in COMMANDS:
    command.add_command(one)
