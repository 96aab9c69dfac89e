"""Checks and runs calls of built-in tools inside the daemon, as a worker does for other tools.

It protects the daemon as a worker process would: an unexpected error fails only that call, a call that hangs
is ended, and results are checked.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from lightagentd.agents.stream import TurnStream
from lightagentd.agents.tool_calls.origin import Origin
from lightagentd.errors import InvalidArgument, LightagentError, TimedOut, ToolError
from lightagentd.policy.questions.questions import Suspended
from lightagentd.tool import Action, Effect, Place, Result, Tool, action, actions_of
from lightagentd.worker.calls import check_args, check_result, describe
from lightagentd.worker.lanes import Checked
from lightagentd.worker.loader import LoadedTool

_log = logging.getLogger(__name__)

NO_TIME_LIMIT_S = 0.0
"""The `timeout_s` of an action that waits for a person: it sees to its own end."""


@dataclass(frozen=True, kw_only=True)
class BuiltinContext:
    """The `ctx` of a built-in action."""

    call_id: str
    model_call: str
    """The id that the model gave the call."""
    origin: Origin
    stream: TurnStream
    """Where whoever watches the turn hears of it."""
    in_order: Callable[[], Awaitable[None]]
    """Waits until the results of the calls before this one are stored, where calls run at once."""

    @property
    def agent(self) -> str:
        return self.origin.agent.name

    @property
    def owner(self) -> int:
        return self.origin.owner


BuiltinMethod = Callable[[Any, BuiltinContext, Any], Awaitable[Result]]


WITH_FILE = ("skill",)
"""The tools that have actions in the daemon and others in a file."""
_CLEAN = "the daemon's own words, and those of people"


def builtin_action(
    *, effect: Effect = Effect.OBSERVE, timeout_s: float = 30.0, taints: bool = False
) -> Callable[[BuiltinMethod], BuiltinMethod]:
    """As `lightagentd.tool.action`, for a method that runs in the daemon and takes a `BuiltinContext`."""
    clean = "" if taints else _CLEAN
    marked = action(effect=effect, place=Place.DAEMON, timeout_s=timeout_s, taints=taints, clean=clean)
    return cast(Any, marked)  # type: ignore[no-any-return]


class Builtins:
    """All built-in tools of the daemon; the registry makes it."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self._tools = {tool.name: {one.name: one for one in actions_of(tool)} for tool in tools}
        self._by_name = {tool.name: tool for tool in tools}

    def beside(self, described: Sequence[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[str]]:
        """The worker's tools without name clashes, and the problems of the others as sentences. No file can
        take the name of a built-in tool.
        """
        kept: list[dict[str, Any]] = []
        unused: list[str] = []
        for tool in described:
            if tool["name"] in self._tools and tool["name"] not in WITH_FILE:
                name = tool["name"]
                unused.append(f"The tool file {tool['path']} is not used: the tool {name} is built in.")
            elif any(action.get("place") == Place.DAEMON for action in tool["actions"]):
                problem = "an action has the place daemon, which only built-in tools can have"
                kept.append({**tool, "actions": [], "problem": problem})
            else:
                kept.append(tool)
        return kept, unused

    def described(self) -> list[dict[str, Any]]:
        """The descriptions of the tools, in the form that a worker uses."""
        return [
            describe(
                LoadedTool(name=name, path=Path("(built in)"), tool=self._by_name[name], actions=actions)
            )
            for name, actions in self._tools.items()
        ]

    def tool(self, name: str) -> Tool:
        return self._by_name[name]

    def check(self, tool: str, action: str, args: dict[str, Any]) -> Checked:
        """The arguments as the action will get them. Raises InvalidArgument, ToolError."""
        found = self._action(tool, action)
        try:
            checked = check_args(found, args).model_dump(mode="json")
        except LightagentError:
            raise
        except Exception as err:  # the boundary of a call, whatever a validator raised
            raise _failed(found, err) from err
        return Checked(args=checked, preview="", expected={})

    async def run(self, tool: str, action: str, args: dict[str, Any], context: BuiltinContext) -> Result:
        """Raises what the action raises, TimedOut, and Suspended when the daemon stops meanwhile. An
        unexpected error or an invalid result becomes a ToolError.
        """
        found = self._action(tool, action)
        method: Any = found.method  # its context is this one, not a worker's
        limit_s = found.timeout_s if found.timeout_s != NO_TIME_LIMIT_S else None
        try:
            async with asyncio.timeout(limit_s) as timer:
                result = await method(context, check_args(found, args))
            return check_result(result)
        except (LightagentError, Suspended):
            raise
        except Exception as err:  # the boundary of a call: logged, and the model is told
            if isinstance(err, TimeoutError) and timer.expired():
                raise TimedOut(f"{tool}.{action} did not end within {found.timeout_s:g} seconds.") from err
            _log.exception("%s.%s failed in a way that nobody expected", tool, action)
            raise _failed(found, err) from err

    def _action(self, tool: str, action: str) -> Action:
        found = self._tools.get(tool, {}).get(action)
        if found is None:
            raise InvalidArgument(f"There is no built-in action {tool}.{action}.")
        return found


def _failed(action: Action, err: Exception) -> ToolError:
    """An error without the original's text, which comes from inside the daemon."""
    return ToolError(
        f"{action.tool}.{action.name} failed inside the daemon ({type(err).__name__}).",
        suggestion="The journal says why.",
    )
