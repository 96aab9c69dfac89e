"""`lactl mcp`: an agent as a server of the Model Context Protocol, on standard input and output."""

from __future__ import annotations

import signal
import sys

import click

from lightagentd.cli.options import CALL_TIMEOUT_S, Group, Settings, agent_names
from lightagentd.cli.output import warn


class _Serving(Group):
    """It serves when no command is named."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return click.Group.parse_args(self, ctx, args)


@click.group("mcp", cls=_Serving, invoke_without_command=True)
@click.option(
    "--agent",
    metavar="AGENT",
    default="ops",
    show_default=True,
    shell_complete=agent_names,
    help="Whose tools.",
)
@click.pass_context
def command(context: click.Context, agent: str) -> None:
    """Serve an agent's tools to a program that speaks the Model Context Protocol.

    Such a program starts this command itself, and talks with it on standard input and output. Its calls go
    through policy, approvals and history, as text from outside: what changes the system waits until a person
    has allowed it. Where the program can ask you, it does; else the result of its call names the lactl
    approve that it waits for.
    """
    if context.invoked_subcommand is not None:
        return
    import asyncio

    from lightagentd.client.aio import AsyncClient
    from lightagentd.mcp_server.stdio import serve

    settings = context.ensure_object(Settings)
    if sys.stdin.isatty():
        warn("A program starts this and writes a message a line; end it with Ctrl-D.")
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # a client that has gone ends what runs for it, in order
    asyncio.run(serve(lambda: AsyncClient(settings.socket or None, timeout_s=CALL_TIMEOUT_S), agent))
