"""`lactl events`: the event stream, which goes on across restarts of the daemon."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import click

from lightagentd.cli.event_line import print_event
from lightagentd.cli.options import Command, Settings, agent_names
from lightagentd.cli.output import warn
from lightagentd.cli.session_name import session_ids, whole_session
from lightagentd.cli.when import FORMS, Start, since_start
from lightagentd.errors import DaemonUnreachable, ShuttingDown

_RETRY_S = 0.5


@click.command("events", cls=Command)
@click.option("--follow", "-f", is_flag=True, help="Go on with new events as they come, until Ctrl-C.")
@click.option(
    "--since", metavar="START", callback=since_start, help=f"Begin at {FORMS}, or at the number of an event."
)
@click.option("--topic", metavar="TOPIC", help="Only this topic and those below it, such as 'tool'.")
@click.option("--agent", metavar="NAME", shell_complete=agent_names, help="Only events of this agent.")
@click.option("--session", metavar="SESSION", shell_complete=session_ids, help="Only events of this session.")
@click.pass_obj
def command(
    settings: Settings,
    follow: bool,
    since: Start | None,
    topic: str | None,
    agent: str | None,
    session: str | None,
) -> None:
    """Print events, stored ones or new ones.

    That is all stored events, oldest first, or with --follow the new ones from now on; --since names
    another beginning for both. With --follow lactl waits for a daemon that restarts and goes on where it
    was: no event is missed or printed twice. The lines are those of 'lactl history'.
    """
    if since is None:
        position = _newest(settings) + 1 if follow else 1
    else:
        position = since.seq or _first_since(settings, since.time_us)
    whole = whole_session(settings, session) if session else None
    wanted = {"topic": topic, "agent": agent, "session": whole}
    stream = (
        _follow(settings, wanted, position) if follow else _events(settings, wanted, position, follow=False)
    )
    for event in stream:
        print_event(event, json=settings.json)


def _events(
    settings: Settings, wanted: dict[str, str | None], position: int, *, follow: bool
) -> Iterator[dict[str, Any]]:
    with settings.client() as client:
        for reply in client.stream("Events.Subscribe", from_seq=position, follow=follow, **wanted):
            if reply.get("event") is not None:  # the last reply has none
                yield reply["event"]


def _follow(settings: Settings, wanted: dict[str, str | None], position: int) -> Iterator[dict[str, Any]]:
    """Events for ever. A daemon that stops ends the stream or breaks it; either way it is asked again."""
    waiting = False
    while True:
        try:
            for event in _events(settings, wanted, position, follow=True):
                position = event["seq"] + 1
                waiting = False
                yield event
        except (DaemonUnreachable, ShuttingDown):
            pass
        if not waiting:
            warn("The daemon has stopped; waiting for it to come back.")
            waiting = True
        time.sleep(_RETRY_S)


def _newest(settings: Settings) -> int:
    """The number of the newest event that the caller may see; 0 when there is none."""
    found = settings.call("History.Query", limit=1)
    return int(found[-1]["seq"]) if found else 0


def _first_since(settings: Settings, time_us: int) -> int:
    """The number of the first event at or after a time, by bisection: some twenty short calls."""
    low, high = 1, _newest(settings) + 1
    while low < high:
        middle = (low + high) // 2
        event = next(_events(settings, {}, middle, follow=False), None)
        if event is None or event["time"] >= time_us:
            high = middle
        else:
            low = event["seq"] + 1
    return low
