"""`lactl audit list`: who did what, by the events of the history.

A call with its decision and outcome is one row, and so is each other act.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import click

from lightagentd.cli import event_source
from lightagentd.cli.filters import filter_options, time_options, wanted
from lightagentd.cli.layout import Layout
from lightagentd.cli.options import Command, Settings
from lightagentd.cli.output import cell, dump, print_json_line, say, user_cell
from lightagentd.cli.stored import stored_option
from lightagentd.cli.terminal import BOLD, RED, columns, has_colours, is_terminal, style
from lightagentd.cli.when import duration, moment

Event = dict[str, Any]

DISPATCH = "agent.tool_dispatch"
INVOCATION = "invocation"
TOPICS = (
    DISPATCH,
    "approval",
    "input.answered",
    "plan.applying",
    "session.deleted",
    "policy.rules",
    "daemon.agent",
    "daemon.state",
    "daemon.history",
    "daemon.doctor",
)
"""What acts are told of by; the outcomes of calls come beside (`tool`, of the type INVOCATION)."""
_SILENT = {("approval.used", "used"), ("daemon.state", "commands_missing")}
"""Events of these topics that are no acts: what an approval is used for is the call itself."""
_COLUMNS = {
    "SEQ": 6,
    "TIME": 8,
    "CALLER": 6,
    "AGENT": 8,
    "ACT": 18,
    "EFFECT": 7,
    "DECISION": 8,
    "RULE": 15,
    "RESULT": 9,
    "TOOK": 6,
    "DETAIL": 80,
}
"""How wide they are on a terminal where rows are still to come."""
_SPARE = ("RULE", "TOOK", "SEQ", "EFFECT")
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

    The oldest comes first. The columns: number of the event, time, caller (a uid, on a terminal a name; none
    for the daemon itself), agent, act, effect, decision, rule, result, how long it took, arguments or what
    was said. A call has one row; with --follow it has one when it begins and one when it ends. With --json
    each row is an object.
    """
    which = wanted(settings, options)
    position = event_source.head(settings) + 1 if follow else 0
    found = _newest(settings, which, limit)
    to_come = [["x" * width for width in _COLUMNS.values()]] if follow else []
    layout = Layout(list(_COLUMNS), [*map(_cells, found), *to_come], columns(), _SPARE)
    if is_terminal() and not settings.json:
        say(style(layout.line(list(_COLUMNS)), BOLD))
    for row in found:
        _print(row, layout, json=settings.json)
    if follow:
        _follow(settings, which, max(position, found[-1].seq + 1 if found else 0), layout)


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
    """Find the outcome of each call: most are near, the others are searched one by one."""
    waiting = open_calls(found)
    if not waiting:
        return
    # The filters that match an intent (the decision, a text in the arguments, the time) may not match its
    # outcome.
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


def _follow(settings: Settings, which: dict[str, Any], position: int, layout: Layout) -> None:
    calls: dict[str, Row] = {}
    topics = ",".join((*TOPICS, "tool"))
    for event in event_source.follow(settings, {**which, "topic": topics}, position):
        if event["topic"].startswith("tool.") and not is_outcome(event):
            continue  # the tool's own events
        row = row_of(event)
        if row is None:
            continue
        begun = calls.pop(row.call_id, None)
        if is_outcome(event) and begun is not None:
            row.decision, row.rule, row.detail = begun.decision, begun.rule, begun.detail
        elif row.result == "running":
            calls[row.call_id] = row
        _print(row, layout, json=settings.json)


def _print(row: Row, layout: Layout, *, json: bool) -> None:
    if json:
        print_json_line(row.to_dict())
        return
    cells = _cells(row)
    if not is_terminal():
        say("\t".join(cells))
    else:
        line = layout.line(cells)
        say(style(line, RED) if row.result not in _GOOD and has_colours() else line)
    sys.stdout.flush()


def _cells(row: Row) -> list[str]:
    return [
        cell(value)
        for value in (
            row.seq,
            moment(row.time),
            user_cell(row.caller),
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


# Events as rows


@dataclass
class Row:
    """One act. `caller` is the uid behind it, None for the daemon itself or when unknown. `result` is empty
    for an act without one, and `running` for a call without a known outcome.
    """

    seq: int
    time: int
    caller: int | None
    agent: str
    session: str
    act: str
    effect: str = ""
    decision: str = ""
    rule: str = ""
    result: str = ""
    duration_ms: int | None = None
    detail: Any = ""
    """The arguments of a call; else what the event says."""
    call_id: str = ""
    request_id: str = ""
    trace_id: str = ""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def rows(events: Iterable[Event]) -> list[Row]:
    """A row for each act in some events."""
    return [row for event in events if (row := row_of(event)) is not None]


def row_of(event: Event) -> Row | None:
    """The act of an event; None for an event that is not an act."""
    topic, kind, data = event["topic"], event["type"], event["data"] or {}
    if (topic, kind) in _SILENT:
        return None
    row = Row(
        **{name: event[name] for name in ("seq", "time", "caller", "agent", "session")},
        act=topic if topic.endswith(f".{kind}") else f"{topic}.{kind}",
        request_id=event["request_id"],
        trace_id=event["trace_id"],
        call_id=str(data.get("call_id", "")),
    )
    if topic == DISPATCH or kind == INVOCATION:
        row.act = _call_name(data) or row.act
        row.effect, row.decision, row.rule = (str(data.get(n, "")) for n in ("effect", "decision", "rule"))
        row.detail = data.get("args", "")
        settle(row, event) if kind != "intent" else None
        row.result = row.result or "running"
        return row
    row.effect = str(data.get("effect", ""))
    by = data.get("answered_by", data.get("by"))
    if row.caller is None and isinstance(by, int):
        row.caller = by  # events of schema version 1 have it only in their data
    said = [
        _call_name(data),
        *(str(data[name]) for name in ("message", "note", "answer", "reason") if data.get(name)),
    ]
    row.detail = ": ".join(filter(None, said))
    return row


def settle(row: Row, event: Event) -> None:
    """Put the outcome of a call into its row."""
    data = event["data"] or {}
    row.result = str(data.get("result", ""))
    row.duration_ms = data.get("duration_ms")
    if not row.detail and data.get("message"):
        row.detail = data["message"]


def is_outcome(event: Event) -> bool:
    return bool(event["type"] == INVOCATION and event["source"] != "tool")


def open_calls(found: Sequence[Row]) -> dict[str, Row]:
    """The rows of calls whose outcome is not known, by call id."""
    return {row.call_id: row for row in found if row.result == "running" and row.call_id}


def _call_name(data: dict[str, Any]) -> str:
    if data.get("tool"):
        return f"{data['tool']}.{data.get('action', '')}".rstrip(".")
    return str(data.get("function", ""))
