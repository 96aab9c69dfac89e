"""The interface of tools: the names that a tool's author imports.

A tool is one file: a class derived from `Tool` with a `name`, and methods marked with `@action`. An
action takes a context and one pydantic model of its arguments, and returns a `Result` or raises
`ToolError`. The JSON Schema that a model sees comes from that pydantic model and nowhere else.

    from lightagentd.tool import Args, Context, Effect, Result, Tool, action

    class UptimeArgs(Args):
        pass

    class Uptime(Tool):
        "How long the machine runs."
        name = "uptime"

        @action(effect=Effect.OBSERVE)
        async def show(self, ctx: Context, args: UptimeArgs) -> Result:
            "Say since when the machine runs."
            ...

The worker makes one instance of each tool when it starts and keeps it until it exits, so an instance
may hold state between calls. Nothing may be acquired in the constructor: acquire in the action.

An action that has to ask a person raises `NeedsInput`; the method that its `resume` names goes on with the
answer, also after a restart.
"""

from __future__ import annotations

import inspect
import json
import shlex
import typing
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar, Protocol

from pydantic import BaseModel, ConfigDict

from lightagentd.errors import InvalidArgument, SystemdUnavailable, TimedOut, ToolError

__all__ = [
    "Action",
    "Args",
    "Context",
    "Effect",
    "InvalidArgument",
    "NeedsInput",
    "Place",
    "Preview",
    "Result",
    "SystemdUnavailable",
    "TimedOut",
    "Tool",
    "ToolError",
    "action",
    "actions_of",
]


class Effect(StrEnum):
    """What a call may do, from the least to the most; the kernel enforces it (`worker.sandbox`)."""

    OBSERVE = "observe"
    REACH = "reach"
    CHANGE = "change"


class Place(StrEnum):
    """Where an action runs, if not in the worker of its effect; none of these places runs shell commands."""

    INSPECT = "inspect"
    """One for the machine, that may see more than the file modes allow. Without it the worker of the effect
    runs the action, and the result says what it could not see."""
    KEYS = "keys"
    """One for the machine, that holds the private keys."""
    DAEMON = "daemon"
    """The daemon itself: what is about its own state, such as asking a person (`agents.builtin`). No file of
    an administrator's runs there."""
    WATCHER = "watcher"
    """One for each agent, that holds watches between calls and runs several calls at once."""
    SERVER = "server"
    """A worker of the call's effect for this tool alone, which keeps a program between calls."""
    REMOTE = "remote"
    """As SERVER in the sandbox of reach, whatever the effect: the program runs elsewhere."""


class Args(BaseModel):
    """The arguments of one action. Unknown names are refused."""

    model_config = ConfigDict(extra="forbid", defer_build=True)


@dataclass(frozen=True, kw_only=True)
class Result:
    """The result of a call.

    `output` is the text that the model or the person reads, `metadata` is the same as data for
    programs (JSON values only, small: up to some kilobytes).
    """

    output: str
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Preview:
    """What a call would do, for the person who approves it.

    `expected` is what the preview rests on, such as a digest of the file: the approved call gets it back as
    `ctx.expected`, and must refuse when it does not hold any more.
    """

    text: str
    expected: dict[str, Any] = field(default_factory=dict)


def by_hand(agent: str, tool: str, action: str, args: Mapping[str, Any]) -> str:
    """The command with which a person makes a call; they may copy it, and others chose the arguments."""
    given = [f"{key}={one if isinstance(one, str) else json.dumps(one)}" for key, one in args.items()]
    return " ".join(["lactl tools call", *map(shlex.quote, (agent, f"{tool}.{action}", *given))])


class NeedsInput(Exception):
    """An action raises it to ask a person, who answers in their own time; the call waits, and runs no more.

    `choices` are the answers to choose from, two or more; without them any text is one. `state` is JSON, at
    most 64 KiB, and what looks like a secret is removed from it. The action's `resume` gets it back with the
    answer, maybe in another worker.
    """

    def __init__(self, question: str, choices: Sequence[str] = (), state: Any = None) -> None:
        super().__init__(question)
        self.question, self.choices, self.state = question, choices, state


class Context(Protocol):
    """The worker's services for a running call."""

    call_id: str
    agent: str
    session: str
    owner: int
    """The uid on whose behalf the call runs."""
    effect: Effect
    expected: dict[str, Any]
    """What the preview of an approved call rested on; empty when nobody was asked."""
    scratch: Path
    """A folder for this call alone, removed when the call ends."""
    timeout_s: float
    """How long the call may take; the worker ends it then, whatever the tool does."""

    def progress(self, text: str, stream: str = "stdout") -> None:
        """Show a piece of output at once to whoever watches the turn; the result must still have it."""

    def keep(self, stream: str, data: bytes, total_bytes: int) -> str:
        """Have the daemon keep an output that is too long for the result; gives the handle to read it by.

        `stream` is stdout or stderr, `total_bytes` how long it was. Once for each stream, in the end.
        """

    def emit(self, topic: str, event_type: str, data: dict[str, Any]) -> None:
        """Put an event of the tool's own into the history; the topic must begin with `tool.<name>`."""


_MARK = "_action"
ActionMethod = Callable[[Any, Context, Any], Awaitable[Result]]
Resume = Callable[[Context, Any, str], Awaitable[Result]]
"""Takes the context, the state, and the answer of the person."""
Publish = Callable[[str, str, dict[str, Any]], None]
"""Takes the topic (`tool.<name>...`), the type and the data of an event."""


@dataclass(frozen=True, kw_only=True)
class Action:
    """One declared action, as the worker found it on a tool."""

    tool: str
    name: str
    description: str
    effect: Effect | None
    """None: the call names its effect in the argument `effect`, which defaults to observe."""
    taints: bool
    clean: str
    """Why the output holds nothing that others wrote or named; empty where it taints, or nobody said."""
    timeout_s: float
    place: Place | None
    host: str
    """The argument that names the host of a call with the effect reach, or an empty string."""
    args_model: type[Args]
    method: Callable[[Context, Any], Awaitable[Result]]
    """Bound to the tool's instance."""
    resume: Resume | None = None
    """Goes on with a person's answer, bound as well; None for an action that asks nobody."""

    @property
    def function(self) -> str:
        """The name of the function towards a model, such as `systemd_status`."""
        return f"{self.tool}_{self.name}"


def action(
    *,
    effect: Effect | None = Effect.OBSERVE,
    taints: bool = False,
    clean: str = "",
    timeout_s: float = 30.0,
    place: Place | None = None,
    host: str = "",
    resume: str = "",
) -> Callable[[ActionMethod], ActionMethod]:
    """Mark a method of a tool as an action.

    `effect=None` means that the caller chooses: the arguments must then have a field `effect: Effect`.
    `taints=True` says that the output holds text from outside: what others wrote (files, logs, the web) or
    named (files, processes, devices). Otherwise `clean` says in a few words why it cannot.
    `timeout_s` is the time a call gets when the caller names none.
    `place` is where it runs, if not in the worker of its effect.
    `host` is the argument that names the host, or the URL, that a call with the effect reach goes to; or the
    URL itself, if it is always the same.
    `resume` names the method that goes on with a person's answer after `NeedsInput`: `async def
    NAME(self, ctx, state, answer)`. It runs as the action does, and may ask again.
    """

    def mark(method: ActionMethod) -> ActionMethod:
        method.__dict__[_MARK] = {
            "effect": effect,
            "taints": taints,
            "clean": clean,
            "timeout_s": timeout_s,
            "place": place,
            "host": host,
            "resume": resume,
        }
        return method

    return mark


class Tool:
    """Base class of all tools. The class's docstring describes the tool to people and models."""

    name: ClassVar[str]
    agents: ClassVar[tuple[str, ...]] = ()
    """The agents that have it; all of them when there are none."""

    publish: Publish | None = None
    """Put an event of the tool's own into the history, outside of any call; the worker sets it. Only what
    runs in the place WATCHER is heard."""

    async def preview(self, ctx: Context, action: str, args: Any) -> Preview | None:  # noqa: ARG002
        """What a call of `action` would do; runs with observe. None: its arguments are enough."""
        return None

    async def close(self) -> None:
        """Let go of what the tool holds; called once when the worker ends."""


def actions_of(tool: Tool) -> Iterator[Action]:
    """The actions that a tool declares.

    Raises TypeError when a declaration is incomplete: no docstring, no pydantic model as the second
    argument, a chosen effect without a field `effect`, or a `resume` that the tool does not have.
    """
    for name, method in inspect.getmembers(type(tool), inspect.isfunction):
        if (mark := method.__dict__.get(_MARK)) is None:
            continue
        where = f"{tool.name}.{name}"
        if not inspect.iscoroutinefunction(method):
            raise TypeError(f"{where} must be an async function")
        parameters = list(inspect.signature(method).parameters)
        hints = typing.get_type_hints(method)
        model = hints.get(parameters[2]) if len(parameters) == 3 else None
        if not (isinstance(model, type) and issubclass(model, Args)):
            raise TypeError(f"{where} must take (self, ctx: Context, args: <a model derived from Args>)")
        if not method.__doc__:
            raise TypeError(f"{where} needs a docstring: it is what a model reads")
        if mark["effect"] is None and "effect" not in model.model_fields:
            raise TypeError(f"{where} lets the caller choose the effect and so needs an argument 'effect'")
        if mark["host"] and "://" not in mark["host"] and mark["host"] not in model.model_fields:
            raise TypeError(f"{where} has no argument {mark['host']!r} that could name its host")
        yield Action(
            tool=tool.name,
            name=name,
            description=inspect.cleandoc(method.__doc__),
            args_model=model,
            method=getattr(tool, name),
            **{**mark, "resume": _resume_of(tool, where, mark["resume"])},
        )


def _resume_of(tool: Tool, where: str, name: str) -> Resume | None:
    """The method that goes on with an answer. Raises TypeError."""
    if not name:
        return None
    found = getattr(type(tool), name, None)
    if not inspect.iscoroutinefunction(found) or len(inspect.signature(found).parameters) != 4:
        raise TypeError(f"{where} needs an async method {name}(self, ctx, state, answer)")
    resume: Resume = getattr(tool, name)
    return resume
