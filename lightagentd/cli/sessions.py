"""`lactl sessions`: the conversations of whoever asks."""

from __future__ import annotations

import json
from typing import Any

import click

from lightagentd.cli.options import Group, Settings, agent_names
from lightagentd.cli.output import cell, fields, print_json, say, table
from lightagentd.cli.terminal import BOLD, DIM, is_terminal, style
from lightagentd.cli.when import local


@click.group("sessions", cls=Group)
def command() -> None:
    """List, read and cancel your conversations."""


@command.command("list")
@click.option("--agent", metavar="NAME", shell_complete=agent_names, help="Only those with this agent.")
@click.pass_obj
def list_sessions(settings: Settings, agent: str | None) -> None:
    """List your sessions, newest first.

    The columns: id, agent, state, turns, last change, title.
    """
    sessions = settings.call("Sessions.List", agent=agent)
    if settings.json:
        print_json(sessions)
        return
    table(
        ("ID", "AGENT", "STATE", "TURNS", "UPDATED", "TITLE"),
        (
            (
                each["id"],
                each["agent"],
                each["state"],
                each["turns"],
                local(each["updated_us"]),
                each["title"],
            )
            for each in sessions
        ),
        empty='There are no sessions. Begin one with: lactl prompt AGENT "…"',
    )


@command.command("show")
@click.argument("session")
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="How many messages.")
@click.pass_obj
def show(settings: Settings, session: str, limit: int) -> None:
    """Show one session and its newest messages."""
    found = settings.call("Sessions.Get", session=session)
    messages = settings.call("Sessions.Messages", session=session, limit=limit)
    if settings.json:
        print_json({**found, "messages": messages})
        return
    shown = {
        **found,
        "created_us": local(found["created_us"]),
        "updated_us": local(found["updated_us"]),
    }
    fields((name.removesuffix("_us"), value) for name, value in shown.items())
    for message in messages:
        _print_message(message)


@command.command("cancel")
@click.argument("session")
@click.pass_obj
def cancel(settings: Settings, session: str) -> None:
    """Cancel what runs and waits in a session."""
    count = settings.call("Sessions.Cancel", session=session)
    if settings.json:
        print_json({"cancelled": count})
    elif is_terminal():
        say("Nothing was running." if not count else f"Cancelled turns: {count}.")
    else:
        say(str(count))


def _print_message(message: dict[str, Any]) -> None:
    who = f"{message['role']} {message['name']}".strip()
    say()
    say(style(who, BOLD), "  ", style(local(message["time_us"]), DIM))
    if message["content"]:
        say(message["content"].rstrip("\n"))
    for call in message["tool_calls"]:
        arguments = call.get("arguments")
        text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        say(style(f"→ {call.get('name')} {cell(text)}", DIM))
