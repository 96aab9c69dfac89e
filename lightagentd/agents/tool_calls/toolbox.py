"""The daemon's view of the tools: the answer of a worker's `Describe`, never the code."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from lightagentd.agents.definition import AgentDefinition
from lightagentd.agents.tool_calls.described import ActionInfo, ToolInfo
from lightagentd.errors import ToolNotFound
from lightagentd.llm.protocol import Function
from lightagentd.policy.rulefiles import RuleSet
from lightagentd.tool import Effect, Place
from lightagentd.worker.plain import check_of

if TYPE_CHECKING:
    from lightagentd.agents.tool_choice.index import ToolIndex

_AT_ONCE = 500
"""An index of so many functions is made within the time of a step."""


@dataclass(frozen=True)
class Toolbox:
    """All tools of this machine; replaced as a whole when a worker describes them again."""

    tools: dict[str, ToolInfo] = field(default_factory=dict)

    @cached_property
    def functions(self) -> dict[str, ActionInfo]:
        return {action.function: action for tool in self.tools.values() for action in tool.actions}

    @cached_property
    def narrow(self) -> bool:
        """Whether not all agents have all of the tools."""
        return any(tool.agents for tool in self.tools.values())

    def of(self, agent: str) -> dict[str, ToolInfo]:
        """The tools that an agent has."""
        return {name: one for name, one in self.tools.items() if not one.agents or agent in one.agents}

    @cached_property
    def index(self) -> ToolIndex:
        """The index that ranks the functions by words; see `tool_choice.choice.index_of`."""
        from lightagentd.agents.tool_choice.index import ToolIndex  # few daemons need it

        return ToolIndex(self.tools)

    @property
    def has_index(self) -> bool:
        return "index" in vars(self)

    def find(self, tool: str, action: str) -> ActionInfo:
        """Raises ToolNotFound, which names the most similar actions, or why the tool is disabled."""
        actions = [one for info in self.tools.values() for one in info.actions]
        found = next((one for one in actions if (one.tool, one.name) == (tool, action)), None)
        if found is None:
            self._check_enabled(tool)
            raise _not_found(f"{tool}.{action}", [f"{one.tool}.{one.name}" for one in actions])
        return found

    def by_function(self, function: str) -> ActionInfo:
        """Raises ToolNotFound, which names the most similar functions, or why the tool is disabled."""
        found = self.functions.get(function)
        if found is None:
            for name in self.tools:
                if function.startswith(f"{name}_"):
                    self._check_enabled(name)
            raise _not_found(function, self.functions, self._like(function))
        return found

    def _check_enabled(self, tool: str) -> None:
        """Raises ToolNotFound."""
        info = self.tools.get(tool)
        if info is not None and info.problem:
            raise ToolNotFound(
                f"The tool {tool} is disabled, because its file cannot be used: {info.problem}",
                suggestion=f"The file is {info.path}; an administrator mends it, then: lactl reload",
            )

    def _like(self, name: str) -> list[str]:
        """The functions that match the words of a name, if the index is ready."""
        if not self.has_index and len(self.functions) > _AT_ONCE:
            return []
        return [hit.function for hit in self.index.rank(name[:100], limit=3)]

    def offered(
        self,
        agent: AgentDefinition,
        *,
        change: bool,
        rules: RuleSet,
        plan: Literal["", "observe", "none"] = "",
    ) -> list[Function]:
        """The functions that an agent's model may see.

        `change`: whether the agent has a worker for change; `plan`: the limit while a plan is drafted. What
        the rules deny whatever its arguments is not among them.
        """
        if plan == "none":
            return []
        effects = {effect for effect in agent.front.effects if change or effect is not Effect.CHANGE}
        if plan:
            effects &= {Effect.OBSERVE}
        return [
            action.offer
            for action in self.functions.values()
            if agent.offers(action.tool, action.name)
            and (action.effect is None or action.effect in effects)
            and not rules.always_deny(
                agent.name, action.tool, action.name, {action.effect} if action.effect else effects
            )
        ]


def _not_found(name: str, known: Iterable[str], like: Iterable[str] = ()) -> ToolNotFound:
    near = list(dict.fromkeys([*difflib.get_close_matches(name[:100], known, n=3), *like]))
    return ToolNotFound(
        f"There is no tool {name[:100]!r}.",
        suggestion=f"The nearest are: {', '.join(near)}." if near else "",
    )


def toolbox_of(described: Sequence[dict[str, Any]]) -> Toolbox:
    """The toolbox in a worker's answer to `Describe`; a tool that comes twice has the actions of both."""
    tools: dict[str, ToolInfo] = {}
    for tool in described:
        before = tools.get(tool["name"])
        actions = tuple(
            ActionInfo(
                tool=tool["name"],
                name=action["name"],
                description=action["description"],
                effect=Effect(action["effect"]) if action["effect"] else None,
                taints=action["taints"],
                timeout_s=action["timeout_s"],
                schema=action["schema"],
                place=Place(action["place"]) if action.get("place") else None,
                host=action.get("host", ""),
                check=check_of(action.get("plain")),
            )
            for action in tool["actions"]
        )
        if before is not None:
            tools[tool["name"]] = replace(before, actions=(*before.actions, *actions))
            continue
        tools[tool["name"]] = ToolInfo(
            name=tool["name"],
            description=tool["description"],
            path=tool["path"],
            problem=tool["problem"],
            actions=actions,
            sha256=str(tool.get("sha256", "")),
            agents=tuple(tool.get("agents", ())),
        )
    _tell_apart(tools)
    return Toolbox(tools)


def _tell_apart(tools: dict[str, ToolInfo]) -> None:
    """Disable an MCP server with a function that another tool has, too, as `a_b.c` and `a.b_c` are: a server
    names its tools as it likes, and would get what a model means for the other one.
    """
    owners: dict[str, str] = {}
    for tool in sorted(tools.values(), key=lambda one: one.path.endswith(".toml")):
        for action in tool.actions:
            owner = owners.setdefault(action.function, tool.name)
            if owner != tool.name and tool.path.endswith(".toml"):
                why = f"its function {action.function} is one of the tool {owner}, too: exclude it"
                tools[tool.name] = replace(tool, actions=(), problem=why)
