"""`lactl mcp`: an agent as a server of the Model Context Protocol, and servers whose tools agents have."""

from __future__ import annotations

import sys

import click

from lightagentd.cli.asynchronous import run as run_async
from lightagentd.cli.mcp_servers import COMMANDS
from lightagentd.cli.options import CALL_TIMEOUT_S, Group, Settings, agent_names
from lightagentd.cli.output import warn
from lightagentd.errors import AgentNotFound, LightagentError

_AGENT = "Whose tools are served."


class Serving(Group):
    """A noun that serves when no command is named."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return click.Group.parse_args(self, ctx, args)


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
        _serve(context.ensure_object(Settings), agent)


def _serve(settings: Settings, agent: str) -> None:
    """Serve until the input ends."""
    from lightagentd.client.aio import AsyncClient
    from lightagentd.mcp_server.stdio import serve as serving

    if sys.stdin.isatty():
        warn("A program starts this and writes a message a line; end it with Ctrl-D.")
    _check_agent(settings, agent)
    # A client that has gone ends what runs for it, in order.
    run_async(serving(lambda: AsyncClient(settings.socket or None, timeout_s=CALL_TIMEOUT_S), agent))


def _check_agent(settings: Settings, agent: str) -> None:
    """Raises AgentNotFound: the program sees at its start that this server is of no use to it. A daemon that
    does not run may come later.
    """
    try:
        settings.call("Agents.Get", name=agent)
    except AgentNotFound:
        raise
    except LightagentError as err:
        warn(f"{err.message} {err.suggestion}".rstrip())


for one in COMMANDS:
    command.add_command(one)
