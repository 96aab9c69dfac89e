"""Plan mode in policy: what does more than observe is denied before any rule could allow it."""

from __future__ import annotations

from typing import Any

import pytest

from lightagentd.errors import PlanModeBlocked
from lightagentd.policy.call import CHECK, Decision
from lightagentd.policy.decide import Policy
from lightagentd.policy.replay import Replay
from lightagentd.policy.rulefiles import RuleSet
from lightagentd.tool import Effect
from tests.policy.calls import a_call, decide, explain, rules

ALLOW_ALL = 'agent = "ops"\ndecision = "allow"\neven_if_tainted = true'
BLOCKED = ("deny", "plan-mode")


@pytest.mark.parametrize("effect", [Effect.REACH, Effect.CHANGE])
@pytest.mark.parametrize("tainted", [False, True])
@pytest.mark.parametrize("trigger", ["person", "timer"])
def test_no_rule_lets_more_than_observe_run(effect: Effect, tainted: bool, trigger: str) -> None:
    call = a_call(effect=effect, plan="observe", tainted=tainted, trigger=trigger)
    assert decide(call, ALLOW_ALL) == BLOCKED
    found = explain(call, ALLOW_ALL)
    assert isinstance(found.ruling.error, PlanModeBlocked)
    assert "plan" in found.ruling.error.suggestion
    assert [rule.name for rule in found.matched] == ["rule-1"]
    assert found.decided is None
    assert found.notes == ("A plan is drafted in the session, so no rule decided.",)


def test_what_observes_is_decided_by_the_rules() -> None:
    call = a_call("file.read", effect=Effect.OBSERVE, plan="observe")
    assert decide(call) == ("allow", "default-observe")
    assert decide(call, 'decision = "deny"') == ("deny", "rule-1")
    assert decide(call, 'decision = "ask"') == ("ask", "rule-1")


@pytest.mark.parametrize("effect", list(Effect))
@pytest.mark.parametrize("name", ["file.read", "human.ask", "memory.recall", "plan.propose", "bash.exec"])
def test_with_plan_tools_none_no_call_runs(name: str, effect: Effect) -> None:
    assert decide(a_call(name, effect=effect, plan="none"), ALLOW_ALL) == BLOCKED


@pytest.mark.parametrize("name", ["bash.exec", "skill.run"])
@pytest.mark.parametrize("effect", list(Effect))
def test_a_command_that_nothing_holds_to_observe_counts_as_change(name: str, effect: Effect) -> None:
    call = a_call(name, effect=effect, plan="observe", args={"name": "x"})
    policy = Policy(enforced=lambda: False, trusted_skill=lambda *_: False, rules=rules(ALLOW_ALL))
    found = policy.explain(call)
    assert (found.ruling.decision, found.ruling.rule) == (Decision.DENY, "plan-mode")
    assert found.effect is Effect.CHANGE


def test_a_script_of_the_administrator_observes_on_every_backend() -> None:
    call = a_call("skill.run", effect=Effect.OBSERVE, plan="observe", args={"name": "x"})
    policy = Policy(enforced=lambda: False, trusted_skill=lambda *_: True)
    assert policy.decide(call).decision is Decision.ALLOW


def test_plan_mode_comes_before_what_the_agent_does_not_have() -> None:
    call = a_call(plan="observe", change_enabled=False, agent_effects=(Effect.OBSERVE,), offered=False)
    assert decide(call) == BLOCKED


def test_nobody_is_asked_about_a_check() -> None:
    ruling = explain(a_call("bash.exec", effect=Effect.OBSERVE, trigger=CHECK), 'decision = "ask"').ruling
    assert ruling.decision is Decision.DENY
    assert ruling.error is not None
    assert "Nobody is asked about the check of a task." in ruling.error.message


def judged(data: dict[str, Any]) -> tuple[str, str]:
    now = Policy(enforced=lambda: True, trusted_skill=lambda *_: True)
    stored = {"tool": "web", "action": "get", "args": {}, "effect": "reach", **data}
    found = Replay(RuleSet(), now).judge("ops", 1000, stored)
    assert found is not None
    return found.after.decision.value, found.after.rule


def test_a_replay_takes_plan_mode_from_what_was_stored() -> None:
    assert judged({"decision": "allow", "rule": "mine (x)", "plan": "observe"}) == BLOCKED
    assert judged({"decision": "allow", "rule": "mine (x)"}) == ("allow", "default-reach")
    assert judged({"decision": "deny", "rule": "plan-mode", "plan": "observe"}) == BLOCKED


def test_a_replay_does_not_guess_at_what_it_does_not_know() -> None:
    now = Policy(enforced=lambda: True, trusted_skill=lambda *_: True)
    data = {"tool": "web", "action": "get", "args": {}, "effect": "reach", "decision": "allow", "rule": "x"}
    assert Replay(RuleSet(), now).judge("ops", 1000, {**data, "plan": "half"}) is None
