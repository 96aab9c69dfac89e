"""Tool calls, changes of files and plans in the shapes of the Agent Client Protocol."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, cast

from acp import helpers, schema

from lightagentd.cli.question import visible
from lightagentd.quoted import quoted

Content = schema.ContentToolCallContent | schema.FileEditToolCallContent

_BY_EFFECT: dict[str, schema.ToolKind] = {"observe": "read", "reach": "fetch", "change": "execute"}
_KINDS: dict[str, schema.ToolKind] = {
    "bash": "execute",
    "skill": "execute",
    "web": "fetch",
    "file.glob": "search",
    "file.grep": "search",
    "file.write": "edit",
    "file.edit": "edit",
    "file.undo": "edit",
    "file.delete": "delete",
    "human": "other",
    "agent": "other",
    "message": "other",
    "memory": "other",
    "plan": "think",
}
"""The kinds of tools and actions that do not follow from their effect."""
_TITLE_CHARS = 120
_HUNK = re.compile(r"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")
_SIDES = {" ": (0, 1), "-": (0,), "+": (1,)}
"""On which sides of a diff a line stands: before, after."""
_NO_FILE = "/dev/null"
_PLAN: dict[str, schema.PlanEntryStatus] = {
    "running": "in_progress",
    "done": "completed",
    "skipped": "completed",
}


def started(
    call: dict[str, Any], status: schema.ToolCallStatus, content: Sequence[Content] = ()
) -> schema.ToolCallStart:
    """A call of an event with `call_id`, `tool`, `action`, `effect` and `args`, or what is known of these."""
    tool, action, args = call["tool"], call["action"], call.get("args")
    name = f"{tool}.{action}"
    values = [*args.values()] if isinstance(args, dict) else []
    first = next((value for value in values if isinstance(value, str) and value.strip()), "")
    said = " ".join(visible(first[: 2 * _TITLE_CHARS]).split())
    shown = said if len(said) <= _TITLE_CHARS else f"{said[:_TITLE_CHARS]}…"
    path = args.get("path") if isinstance(args, dict) and tool == "file" else None
    return helpers.start_tool_call(
        call["call_id"],
        f"{visible(name)} {shown}".rstrip(),
        kind=_KINDS.get(name) or _KINDS.get(tool) or _BY_EFFECT.get(call.get("effect", ""), "other"),
        status=status,
        content=content or None,
        locations=[schema.ToolCallLocation(path=path)] if isinstance(path, str) else None,
        raw_input=args,
    )


def ended(result: dict[str, Any]) -> schema.ToolCallProgress:
    """The end of a call, of the event tool_result."""
    text = result["text"]
    changes = diffs(text) if result["tool"] == "file" and result["result"] == "ok" else []
    return helpers.update_tool_call(
        result["call_id"],
        status="completed" if result["result"] == "ok" else "failed",
        content=changes or as_text(text),
        raw_output={"result": result["result"], "metadata": result.get("metadata")},
    )


def as_text(text: str) -> list[Content]:
    """A text as it is: an editor lays others out as Markdown."""
    return [helpers.tool_content(helpers.text_block(quoted("", text.rstrip("\n"))))] if text.strip() else []


def diffs(text: str) -> list[Content]:
    """The hunks of the first unified diff in a text, each with its lines before and after; none where the
    diff is not whole.
    """
    lines = text.split("\n")
    at = next((at for at, line in enumerate(lines) if line.startswith("--- ")), len(lines))
    if not "".join(lines[at + 1 : at + 2]).startswith("+++ "):
        return []
    names = lines[at][4:], lines[at + 1][4:]
    found, at = list[Content](), at + 2
    while at < len(lines) and (hunk := _HUNK.match(lines[at])) is not None:
        left = [int(count or 1) for count in hunk.groups()]
        sides: tuple[list[str], list[str]] = [], []
        at += 1
        while at < len(lines) and (any(left) or lines[at].startswith("\\")):
            has_no_end = lines[at].startswith("\\")  # said of the line before
            for side in _SIDES.get(lines[at - has_no_end][:1], ()):
                if has_no_end:
                    sides[side][-1] = sides[side][-1].removesuffix("\n")
                else:
                    sides[side].append(lines[at][1:] + "\n")
                    left[side] -= 1
            at += 1
        if left != [0, 0]:
            return []
        old, new = ("".join(side) for side in sides)
        path = names[0] if names[1] == _NO_FILE else names[1]
        found.append(helpers.tool_diff_content(path, new, None if names[0] == _NO_FILE else old))
    return found


def plan(found: dict[str, Any]) -> schema.AgentPlanUpdate:
    """An `api.Plan`. The protocol knows no failed task, so its text says that."""
    entries = []
    for task in cast(list[dict[str, str]], found["tasks"]):
        failed = f" (failed: {task['note']})" if task["state"] == "failed" else ""
        entries.append(helpers.plan_entry(task["text"] + failed, status=_PLAN.get(task["state"], "pending")))
    return helpers.update_plan(entries)
