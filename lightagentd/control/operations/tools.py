"""The operations on tools: the list, the functions offered to a model, and a call without a model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Literal

from lightagentd import api
from lightagentd.agents.definition import AgentDefinition, AgentFrontMatter
from lightagentd.agents.drafts.drafts import Draft, Drafts, Tried, untried
from lightagentd.agents.drafts.reading import hosts_in
from lightagentd.agents.tool_calls.by_person import call_as_person
from lightagentd.agents.tool_calls.described import ActionInfo, ToolInfo
from lightagentd.agents.tool_calls.toolbox import Toolbox
from lightagentd.agents.tool_choice.choice import (
    SEARCH_FUNCTION,
    Choice,
    choose,
    fits,
    index_of,
    most_functions,
)
from lightagentd.control.authz import Caller
from lightagentd.control.operations.access import Access, check_limit, is_last_event
from lightagentd.control.operations.approvals import given_terms
from lightagentd.control.operations.declared import Operations, method, stream
from lightagentd.control.presentation import shown
from lightagentd.errors import InvalidArgument, PermissionDenied, ToolNotFound
from lightagentd.policy.operation import Operation

if TYPE_CHECKING:
    from lightagentd.agents.tool_choice.index import Hit
    from lightagentd.daemon.runtime import Runtime


class Tools(Operations, interface="org.lightagent1.Tools"):
    """The tools, as the workers describe them."""

    def __init__(self, access: Access, runtime: Runtime) -> None:
        self._access, self._now, self._panic = access, runtime.now, runtime.panic
        self._registry, self._pool, self._paths = runtime.registry, runtime.pool, runtime.paths
        self._content = runtime.registry.shared.content
        self._drafts = Drafts(self._paths.drafts, self._paths.kits, self._pool)

    @method("List", returns="tools")
    async def listed(self, caller: Caller) -> list[api.Tool]:
        """All tools, with their actions; broken files too."""
        await self._access.admit(caller, Operation.INSPECT)
        return [described(tool) for tool in self._content.toolbox.tools.values()]

    @method("Get", returns="tool")
    async def get(self, caller: Caller, name: str) -> api.Tool:
        """One tool."""
        await self._access.admit(caller, Operation.INSPECT)
        tool = self._content.toolbox.tools.get(name)
        if tool is None:
            raise ToolNotFound(f"There is no tool {name[:60]!r}.", suggestion="Run: lactl tools list")
        return described(tool)

    @stream("Call", returns="event", is_last=is_last_event)
    async def call(
        self,
        caller: Caller,
        *,
        agent: str,
        tool: str,
        action: str,
        args: Any,
        outside: bool = False,
        confirm_within: str = "",
        check: str = "",
        inverse: str = "",
    ) -> AsyncGenerator[api.TurnEvent, None]:
        """Call an action as an agent would, through policy, worker and history, without a model. args is an
        object.

        A call that policy asks about counts as approved by a caller who may approve it. With outside it does
        not: text that the caller did not write may have chosen it, such as another's model. Then it is judged
        as in a tainted session, and waits until somebody has allowed it. confirm_within, check and inverse
        are as those of Approvals.Approve, and for callers who may approve.
        """
        caller = await self._access.admit(caller, Operation.PROMPT, agent=agent)
        await self._access.check_open(caller)
        self._panic.check()
        if not isinstance(args, dict):
            raise InvalidArgument("args must be an object.", field="args")
        running = self._registry.get(agent)
        approver = None if outside else await self._access.approver(caller, agent)
        redactor = self._registry.shared.history.redactor
        terms = given_terms(redactor, confirm_within, check, inverse)
        if terms is not None and approver is None:
            raise PermissionDenied("Only who may approve a call says how its change is taken back.")
        called = call_as_person(
            running, caller.uid, tool, action, args, approver=approver, outside=outside, terms=terms
        )
        async with aclosing(called) as events:
            async for event in events:
                yield await self._access.for_caller(event, caller, running.name)

    @method("Select", returns="selection")
    async def select(self, caller: Caller, *, prompt: str, agent: str = "", limit: int = 10) -> api.Selection:
        """Which functions the model of an agent is offered for a prompt, the best first, with scores.

        10 unless limit says otherwise, and those that are always there. Without an agent, of all tools.
        """
        await self._access.admit(caller, Operation.INSPECT, agent=agent)
        check_limit(limit)
        toolbox = self._content.toolbox_of(agent)
        change = not agent or self._pool.has_change(agent)
        offers, who = self._registry.shared.offers, self._who(agent)
        offered = offers.allowed(toolbox, who, change=change, plan="", child=False)
        names = frozenset(function.name for function in offered)
        index = await index_of(toolbox)
        max_tools = self._now.config.limits.max_tools
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

    @method("Draft", returns="draft")
    async def draft(
        self, caller: Caller, *, agent: str, name: str, source: str, origin: str = ""
    ) -> api.ToolDraft:
        """Keep the Python source of a tool as a draft, and say what it is: a worker that can change nothing
        loads it once. No agent has it, until an administrator installs it with lactl tools install. agent is
        one that the caller may prompt; origin says what it was made of.
        """
        caller = await self._access.admit(caller, Operation.PROMPT, agent=agent)
        await self._access.check_open(caller)
        self._panic.check()
        made = Draft(name=name, source=source, by=caller.uid, origin=" ".join(origin[:200].split()))
        return _draft(await self._drafts.keep(made))

    @method("Drafts", returns="drafts")
    async def drafts(self, caller: Caller) -> list[api.ToolDraft]:
        """The drafts that the caller may see, without being tried: with no actions."""
        caller = await self._access.viewing(await self._access.admit(caller, Operation.INSPECT))
        found = await asyncio.to_thread(self._drafts.all)
        return [_draft(untried(one)) for one in found if caller.viewer in (None, one.by)]

    @method("GetDraft", returns="draft")
    async def get_draft(self, caller: Caller, name: str) -> api.ToolDraft:
        """One draft with its source, tried again."""
        caller = await self._access.viewing(await self._access.admit(caller, Operation.INSPECT))
        self._panic.check()
        found = await asyncio.to_thread(self._drafts.get, name, caller.viewer)
        return _draft(await self._drafts.tried(found))

    @method("Discard")
    async def discard(self, caller: Caller, name: str) -> None:
        """Remove a draft."""
        caller = await self._access.admit(caller, Operation.PROMPT, viewing=True)
        await asyncio.to_thread(self._drafts.remove, name, caller.viewer)

    def _who(self, agent: str) -> AgentDefinition:
        """Raises AgentNotFound, AgentBroken."""
        if not agent:
            return AgentDefinition(name="", front=AgentFrontMatter(), prompt="", path=self._paths.config)
        definition = self._content.definitions.agents.get(agent)
        return definition or self._registry.get(agent).running_parts().definition


def _choices(toolbox: Toolbox, chosen: Choice, ranked: list[Hit], *, whole: bool) -> list[api.ToolChoice]:
    """The tools that match, best first, then those that are always offered."""
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
    return shown(
        api.ToolChoice,
        action,
        action=action.name,
        effect=action.effect.value if action.effect else "",
        description=" ".join(action.description.partition("\n\n")[0].split()),
        why=why,
        score=round(hit.score, 2) if hit else 0.0,
        words=list(hit.words) if hit else [],
    )


def _draft(tried: Tried) -> api.ToolDraft:
    tool = described(tried.tool)
    return shown(
        api.ToolDraft,
        tried.draft,
        problem=tool.problem,
        description=tool.description,
        actions=tool.actions,
        uses=list(tried.uses),
        hosts=hosts_in(tried.draft.source),
    )


def described(tool: ToolInfo) -> api.Tool:
    """A tool as callers see it."""
    actions = [shown(api.Action, one, effect=one.effect.value if one.effect else "") for one in tool.actions]
    return shown(api.Tool, tool, origin=tool.path, actions=actions)
