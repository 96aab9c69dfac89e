"""The input and the output of policy, which rules and decisions share: calls, decisions and rulings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, cast

from lightagentd.config.terms import Terms
from lightagentd.errors import LightagentError
from lightagentd.tool import Effect

PERSON = "person"
"""The trigger of a call behind which a person waits who can be asked."""

CHECK = "check"
"""The trigger of the check of a plan's task, a command of the daemon's own: nobody is asked about it."""
CONFIRM = "confirm"
"""The trigger of the check that confirms a change which else takes itself back: nobody is asked about it."""
CONTEXT = "context"
"""The trigger of the skill whose report is part of an agent's system prompt."""

REFLECTION = "reflection"
"""The trigger of a turn that proposes what to learn from a conversation (`agents.reflection`)."""

BUILT_IN_RULES = frozenset(
    {
        "agent-tools",
        "agent-skills",
        "agent-effects",
        "plan-mode",
        "unenforced-shell",
        "unenforced-script",
        "no-change-worker",
        "disk-full",
        "default-observe",
        "default-reach",
        "default-change",
        "tainted-change",
        "tainted-reach",
        "trigger-effects",
        "session-leave",
        "unsigned-change",
        "unsigned-key",
    }
)
"""The names of rules that no file may give to its own."""


PlanGate = Literal["", "observe", "none"]
"""What may run while a plan is drafted in the session; empty when none is."""


def plan_gate(value: Any) -> PlanGate:
    """Read the plan gate from external data. Raises ValueError."""
    if value not in ("", "observe", "none"):
        raise ValueError(f"{value!r} says nothing about plan mode")
    return cast(PlanGate, value)


class Decision(StrEnum):
    """The decision on a call."""

    ALLOW = "allow"
    ASK = "ask"
    DENY = "deny"


@dataclass(frozen=True, kw_only=True)
class PolicyCall:
    """The input of policy. No field has a default that allows more: an omitted one would be a missing
    restriction.
    """

    agent: str
    tool: str
    action: str
    args: dict[str, Any]
    effect: Effect
    """The effect that the call asks for; rules see the one in force (`Policy`)."""
    agent_effects: tuple[Effect, ...]
    offered: bool
    """Whether the action is on the agent's own list of tools."""
    agent_skills: tuple[str, ...] | None
    """The skills that the agent may use; None means all."""
    caller: int | None
    """The uid that owns the session or made the call; None when it is not known."""
    trigger: str
    """What started the turn: `person`, `timer`, `event`, ..., or `check`; only a person can be asked."""
    tainted: bool
    """Whether text from outside is in the session."""
    host: str
    """The host that a reach call names; empty when it names none that can be known."""
    known_host: bool
    """Whether the session reached `host` before it was tainted, or a person approved it."""
    change_enabled: bool
    """Whether the agent has a worker for change."""
    plan: PlanGate
    """What may run while the session's plan is drafted (drafting and ready); empty when none is."""
    takes_back: bool = False
    """Whether it takes back a change that nobody confirmed, which a full disk does not keep from that."""
    waits: bool = False
    """Whether it waits until a person answers, although none began it: a step of a flow."""


@dataclass(frozen=True, kw_only=True)
class Ruling:
    """A decision, the rule that made it, why, and the error that a refused call gets.

    `rule` is the name of a built-in rule, or `NAME (FILE)` for one of policy.d.
    """

    decision: Decision
    rule: str
    reason: str = ""
    error: LightagentError | None = None
    terms: Terms | None = None
    """Those of the rules about the call: unless it is confirmed in time, its change is taken back."""
    expected: Mapping[str, Any] = field(default_factory=dict)
    """What has to be as it was when a person allowed the call, for the worker to compare."""
