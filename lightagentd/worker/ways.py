"""The call that takes a change back: files by their kept content, units by their former state, the calls of a
tool whose preview says how they are undone by that, everything else by the inverse call that the terms name.

The daemon makes that call, and a worker for change finds it for itself, so that it runs no other one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightagentd.config.terms import Terms
from lightagentd.errors import Conflict

FILES = frozenset({"write", "edit", "delete", "undo"})
UNITS = frozenset({"start", "stop", "restart", "reload"})
UNIT_FILES = frozenset({"enable", "disable"})
_OF_STATE = {"enabled": "enable", "disabled": "disable"}

UNDO = "undo"
"""Where a preview's facts have the `action` and the `args` that undo the call, with the same tool."""


def needs_preview(terms: Terms, tool: str) -> bool:
    """Whether the way back depends on the state before the change."""
    return tool != "file" and not terms.inverse


def must_keep(terms: Terms | None, tool: str) -> bool:
    """Whether a change of a file must not be made unless what was there can be kept."""
    return terms is not None and tool == "file" and not terms.inverse


def way_back(
    terms: Terms, tool: str, action: str, call_id: str, args: Mapping[str, Any], before: Mapping[str, Any]
) -> dict[str, Any]:
    """The call that takes back a checked one, as `tool`, `action` and `args`; `before` is what the tool's
    preview says of the state now. Raises Conflict, and ValueError for an impossible inverse.
    """
    if terms.inverse:
        by_tool, by_action, by_args = terms.inverse_call()
        return {"tool": by_tool, "action": by_action, "args": by_args}
    if before.get(UNDO):
        return {"tool": tool, **before[UNDO]}
    if tool == "file":
        return {"tool": "file", "action": "undo", "args": {"call_id": call_id}}
    state = before.get("unit_file_state" if action in UNIT_FILES else "active_state", "")
    if action in UNIT_FILES:
        back = _OF_STATE.get(state)
    else:
        back = {"active": "start", "inactive": "stop", "failed": "stop"}.get(state)
    if back is None:
        raise Conflict(
            f"{args.get('unit')} is {state or 'in an unknown state'} now, and cannot be put back to that."
            " Nothing was done.",
            suggestion="Name the command that takes the change back: --inverse 'COMMAND'",
        )
    return {"tool": "systemd", "action": back, "args": {"unit": args["unit"]}}
