"""`lactl cancel`: end what runs in a session."""

from __future__ import annotations

import click

from lightagentd.cli.options import Command, Settings
from lightagentd.cli.output import print_json, say
from lightagentd.cli.session_name import session_argument, whole_session
from lightagentd.cli.terminal import is_terminal


@click.command("cancel", cls=Command)
@session_argument
@click.pass_obj
def command(settings: Settings, session: str) -> None:
    """Cancel the turn in SESSION, and the prompts that wait.

    SESSION is an id, the beginning of one, or the name of an agent for your current session with it. It is
    no error when nothing runs.
    """
    cancelled(settings, session)


def cancelled(settings: Settings, session: str) -> None:
    """Cancel, and say how many turns that were."""
    count = settings.call("Sessions.Cancel", session=whole_session(settings, session))
    if settings.json:
        print_json({"cancelled": count})
    elif is_terminal():
        say("Nothing was running." if not count else f"Cancelled turns: {count}.")
    else:
        say(str(count))
