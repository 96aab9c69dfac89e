"""`lactl history prune|compact`: keeping the store within its limits."""

from __future__ import annotations

from typing import Any

import click

from lightagentd.cli.options import Command, Settings
from lightagentd.cli.output import fields, print_json, say
from lightagentd.cli.stored import state_folder, stored_option


@click.command("prune", cls=Command)
@click.option("--dry-run", is_flag=True, help="Say what would go, about, and remove nothing.")
@click.pass_obj
def prune(settings: Settings, dry_run: bool) -> None:
    """Remove old events now.

    The daemon does that by itself every hour. What may go says the section [history] of the configuration:
    max_age_days, max_bytes, session_max_idle_days. The messages of sessions that exist stay, and so does
    what turns that have not ended need. An event of the topic daemon.history says what was removed, and the
    chain still verifies.
    """
    found = settings.call("History.Prune", timeout_s=None, dry_run=dry_run)
    if settings.json:
        print_json(found)
        return
    fields(
        [
            ("dry run", found["dry_run"]),
            ("removed", f"{found['removed']} events"),
            ("deleted", f"{len(found['sessions'])} sessions"),
            ("freed", _size(found["freed_bytes"])),
            ("in use", _size(found["live_bytes"])),
            ("first event", found["first_seq"]),
            ("compacted", found["compacted"]),
        ]
    )


@click.command("compact", cls=Command)
@stored_option
@click.pass_obj
def compact(settings: Settings) -> None:
    """Write the file of the history anew, without the pages that are free.

    What was removed leaves free pages in the file, which new events use; this gives them back to the disk.
    It needs room for a second file meanwhile. The daemon goes on; with --stored it must not run.
    """
    found = _compact_stored(settings) if settings.stored else settings.call("History.Compact", timeout_s=None)
    if settings.json:
        print_json(found)
        return
    say(f"The history took {_size(found['bytes_before'])} and takes {_size(found['bytes_after'])} now.")


def _compact_stored(settings: Settings) -> Any:
    from lightagentd.events.backup.stored import result_as_owner
    from lightagentd.events.store.compacting import compact_state

    state = state_folder(settings)
    return result_as_owner(state, compact_state, str(state))


def _size(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 20):.1f} MiB"


COMMANDS = (prune, compact)
