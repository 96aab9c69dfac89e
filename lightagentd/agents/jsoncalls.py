"""Tool calls written as text, for models without native ones (DESIGN section 6).

Content that is exactly one JSON object `{"tool", "action", "args"}`, bare or in one code fence, is a call.
Anything else is text, however much it looks like a call.
"""

from __future__ import annotations

import json
import re
from typing import Any

from lightagentd.events.model import new_id
from lightagentd.llm.protocol import ToolCall

_FENCE = re.compile(r"```(?:json)?[ \t]*\n(.*?)\n?```", re.DOTALL)
_KEYS = {"tool", "action", "args"}


def object_in_text(text: str) -> dict[str, Any] | None:
    """The JSON object that the whole text is, bare or in one code fence, or None."""
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
    """The call that the whole text is, or None."""
    found = object_in_text(text)
    if found is None or set(found) - _KEYS or not {"tool", "action"} <= set(found):
        return None
    tool, action, args = found["tool"], found["action"], found.get("args", {})
    if not (isinstance(tool, str) and isinstance(action, str) and isinstance(args, dict)):
        return None
    return ToolCall(id=new_id("call"), name=f"{tool}_{action}", arguments=json.dumps(args))
