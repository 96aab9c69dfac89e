"""The choke point that every tool call passes, whoever asked for it.

The defaults by effect: `observe` and `reach` are allowed to an agent that has the effect, `change` is asked
for. A shell command is only as harmless as its sandbox: where nothing enforces `observe`, a command that
claims it counts as `change`. The scripts of installed skills that nobody else can write are the exception.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from lightagentd.errors import ApprovalRequired, LightagentError, PolicyDenied
from lightagentd.tool import Effect

SHELLS = frozenset({("bash", "exec")})
"""Actions that run whatever the caller writes."""
SCRIPTS = frozenset({("skill", "run")})
"""Actions that run a file of the administrator's."""


class Decision(StrEnum):
    """What policy says to a call."""

    ALLOW = "allow"
    ASK = "ask"
    DENY = "deny"


@dataclass(frozen=True, kw_only=True)
class PolicyCall:
    """What policy looks at."""

    agent: str
    tool: str
    action: str
    args: dict[str, Any]
    effect: Effect
    agent_effects: tuple[Effect, ...]
    offered: bool
    """Whether the action is on the agent's own list of tools."""
    agent_skills: tuple[str, ...] | None = None
    """The skills that the agent may use; None means all."""


@dataclass(frozen=True, kw_only=True)
class Ruling:
    """A decision, the rule that made it, and the error that a refused call gets."""

    decision: Decision
    rule: str
    error: LightagentError | None = None


class Policy:
    """`enforced` says whether the workers' sandbox holds, `trusted_skill` whether a skill's files do."""

    def __init__(self, *, enforced: Callable[[], bool], trusted_skill: Callable[[str], bool]) -> None:
        self._enforced = enforced
        self._trusted_skill = trusted_skill

    def decide(self, call: PolicyCall) -> Ruling:
        """The ruling on one call. Never raises."""
        name = f"{call.tool}.{call.action}"
        if not call.offered:
            return _deny("agent-tools", f"The agent {call.agent} may not use {name}.", "Use another tool.")
        skill = str(call.args.get("name", ""))
        if (
            call.tool == "skill"
            and skill
            and call.agent_skills is not None
            and skill not in call.agent_skills
        ):
            return _deny("agent-skills", f"The agent {call.agent} may not use the skill {skill[:100]}.", "")
        effect, rule = self._effect_in_force(call)
        if effect not in call.agent_effects:
            has = ", ".join(call.agent_effects)
            return _deny(
                "agent-effects" if effect is call.effect else rule,
                f"{name} has the effect {effect}, and the agent {call.agent} has only: {has}.",
                "Ask for less, or ask an administrator to allow the effect."
                if effect is call.effect
                else "No sandbox enforces observe on this machine: lactl status says why.",
            )
        if effect is Effect.CHANGE:
            return Ruling(
                decision=Decision.ASK,
                rule="default-change",
                error=ApprovalRequired(
                    f"{name} would change the system, and nobody has approved it.",
                    suggestion="Say what you would change, and let the user do it.",
                ),
            )
        return Ruling(decision=Decision.ALLOW, rule=f"default-{effect}")

    def _effect_in_force(self, call: PolicyCall) -> tuple[Effect, str]:
        if self._enforced() or call.effect is Effect.CHANGE:
            return call.effect, ""
        key = (call.tool, call.action)
        if key in SHELLS:
            return Effect.CHANGE, "unenforced-shell"
        if key in SCRIPTS and not self._trusted_skill(str(call.args.get("name", ""))):
            return Effect.CHANGE, "unenforced-script"
        return call.effect, ""


def _deny(rule: str, message: str, suggestion: str) -> Ruling:
    return Ruling(decision=Decision.DENY, rule=rule, error=PolicyDenied(message, suggestion=suggestion))
