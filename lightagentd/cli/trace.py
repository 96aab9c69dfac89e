"""`lactl trace`: one turn as a tree of its steps, with durations."""

from __future__ import annotations

from typing import Any

import click

from lightagentd.cli.event_line import summary
from lightagentd.cli.options import Group, Settings
from lightagentd.cli.output import print_json, say, warn
from lightagentd.cli.terminal import BOLD, DIM, columns, is_terminal, style
from lightagentd.cli.when import duration, local
from lightagentd.errors import EventNotFound

_LIMIT = 1000
"""The most that the daemon gives at once (`service.MAX_LIMIT`)."""
_SUMMARY_MAX = 120

Event = dict[str, Any]


@click.group("trace", cls=Group)
def command() -> None:
    """Look into one turn."""


@command.command("show")
@click.argument("trace")
@click.pass_obj
def show(settings: Settings, trace: str) -> None:
    """Show the turn TRACE (trace_…) as a tree.

    Its branches are the steps, with the model call and the tool calls of each. Every line begins with the
    time since the turn began.
    """
    events = settings.call("History.Query", trace=trace, limit=_LIMIT)
    if not events:
        raise EventNotFound(
            f"There is no event of the turn {trace!r}.",
            suggestion="'lactl history --json' shows the trace_id of each event.",
        )
    if len(events) == _LIMIT:
        warn(f"The turn has more than {_LIMIT} events; these are the last of them.")
    if settings.json:
        print_json({"trace_id": trace, "steps": [_as_json(step) for step in _steps(events)]})
        return
    first = events[0]
    who = " ".join(part for part in (first["agent"], first["session"]) if part)
    say(style(trace, BOLD), f"  {who}  {local(first['time'])}  {_length(events)}")
    groups = _steps(events)
    for number, step in enumerate(groups):
        last = number == len(groups) - 1
        _print_step(step, first["time"], last=last)


def _steps(events: list[Event]) -> list[list[Event]]:
    """The events of a turn in groups: those of a step share a request_id, those between steps have none."""
    groups: list[list[Event]] = []
    of_request: dict[str, list[Event]] = {}
    for event in events:
        request = event["request_id"]
        if request and request in of_request:
            of_request[request].append(event)
        elif groups and not request and not groups[-1][0]["request_id"]:
            groups[-1].append(event)
        else:
            groups.append([event])
            if request:
                of_request[request] = groups[-1]
    return groups


def _print_step(step: list[Event], start_us: int, *, last: bool) -> None:
    request = step[0]["request_id"]
    if not request:
        for number, event in enumerate(step):
            _print_event("└─ " if last and number == len(step) - 1 else "├─ ", event, start_us)
        return
    say(style("└─ " if last else "├─ ", DIM), f"step {request}  {_length(step)}")
    for number, event in enumerate(step):
        branch = "└─ " if number == len(step) - 1 else "├─ "
        _print_event(("   " if last else "│  ") + branch, event, start_us)


def _print_event(branch: str, event: Event, start_us: int) -> None:
    offset = f"+{duration((event['time'] - start_us) / 1000)}"
    left = f"{branch}{offset:<8}"
    line = f"{event['topic']}:{event['type']}  {summary(event)[:_SUMMARY_MAX]}"
    say(style(left, DIM), line[: columns() - len(left)] if is_terminal() else line)


def _length(events: list[Event]) -> str:
    return duration((events[-1]["time"] - events[0]["time"]) / 1000)


def _as_json(step: list[Event]) -> dict[str, Any]:
    return {
        "request_id": step[0]["request_id"],
        "duration_ms": round((step[-1]["time"] - step[0]["time"]) / 1000),
        "events": step,
    }
