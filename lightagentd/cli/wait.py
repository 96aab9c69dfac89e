"""`lactl wait`: wait for a session's turns, then exit as `lactl prompt` does at the end of one."""

from __future__ import annotations

from typing import Any

import click

from lightagentd import errors
from lightagentd.cli.deadline import SECONDS, goes_on
from lightagentd.cli.options import Command, Settings
from lightagentd.cli.output import print_json, say_markdown, warn
from lightagentd.cli.session_name import session_argument, whole_session
from lightagentd.errors import LightagentError, TimedOut

_SLACK_S = 10.0
"""How much longer the daemon may take to say that the time is over."""
_ENDS_READ = 20
"""How many of the newest events of a kind are looked at; a turn in which models failed has several."""
_NO_ENDS = ("started", "fallback")
"""The types of events beside those that end a turn."""


@click.command("wait", cls=Command)
@session_argument
@click.option(
    "--timeout", "timeout_s", metavar="SECONDS", type=SECONDS, help="Wait no longer; the turn goes on."
)
@click.option("--quiet", "-q", is_flag=True, help="Print nothing; the exit status says how it ended.")
@click.pass_obj
def command(settings: Settings, session: str, timeout_s: float | None, quiet: bool) -> None:
    """Wait for what runs in SESSION, then print its last answer.


    It waits until nothing runs and no prompt waits; in a paused session for the turn that runs, and in a plan
    until it is done or stops at a failed task. SESSION is an id, the beginning of one, or the name of an
    agent for your current session with it.

    The exit status is that of the last turn, as 'lactl prompt' would have it: 0 with an answer, else that of
    its error, such as 130 when it was cancelled; 0 in a session without a turn. After --timeout it is 124.
    'lactl help exit-codes' lists them all.
    """
    whole = whole_session(settings, session)
    found = _waited(settings, whole, timeout_s)
    failure = _last_end(settings, whole)
    answer = "" if failure or quiet else _last_answer(settings, whole)
    if not quiet:
        _tell_what_stays(found)
    if settings.json and not quiet:
        ended = "" if not found["turns"] else failure.code if failure else "done"
        print_json({"session": whole, "state": found["state"], "ended": ended, "answer": answer})
    elif answer:
        say_markdown(answer)
    if failure is not None:
        raise failure


def _waited(settings: Settings, session: str, timeout_s: float | None) -> dict[str, Any]:
    """The session once it is done. Raises TimedOut."""
    limit_s = None if timeout_s is None else timeout_s + _SLACK_S
    try:
        with settings.client(limit_s) as client:
            found = client.call("Sessions.Wait", session=session, timeout_s=timeout_s)["session_info"]
    except TimedOut as err:
        raise err if timeout_s is None else goes_on(session, timeout_s) from err
    assert isinstance(found, dict)
    return found


def _last_end(settings: Settings, session: str) -> LightagentError | None:
    """The error that the session's last turn ended with, if it did."""
    ends = [
        event
        for topic in ("session.turn", "agent.error")
        for event in settings.call("History.Query", session=session, topic=topic, limit=_ENDS_READ)
        if event["type"] not in _NO_ENDS
    ]
    if not ends:
        return None
    last = max(ends, key=lambda event: event["seq"])
    if last["topic"] != "agent.error":
        return None
    return errors.from_dict({"code": last["type"], **(last["data"] or {})})


def _last_answer(settings: Settings, session: str) -> str:
    for message in reversed(settings.call("Sessions.Messages", session=session, limit=_ENDS_READ)):
        if message["role"] == "assistant":
            return str(message["content"])
    return ""


def _tell_what_stays(found: dict[str, Any]) -> None:
    session = found["id"]
    if found["paused"] and found["queued"]:
        warn(
            f"{session} is paused; prompts that wait: {found['queued']}.",
            f"Go on: lactl sessions resume {session}",
        )
    if found["mode"] == "applying":
        warn("Its plan is not done.", f"See why: lactl plan show {session}")
