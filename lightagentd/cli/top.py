"""`lactl top`: what the agents do just now, again and again."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import click

from lightagentd.cli.event_source import PAGE
from lightagentd.cli.layout import cut
from lightagentd.cli.options import Command, Settings
from lightagentd.cli.output import print_json, say, table_lines
from lightagentd.cli.redrawn import can_redraw, redraw
from lightagentd.cli.terminal import clean, columns, is_terminal
from lightagentd.cli.usage import amount, number

_WINDOW_S = 60.0
_TOPICS = "agent.llm_response,agent.error,session.turn,tool"
_COUNTED = ("turns", "steps", "calls", "tokens", "errors")
_HEADINGS = ("AGENT", "STATE", "SESSIONS", *(name.upper() for name in _COUNTED))
_NOT_FAILED = ("fallback", "cancelled")
_BUDGET_HEADINGS = ("USED", "BUDGET", "AMOUNT", "LIMIT", "SCOPE", "NAME")
_PROBLEMS = 3


@dataclass
class _Minute:
    """What happened in the last minute: when, with which agent, what it is counted as, and how much."""

    happened: deque[tuple[int, str, str, int]] = field(default_factory=deque)
    next_seq: int = 0
    """The first event that was not looked at; 0 at the beginning."""

    def look(self, settings: Settings) -> None:
        """Read what was stored since the last look."""
        since_us = time.time_ns() // 1000 - round(_WINDOW_S * 1e6)
        with settings.client() as client:
            more = True
            while more:
                where = {"from_seq": self.next_seq} if self.next_seq else {"since_us": since_us}
                asked: dict[str, Any] = {"topic": _TOPICS, "oldest_first": True, "limit": PAGE, **where}
                page = client.call("History.Page", **asked)["page"]
                for event in page["events"]:
                    self.next_seq = event["seq"] + 1
                    self.happened += _counts(event)
                self.next_seq = max(self.next_seq, page["next_seq"])
                more = bool(page["next_seq"])
        while self.happened and self.happened[0][0] < since_us:
            self.happened.popleft()

    def of(self, agent: str) -> dict[str, int]:
        """The counts of an agent."""
        found = dict.fromkeys(_COUNTED, 0)
        for _, name, what, much in self.happened:
            if name == agent:
                found[what] += much
        return found


def _counts(event: dict[str, Any]) -> Iterator[tuple[int, str, str, int]]:
    at, agent, topic, kind = event["time"], event["agent"], event["topic"], event["type"]
    data = event["data"] or {}
    if topic == "agent.llm_response":
        yield at, agent, "steps", 1
        yield at, agent, "tokens", data.get("prompt_tokens", 0) + data.get("completion_tokens", 0)
    elif topic == "session.turn" and kind == "done":
        yield at, agent, "turns", 1
    elif topic == "agent.error" and kind not in _NOT_FAILED:
        yield at, agent, "errors", 1
    elif kind == "invocation":
        yield at, agent, "calls", 1


@click.command("top", cls=Command)
@click.option(
    "--interval",
    "interval_s",
    type=click.FloatRange(0.2, 3600.0),
    default=2.0,
    metavar="SECONDS",
    help="How often to look again; 2 without it.",
)
@click.option("--once", is_flag=True, help="Show it once, as in a pipe.")
@click.pass_obj
def command(settings: Settings, interval_s: float, once: bool) -> None:
    """Show what agents do: turns, model calls, tool calls and tokens of the last minute, and budgets.

    On a terminal it looks again and again, until q or Ctrl-C. In a pipe, and with --once or --json, it shows
    once what there is. Of each agent: state, sessions, and in the last 60 seconds the turns that came to an
    answer, steps (model calls), tool calls, tokens, and turns that ended with an error. Budgets are those of
    'lactl usage --budgets', the nearest to its limit first.
    """
    minute = _Minute()
    if once or settings.json or not can_redraw():
        seen = _seen(settings, minute)
        if settings.json:
            print_json(seen)
        else:
            for line in _lines(seen) if is_terminal() else table_lines(_HEADINGS, _rows(seen)):
                say(line)
        return
    redraw(lambda: _lines(_seen(settings, minute)), interval_s)


def _seen(settings: Settings, minute: _Minute) -> dict[str, Any]:
    """What is shown, as JSON has it. Raises the errors of a client."""
    minute.look(settings)
    status = settings.call("Manager.GetStatus")
    budgets = settings.call("Usage.Budgets")
    agents = [
        {"name": one["name"], "state": one["state"], "sessions": one["sessions"], **minute.of(one["name"])}
        for one in settings.call("Agents.List")
    ]
    return {
        "agents": sorted(agents, key=lambda one: (-one["tokens"], -one["calls"], one["name"])),
        "turns_running": status["turns_running"],
        "turns_queued": status["turns_queued"],
        "turns_waiting": status["turns_waiting"],
        "stopped": status["panic"] is not None,
        "problems": status["problems"],
        "budgets": sorted(budgets, key=lambda one: one["used"] / one["limit"], reverse=True),
    }


def _rows(seen: dict[str, Any]) -> list[list[object]]:
    return [
        [one["name"], one["state"], one["sessions"], *(number(one[name]) for name in _COUNTED)]
        for one in seen["agents"]
    ]


def _lines(seen: dict[str, Any]) -> list[str]:
    """What a person sees."""
    found = [
        f"turns: {seen['turns_running']} running, {seen['turns_queued']} queued, "
        f"{seen['turns_waiting']} waiting for a person; below, the last 60 seconds"
    ]
    if seen["stopped"]:
        found.append("everything is stopped; it ends with: lactl panic --off")
    found += [clean(f"problem: {problem}") for problem in seen["problems"][:_PROBLEMS]]
    lines = [cut(line, columns()) for line in found]
    lines += ["", *table_lines(_HEADINGS, _rows(seen), spare=("SESSIONS", "STATE"), empty="No agents.")]
    if seen["budgets"]:
        lines += ["", *table_lines(_BUDGET_HEADINGS, map(_budget, seen["budgets"]))]
    return lines


def _budget(one: dict[str, Any]) -> list[object]:
    used, limit = amount(one["what"], one["used"]), amount(one["what"], one["limit"])
    return [f"{one['used'] / one['limit']:.0%}", one["what"], used, limit, one["scope"], one["name"]]
