"""`lactl sessions replay`: the requests of a session again, and what another model answers to them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import click

from lightagentd.cli.difference import say_difference
from lightagentd.cli.options import Command, Settings, model_names
from lightagentd.cli.output import Columns, cell, fields, listing, print_json_line, say, warn
from lightagentd.cli.session_name import session_argument, whole_session
from lightagentd.cli.terminal import BOLD, DIM, GREEN, MAGENTA, RED, style
from lightagentd.cli.when import duration, local, moment

Request = dict[str, Any]
Answer = dict[str, Any]

_COLUMNS: Columns = {
    "NR": "number",
    "TURN": "turn",
    "TIME": lambda one: moment(one["time_us"]),
    "AGENT": "agent",
    "MODEL": lambda one: one["stored"]["model"],
    "MESSAGES": lambda one: "" if one["message_count"] is None else one["message_count"],
    "TOKENS": lambda one: _tokens(one["stored"]),
    "ANSWER": lambda one: " ".join(_lines(one["stored"], compact=True)),
}


@click.command("replay", cls=Command)
@session_argument
@click.option("--to", metavar="N", type=click.IntRange(1), help="Only the request N, and all of it.")
@click.option(
    "--model", metavar="MODEL", shell_complete=model_names, help="Send it to this model of the agent."
)
@click.pass_obj
def replay(settings: Settings, session: str, to: int | None, model: str | None) -> None:
    """List what models were asked in SESSION, show one request, or send them to another model.

    The columns: number, turn, time, agent, model, messages, tokens (of the prompt + of the answer, ~ for an
    estimate), the answer: its text, and its calls behind an arrow. '-' is what is not known.

    With --to the request N is shown as it is made again: the messages are those that were sent, after what
    was shortened until then; the system prompt and the functions are as they would be made now. 'note' says
    what is missing or has changed.

    With --model each request is sent to MODEL, which costs what it costs and counts as yours. No tool is run
    and the session stays as it is. Where the answers differ they stand side by side, in a pipe as a unified
    diff. They are the same when they make the same calls with the same arguments, or say the same without
    calls. How many are is said at the end, on standard error.

    With --json there is one object for each request.
    """
    whole = whole_session(settings, session)
    found = _requests(settings, session=whole, to=to, model=model)
    if settings.json:
        for one in found:
            print_json_line(one)
    elif to is not None:
        for one in found:
            _show(one)
    elif model is None:
        listed = [*found]
        listing(
            settings, listed, _COLUMNS, spare=("AGENT", "TIME"), empty="No model was asked in this session."
        )
        _warn_of(Counter(note for one in listed for note in one["notes"]), len(listed))
    else:
        _compare_all(found)


def _requests(settings: Settings, **parameters: Any) -> Iterator[Request]:
    with settings.client() as client:
        for reply in client.stream("Sessions.Replay", **parameters):
            if reply["request"] is not None:
                yield reply["request"]


def _compare_all(found: Iterator[Request]) -> None:
    results, notes = Counter[str](), Counter[str]()
    for one in found:
        results[_result(one)] += 1
        notes.update(one["notes"])
        _compare(one)
    total = results.total()
    _warn_of(notes, total)
    failed = f" {results['failed']} were not answered." if results["failed"] else ""
    warn(f"{results['same']} of {total} answers are the same.{failed}")


def _warn_of(notes: Counter[str], total: int) -> None:
    for note, count in notes.items():
        warn(note if count == total else f"{note} (in {count} of {total} requests)")


def _result(one: Request) -> str:
    return "failed" if one["error"] else "same" if one["same"] else "differs"


def _compare(one: Request) -> None:
    """The stored answer and the new one: a line about both, and the texts where they differ."""
    stored, again, result = one["stored"], one["again"], _result(one)
    colour = {"same": GREEN, "differs": MAGENTA, "failed": RED}[result]
    about = f"request {one['number']}  turn {one['turn']}  {moment(one['time_us'])}  {cell(stored['model'])}"
    if again is None:
        say(about, "  ", style(result, colour), f"  {one['error']}")
        return
    say(f"{about} → {cell(again['model'])}  ", style(result, colour))
    say(style(f"tokens {_pair(_tokens, one)}, cost {_pair(_cost, one)}, time {_pair(_time, one)}", DIM))
    if result == "differs":
        names = f"stored: {cell(stored['model'])}", f"now: {cell(again['model'])}"
        say_difference(_lines(stored), _lines(again), names)


def _show(one: Request) -> None:
    stored, request = one["stored"], one["request"]
    fields(
        [
            ("request", f"{one['number']} of {one['requests']}"),
            ("turn", f"{one['turn']} {one['trace_id']}"),
            ("time", local(one["time_us"])),
            ("agent", one["agent"]),
            ("model", stored["model"]),
            ("tokens", _tokens(stored)),
            ("cost", _cost(stored)),
            ("took", _time(stored)),
            *(("note", note) for note in one["notes"]),
        ]
    )
    _heading("System prompt, as it would be made now")
    say(request["system"])
    _heading(f"Functions, as they would be offered now: {len(request['functions'])}")
    say(", ".join(request["functions"]))
    for number, message in enumerate(request["messages"], 1):
        _heading(f"Message {number}: {' '.join(filter(None, (message['role'], message.get('name'))))}")
        for line in _lines({"text": message["content"], "tool_calls": message.get("tool_calls", [])}):
            say(line)
    _heading("The stored answer")
    for line in _lines(stored):
        say(line)
    if one["again"] is not None:
        _heading("And now")
        _compare(one)


def _heading(text: str) -> None:
    say()
    say(style(text, BOLD))


def _lines(answer: Answer, *, compact: bool = False) -> list[str]:
    """An answer as lines: its text, and each call with its arguments; `compact` for one line."""
    lines: list[str] = answer["text"].rstrip().splitlines()
    for call in answer["tool_calls"]:
        try:
            arguments: Any = json.loads(call["arguments"] or "{}")
        except (ValueError, RecursionError):
            arguments = call["arguments"]
        shown = json.dumps(arguments, ensure_ascii=False, sort_keys=True, indent=None if compact else 2)
        lines += f"→ {call['name']} {shown}".splitlines()
    if not lines and answer.get("finish_reason") == "failed":
        lines = ["(no answer)"]
    return lines


def _pair(shown: Any, one: Request) -> str:
    return f"{shown(one['stored']) or '-'} → {shown(one['again']) or '-'}"


def _tokens(answer: Answer) -> str:
    if answer["prompt_tokens"] is None:
        return ""
    return f"{'' if answer['counted'] else '~'}{answer['prompt_tokens']}+{answer['completion_tokens']}"


def _cost(answer: Answer) -> str:
    return "" if answer["cost"] is None else f"{answer['cost']:.4g}"


def _time(answer: Answer) -> str:
    return "" if answer["duration_ms"] is None else duration(answer["duration_ms"])
