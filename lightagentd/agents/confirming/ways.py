"""Whether a change can be taken back, before it is done (`worker.ways` has the call that does it)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightagentd.agents.tool_calls.toolbox import Toolbox
from lightagentd.config.terms import Terms
from lightagentd.errors import Conflict, InvalidArgument, LightagentError
from lightagentd.tool import Effect
from lightagentd.worker.ways import FILES, UNDO, UNIT_FILES, UNITS


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
