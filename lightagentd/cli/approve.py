"""`lactl approve`: allow one call, once."""

from __future__ import annotations

import click

from lightagentd.cli.approvals import answer, approval_ids
from lightagentd.cli.options import Command, Settings


@click.command("approve", cls=Command)
@click.argument("approval", metavar="ID", shell_complete=approval_ids)
@click.option("--note", metavar="TEXT", help="Kept with the answer.")
@click.pass_obj
def command(settings: Settings, approval: str, note: str | None) -> None:
    """Allow the call that ID asks about, once.

    What runs is exactly what 'lactl approvals show ID' shows, or nothing.

    ID may be cut short as long as it is the only one that begins so.
    """
    answer(settings, "Approvals.Approve", approval, note)
