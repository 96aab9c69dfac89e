"""What the tests of policy are made of: calls, and rules as a file has them."""

from __future__ import annotations

from typing import Any

from lightagentd.policy.call import PERSON, PolicyCall
from lightagentd.policy.decide import Explanation, Policy
from lightagentd.policy.rulefiles import RuleSet, load_texts
from lightagentd.tool import Effect


def a_call(name: str = "systemd.restart", **changes: Any) -> PolicyCall:
    """A call that nothing but rules refuses; a change unless another effect is named."""
    tool, _, action = name.partition(".")
    given: dict[str, Any] = {
        "agent": "ops",
        "tool": tool,
        "action": action,
        "args": {},
        "effect": Effect.CHANGE,
        "agent_effects": tuple(Effect),
        "offered": True,
        "agent_skills": None,
        "caller": 1000,
        "trigger": PERSON,
        "tainted": False,
        "host": "",
        "known_host": False,
        "change_enabled": True,
        "plan": "",
    }
    return PolicyCall(**given | changes)


def rules(*tables: str, file: str = "/etc/lightagentd/policy.d/10-test.toml") -> RuleSet:
    """The rules in a file, each given by what stands below its `[[rule]]`; without a name they get one."""
    named = (text if "name =" in text else f'name = "rule-{n}"\n{text}' for n, text in enumerate(tables, 1))
    return load_texts({file: "".join(f"[[rule]]\n{text}\n" for text in named)})


def explain(call: PolicyCall, *tables: str, enforced: bool = True) -> Explanation:
    policy = Policy(enforced=lambda: enforced, trusted_skill=lambda *_: True, rules=rules(*tables))
    return policy.explain(call)


def decide(call: PolicyCall, *tables: str, enforced: bool = True) -> tuple[str, str]:
    """The decision and the name of the rule, without its file."""
    ruling = explain(call, *tables, enforced=enforced).ruling
    assert (ruling.error is None) == (ruling.decision == "allow")
    return ruling.decision.value, ruling.rule.partition(" ")[0]


def matches(table: str, call: PolicyCall) -> bool:
    """Whether the one rule that is given is about a call."""
    (rule,) = rules(table).rules
    return rule.matches(call)
