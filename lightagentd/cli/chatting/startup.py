"""Picks the session that a chat begins with.

Without any session it makes one. It opens the only one, or else the current one, and lists the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lightagentd.cli.chatting.daemon import Daemon
from lightagentd.cli.output import cell
from lightagentd.cli.when import local
from lightagentd.errors import InvalidArgument

_RUNBOOK = "runbook"
"""The model that is built in."""
LISTED = 10
"""So many of the other sessions are listed."""


@dataclass(frozen=True, kw_only=True)
class Opening:
    """A session to be opened, and the lines to show first."""

    session: dict[str, Any]
    lines: tuple[str, ...] = ()


async def open_first(daemon: Daemon, about: dict[str, Any], session: str, *, new: bool) -> Opening:
    """The session that the command line asks for, with the agent that `about` tells of.

    Raises the errors of the client, and InvalidArgument.
    """
    agent = about["name"]
    if not session:
        first = await (open_new if new else open_latest)(daemon, agent)
        return first if first.session["turns"] else _with_what_works(about, first)
    found = await daemon.call("Sessions.Get", session=session)
    if found["agent"] != agent:
        raise InvalidArgument(
            f"The session {session} is with the agent {found['agent']}, not with {agent}.",
            suggestion=f"Run: lactl chat {found['agent']} --session {session}",
            field="session",
        )
    return opening(found)


def _with_what_works(agent: dict[str, Any], first: Opening) -> Opening:
    """The opening of an empty session; for an agent without a language model, with what it answers."""
    if agent["model"] != _RUNBOOK or agent["fallback"]:
        return first
    lines = (
        f"{cell(agent['name'])} has no language model: it answers from its skills, which /skills lists.",
        "Ask, for example: why is the root filesystem full; is nginx ok; what failed at boot.",
        "For everything else give it a model: lactl setup",
    )
    return Opening(session=first.session, lines=(*first.lines, *lines))


async def open_new(daemon: Daemon, agent: str, title: str = "") -> Opening:
    """A new session. Raises as the client."""
    made = await daemon.call("Sessions.Create", agent=agent, title=title or None)
    return Opening(session=made, lines=(f"A new session with {cell(agent)}: {made['id']}",))


async def open_latest(daemon: Daemon, agent: str) -> Opening:
    """The caller's only or current session; a new one if they have none. Raises as the client."""
    own = await own_sessions(daemon, agent)
    if not own:
        return await open_new(daemon, agent)
    current = next((each for each in own if each["current"]), own[0])
    found = opening(current)
    others = [each for each in own if each["id"] != current["id"]]
    if not others:
        return found
    lines = [f"{len(others)} more {'session' if len(others) == 1 else 'sessions'}, /switch opens one:"]
    lines += [f"  {session_line(each)}" for each in others[:LISTED]]
    if len(others) > LISTED:
        lines.append(f"  and {len(others) - LISTED} more, see /sessions")
    return Opening(session=current, lines=(*lines, *found.lines))


async def own_sessions(daemon: Daemon, agent: str) -> list[dict[str, Any]]:
    """The caller's own sessions with an agent, newest first; the daemon lists others' too for an
    administrator.
    """
    found = await daemon.call("Sessions.List", agent=agent)
    return [each for each in found if each["owner"] == daemon.uid()]


def opening(session: dict[str, Any]) -> Opening:
    """Open an existing session."""
    title = f": {cell(session['title'])}" if session["title"] else ""
    lines = [f"The session {session['id']}{title}"]
    if session["paused"]:
        lines.append("It is paused; /resume takes it up again.")
    if session["mode"] != "normal":
        lines.append(f"It is in plan mode ({session['mode']}); /plan shows the plan.")
    if session["state"] != "idle":
        waits = f" for {cell(session['waits_for'])}" if session["waits_for"] else ""
        lines.append("A turn runs." if session["state"] == "running" else f"A turn waits{waits}.")
    return Opening(session=session, lines=tuple(lines))


def session_line(session: dict[str, Any]) -> str:
    """One session of a list, on one line."""
    words = [session["id"], local(session["updated_us"])[:16].replace("T", " ")]
    words += [session["state"]] if session["state"] != "idle" else []
    words += ["paused"] if session["paused"] else []
    words += [cell(session["title"])] if session["title"] else []
    return "  ".join(words)
