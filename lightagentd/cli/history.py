"""`lactl history`: what was stored."""

from __future__ import annotations

import click

from lightagentd.cli.event_line import print_event
from lightagentd.cli.options import Command, Settings, agent_names
from lightagentd.cli.session_name import session_ids, whole_session
from lightagentd.cli.when import FORMS, since_time


@click.command("history", cls=Command)
@click.option("--agent", metavar="NAME", shell_complete=agent_names, help="Only events of this agent.")
@click.option("--session", metavar="SESSION", shell_complete=session_ids, help="Only events of this session.")
@click.option("--topic", metavar="TOPIC", help="Only this topic and those below it, such as 'tool'.")
@click.option("--trace", metavar="TRACE", help="Only events of this turn.")
@click.option("--since", metavar="TIME", callback=since_time, help=f"Not before {FORMS}.")
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="The newest so many.")
@click.pass_obj
def command(
    settings: Settings,
    agent: str | None,
    session: str | None,
    topic: str | None,
    trace: str | None,
    since: int | None,
    limit: int,
) -> None:
    """Show the newest stored events.

    The oldest of them comes first. Each line has the number, the time, the agent, topic and type, and
    what the event says; with --json it is the event as one JSON object.
    """
    found = settings.call(
        "History.Query",
        agent=agent,
        session=whole_session(settings, session) if session else None,
        topic=topic,
        trace=trace,
        since_us=since,
        limit=limit,
    )
    for event in found:
        print_event(event, json=settings.json)
