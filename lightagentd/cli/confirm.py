"""`lactl confirm`: keep a change that else takes itself back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from lightagentd.cli.beginning import only_one
from lightagentd.cli.options import Command, Settings, names_of
from lightagentd.cli.output import Columns, listing, told
from lightagentd.cli.question import visible
from lightagentd.cli.redrawn import watchable
from lightagentd.cli.when import duration

F = TypeVar("F", bound=Callable[..., Any])
_COLUMNS: Columns = {
    "CALL": "id",
    "STATE": "state",
    "LEFT": lambda each: duration(each["left_s"] * 1000) if each["state"] == "waiting" else "",
    "AGENT": "agent",
    "DID": lambda each: f"{each['tool']}.{each['action']}",
    "ARGUMENTS": lambda each: visible(each["what"]),
    "TAKEN BACK BY": lambda each: visible(each["back"]),
    "WHY": lambda each: visible(each["why"]),
}


def confirming(function: F) -> F:
    """The options that say how the change of a call takes itself back."""
    for name, metavar, words in reversed(
        (
            ("--confirm-within", "TIME", "Take the change back then, unless it is confirmed."),
            ("--check", "COMMAND", "Confirms the change when it ends with 0."),
            ("--inverse", "COMMAND", "Takes the change back, or TOOL.ACTION {ARGUMENTS}."),
        )
    ):
        function = click.option(name, metavar=metavar, help=words)(function)
    return function


@click.command("confirm", cls=Command)
@click.argument("call", required=False, shell_complete=names_of("Confirmations.List", "id"))
@click.option("--all", "every", is_flag=True, help="List those that are over, too.")
@watchable("confirmation", alone="call")
@click.pass_obj
def command(settings: Settings, call: str | None, every: bool) -> None:
    """Keep the change of CALL, which is taken back otherwise (commit confirmed).

    Without CALL it lists the changes that wait, with the time that is left. Such a change is one that was
    approved with --confirm-within, or for which a rule of policy.d or a flow says so. After its time nothing
    can be confirmed, and the answer says what became of it. A change that could not be taken back is listed
    until it is confirmed.

    CALL may be cut short as long as it is the only one that begins so.

    \b
      lactl approve ID --confirm-within 5m --inverse 'ip link set eth0 up'
      lactl confirm
      lactl confirm call_0123456789abcdef
    """
    if call is None:
        found = settings.call("Confirmations.List", all=every or None)
        spare = ("WHY", "TAKEN BACK BY", "AGENT")
        listing(settings, found, _COLUMNS, spare=spare, empty="No change waits to be confirmed.")
        return
    if every:
        raise click.UsageError("CALL and --all cannot be used together.")
    listed = lambda: [each["id"] for each in settings.call("Confirmations.List", all=True)]  # noqa: E731
    call = only_one(call, listed, "calls")
    done = settings.call("Confirmations.Confirm", call_id=call)
    what = f"{visible(done['tool'])}.{visible(done['action'])} of {visible(done['agent'])}"
    told(settings, done, f"Confirmed: the change of {what} stays.", done["id"], done["state"])
