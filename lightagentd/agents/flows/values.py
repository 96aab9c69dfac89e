"""What the templates of a step stand for in a run: inputs, the item, and what came before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lightagentd.agents.flows.records import json_in
from lightagentd.agents.tool_calls.described import ActionInfo
from lightagentd.config.flows.references import INPUTS, ITEM, MISSING, RUN, Reference, as_text, dig, filled
from lightagentd.config.flows.shell import is_command, quoted_for_shell
from lightagentd.config.template import one_line
from lightagentd.quoted import Prompt, quoted

if TYPE_CHECKING:
    from lightagentd.agents.flows.run import Run
    from lightagentd.config.flows.definition import Step

NOTHING = object()
"""The item of a step without for_each."""


class Values:
    """The values for one step, or one item of it."""

    def __init__(self, run: Run, item: Any) -> None:
        self._run, self._item = run, item

    def look_up(self, reference: Reference) -> Any:
        """What a reference stands for in this run."""
        run, path = self._run, reference.path
        if reference.to == INPUTS:
            return dig(run.record.inputs, path)
        if reference.to == ITEM:
            return MISSING if self._item is NOTHING else dig(self._item, path)
        if reference.to == RUN:
            return {"id": run.record.id, "flow": run.record.flow, "owner": run.record.owner}.get(
                path[0] if path else "", MISSING
            )
        found = run.steps.get(reference.to)
        if not path or found is None:
            return MISSING
        if path[0] == "status":
            return found.state
        if found.state != "success" and not found.ran:
            return MISSING
        return found.output if path[0] == "output" else dig(json_in(found.output), path[1:])

    def argument(self, call: str, key: str, value: Any, action: ActionInfo) -> Any:
        """An argument with what it refers to: a text where the action wants one."""
        if is_command(call, key) and isinstance(value, str):
            return quoted_for_shell(value, self.look_up)
        made = filled(value, self.look_up)
        wanted = action.schema.get("properties", {}).get(key, {})
        types = {wanted.get("type"), *(one.get("type") for one in wanted.get("anyOf", ()))}
        return as_text(made) if "string" in types and made is not None else made

    def prompt(self, step: Step) -> Prompt:
        """The prompt: what it refers to stands in it as one line, and as a whole in a block behind it."""
        assert step.prompt is not None
        blocks: dict[str, str] = {}

        def line(reference: Reference) -> Any:
            value = self.look_up(reference)
            if value is MISSING:
                return value
            text = as_text(value)
            short = one_line(text) if text else ""
            if short != text:
                blocks[".".join((reference.to, *reference.path))] = text
            return short

        text = as_text(filled(step.prompt, line))
        return (
            Prompt(text).with_blocks(*(quoted(name, one) for name, one in blocks.items()))
            if blocks
            else Prompt(text)
        )
