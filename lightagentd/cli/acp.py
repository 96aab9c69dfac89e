"""`lactl acp`: an agent in an editor, by the Agent Client Protocol."""

from __future__ import annotations

import logging

import click

from lightagentd.cli.asynchronous import run as run_async
from lightagentd.cli.options import Command, Settings, agent_names


@click.command("acp", cls=Command)
@click.argument("agent", default="ops", shell_complete=agent_names)
@click.pass_obj
def command(settings: Settings, agent: str) -> None:
    """Serve AGENT to an editor, by the Agent Client Protocol.

    The editor starts this command, and both send lines of JSON through standard input and output. Without
    AGENT it is ops; the agents that it may give a conversation to are modes of a session.

    The agent works on the machine with its own tools and rights, as after 'lactl prompt': the editor's
    terminal, files and tool servers are not used. The folder that is open in the editor is told to a
    language model with the first prompt of a session. What the editor sends along counts as text from
    outside.

    A call that needs to be allowed is asked about in the editor, if you may allow it; without an answer it
    waits, see 'lactl approvals'. When the editor closes standard input, or ends this command with a signal,
    what runs in its sessions is cancelled.
    """
    if settings.json:
        raise click.UsageError("The protocol is JSON already, so --json has no meaning here.")
    from lightagentd.cli.editor.agent import serve
    from lightagentd.cli.editor.daemon import Daemon

    logging.basicConfig(level=logging.WARNING, format="lactl: %(message)s")  # to standard error
    # A write to an editor that is gone is an error like others: what runs is cancelled before the end.
    run_async(serve(Daemon(settings), agent))
