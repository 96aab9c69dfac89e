"""`lactl history`: what was stored; its commands look after the store itself."""

from __future__ import annotations

from typing import Any

import click

from lightagentd.cli import event_source, history_files, history_prune
from lightagentd.cli.event_line import print_event
from lightagentd.cli.filters import filter_options, time_options, wanted
from lightagentd.cli.options import Listing, Settings, lists
from lightagentd.cli.stored import stored_option


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


for _one in (*history_files.COMMANDS, *history_prune.COMMANDS):
    command.add_command(_one)
