"""Judges stored calls again with other rules.

A stored call is the data of an event `agent.tool_dispatch`. Only decisions of rules are judged again: a call
that was refused because the agent lacks the tool, skill, effect or worker stays refused. Facts that the event
lacks (whether the session was tainted, whether a person was there) are inferred from the built-in rule that
decided, else assumed as in an ordinary prompt. Secrets were removed from the stored arguments, so a pattern
for one does not match.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from lightagentd.policy.call import BUILT_IN_RULES, PERSON, Decision, PolicyCall, Ruling, plan_gate
from lightagentd.policy.decide import Policy
from lightagentd.policy.rulefiles import RuleSet
from lightagentd.tool import Effect

_BY_EFFECT = frozenset(
    {"default-observe", "default-reach", "default-change", "tainted-change", "tainted-reach"}
)
"""Built-in rules that decide where no file does; their names end with the effect that was in force."""
_UNATTENDED = "unattended"


@dataclass(frozen=True, kw_only=True)
class Judged:
    """The old decision, and the one of the other rules."""

    call: PolicyCall
    before: Decision
    before_rule: str
    after: Ruling

    @property
    def changed(self) -> bool:
        return self.before is not self.after.decision


class Replay:
    """Judges calls with `rules`; `now` is the current policy, which knows this machine's sandbox."""

    def __init__(self, rules: RuleSet, now: Policy) -> None:
        self._now = now
        # The effect in force is found out before, as far as it can be, so nothing here is unenforced.
        self._candidate = Policy(enforced=lambda: True, trusted_skill=lambda _agent, _name: True, rules=rules)

    def judge(self, agent: str, owner: int | None, data: Mapping[str, Any]) -> Judged | None:
        """Judge the call in an event's data; None when policy did not decide it."""
        try:
            before = Decision(data["decision"])
            rule = str(data["rule"])
            call = _call(agent, owner, data, before, rule)
        except (KeyError, ValueError, TypeError):
            return None
        if rule in BUILT_IN_RULES - _BY_EFFECT:
            same = Ruling(decision=before, rule=rule)
            return Judged(call=call, before=before, before_rule=rule, after=same)
        if rule not in _BY_EFFECT:
            call = replace(call, effect=self._now.effect_in_force(call)[0])
        return Judged(call=call, before=before, before_rule=rule, after=self._candidate.decide(call))


def _call(agent: str, owner: int | None, data: Mapping[str, Any], before: Decision, rule: str) -> PolicyCall:
    """Raises KeyError, ValueError, TypeError."""
    by_effect = rule in _BY_EFFECT
    effect = Effect(rule.partition("-")[2] if by_effect else data["effect"])
    asked_nobody = by_effect and before is Decision.DENY
    return PolicyCall(
        agent=agent,
        tool=str(data["tool"]),
        action=str(data["action"]),
        args=dict(data["args"]),
        effect=effect,
        agent_effects=tuple(Effect),
        offered=True,
        agent_skills=None,
        caller=owner,
        trigger=str(data.get("trigger") or (_UNATTENDED if asked_nobody else PERSON)),
        tainted=bool(data.get("tainted", rule.startswith("tainted-"))),
        host=str(data.get("host", "")),
        known_host=data.get("known_host") is True,
        change_enabled=True,
        plan=plan_gate(data.get("plan", "")),
    )
