"""`lactl messages`: what agents write to each other."""

from __future__ import annotations

import click

from lightagentd.cli.options import Command, Settings
from lightagentd.cli.output import Columns, cell, listing
from lightagentd.cli.question import visible
from lightagentd.cli.session_name import whole_session
from lightagentd.cli.when import ago

_COLUMNS: Columns = {
    "ID": "id",
    "SENT": lambda each: ago(each["sent_us"]),
    "FROM": "agent",
    "TO": "to_agent",
    "STATE": lambda each: "waits" if each["waits"] else "read",
    "HOPS": "hops",
    "TEXT": lambda each: cell(visible(each["text"])),
}


@click.command("messages", cls=Command)
@click.argument("name", metavar="[SESSION]", required=False)
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, metavar="N")
@click.pass_obj
def command(settings: Settings, name: str | None, limit: int) -> None:
    """List what agents wrote to each other in your sessions, or from and to SESSION, newest first.

    The columns: id, when it was sent, the agent that wrote, the agent that reads, whether it waits or was
    read, how many messages led to it without a person, text.
    """
    session = whole_session(settings, name) if name else None
    found = settings.call("Sessions.Mail", session=session, limit=limit)
    listing(settings, found, _COLUMNS, spare=("ID", "HOPS", "SENT"), empty="No agent wrote to another.")
