"""How a change is taken back: the call that does it, or why there is none.

Files by their kept content; units by their former state; the calls of a tool whose preview says how they are
undone by that; everything else by the inverse call that the terms name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightagentd.agents.tool_calls.toolbox import Toolbox
from lightagentd.config.terms import Terms
from lightagentd.errors import Conflict, InvalidArgument, LightagentError
from lightagentd.tool import Effect

FILES = frozenset({"write", "edit", "delete", "undo"})
UNITS = frozenset({"start", "stop", "restart", "reload"})
UNIT_FILES = frozenset({"enable", "disable"})
_OF_STATE = {"enabled": "enable", "disabled": "disable"}
KEEPS = {"must_keep": True}
"""What the tool file is told with a change that it has to be able to take back."""


UNDO = "undo"
"""Where a preview's facts have the `action` and the `args` that undo the call, with the same tool."""


def check(
    terms: Terms, toolbox: Toolbox, tool: str, action: str, effect: str, before: Mapping[str, Any]
) -> None:
    """`before` is what the tool's preview says of the state now. Raises Conflict for a call that could not be
    taken back, InvalidArgument for an impossible inverse.
    """
    name = f"{tool}.{action}"
    if effect != Effect.CHANGE.value:
        raise Conflict(f"{name} has the effect {effect}: it changes nothing that could be taken back.")
    if terms.inverse:
        try:
            by_tool, by_action, args = terms.inverse_call()
            info = toolbox.find(by_tool, by_action)
            if info.effect_of(args) is not Effect.CHANGE:
                raise ValueError(f"{by_tool}.{by_action} changes nothing")
        except (ValueError, LightagentError) as err:
            said = err.message if isinstance(err, LightagentError) else f"{err}."
            raise InvalidArgument(f"The inverse call cannot be made: {said}", field="inverse") from err
    elif not (
        (tool == "file" and action in FILES)
        or (tool == "systemd" and action in UNITS | UNIT_FILES)
        or before.get(UNDO)
    ):
        raise Conflict(
            f"{name} cannot be taken back by itself, and no inverse call is named. Nothing was done.",
            suggestion="Name the command that takes it back: --inverse 'COMMAND'",
        )
    if terms.check:
        toolbox.find("bash", "exec")


def way_back(terms: Terms, tool: str, action: str, call_id: str, args: Mapping[str, Any], before: Any) -> Any:
    """The call that takes back a checked one, as `tool`, `action` and `args`; `before` as for `check`. Raises
    Conflict.
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
