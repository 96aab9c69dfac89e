"""`lactl sessions` and `cancel`: the caller's conversations."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from lightagentd.cli.options import Command, Group, Settings, agent_argument, agent_names
from lightagentd.cli.output import Columns, as_json, cell, dump, fields, listing, say, say_markdown, told
from lightagentd.cli.question import may_type, visible
from lightagentd.cli.redrawn import watchable
from lightagentd.cli.replay import replay
from lightagentd.cli.session_files import export_session, import_session
from lightagentd.cli.session_name import current_ids, session_argument, whole_session
from lightagentd.cli.stored import stored_option
from lightagentd.cli.terminal import BOLD, DIM, RED, is_terminal, style
from lightagentd.cli.turn_lines import thought_line
from lightagentd.cli.when import ago, local
from lightagentd.errors import ConfirmationRequired, LightagentError
from lightagentd.host.users import called


@click.group("sessions", cls=Group)
def command() -> None:
    """List, read and look after your conversations.

    SESSION is an id, the beginning of one (6 characters or more), or the name of an agent for your current
    session with it. What could mean two sessions is refused.

    With each agent you have one current session: 'lactl prompt AGENT' goes on with it. A session that you
    begin, fork or import becomes the current one, and so does one that you switch to or prompt by its id; but
    'lactl prompt --unattended' leaves it as it is.

    A paused session takes no prompts; the turn that runs in it goes on to its end, and prompts that wait
    stay, also when the daemon is started again, until you resume it.

    A fork begins with the conversation of a session, or with the part of it up to a message, and goes its own
    way from there: to try something and lose nothing. 'lactl sessions show' has the numbers of the messages.

    All of it is kept over restarts. A turn that the daemon was stopped in the middle of is 'interrupted':
    what it ran is not run again, 'lactl sessions show' says what is known, and the next prompt goes on.

    A session is yours alone; to other users it does not exist, but to administrators.
    """


@command.command("list")
@stored_option
@click.option("--agent", metavar="NAME", shell_complete=agent_names, help="Only those with this agent.")
@click.option(
    "--children",
    "parent",
    metavar="SESSION",
    help="Those that turns of this session made to ask other agents.",
)
@watchable("session,agent.prompt,agent.error,plan")
@click.pass_obj
def list_sessions(settings: Settings, agent: str | None, parent: str | None) -> None:
    """List your sessions, newest first, without those that agents made to ask each other.

    The columns: id, agent, * for your current one with that agent, state, turns, last change, title. The
    state is idle, running or waiting (for a person), then paused and the phase of a plan where that is so.
    Where an administrator sees those of others, a terminal shows their uids, too.
    """
    of = whole_session(settings, parent) if parent else None
    sessions = settings.call("Sessions.List", agent=agent, parent=of)
    current = current_ids(sessions)
    others = is_terminal() and any(each["owner"] != settings.uid() for each in sessions)
    columns: Columns = {
        "ID": "id",
        "AGENT": "agent",
        **({"UID": "owner"} if others else {}),
        "CUR": lambda each: "*" if each["id"] in current else "",
        "STATE": state_of,
        "TURNS": "turns",
        "CHANGED": lambda each: ago(each["updated_us"]),
        "TITLE": "title",
    }
    listing(
        settings,
        sessions,
        columns,
        spare=("TURNS", "CHANGED"),
        empty='There are no sessions. Begin one with: lactl prompt AGENT "…"',
    )


def state_of(session: dict[str, Any]) -> str:
    """The state of a session as words: `idle`, `running,drafting`, `idle,paused`."""
    mode = session["mode"]
    words = (session["state"], "paused" if session["paused"] else "", "" if mode == "normal" else mode)
    return ",".join(word for word in words if word)


@command.command("new")
@agent_argument
@click.option("--title", metavar="TEXT", help="What it is about; else its first prompt says.")
@click.pass_obj
def new(settings: Settings, agent: str, title: str | None) -> None:
    """Begin a session with AGENT.

    It is your current one with that agent then, and its id is printed.
    """
    _told(settings, settings.call("Sessions.Create", agent=agent, title=title), "Began")


@command.command("withdraw")
@session_argument
@click.argument("leave", metavar="LEAVE")
@click.pass_obj
def withdraw(settings: Settings, session: str, leave: str) -> None:
    """Withdraw a LEAVE of a session, which 'lactl sessions show' lists: its call is asked about again."""
    session = whole_session(settings, session)
    _told(settings, settings.call("Sessions.Withdraw", session=session, leave=leave), "Withdrew a leave of")


@command.command("show")
@session_argument
@stored_option
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="How many messages.")
@click.pass_obj
def show(settings: Settings, session: str, limit: int) -> None:
    """Show one session and its newest messages.

    'interrupted' says what is known of a turn that the daemon stopped in the middle of.
    """
    session = whole_session(settings, session)
    found = settings.call("Sessions.Get", session=session)
    messages = settings.call("Sessions.Messages", session=session, limit=limit)
    used = _usage(settings, session)
    if as_json(settings, {**found, "usage": used, "messages": messages}):
        return
    shown = {
        **found,
        "leaves": [visible(leave_words(leave)) for leave in found.get("leaves", [])],
        "created_us": local(found["created_us"]),
        "updated_us": local(found["updated_us"]),
        "tokens": used["total_tokens"] if used else "",
        "cost": f"{used['cost']:.4f}" if used and used["cost"] else "",
    }
    empty: tuple[object, ...] = ("", [], 0, False)
    fields(
        (name.removesuffix("_us"), value)
        for name, value in shown.items()
        if not is_terminal() or value not in empty
    )
    for message in messages:
        _print_message(message)


def leave_words(leave: dict[str, Any]) -> str:
    """One leave on one line."""
    outside = ", also with text from outside" if leave.get("tainted") else ""
    call = f"{leave.get('tool')}.{leave.get('action')} {dump(leave.get('args'))}"
    return f"{leave.get('id')} {call} (by {called(leave.get('given_by', 0))}{outside})"


def _usage(settings: Settings, session: str) -> dict[str, Any] | None:
    """The session's usage; None when it is not available, so that the rest is still shown."""
    try:
        found = settings.call("Usage.Get", scope="session", name=session)
    except LightagentError:
        return None
    return found[0] if found else None


def _print_message(message: dict[str, Any]) -> None:
    who = " ".join(filter(None, (message["role"], message["name"], message["speaker"])))
    say()
    say(style(who, BOLD), "  ", style(f"{local(message['time_us'])}  seq {message['seq']}", DIM))
    if message.get("reasoning"):
        say(style(thought_line(message["reasoning"]), DIM))
    if message["content"]:
        (say_markdown if message["role"] == "assistant" else say)(message["content"].rstrip("\n"))
    if message.get("cut_off"):
        say(style(f"✗ The answer ended here. {cell(message['cut_off'])}", RED))
    for call in message["tool_calls"]:
        arguments = call.get("arguments")
        text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        say(style(f"→ {call.get('name')} {cell(text)}", DIM))


@command.command("switch")
@session_argument
@click.pass_obj
def switch(settings: Settings, session: str) -> None:
    """Make SESSION your current one with its agent.

    Prompts without --session go on with it.
    """
    found = settings.call("Sessions.Switch", session=whole_session(settings, session))
    _told(settings, found, "Current is now")


@command.command("rename")
@session_argument
@click.argument("title", nargs=-1, required=True)
@click.pass_obj
def rename(settings: Settings, session: str, title: tuple[str, ...]) -> None:
    """Give SESSION another title."""
    whole = whole_session(settings, session)
    _told(settings, settings.call("Sessions.Rename", session=whole, title=" ".join(title)), "Renamed")


@command.command("model")
@session_argument
@click.argument("model")
@click.pass_obj
def model(settings: Settings, session: str, model: str) -> None:
    """Have SESSION ask MODEL first from its next turn on.

    It is one that the agent or [models] in the configuration names, or 'default' for the agent's own. When it
    is down, the agent's models are asked in their order.
    """
    whole = whole_session(settings, session)
    found = settings.call("Sessions.SetModel", session=whole, model="" if model == "default" else model)
    _told(settings, found, f"{cell(found['model'] or 'the model of the agent')} is asked first by")


@command.command("transfer")
@session_argument
@agent_argument
@click.pass_obj
def transfer(settings: Settings, session: str, agent: str) -> None:
    """Give the conversation SESSION to AGENT, or back to its own agent."""
    session = whole_session(settings, session)
    found = settings.call("Sessions.Transfer", session=session, agent=agent)
    _told(settings, found, f"To {found['holder'] or found['agent']} went")


@command.command("pause")
@session_argument
@click.pass_obj
def pause(settings: Settings, session: str) -> None:
    """Have SESSION take no prompts until it is resumed.

    What runs goes on to its end, and what waits stays, also when the daemon is started again.
    """
    _told(settings, settings.call("Sessions.Pause", session=whole_session(settings, session)), "Paused")


@command.command("resume")
@session_argument
@click.pass_obj
def resume(settings: Settings, session: str) -> None:
    """Take a paused SESSION up again."""
    _told(settings, settings.call("Sessions.Resume", session=whole_session(settings, session)), "Resumed")


@command.command("fork")
@session_argument
@click.option("--title", metavar="TEXT", help="The title of the new session.")
@click.option(
    "--up-to", metavar="SEQ", type=click.IntRange(1), help="Only up to this message; 'show' has the numbers."
)
@click.pass_obj
def fork(settings: Settings, session: str, title: str | None, up_to: int | None) -> None:
    """Begin another session with what was said in SESSION.

    It is your current one then, and its id is printed. SESSION itself stays as it is.
    """
    whole = whole_session(settings, session)
    _told(settings, settings.call("Sessions.Fork", session=whole, title=title, up_to_seq=up_to), "Forked to")


@command.command("delete")
@session_argument
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@click.pass_obj
def delete(settings: Settings, session: str, yes: bool) -> None:
    """Drop SESSION and all that was said in it.

    What runs in it is cancelled. Where something was said you are asked; in a script --yes is needed. The
    history keeps when things happened, not what, and still verifies.
    """
    whole = whole_session(settings, session, cut_agent=False)
    try:
        settings.call("Sessions.Delete", session=whole, confirmed=yes or None)
    except ConfirmationRequired as err:
        if settings.json or not may_type():
            err.suggestion = f"To delete it all the same: lactl sessions delete --yes {whole}"
            raise
        if not _is_meant(err.message):
            say("It stays.")
            return
        settings.call("Sessions.Delete", session=whole, confirmed=True)
    told(settings, {"deleted": whole}, f"Deleted {whole}.")


def _is_meant(message: str) -> bool:
    say(f"{message} Delete it? [y/N] ", end="")
    sys.stdout.flush()
    answer = sys.stdin.readline()
    if not answer:
        say()
    return answer.strip().lower() in ("y", "yes")


command.add_command(export_session)
command.add_command(import_session)
command.add_command(replay)


@command.command("cancel")
@session_argument
@click.pass_obj
def cancel(settings: Settings, session: str) -> None:
    """Cancel what runs and waits in SESSION, as 'lactl cancel'."""
    _cancel(settings, session)


@click.command("cancel", cls=Command)
@session_argument
@click.pass_obj
def cancel_session(settings: Settings, session: str) -> None:
    """Cancel the turn in SESSION, and the prompts that wait.

    SESSION is an id, the beginning of one, or the name of an agent for your current session with it. It is
    no error when nothing runs.
    """
    _cancel(settings, session)


def _cancel(settings: Settings, session: str) -> None:
    """Cancel, and report the number of cancelled turns."""
    count = settings.call("Sessions.Cancel", session=whole_session(settings, session))
    sentence = f"Cancelled turns: {count}." if count else "Nothing was running."
    told(settings, {"cancelled": count}, sentence, count)


def _told(settings: Settings, found: dict[str, Any], what: str) -> None:
    """Report a session's new state: a sentence, its id in a pipe, or everything as JSON."""
    title = f": {cell(found['title'])}" if found["title"] else ""
    told(settings, found, f"{what} {found['id']} with {found['agent']}{title}", found["id"])
