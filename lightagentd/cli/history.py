"""`lactl history`: stored events, and commands for the store itself."""

from __future__ import annotations

from typing import Any

import click

from lightagentd.cli import event_source, history_files
from lightagentd.cli.event_line import print_event
from lightagentd.cli.filters import filter_options, time_options, wanted
from lightagentd.cli.options import Listing, Settings, lists
from lightagentd.cli.output import as_json, fields, say
from lightagentd.cli.stored import state_folder, stored_option


@click.group("history", cls=Listing)
@filter_options()
@time_options
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="The newest so many.")
@click.option("--follow", "-f", is_flag=True, help="Go on with new events as they come, until Ctrl-C.")
@stored_option
@click.pass_context
def command(context: click.Context, /, limit: int, follow: bool, **options: Any) -> None:
    """Show the newest stored events, and look after the store.

    The oldest of them comes first. Each line has the number, the time, the agent, topic and type, and
    what the event says; with --json it is the event as one JSON object.
    """
    if not lists(context):
        return
    settings = context.ensure_object(Settings)
    which = wanted(settings, options)
    position = event_source.head(settings) + 1 if follow else 0
    found = event_source.newest(settings, which, limit)
    for event in found:
        print_event(event, json=settings.json)
    if follow:
        position = max(position, found[-1]["seq"] + 1 if found else 0)
        for event in event_source.follow(settings, which, position):
            print_event(event, json=settings.json)


for _one in history_files.COMMANDS:
    command.add_command(_one)


@command.command("prune")
@click.option("--dry-run", is_flag=True, help="Say what would go, about, and remove nothing.")
@click.pass_obj
def prune(settings: Settings, dry_run: bool) -> None:
    """Remove old events now.

    The daemon does that by itself every hour. What may go says the section [history] of the configuration:
    max_age_days, max_bytes, session_max_idle_days. The messages of sessions that exist stay, and so does
    what turns that have not ended need. An event of the topic daemon.history says what was removed, and the
    chain still verifies. On a full disk about a tenth of the history goes, whatever the limits say, so that
    the daemon can store again; 'lactl history compact' gives the room back to the disk.
    """
    found = settings.call("History.Prune", timeout_s=None, dry_run=dry_run)
    if as_json(settings, found):
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


@command.command("compact")
@stored_option
@click.pass_obj
def compact(settings: Settings) -> None:
    """Write the file of the history anew, without the pages that are free.

    What was removed leaves free pages in the file, which new events use; this gives them back to the disk.
    It needs room for a second file meanwhile. The daemon goes on; with --stored it must not run.
    """
    found = _compact_stored(settings) if settings.store else settings.call("History.Compact", timeout_s=None)
    if as_json(settings, found):
        return
    say(f"The history took {_size(found['bytes_before'])} and takes {_size(found['bytes_after'])} now.")


def _compact_stored(settings: Settings) -> Any:
    from lightagentd.events.backup.stored import result_as_owner
    from lightagentd.events.store.compacting import compact_state

    state = state_folder(settings)
    return result_as_owner(state, compact_state, str(state))


def _size(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 20):.1f} MiB"
