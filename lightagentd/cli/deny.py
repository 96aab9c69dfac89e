"""`lactl deny`: refuse one call."""

from __future__ import annotations

import click

from lightagentd.cli.approvals import answer, approval_ids
from lightagentd.cli.options import Command, Settings


@click.command("deny", cls=Command)
@click.argument("approval", metavar="ID", shell_complete=approval_ids)
@click.option("--note", metavar="TEXT", help="The agent reads it, too.")
@click.pass_obj
def command(settings: Settings, approval: str, note: str | None) -> None:
    """Refuse the call that ID asks about; the agent goes on without it.

    ID may be cut short as long as it is the only one that begins so.
    """
    answer(settings, "Approvals.Deny", approval, note)
