"""`lactl audit`: does the history still say what was stored?"""

from __future__ import annotations

import click

from lightagentd.cli.options import Group, Settings
from lightagentd.cli.output import fields, print_json
from lightagentd.errors import HistoryDamaged


@click.group("audit", cls=Group)
def command() -> None:
    """Check the history for tampering."""


@command.command("verify")
@click.pass_obj
def verify(settings: Settings) -> None:
    """Check the hash of every stored event.

    Walks the whole chain and names the first record that was altered, dropped or inserted. The exit
    status is 0 when the history is intact and 74 when it is not. Whoever keeps the head's hash elsewhere
    can also tell that the end was not cut off.
    """
    found = settings.call("History.Verify", timeout_s=None)
    if settings.json:
        print_json(found)
    else:
        fields(
            [
                ("history", "intact" if found["ok"] else "altered"),
                ("events", found["events"]),
                ("head", found["head_hash"]),
            ]
        )
    if not found["ok"]:
        raise HistoryDamaged(
            f"The history was altered at event {found['first_bad_seq']}: {found['reason']}.",
            suggestion="Compare with the journal, which has the hash of every event: "
            f"journalctl -u lightagentd LIGHTAGENT_SEQ={found['first_bad_seq']}",
        )
