"""Judging stored calls again: what is judged, and what is taken to be when the event does not say."""

from __future__ import annotations

from typing import Any

import pytest

from lightagentd.policy.call import BUILT_IN_RULES
from lightagentd.policy.decide import Policy
from lightagentd.policy.replay import Replay
from tests.policy.calls import rules

DENY_WRITES = 'decision = "deny"\ntool = "file"\neffect = "change"'


def stored(**changes: Any) -> dict[str, Any]:
    return {
        "call_id": "call_1",
        "tool": "file",
        "action": "write",
        "effect": "change",
        "args": {"path": "/etc/hosts"},
        "decision": "ask",
        "rule": "default-change",
    } | changes


def after(data: dict[str, Any], *tables: str, enforced: bool = True, owner: int | None = 0) -> str:
    """The decision by other rules, or `skipped`."""
    now = Policy(enforced=lambda: enforced, trusted_skill=lambda *_: True)
    judged = Replay(rules(*tables), now).judge("ops", owner, data)
    if judged is None:
        return "skipped"
    assert judged.changed == (judged.after.decision != data["decision"])
    return judged.after.decision.value


def test_a_call_is_judged_by_the_other_rules() -> None:
    assert after(stored()) == "ask"
    assert after(stored(), DENY_WRITES) == "deny"
    assert after(stored(), 'decision = "allow"\nargs = { path = "/etc/*" }') == "allow"
    assert after(stored(decision="deny", rule="mine (a.toml)"), 'decision = "deny"\nagent = "other"') == "ask"
    assert after(stored(), 'decision = "deny"\ncaller = 0', owner=0) == "deny"
    assert after(stored(), 'decision = "deny"\ncaller = 0', owner=7) == "ask"


@pytest.mark.parametrize("rule", sorted(rule for rule in BUILT_IN_RULES if rule[:4] not in ("defa", "tain")))
def test_what_the_agent_did_not_have_stays_denied(rule: str) -> None:
    allow = 'decision = "allow"\ntool = "*"\neven_if_tainted = true'
    assert after(stored(decision="deny", rule=rule), allow) == "deny"


def test_the_effect_that_was_in_force_is_known_from_a_built_in_rule() -> None:
    command = {"tool": "bash", "action": "exec", "effect": "observe", "args": {"command": "df"}}
    deny = 'decision = "deny"\neffect = "change"'
    assert after(stored(**command, decision="ask", rule="default-change"), deny) == "deny"
    assert after(stored(**command, decision="allow", rule="default-observe"), deny, enforced=False) == "allow"
    assert after(stored(**command, decision="allow", rule="mine (a.toml)"), deny, enforced=False) == "deny"


def test_a_tainted_session_is_known_from_a_built_in_rule() -> None:
    allow = 'decision = "allow"\ntool = "file"'
    assert after(stored(rule="tainted-change"), allow) == "ask"
    assert after(stored(rule="tainted-change"), allow + "\neven_if_tainted = true") == "allow"
    assert after(stored(tainted=True), allow) == "ask"
    reach = {"tool": "web", "action": "get", "effect": "reach", "args": {"url": "https://x/"}}
    assert after(stored(**reach, rule="tainted-reach")) == "ask"
    assert after(stored(**reach, rule="default-reach", decision="allow")) == "allow"


def test_a_turn_without_a_person_is_known_from_a_built_in_rule() -> None:
    assert after(stored(decision="deny")) == "deny"
    assert after(stored(decision="deny", trigger="timer", rule="mine (a.toml)")) == "deny"
    assert after(stored(decision="deny"), 'decision = "allow"\ntool = "file"') == "allow"


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"function": "file_write", "result": "invalid_argument"},
        stored() | {"decision": None},
        stored() | {"decision": "perhaps"},
        stored() | {"effect": 7, "rule": "mine (a.toml)"},
        stored() | {"args": 7},
        stored() | {"args": None},
        {key: value for key, value in stored().items() if key != "rule"},
    ],
)
def test_what_policy_did_not_decide_is_skipped(data: dict[str, Any]) -> None:
    assert after(data, DENY_WRITES) == "skipped"
