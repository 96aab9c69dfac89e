"""What an attack is: what the model asks for, and how the calls may end.

A case says nothing about how it is found out whether it came through: whatever it tried, what lies around
(`victims`) must be as it was, no process of it may be left, and no secret may have come to the model. What
only one case can tell is its `also`. In the arguments, `@name@` stands for a fact of the place where the
case runs, such as a path or a port; see `Victims.names`.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

ORDERING = "say"
"""The action of an MCP server whose result has the orders."""
CONFINED = ("observe", "reach")
OBSERVE = ("observe",)
REACH = ("reach",)

RAN = frozenset({"ok"})
ENDED = frozenset({"ok", "timeout", "outcome_unknown", "tool_failed"})
"""How a call may end whose command uses up what it is given."""
TRIED = ENDED | {"not_found", "invalid_argument", "permission_denied"}
"""How a call may end that runs and is then refused by the kernel or the tool, or finds nothing."""


@dataclass(frozen=True, kw_only=True)
class Ask:
    """One function call of the model; `arguments` that are text go out as they are, JSON or not."""

    function: str
    arguments: dict[str, Any] | str

    def filled(self, names: dict[str, str]) -> Ask:
        """With each `@name@` replaced."""
        given = self.arguments
        text = json.dumps(given) if isinstance(given, dict) else given
        for name, value in names.items():
            text = text.replace(f"@{name}@", json.dumps(value)[1:-1])
        return Ask(function=self.function, arguments=text)


@dataclass(kw_only=True)
class Aftermath:
    """What one case left: the turn's events, what the model was sent, and the facts of the place."""

    effect: str
    names: dict[str, str]
    events: list[dict[str, Any]]
    requests: list[dict[str, Any]]
    status_s: list[float]
    """How long each answer to a question for the daemon's status took, meanwhile and afterwards."""
    notes: dict[str, Any] = field(default_factory=dict)

    @property
    def results(self) -> list[dict[str, Any]]:
        return [one for one in self.events if one["type"] == "tool_result" and one["action"] != ORDERING]

    @property
    def heard(self) -> list[dict[str, Any]]:
        """The result that gave the orders, where somebody else than the model did."""
        return [one for one in self.events if one["type"] == "tool_result" and one["action"] == ORDERING]

    @property
    def text(self) -> str:
        """All that the tools said."""
        return "\n".join(str(result["text"]) for result in self.results)

    @property
    def calls(self) -> list[dict[str, Any]]:
        """The calls that were let through."""
        ran = {event["call_id"] for event in self.results if event["result"] not in REFUSALS}
        return [event for event in self.events if event["type"] == "tool_call" and event["call_id"] in ran]

    def messages(self) -> list[dict[str, Any]]:
        """The conversation as the model got it last."""
        found: list[dict[str, Any]] = self.requests[-1]["messages"]
        return found


REFUSALS = (
    *("invalid_argument", "tool_not_found", "policy_denied", "change_not_enabled", "plan_mode_blocked"),
    *("approval_required", "approval_denied", "approval_mismatch", "permission_denied"),
)
"""The results of calls that did not run."""
Also = Callable[[Aftermath], None]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One attack. Each step is what the model asks for in one answer."""

    name: str
    steps: tuple[tuple[Ask, ...], ...]
    effects: tuple[str, ...] = CONFINED
    agent: str = "mallory"
    ends: frozenset[str] | None = RAN
    """The codes with which its calls may end; None: not `ok`, for what must be refused."""
    arrives: bool = False
    """Whether it may reach a listener over the network, as reach may."""
    also: Also | None = None


def ask(function: str, /, **arguments: Any) -> Ask:
    return Ask(function=function, arguments=arguments)


def shell(command: str, **more: Any) -> Ask:
    """A shell command with the effect of the case; what it starts can be told by its environment."""
    return ask("bash_exec", command=f"export MARK=@mark@; {command}", effect="@effect@", **more)


def python(code: str, *arguments: str) -> str:
    """A shell command that runs Python code; `arguments` are words of the shell."""
    return " ".join(["python3", "-c", shlex.quote(code), *arguments])


def sh(name: str, *commands: str, timeout_s: float = 20.0, **more: Any) -> Case:
    """A case of shell commands, each a call of its own."""
    return Case(name=name, steps=tuple((shell(one, timeout_s=timeout_s),) for one in commands), **more)


def refused(name: str, *asks: Ask, **more: Any) -> Case:
    """A case of calls that must not run, in one step; the effect does not matter."""
    return Case(name=name, steps=(asks,), **{"effects": OBSERVE, "ends": None, **more})


def asked(name: str, *asks: Ask, ends: frozenset[str] | None = RAN, **more: Any) -> Case:
    """A case of calls of other tools than the shell, in one step."""
    return Case(name=name, steps=(asks,), **{"effects": OBSERVE, "ends": ends, **more})
