"""`lactl event`: tell an agent of something that happened, without taking part in the conversation."""

from __future__ import annotations

import sys

import click

from lightagentd.cli.named_file import read_once
from lightagentd.cli.options import Command, Settings, agent_argument
from lightagentd.cli.output import told
from lightagentd.cli.session_name import session_ids, whole_session
from lightagentd.client.blocking import MAX_MESSAGE_BYTES


@click.command("event", cls=Command)
@agent_argument
@click.argument("text", nargs=-1)
@click.option("--session", metavar="SESSION", shell_complete=session_ids, help="Beside this conversation.")
@click.option("--forked", is_flag=True, help="The turn gets the conversation, too.")
@click.option("--by", metavar="AGENT", help="The agent of its team that handles it.")
@click.option("--without", metavar="TOOL", multiple=True, help="A tool, or TOOL.ACTION, that it has not.")
@click.option("--max-steps", metavar="N", type=click.IntRange(1), help="How many steps it may take.")
@click.option("--unattended", is_flag=True, help="Nobody is asked to allow a call: it is refused.")
@click.pass_obj
def command(
    settings: Settings,
    /,
    agent: str,
    text: tuple[str, ...],
    session: str | None,
    forked: bool,
    by: str | None,
    without: tuple[str, ...],
    max_steps: int | None,
    unattended: bool,
) -> None:
    """Tell AGENT of something that happened: TEXT, or what comes on standard input.

    One turn handles it aside, in a session of its own. Your conversation with the agent hears of it only if
    that turn finds that it matters, and writes a message. The text counts as text from outside. The ids of
    session and turn are printed once the event is stored; 'lactl wait SESSION' waits for the end of the turn.
    """
    content = " ".join(text) or read_once(sys.stdin.buffer, MAX_MESSAGE_BYTES).decode(errors="replace")
    found = settings.call(
        "Sessions.SendEvent",
        agent=agent,
        content=content,
        session=whole_session(settings, session) if session else None,
        initial_messages="forked" if forked else None,
        sub_agent_name=by,
        tools_remove=list(without) or None,
        max_steps=max_steps,
        unattended=unattended or None,
    )
    sentence = f"The event is stored, as {found['trace_id']} in {found['session']}."
    told(settings, found, sentence, found["session"], found["trace_id"])
