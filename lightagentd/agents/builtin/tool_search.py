"""The built-in tool `tools`: finds functions that a model may call but was not offered.

It is offered only when functions were left out (`agents.tool_choice`). The functions that it finds are
offered from the next step on. It shows only functions that the agent may use now.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import Field

from lightagentd.agents.builtin.running import BuiltinContext, builtin_action
from lightagentd.agents.definition import SEARCH
from lightagentd.agents.tool_calls.described import ActionInfo
from lightagentd.agents.tool_calls.toolbox import Toolbox
from lightagentd.agents.tool_choice.choice import SEARCH_FUNCTION, Offers, index_of
from lightagentd.tool import Args, Result, Tool

_MAX_FOUND = 30
_LINE_CHARS = 300


class SearchArgs(Args):
    """The arguments of `tools.search`."""

    query: str = Field(
        min_length=1, max_length=1000, description="What you want to do, in words: the thing and the verb."
    )
    limit: int = Field(default=10, ge=1, le=_MAX_FOUND)


class ToolSearch(Tool):
    """The functions that you have."""

    name = SEARCH[0]

    def __init__(
        self, offers: Offers, toolbox: Callable[[str], Toolbox], has_change: Callable[[str], bool]
    ) -> None:
        self._offers = offers
        self._toolbox = toolbox
        self._has_change = has_change

    @builtin_action()
    async def search(self, ctx: BuiltinContext, args: SearchArgs) -> Result:
        """Find more functions that you can call, by what they do. You have more than you were given: search
        here before you say that something cannot be done. What is found can be called from then on.
        """
        agent = ctx.origin.agent
        toolbox = self._toolbox(agent.name)
        change = self._has_change(agent.name)
        session = ctx.origin.session
        child = session is not None and bool(session.record.parent)
        allowed = self._offers.allowed(toolbox, agent, change=change, plan=ctx.origin.plan, child=child)
        among = frozenset(function.name for function in allowed) - {SEARCH_FUNCTION}
        index = await index_of(toolbox)
        names = [hit.function for hit in index.rank(args.query, among=among, limit=args.limit)]
        found: dict[str, Any] = {"functions": names, "of": len(among)}
        if not names:
            text = f"None of your {len(among)} functions fits these words. Use other ones."
            return Result(output=text, metadata=found)
        lines = [_line(toolbox.functions[name]) for name in names]
        return Result(output="\n".join(lines), metadata=found)


def _line(action: ActionInfo) -> str:
    """One function: its name, its arguments (optional ones with a `?`), and its description."""
    required = action.schema.get("required", ())
    properties = action.schema.get("properties", {})
    arguments = ", ".join(name if name in required else f"{name}?" for name in properties)
    description = " ".join(action.description.partition("\n\n")[0].split())
    return f"{action.function}({arguments}): {description[:_LINE_CHARS]}"
