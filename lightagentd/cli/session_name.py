"""Resolves a session argument: an id, the beginning of one, or the name of an agent.

The name of an agent, or its beginning, means the caller's own current session with it. An ambiguous name is
refused; lactl never guesses.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import click

from lightagentd.cli.options import Settings, names_of
from lightagentd.errors import InvalidArgument, SessionNotFound

MIN_CHARS = 6
"""So much of an id must be written; `ses_` may be left out, and counts when it is not."""
_WHOLE = re.compile(r"ses_[0-9a-f]{16}")
_PREFIX = "ses_"


session_ids = names_of("Sessions.List", "id")
"""The ids of the caller's sessions, for the completion of a shell; newest first."""


def session_argument(function: Callable[..., Any]) -> Callable[..., Any]:
    """The argument SESSION; the command resolves it with `whole_session`."""
    return click.argument("session", shell_complete=session_ids)(function)


def whole_session(settings: Settings, name: str, *, cut_agent: bool = True) -> str:
    """The id of the session that a person means; `cut_agent` says that the name of an agent may be cut short.
    Raises SessionNotFound, InvalidArgument.
    """
    if _WHOLE.fullmatch(name):
        return name
    found = settings.call("Sessions.List")
    if any(each["id"] == name for each in found):
        return name
    uid = settings.uid()
    current = current_ids(found)
    own = [each for each in found if each["id"] in current and each["owner"] == uid]
    meant = {each["id"]: each for each in found if _begins(each["id"], name)}
    meant |= {each["id"]: each for each in own if each["agent"] == name}
    if not meant and name and cut_agent:
        meant = {each["id"]: each for each in own if each["agent"].startswith(name)}
    if len(meant) > 1:
        lines = ", ".join(f"{each['id']} ({each['agent']})" for each in list(meant.values())[:5])
        raise InvalidArgument(
            f"{name!r} may mean {len(meant)} sessions.",
            suggestion=f"Write more of the id: {lines}",
            field="session",
        )
    if not meant:
        raise _unknown(name)
    return str(next(iter(meant)))


def current_ids(sessions: list[dict[str, Any]]) -> set[str]:
    """The session that receives each owner's prompts to each agent: the current one, else the latest. Child
    sessions receive none.
    """
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for each in (one for one in sessions if not one.get("parent")):
        key = each["agent"], each["owner"]
        best = found.get(key)
        rank = each["current"], each["updated_us"]
        if best is None or rank > (best["current"], best["updated_us"]):
            found[key] = each
    return {each["id"] for each in found.values()}


def _begins(session: str, name: str) -> bool:
    return len(name) >= MIN_CHARS and (
        session.startswith(name) or session.removeprefix(_PREFIX).startswith(name)
    )


def _unknown(name: str) -> SessionNotFound:
    if len(name) < MIN_CHARS and re.fullmatch(r"(ses_)?[0-9a-f]*", name):
        hint = f"Write at least {MIN_CHARS} characters of an id; all of them shows: lactl sessions list"
    else:
        hint = "Run: lactl sessions list"
    return SessionNotFound(
        f"You have no session {name[:60]!r}, and no current one with an agent of that name.",
        suggestion=hint,
        field="session",
    )
