"""`lactl mcp`: an agent as a server of the Model Context Protocol."""

from __future__ import annotations

import click

from lightagentd.cli.mcp_serving import Serving, serve
from lightagentd.cli.options import Settings, agent_names

_AGENT = "Whose tools."


@click.group("mcp", cls=Serving, invoke_without_command=True)
@click.option(
    "--agent", metavar="AGENT", default="ops", show_default=True, shell_complete=agent_names, help=_AGENT
)
@click.pass_context
def command(context: click.Context, agent: str) -> None:
    """Serve an agent's tools to a program that speaks the Model Context Protocol.

    Such a program starts this command itself, and talks with it on standard input and output. Its calls go
    through policy, approvals and history, as text from outside: what changes the system waits until a person
    has allowed it. Where the program can ask you, it does; else the result of its call names the lactl
    approve that it waits for.
    """
    if context.invoked_subcommand is None:
        serve(context.ensure_object(Settings), agent)
