"""`lactl events`: the event stream, which goes on across restarts of the daemon; and its schema."""

from __future__ import annotations

from typing import Any

import click

from lightagentd.cli import event_source
from lightagentd.cli.event_line import print_event
from lightagentd.cli.filters import filter_options, until_option, wanted
from lightagentd.cli.options import Listing, Settings, lists
from lightagentd.cli.output import print_json
from lightagentd.cli.stored import stored_option
from lightagentd.cli.when import FORMS, Start, since_start


@click.group("events", cls=Listing)
@click.option("--follow", "-f", is_flag=True, help="Go on with new events as they come, until Ctrl-C.")
@click.option(
    "--since", metavar="START", callback=since_start, help=f"Begin at {FORMS}, or at the number of an event."
)
@until_option
@filter_options()
@click.option(
    "--max-lag",
    type=click.IntRange(1),
    metavar="EVENTS",
    help="When it is so many events behind, go on half as many before the newest, and say what was left out.",
)
@stored_option
@click.pass_context
def command(context: click.Context, /, follow: bool, since: Start | None, **options: Any) -> None:
    """Print events, stored ones or new ones.

    That is all stored events, oldest first, or with --follow the new ones from now on; --since names
    another beginning for both. With --follow lactl waits for a daemon that restarts and goes on where it
    was: no event is missed or printed twice. The lines are those of 'lactl history'. What retention has
    removed, or --max-lag left out, is told on standard error; with --json as an object that has 'missed'.
    """
    if not lists(context):
        return
    settings = context.ensure_object(Settings)
    which = wanted(settings, options)
    position = 1
    if since is not None and since.seq:
        position = since.seq
    elif since is not None:
        which["since_us"] = since.time_us
    elif follow:
        position = event_source.head(settings) + 1
    if follow:
        stream = event_source.follow(settings, which, position)
    else:
        stream = event_source.subscribe(settings, which, position, follow=False)
    for event in stream:
        print_event(event, json=settings.json)


@command.command("schema")
def schema() -> None:
    """Print the JSON Schema of every event.

    That is one document in the dialect 2020-12: the header that all have, and the data of each topic and
    type. The daemon need not run.
    """
    from lightagentd.events.types.schema import json_schema

    print_json(json_schema())
