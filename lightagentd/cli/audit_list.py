"""`lactl audit list`: who did what, by the events of the history."""

from __future__ import annotations

import sys
from typing import Any

import click

from lightagentd.cli import event_source
from lightagentd.cli.audit_rows import (
    INVOCATION,
    TOPICS,
    Event,
    Row,
    is_outcome,
    open_calls,
    row_of,
    rows,
    settle,
)
from lightagentd.cli.filters import filter_options, time_options, wanted
from lightagentd.cli.options import Command, Settings
from lightagentd.cli.output import cell, cut, dump, print_json_line, say
from lightagentd.cli.stored import stored_option
from lightagentd.cli.terminal import BOLD, RED, columns, has_colours, is_terminal, style
from lightagentd.cli.when import duration, local

_COLUMNS = {
    "SEQ": 6,
    "TIME": 19,
    "CALLER": 6,
    "AGENT": 8,
    "ACT": 18,
    "EFFECT": 7,
    "DECISION": 8,
    "RULE": 15,
    "RESULT": 9,
    "TOOK": 6,
    "DETAIL": 0,
}
"""Their widths on a terminal, where rows come one by one; what is longer moves the rest of its line."""
_GOOD = ("", "ok", "running")


@click.command("list", cls=Command)
@filter_options("agent", "session", "tool", "effect", "decision", "caller", "trace", "request", "text")
@time_options
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True, help="The newest so many.")
@click.option("--follow", "-f", is_flag=True, help="Go on with what happens, until Ctrl-C.")
@stored_option
@click.pass_obj
def list_acts(settings: Settings, /, limit: int, follow: bool, **options: Any) -> None:
    """List who did what: tool calls, approvals and answers, and what administrators did.

    The oldest comes first. The columns: number of the event, time, caller (a uid; none for the daemon
    itself), agent, act, effect, decision, rule, result, how long it took, arguments or what was said. A call
    has one row; with --follow it has one when it begins and one when it ends. With --json each row is an
    object.
    """
    which = wanted(settings, options)
    position = event_source.head(settings) + 1 if follow else 0
    found = _newest(settings, which, limit)
    if is_terminal() and not settings.json:
        say(style(cut(_aligned(list(_COLUMNS)), columns()), BOLD))
    for row in found:
        _print(row, json=settings.json)
    if follow:
        _follow(settings, which, max(position, found[-1].seq + 1 if found else 0))


def _newest(settings: Settings, which: dict[str, Any], limit: int) -> list[Row]:
    """The newest rows, oldest of them first."""
    found: list[Row] = []
    acts = {**which, "topic": ",".join(TOPICS)}
    position: int | None = None
    with settings.client() as client:
        while len(found) < limit and position != 0:
            asked = {"to_seq": position, "limit": min(event_source.PAGE, limit - len(found))}
            page = client.call("History.Page", **acts, **asked)["page"]
            found = rows(page["events"]) + found
            position = page["next_seq"]
        _settle(client, which, found)
    return found


def _settle(client: Any, which: dict[str, Any], found: list[Row]) -> None:
    """Give each call its outcome: most are near, the others are looked for one by one."""
    waiting = open_calls(found)
    if not waiting:
        return
    # What else holds of an intent (the decision, a text in the arguments, the time) holds of its outcome not.
    same = {name: which.get(name) for name in ("agent", "session", "tool", "effect", "trace", "request")}
    outcomes: dict[str, Any] = {"topic": "tool", "type": INVOCATION, "limit": event_source.PAGE}
    first_seq = min(row.seq for row in waiting.values())
    page = client.call("History.Page", **same, **outcomes, oldest_first=True, from_seq=first_seq)["page"]
    _take(page["events"], waiting)
    for row in list(waiting.values()) if page["next_seq"] else ():
        near = {"request": row.request_id} if row.request_id else {"trace": row.trace_id}
        if any(near.values()):
            _take(client.call("History.Page", **near, **outcomes)["page"]["events"], waiting)


def _take(events: list[Event], waiting: dict[str, Row]) -> None:
    for event in events:
        row = waiting.pop(str((event["data"] or {}).get("call_id", "")), None)
        if row is not None:
            settle(row, event)


def _follow(settings: Settings, which: dict[str, Any], position: int) -> None:
    calls: dict[str, Row] = {}
    topics = ",".join((*TOPICS, "tool"))
    for event in event_source.follow(settings, {**which, "topic": topics}, position):
        if event["topic"].startswith("tool.") and not is_outcome(event):
            continue  # what a tool says itself
        row = row_of(event)
        if row is None:
            continue
        begun = calls.pop(row.call_id, None)
        if is_outcome(event) and begun is not None:
            row.decision, row.rule, row.detail = begun.decision, begun.rule, begun.detail
        elif row.result == "running":
            calls[row.call_id] = row
        _print(row, json=settings.json)


def _print(row: Row, *, json: bool) -> None:
    if json:
        print_json_line(row.to_dict())
        return
    cells = [
        cell(value)
        for value in (
            row.seq,
            local(row.time)[:19] if is_terminal() else local(row.time),
            "" if row.caller is None else row.caller,
            row.agent,
            row.act,
            row.effect,
            row.decision,
            row.rule,
            row.result,
            "" if row.duration_ms is None else duration(row.duration_ms),
            row.detail if isinstance(row.detail, str) else dump(row.detail),
        )
    ]
    if not is_terminal():
        say("\t".join(cells))
        sys.stdout.flush()
        return
    line = cut(_aligned(cells), columns())
    say(style(line, RED) if row.result not in _GOOD and has_colours() else line)
    sys.stdout.flush()


def _aligned(cells: list[str]) -> str:
    return "  ".join(
        f"{text:<{width}}" for text, width in zip(cells, _COLUMNS.values(), strict=True)
    ).rstrip()
