"""A plan in a file: JSON as the interface takes it, or Markdown.

    # What it is about

    - [ ] The first task,
      on as many lines as it takes
      check: systemctl is-active nginx
    - [ ] The second task

Only the form is checked here; the daemon checks the plan.
"""

from __future__ import annotations

import json
import re
from typing import Any

from lightagentd.cli.named_file import read_file, shown
from lightagentd.errors import PlanInvalid
from lightagentd.text.reason import json_fault

_TITLE = re.compile(r"#[ \t]+(.*)")
_TASK = re.compile(r"(?:[-*+]|\d{1,3}[.)])[ \t]+(?:\[(.)\](?:[ \t]+|$))?(.*)")
_CHECK = re.compile(r"[ \t]+(?:[-*+][ \t]+)?check:[ \t]*(.*)", re.IGNORECASE)
_MORE = re.compile(r"[ \t]+(\S.*)")


def read_plan(name: str) -> Any:
    """The plan in a file, or in standard input for `-`.

    Raises the errors of `read_file`, and PlanInvalid.
    """
    where = shown(name)
    try:
        text = read_file(name).decode("utf-8-sig")
    except UnicodeDecodeError as err:
        raise PlanInvalid(f"{where} is not UTF-8 at byte {err.start + 1}.", field="file") from err
    return _json(text, where) if text.lstrip().startswith(("{", "[")) else _markdown(text, where)


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as err:
        raise PlanInvalid(
            f"{where}:{err.lineno}: this is not JSON: {json_fault(err)}.", field="file"
        ) from err
    except RecursionError as err:
        raise PlanInvalid(f"{where}: the JSON is nested too deep.", field="file") from err


def _markdown(text: str, where: str) -> dict[str, Any]:
    title = ""
    tasks: list[dict[str, str]] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        if task := _TASK.fullmatch(line):
            if (task[1] or " ") != " ":
                raise _wrong(where, number, "a task of a plan is not ticked off yet: remove it, or its mark")
            tasks.append({"text": task[2].strip()})
        elif tasks and (check := _CHECK.fullmatch(line)):
            if "check" in tasks[-1]:
                raise _wrong(where, number, "a task has one check: join the commands with &&")
            tasks[-1]["check"] = _without_ticks(check[1].strip())
        elif tasks and "check" not in tasks[-1] and (more := _MORE.fullmatch(line)):
            tasks[-1]["text"] += "\n" + more[1].rstrip()
        elif not tasks and not title and (found := _TITLE.fullmatch(line)):
            title = found[1].strip()
        else:
            raise _wrong(where, number, "this is neither the title, nor a task, nor a task's check")
    return {"title": title, "tasks": tasks}


def _without_ticks(command: str) -> str:
    """The command in a code span, or as it is."""
    span = re.fullmatch(r"`([^`]+)`", command)
    return span[1].strip() if span else command


def _wrong(where: str, number: int, what: str) -> PlanInvalid:
    return PlanInvalid(
        f"{where}:{number}: {what}.",
        suggestion="Write '# TITLE', then for each task '- [ ] TEXT', and below it, if it has one, "
        "'  check: COMMAND'.",
        field="file",
    )
