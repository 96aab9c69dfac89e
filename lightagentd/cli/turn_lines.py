"""The events of a turn as lines for a person; `lactl prompt` and `lactl chat` show the same.

Each line is one line, and safe to show: text from models and tools is cleaned.
"""

from __future__ import annotations

from typing import Any

from lightagentd.cli.layout import cut
from lightagentd.cli.output import cell
from lightagentd.cli.question import visible
from lightagentd.cli.terminal import clean
from lightagentd.cli.when import duration
from lightagentd.host.users import called

ARGUMENTS_MAX = 160
_WHY_MAX = 1000
"""Why a call failed is shown with what to do about it, which comes last."""
_TASK_MARKS = {"pending": " ", "running": ">", "done": "x", "failed": "!", "skipped": "-"}


def call_line(event: dict[str, Any]) -> str:
    """The beginning of a call: what runs, and with which effect. Also for the data of a stored intent."""
    decision = event.get("decision")
    words = (
        f"→ {call_name(event)}",
        arguments_words(event),
        f"[{cell(event.get('effect') or 'unknown effect')}]",
        "" if decision in ("allow", "", None) else cell(decision),
    )
    return " ".join(word for word in words if word)


def arguments_words(event: dict[str, Any]) -> str:
    """The arguments of a call in short, each as `name=value`; without those that say nothing."""
    arguments = event.get("args")
    pairs = arguments.items() if isinstance(arguments, dict) else ()
    shown = " ".join(
        f"{cell(name)}={cell(value)}"
        for name, value in pairs
        if value not in (None, "", [], {}) and not (name == "effect" and value == event.get("effect"))
    )
    return cut(shown, ARGUMENTS_MAX)


def thought_line(thoughts: str) -> str:
    """What the model thought, folded: its beginning, and how many lines there are."""
    lines = clean(thoughts).strip().splitlines() or [""]
    more = f" ({len(lines)} lines)" if len(lines) > 1 else ""
    begin = cell(lines[0])
    return f"· thought: {begin[:ARGUMENTS_MAX]}{'…' if len(begin) > ARGUMENTS_MAX else ''}{more}"


def result_line(event: dict[str, Any]) -> str:
    """The end of a call: how it went, how long it took, and why it failed."""
    result = cell(event.get("result") or "ok")
    text = "" if result == "ok" else cut(cell(event.get("text") or ""), _WHY_MAX)
    line = f"← {call_name(event)} {result} {duration(event.get('duration_ms') or 0)}"
    return f"{line} {text}" if text else line


def call_name(event: dict[str, Any]) -> str:
    """The tool and its action; a refused call may have only a name that the model made up."""
    tool, action = event.get("tool") or "", event.get("action") or ""
    return cell(f"{tool}.{action}" if action else tool)


def answer_line(event: dict[str, Any]) -> str:
    """How a question was answered, about a call or of the agent, and by whom."""
    name, said = event.get("approval"), event.get("note")
    if name is None:
        name, said = event.get("input"), event.get("answer")
    by = event.get("answered_by")
    who = "" if by is None else f" by {called(by)}"
    note = cell(visible(str(said or "")))
    return f"{cell(name)} {cell(event.get('state'))}{who}{'' if note == '-' else f': {note}'}"


def is_granted(event: dict[str, Any]) -> bool:
    """Whether the turn goes on with this answer."""
    return event.get("state") in ("granted", "answered")


def compacted_line(event: dict[str, Any]) -> str:
    """What a compaction did to the conversation."""
    how = event.get("summarized_by") or ""
    return (
        f"The conversation was compacted: {event.get('removed', 0)} messages summarized, "
        f"{event.get('kept', 0)} kept, "
        f"{event.get('tokens_before', 0)} → {event.get('tokens_after', 0)} tokens"
        f"{f' (by {cell(how)})' if how else ''}."
    )


def plan_event_line(event: dict[str, Any]) -> str:
    """The change of a plan: the task of the event, else the plan's phase."""
    plan = event.get("plan") or {}
    tasks = plan.get("tasks") or []
    for number, task in enumerate(tasks, 1):
        if event.get("task") and task["id"] == event["task"]:
            note = f": {cell(task['note'])}" if task["note"] else ""
            return f"plan, task {number} of {len(tasks)} {cell(task['state'])}{note}  {cell(task['text'])}"
    what = [cell(plan["title"])] if plan.get("title") else []
    what += [f"{len(tasks)} task{'' if len(tasks) == 1 else 's'}"] if tasks else []
    note = f" {cell(plan['note'])}" if plan.get("note") else ""
    return f"plan {cell(plan.get('phase'))}{': ' if what else ''}{', '.join(what)}.{note}"


def plan_lines(plan: dict[str, Any]) -> list[str]:
    """A whole plan, an `api.Plan`: its phase and title, and a line or two for each task."""
    lines = [f"{cell(plan['phase'])}{': ' + cell(plan['title']) if plan['title'] else ''}"]
    for task in plan["tasks"]:
        mark = _TASK_MARKS.get(task["state"], "?")
        lines.append(f"[{mark}] {cell(task['id'])}  {cell(task['text'])}")
        if task["check"]:
            lines.append(f"      check: {cell(visible(task['check']))}")
        if task["note"]:
            lines.append(f"      {cell(task['state'])}: {cell(task['note'])}")
    if plan["stopped_at"]:
        lines.append(f"Stopped at the task {cell(plan['stopped_at'])}: retry, skip or abort.")
    if plan["note"]:
        lines.append(cell(plan["note"]))
    return lines
