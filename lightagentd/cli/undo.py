"""`lactl undo`: take back what a call changed."""

from __future__ import annotations

import click

from lightagentd.cli.beginning import only_one
from lightagentd.cli.options import Command, Settings, agent_names, names_of
from lightagentd.cli.output import Columns, listing
from lightagentd.cli.turn import watch
from lightagentd.cli.typed_call import TypedCall
from lightagentd.cli.when import ago

_COLUMNS: Columns = {
    "CALL": "call_id",
    "TIME": lambda change: ago(change["time_us"]),
    "AGENT": "agent",
    "DID": "action",
    "STATE": lambda change: f"undone by {change['undone_by']}" if change["undone_by"] else "stands",
    "PATH": "path",
}


@click.command("undo", cls=Command)
@click.argument("call", required=False, shell_complete=names_of("Undo.List", "call_id"))
@click.option("-a", "--agent", metavar="AGENT", shell_complete=agent_names, help="Of this agent alone.")
@click.option("-l", "--list", "lists", is_flag=True, help="Show what can be taken back.")
@click.pass_obj
def command(settings: Settings, call: str | None, agent: str | None, lists: bool) -> None:
    """Take back what CALL changed in a file.

    Without CALL that is your newest change that still stands; again and again, it goes further back. The file
    gets its previous content, owner and mode. Where it was changed since, nothing is done. To make the change
    again, take back the undo: its id is in the list. What else a call did (a shell command, a restarted unit)
    cannot be taken back; then it says what the call was, and what does the opposite.

    Where the approver allows changes, lactl answers for you if you name CALL; else it shows what the daemon
    chose, and asks.

    CALL may be cut short as long as it is the only one that begins so.

    \b
      lactl undo --list
      lactl undo call_0123456789abcdef
    """
    if lists:
        if call is not None:
            raise click.UsageError("CALL and --list cannot be used together.")
        found = settings.call("Undo.List", agent=agent)
        spare, empty = ("TIME", "AGENT", "DID"), "No change of a file is kept."
        listing(settings, found, _COLUMNS, spare=spare, empty=empty)
        return
    if call is not None:
        call = only_one(call, lambda: [each["call_id"] for each in settings.call("Undo.List")], "calls")
    typed = None
    if call is not None:
        args = {"call_id": call}
        typed = TypedCall(agent=agent or "", tool="file", action="undo", args=args, for_root=True)
    watch(settings, "Undo.Run", {"call_id": call, "agent": agent}, hang_up=True, typed=typed)
