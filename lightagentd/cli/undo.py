"""`lactl undo`: take back what a call changed."""

from __future__ import annotations

import click

from lightagentd.cli.options import Command, Settings, agent_names
from lightagentd.cli.output import print_json, table
from lightagentd.cli.turn import watch
from lightagentd.cli.when import local


@click.command("undo", cls=Command)
@click.argument("call", required=False)
@click.option("-a", "--agent", metavar="AGENT", shell_complete=agent_names, help="Of this agent alone.")
@click.option("-l", "--list", "listing", is_flag=True, help="Show what can be taken back.")
@click.pass_obj
def command(settings: Settings, call: str | None, agent: str | None, listing: bool) -> None:
    """Take back what CALL changed in a file.

    Without CALL that is your newest change that still stands; again and again, it goes further back. The file
    gets its previous content, owner and mode. Where it was changed since, nothing is done. To make the change
    again, take back the undo: its id is in the list. What else a call did (a shell command, a restarted unit)
    cannot be taken back; then it says what the call was, and what does the opposite.

    \b
      lactl undo --list
      lactl undo call_0123456789abcdef
    """
    if listing:
        if call is not None:
            raise click.UsageError("CALL and --list cannot be used together.")
        _list(settings, agent)
        return
    watch(settings, "Undo.Run", {"call_id": call, "agent": agent}, hang_up=True)


def _list(settings: Settings, agent: str | None) -> None:
    changes = settings.call("Undo.List", agent=agent)
    if settings.json:
        print_json(changes)
        return
    table(
        ("CALL", "TIME", "AGENT", "DID", "STATE", "PATH"),
        (
            (
                change["call_id"],
                local(change["time_us"]),
                change["agent"],
                change["action"],
                f"undone by {change['undone_by']}" if change["undone_by"] else "stands",
                change["path"],
            )
            for change in changes
        ),
        empty="No change of a file is kept.",
    )
