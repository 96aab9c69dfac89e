"""`lactl undo`: take back what a call changed."""

from __future__ import annotations

import click

from lightagentd.cli.options import Command, Settings, agent_names
from lightagentd.cli.output import Columns, listing
from lightagentd.cli.turn import watch
from lightagentd.cli.when import local

_COLUMNS: Columns = {
    "CALL": "call_id",
    "TIME": lambda change: local(change["time_us"]),
    "AGENT": "agent",
    "DID": "action",
    "STATE": lambda change: f"undone by {change['undone_by']}" if change["undone_by"] else "stands",
    "PATH": "path",
}


@click.command("undo", cls=Command)
@click.argument("call", required=False)
@click.option("-a", "--agent", metavar="AGENT", shell_complete=agent_names, help="Of this agent alone.")
@click.option("-l", "--list", "lists", is_flag=True, help="Show what can be taken back.")
@click.pass_obj
def command(settings: Settings, call: str | None, agent: str | None, lists: bool) -> None:
    """Take back what CALL changed in a file.

    Without CALL that is your newest change that still stands; again and again, it goes further back. The file
    gets its previous content, owner and mode. Where it was changed since, nothing is done. To make the change
    again, take back the undo: its id is in the list. What else a call did (a shell command, a restarted unit)
    cannot be taken back; then it says what the call was, and what does the opposite.

    \b
      lactl undo --list
      lactl undo call_0123456789abcdef
    """
    if lists:
        if call is not None:
            raise click.UsageError("CALL and --list cannot be used together.")
        empty = "No change of a file is kept."
        listing(settings, settings.call("Undo.List", agent=agent), _COLUMNS, empty=empty)
        return
    watch(settings, "Undo.Run", {"call_id": call, "agent": agent}, hang_up=True)
