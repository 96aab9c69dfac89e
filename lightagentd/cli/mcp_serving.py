"""`lactl mcp` without a command: an agent as a server, on standard input and output."""

from __future__ import annotations

import signal
import sys

import click

from lightagentd.cli.options import CALL_TIMEOUT_S, Group, Settings
from lightagentd.cli.output import warn


class Serving(Group):
    """A noun that serves when no command is named."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return click.Group.parse_args(self, ctx, args)


def serve(settings: Settings, agent: str) -> None:
    """Serve until the input ends."""
    import asyncio

    from lightagentd.client.aio import AsyncClient
    from lightagentd.mcp_server.stdio import serve as serving

    if sys.stdin.isatty():
        warn("A program starts this and writes a message a line; end it with Ctrl-D.")
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # a client that has gone ends what runs for it, in order
    asyncio.run(serving(lambda: AsyncClient(settings.socket or None, timeout_s=CALL_TIMEOUT_S), agent))
