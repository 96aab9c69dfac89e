"""`lactl mcp`: an agent as a server of the Model Context Protocol, and servers whose tools agents have."""

from __future__ import annotations

import click

from lightagentd.cli.mcp_servers import COMMANDS
from lightagentd.cli.mcp_serving import Serving, serve
from lightagentd.cli.options import Settings, agent_names

_AGENT = "Whose tools are served."


@click.group("mcp", cls=Serving, invoke_without_command=True)
@click.option(
    "--agent", metavar="AGENT", default="ops", show_default=True, shell_complete=agent_names, help=_AGENT
)
@click.pass_context
def command(context: click.Context, agent: str) -> None:
    """Serve an agent's tools to a program that speaks the Model Context Protocol, or manage MCP servers.

    Without a command it serves. Such a program starts it, and talks with it on standard input and output. Its
    calls go through policy, approvals and history, as text from outside: what changes the system waits until
    a person has allowed it. Where the program can ask you, it does; else the result of its call names the
    lactl approve that it waits for.

    The commands are about servers of others, whose tools are functions of agents. Each is a file in
    /etc/lightagentd/mcp.d, or in mcp/ of a kit; lightagent-mcp(5) says what is in it. It runs in the sandbox
    of its tools' effects. A tool is used as it was approved: one that says something else of itself by now is
    held back.
    """
    if context.invoked_subcommand is None:
        serve(context.ensure_object(Settings), agent)


for one in COMMANDS:
    command.add_command(one)
