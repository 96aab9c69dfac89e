"""Checks a proposed plan, `{title, tasks: [{id, text, check?}]}`; no other module does.

It comes from a model's call of `plan.propose`, from the text of a model's answer, or from a person.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from lightagentd.agents.planning.plan import Plan, Task
from lightagentd.errors import PlanInvalid
from lightagentd.llm.json_calls import object_in_text
from lightagentd.redaction import Redactor

MAX_TASKS = 100
MAX_TITLE_CHARS, MAX_TEXT_CHARS, MAX_CHECK_CHARS = 200, 4000, 2000
_ID = re.compile(r"[A-Za-z0-9_.-]{1,40}")
_SHAPE = 'A plan is {"title": "...", "tasks": [{"id": "1", "text": "...", "check": "..."}]}.'
_UNSEEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\xad\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufe00-\ufe0e\ufeff"
    "\ud800-\udfff\U000e0000-\U000e01ef]"
)
"""What a model reads, or acts on a terminal, and whoever is to apply the plan does not see."""
_TITLE_FROM_TEXT_CHARS = 60


def proposal(value: Any) -> tuple[str, tuple[Task, ...]]:
    """The title and the tasks of a proposed plan. Raises PlanInvalid, which names the field.

    Tasks without an id are numbered, and a plan without a title has that of its first task.
    """
    if not isinstance(value, Mapping):
        raise _invalid("The plan is not an object.", "plan")
    _check_keys(value, {"title", "tasks"}, "")
    listed = value.get("tasks")
    if not isinstance(listed, list):
        raise _invalid("The plan has no list of tasks.", "tasks")
    if not listed:
        raise _invalid("The plan has no tasks.", "tasks")
    if len(listed) > MAX_TASKS:
        message = f"The plan has {len(listed)} tasks; it may have at most {MAX_TASKS}."
        raise _invalid(message, "tasks", "Make several plans of it, one after the other.")
    title = " ".join(_text(value, "title", "title", MAX_TITLE_CHARS).split())
    tasks = _tasks(listed)
    return title or _shortened(tasks[0].text), tasks


def ready_plan(session: str, value: Any, redactor: Redactor) -> Plan:
    """The proposed plan of a session as it will be stored, without secrets. Raises PlanInvalid."""
    title, tasks = proposal(value)
    plan = Plan(session=session, phase="ready", title=title, tasks=tasks)
    kept = Plan.from_dict(redactor.value(plan.to_dict()))
    for at, (task, before) in enumerate(zip(kept.tasks, tasks, strict=True)):
        if (task.check, task.id) != (before.check, before.id):
            raise _invalid(
                f"The check of the task {task.id} holds a secret, which is not stored.",
                f"tasks[{at}].check",
                "Have the command read it from a file.",
            )
    return kept


def proposal_in_text(text: str) -> dict[str, Any] | None:
    """The plan in an answer that consists of nothing else: one JSON object with `tasks`, bare or in one code
    fence. Its shape is not checked.
    """
    found = object_in_text(text)
    return found if found is not None and "tasks" in found else None


def _tasks(listed: list[Any]) -> tuple[Task, ...]:
    ids = [_id(item, at) for at, item in enumerate(listed)]
    named: set[str] = set()
    for at, task_id in enumerate(ids):
        if task_id and task_id in named:
            raise _invalid(f"Two tasks have the id {task_id}.", f"tasks[{at}].id", "Give each its own.")
        named.add(task_id)
    tasks: list[Task] = []
    number = 0
    for at, (item, task_id) in enumerate(zip(listed, ids, strict=True)):
        while not task_id:
            number += 1
            task_id = str(number) if str(number) not in named else ""
        named.add(task_id)
        text = _text(item, "text", f"tasks[{at}].text", MAX_TEXT_CHARS)
        if not text:
            raise _invalid(f"The task {task_id} has no text.", f"tasks[{at}].text")
        check = _text(item, "check", f"tasks[{at}].check", MAX_CHECK_CHARS)
        tasks.append(Task(id=task_id, text=text, check=check))
    return tuple(tasks)


def _id(item: Any, at: int) -> str:
    """The id that a task was given, or an empty string."""
    where = f"tasks[{at}]"
    if not isinstance(item, Mapping):
        raise _invalid(f"{where} is not an object.", where)
    _check_keys(item, {"id", "text", "check"}, f"{where}.")
    found = item.get("id")
    if found is None or found == "":
        return ""
    if not isinstance(found, str) or not _ID.fullmatch(found):
        message = f"{where}.id is {str(found)[:60]!r}, which cannot be a task's id."
        raise _invalid(message, f"{where}.id", "Use at most 40 letters, digits, _, . and -, or none.")
    return found


def _text(item: Mapping[str, Any], key: str, where: str, most_chars: int) -> str:
    """A text without blanks around it; empty where there is none."""
    found = item.get(key)
    if found is None:
        return ""
    if not isinstance(found, str):
        raise _invalid(f"{where} is no text.", where)
    if len(found) > most_chars:
        raise _invalid(f"{where} has {len(found)} characters; it may have at most {most_chars}.", where)
    if unseen := _UNSEEN.search(found):
        message = f"{where} holds the character U+{ord(unseen[0]):04X}, which nobody sees."
        raise _invalid(message, where, "Remove it.")
    return found.strip()


def _check_keys(value: Mapping[str, Any], known: set[str], where: str) -> None:
    for key in value:
        if key not in known:
            shown = str(key)[:60]
            shown = f"{where}{shown if shown.isprintable() else ascii(shown)}"
            raise _invalid(f"A plan has no {shown}.", shown)


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _TITLE_FROM_TEXT_CHARS else line[: _TITLE_FROM_TEXT_CHARS - 1] + "…"


def _invalid(message: str, field: str, suggestion: str = _SHAPE) -> PlanInvalid:
    return PlanInvalid(message, field=field, suggestion=suggestion)
