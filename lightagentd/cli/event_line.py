"""A stored event as one line: number, time, agent, topic, type, and a summary."""

from __future__ import annotations

import sys
from typing import Any

from lightagentd.cli.layout import cut
from lightagentd.cli.output import cell, dump, print_json_line, say
from lightagentd.cli.terminal import DIM, RED, columns, has_colours, is_terminal, style
from lightagentd.cli.when import duration, local, moment

_SUMMARY_MAX = 300
_SUMMARY_MIN = 30
"""A terminal on which there is less room for it gets fewer columns."""
_TEXTS = ("content", "text", "message", "reason")
"""The fields of an event's data that are shown without their names, and last."""


def print_event(event: dict[str, Any], *, json: bool) -> None:
    """Print one event at once."""
    if json:
        print_json_line(event)
        return
    rest = summary(event)
    if not is_terminal():
        time = local(event["time"], "milliseconds")
        say("\t".join((str(event["seq"]), time, cell(event["agent"]), event["topic"], event["type"], rest)))
        sys.stdout.flush()
        return
    lefts = [f"{event['seq']:>6}  ", f"{moment(event['time']):<11}  ", f"{cell(event['agent']):<10}  "]
    middle = f"{event['topic']}:{event['type']}  "
    for spare in (-1, 0):  # the agent, then the number
        if columns() - sum(map(len, lefts)) - len(middle) < _SUMMARY_MIN:
            del lefts[spare]
    bad = event["topic"] == "agent.error" and has_colours()
    rest = cut(rest, columns() - sum(map(len, lefts)) - len(middle))
    say(style("".join(lefts), DIM), style(middle, RED) if bad else middle, rest)
    sys.stdout.flush()


def summary(event: dict[str, Any]) -> str:
    """The data of an event in one line."""
    data = event["data"]
    if data is None:
        return "(deleted)"
    if not isinstance(data, dict):
        return cut(cell(data), _SUMMARY_MAX)
    words, nested = [], []
    for name, value in data.items():
        if name.endswith("_id"):
            continue  # --json has them
        if name == "duration_ms" and isinstance(value, int | float):
            words.append(duration(value))
        elif isinstance(value, dict | list):
            nested += [f"{name}={dump(value)}"] if value else []
        elif name not in _TEXTS and value not in (None, ""):
            words.append(f"{name}={cell(value)}")
    words += [cell(data[name]) for name in _TEXTS if data.get(name)]
    return cut(cell(" ".join([*words, *nested])), _SUMMARY_MAX)
