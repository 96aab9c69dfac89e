"""`lactl trace`: a turn as a tree of its steps and calls, with durations, and the list of turns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from lightagentd.cli import event_source
from lightagentd.cli.event_line import summary
from lightagentd.cli.filters import filter_options, time_options, wanted
from lightagentd.cli.layout import cut
from lightagentd.cli.options import Group, Settings
from lightagentd.cli.output import Columns, as_json, cell, dump, listing, say, user_cell
from lightagentd.cli.stored import stored_option
from lightagentd.cli.terminal import BOLD, DIM, RED, columns, has_colours, is_terminal, style
from lightagentd.cli.trace_name import trace_ids, whole_trace
from lightagentd.cli.trace_tree import Event, Node, is_end, turn_of
from lightagentd.cli.when import duration, moment
from lightagentd.errors import EventNotFound
from lightagentd.host.users import called

_TEXT_MAX = 300
_DEPTH = 4
"""How many generations of turns below a turn are shown."""
_GOOD = ("", "ok", "done", "granted", "answered", "used", "running", "waiting", "pending", "skipped")

_COLUMNS: Columns = {
    "TRACE": "trace_id",
    "TIME": lambda turn: moment(turn["time"]),
    "AGENT": "agent",
    "SESSION": "session",
    "CALLER": lambda turn: user_cell(turn["caller"]),
    "DURATION": lambda turn: "" if turn["duration_ms"] is None else duration(turn["duration_ms"]),
    "RESULT": "result",
    "STEPS": lambda turn: "" if turn["steps"] is None else turn["steps"],
    "PROMPT": lambda turn: "(deleted)" if turn["text"] is None else turn["text"],
}


@click.group("trace", cls=Group)
def command() -> None:
    """Look into turns."""


@command.command("list")
@filter_options("agent", "session", "caller", "text")
@time_options
@click.option("--limit", type=click.IntRange(1), default=20, show_default=True, help="The newest so many.")
@stored_option
@click.pass_obj
def list_turns(settings: Settings, /, limit: int, **options: Any) -> None:
    """List the newest turns, oldest of them first.

    The columns: trace, time of the prompt, agent, session, caller, duration, result, steps, prompt. --text is
    about the prompt.
    """
    which = wanted(settings, options) | {"topic": "agent.prompt", "type": "prompt"}
    prompts = event_source.newest(settings, which, limit)
    with settings.client() as client:
        ends = {prompt["trace_id"]: _end(client, prompt) for prompt in prompts}
    turns = [_turn(prompt, ends[prompt["trace_id"]]) for prompt in prompts]
    listing(settings, turns, _COLUMNS, spare=("SESSION", "CALLER", "STEPS", "AGENT", "DURATION"))


def _end(client: Any, prompt: Event) -> Event | None:
    """The event that ended the turn of a prompt."""
    which = {"trace": prompt["trace_id"], "topic": "session.turn,agent.error"}
    position: int | None = None
    while position != 0:
        page = client.call("History.Page", **which, to_seq=position, limit=100)["page"]
        for event in reversed(page["events"]):
            if is_end(event):
                found: Event = event
                return found
        position = page["next_seq"]
    return None


def _turn(prompt: Event, end: Event | None) -> dict[str, Any]:
    said, data = prompt["data"], (end["data"] if end else None) or {}
    return {
        **{name: prompt[name] for name in ("trace_id", "time", "agent", "session", "owner", "caller")},
        "duration_ms": round((end["time"] - prompt["time"]) / 1000) if end else None,
        "result": "running" if end is None else "done" if end["type"] == "done" else end["type"],
        "steps": data.get("steps"),
        "text": said.get("text", "") if isinstance(said, dict) else None,
    }


@command.command("show")
@click.argument("trace", shell_complete=trace_ids)
@stored_option
@click.pass_obj
def show(settings: Settings, trace: str) -> None:
    """Show the turn TRACE (trace_…, or the beginning of its id) as a tree.

    Its branches are the steps, with the model call and the tool calls of each, and the questions about them.
    Every line begins with the time since the turn began; then come what it is, how long it took, and what
    came of it. Turns of other agents that a call asked are below it; turns that name this one as their
    correlation id are branches, too.
    """
    trace = whole_trace(settings, trace)
    turn = _load(settings, trace, _DEPTH)
    if turn is None:
        raise EventNotFound(
            f"There is no event of the turn {trace!r}.", suggestion="The newest turns: lactl trace list"
        )
    if as_json(settings, {"trace_id": trace, **turn.to_dict()}):
        return
    say(*_title(turn))
    for line in _lines(turn, turn.begin_us, ""):
        say(*line)


def _load(settings: Settings, trace: str, depth: int) -> Node | None:
    """The tree of a turn and of those below it; None when there is no such turn."""
    events = list(event_source.oldest_first(settings, {"trace": trace}))
    if not events:
        return None
    turn = turn_of(events)
    for child in _children(settings, turn, events) if depth else ():
        below = _load(settings, child["trace_id"], depth - 1)
        if below is not None:
            asked = [call for call in turn.calls() if call.detail.get("session") == child["session"]]
            (asked[0] if asked else turn).children.append(below)
    turn.children.sort(key=lambda node: node.begin_us)
    return turn


def _children(settings: Settings, turn: Node, events: list[Event]) -> list[Event]:
    """The prompts of the turns that began while this one ran, in sessions that it made, or that name it as
    their correlation id.
    """
    times = {"since_us": events[0]["time"], "until_us": events[-1]["time"]}
    created = event_source.oldest_first(settings, {"topic": "session.created", **times})
    made = {each["session"] for each in created if (each["data"] or {}).get("of_turn") == turn.name}
    prompts = event_source.oldest_first(settings, {"topic": "agent.prompt", **times})
    return [
        each
        for each in prompts
        if each["session"] in made or each["correlation_id"] == turn.name != each["trace_id"]
    ]


def _title(turn: Node) -> list[str]:
    detail = turn.detail
    words = [detail["agent"], detail["session"], moment(turn.begin_us)]
    if turn.duration_ms is not None:
        words.append(duration(turn.duration_ms))
    elif "last_us" in detail:
        words.append(f"{duration((detail['last_us'] - turn.begin_us) / 1000)} so far")
    words.append(turn.result)
    if "steps" in detail:
        words.append(f"{detail['steps']} steps")
    if detail["caller"] is not None:
        words.append(f"by {called(detail['caller'])}")
    line = "  ".join(str(word) for word in words if word)
    room = columns() - len(turn.name) - 2
    return [style(turn.name, BOLD), "  ", cut(line, room) if is_terminal() else line]


def _lines(node: Node, start_us: int, indent: str) -> Iterator[list[str]]:
    """What is below a node, each line in its parts."""
    for number, child in enumerate(node.children):
        last = number == len(node.children) - 1
        left = f"+{duration((child.begin_us - start_us) / 1000):<7}{indent}{'└─ ' if last else '├─ '}"
        text = _text(child)
        if is_terminal():
            text = cut(text, columns() - len(left))
        bad = child.result not in _GOOD and has_colours()
        yield [style(left, DIM), style(cell(text), RED) if bad else text]
        yield from _lines(child, start_us, indent + ("   " if last else "│  "))


def _text(node: Node) -> str:
    """One node as a line."""
    words = [_NAMES.get(node.kind, "{}").format(node.name)]
    if node.duration_ms is not None:
        words.append(duration(node.duration_ms))
    if node.result and node.kind != "task":
        words.append(node.result)
    return "  ".join([*words, *filter(None, _detail(node))])


_NAMES = {
    "model": "model {}",
    "approval": "approval {}",
    "question": "question {}",
    "prompt": "prompt",
    "message": "says",
    "turn": "turn {}",
}


def _detail(node: Node) -> Iterator[str]:
    detail = node.detail
    match node.kind:
        case "model":
            yield str(detail["finish_reason"])
            if detail["prompt_tokens"] or detail["completion_tokens"]:
                yield f"{detail['prompt_tokens']}+{detail['completion_tokens']} tokens"
        case "call":
            yield " ".join(str(detail[name]) for name in ("effect", "decision") if detail.get(name))
            yield f"({detail['rule']})" if detail.get("rule") else ""
            yield cut(cell(dump(detail["args"])), _TEXT_MAX) if detail.get("args") else ""
            yield cut(cell(detail["message"]), _TEXT_MAX) if detail.get("message") else ""
        case "approval" | "question":
            if detail.get("answered_by") is not None:
                yield f"by {called(detail['answered_by'])}"
            for name in ("question", "answer", "reason", "note"):
                yield cut(cell(detail[name]), _TEXT_MAX) if detail.get(name) else ""
        case "turn":
            yield " ".join(str(detail[name]) for name in ("agent", "session") if detail[name])
        case "step":
            yield detail["request_id"]
        case "message":
            yield cut(cell((detail["data"] or {}).get("content", "")), _TEXT_MAX)
        case "task":
            yield node.result
        case _:
            yield summary({"data": detail["data"]})
