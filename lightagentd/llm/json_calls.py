"""Recognizes the tool call that a text is, of whatever model.

Content that is exactly one JSON object `{"tool", "action", "args"}`, bare or in one code fence, is a call.
Anything else is text, however similar to a call; of a model without native calls more is read
(`written_calls`).
"""

from __future__ import annotations

import json
import re
from typing import Any

from lightagentd.events.model import new_id
from lightagentd.llm.protocol import ToolCall

_FENCE = re.compile(r"```(?:json)?[ \t]*\n(.*?)\n?```", re.DOTALL)
_KEYS = {"tool", "action", "args"}
_BEGINNINGS = tuple(f'{fence}{{"{key}"' for fence in ("", "```json", "```") for key in sorted(_KEYS))
"""How a call begins, without blanks."""
_LOOK_CHARS = 200


def object_in_text(text: str) -> dict[str, Any] | None:
    """The JSON object that makes up the whole text, bare or in one code fence, or None."""
    stripped = text.strip()
    if fenced := _FENCE.fullmatch(stripped):
        stripped = fenced[1].strip()
    if not (stripped.startswith("{") and stripped.endswith("}")):
        return None
    try:
        found = json.loads(stripped)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def call_in_text(text: str) -> ToolCall | None:
    """The call that makes up the whole text, or None."""
    found = object_in_text(text)
    if found is None or set(found) - _KEYS or not {"tool", "action"} <= set(found):
        return None
    tool, action, args = found["tool"], found["action"], found.get("args", {})
    if not (isinstance(tool, str) and isinstance(action, str) and isinstance(args, dict)):
        return None
    name = f"{tool}_{action}" if action else tool
    try:
        arguments = json.dumps(args)
    except RecursionError:
        return None
    return ToolCall(id=new_id("call"), name=name, arguments=arguments)


def may_be_call(text: str) -> bool:
    """Whether a text is the beginning of a call, or may become one."""
    head = "".join(text[:_LOOK_CHARS].split())
    return any(head.startswith(begin) or begin.startswith(head) for begin in _BEGINNINGS)
