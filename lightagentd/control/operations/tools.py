"""The operation that shows which functions a model would be offered for a prompt, a part of `Service`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from lightagentd import api
from lightagentd.agents.definition import AgentDefinition, AgentFrontMatter
from lightagentd.agents.tool_calls.toolbox import ActionInfo, Toolbox
from lightagentd.agents.tool_choice.choice import (
    SEARCH_FUNCTION,
    Choice,
    choose,
    fits,
    index_of,
    most_functions,
)
from lightagentd.control.authz import Caller, Operation
from lightagentd.control.operations.checks import Operations, check_limit

if TYPE_CHECKING:
    from lightagentd.agents.registry import Registry
    from lightagentd.agents.tool_choice.index import Hit


class ToolOperations(Operations):
    """The choice of tools."""

    _registry: Registry

    async def select_tools(self, caller: Caller, *, agent: str, prompt: str, limit: int) -> api.Selection:
        """What a new session of an agent would be offered for its first prompt; without an agent, what one
        with all tools and effects would be. `limit` is how many of those that fit are told.
        """
        await self._admit(caller, Operation.INSPECT, agent=agent)
        check_limit(limit)
        toolbox = self._registry.toolbox
        offered = toolbox.offered(self._who(agent), change=not agent or self._daemon.pool.has_change(agent))
        names = frozenset(function.name for function in offered)
        index = await index_of(toolbox)
        max_tools = self._daemon.config.limits.max_tools
        if agent and (parts := self._registry.get(agent).parts) is not None:
            max_tools = most_functions(offered, parts.clients[0], max_tools)
        whole = fits(offered, max_tools)
        if whole:
            names -= {SEARCH_FUNCTION}
        ranked = index.rank(prompt, among=names)
        chosen = choose(ranked, names, max_tools=max_tools)
        return api.Selection(
            agent=agent,
            functions=len(names),
            max_tools=max_tools,
            all_offered=whole,
            offered=len(names) if whole else len(chosen.chosen),
            choices=_choices(toolbox, chosen, ranked[:limit], whole=whole),
        )

    def _who(self, agent: str) -> AgentDefinition:
        """Raises AgentNotFound, AgentBroken."""
        if not agent:
            return AgentDefinition(
                name="", front=AgentFrontMatter(), prompt="", path=self._registry.paths.config
            )
        definition = self._registry.definitions.agents.get(agent)
        return definition or self._registry.get(agent).running_parts().definition


def _choices(toolbox: Toolbox, chosen: Choice, ranked: list[Hit], *, whole: bool) -> list[api.ToolChoice]:
    """What fits, the best first, then what is always there."""
    always, kept = frozenset(chosen.always), frozenset(chosen.chosen)
    told = [
        _info(
            toolbox.functions[hit.function],
            "always" if hit.function in always else "fits" if whole or hit.function in kept else "left_out",
            hit,
        )
        for hit in ranked
    ]
    seen = {hit.function for hit in ranked}
    return told + [_info(toolbox.functions[name], "always") for name in chosen.always if name not in seen]


def _info(
    action: ActionInfo, why: Literal["always", "fits", "left_out"], hit: Hit | None = None
) -> api.ToolChoice:
    return api.ToolChoice(
        function=action.function,
        tool=action.tool,
        action=action.name,
        effect=action.effect.value if action.effect else "",
        description=" ".join(action.description.partition("\n\n")[0].split()),
        why=why,
        score=round(hit.score, 2) if hit else 0.0,
        words=list(hit.words) if hit else [],
    )
