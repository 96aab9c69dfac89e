"""The choke point: which rule decides, with and without a sandbox."""

from __future__ import annotations

from typing import Any

import pytest

from lightagentd.errors import ApprovalRequired, PolicyDenied
from lightagentd.policy.decide import Decision, Policy, PolicyCall
from lightagentd.tool import Effect

ALL = (Effect.OBSERVE, Effect.REACH, Effect.CHANGE)
DEFAULT = (Effect.OBSERVE, Effect.REACH)


def decide(
    name: str,
    effect: Effect = Effect.OBSERVE,
    *,
    has: tuple[Effect, ...] = DEFAULT,
    enforced: bool = True,
    trusted: bool = True,
    offered: bool = True,
    skills: tuple[str, ...] | None = None,
    args: dict[str, Any] | None = None,
) -> tuple[str, str]:
    """The decision and its rule; every refusal has an error that says what to do."""
    tool, _, action = name.partition(".")
    policy = Policy(enforced=lambda: enforced, trusted_skill=lambda skill: trusted and skill == "disk-check")
    ruling = policy.decide(
        PolicyCall(
            agent="ops",
            tool=tool,
            action=action,
            args=args if args is not None else {"name": "disk-check"},
            effect=effect,
            agent_effects=has,
            offered=offered,
            agent_skills=skills,
        )
    )
    expected = {Decision.ALLOW: type(None), Decision.ASK: ApprovalRequired, Decision.DENY: PolicyDenied}
    assert isinstance(ruling.error, expected[ruling.decision])
    return ruling.decision.value, ruling.rule


@pytest.mark.parametrize("name", ["file.read", "bash.exec", "skill.run"])
def test_an_agent_may_observe_and_reach_where_the_kernel_enforces_it(name: str) -> None:
    assert decide(name) == ("allow", "default-observe")
    assert decide(name, Effect.REACH) == ("allow", "default-reach")


def test_an_effect_that_the_agent_does_not_have_is_denied() -> None:
    assert decide("bash.exec", Effect.CHANGE) == ("deny", "agent-effects")
    assert decide("bash.exec", Effect.REACH, has=(Effect.OBSERVE,)) == ("deny", "agent-effects")
    assert decide("file.read", has=()) == ("deny", "agent-effects")


@pytest.mark.parametrize("enforced", [True, False])
def test_a_change_is_asked_for(enforced: bool) -> None:
    assert decide("file.write", Effect.CHANGE, has=ALL, enforced=enforced) == ("ask", "default-change")


def test_a_tool_that_is_not_the_agents_is_denied_whatever_it_does() -> None:
    for effect in ALL:
        assert decide("file.read", effect, has=ALL, offered=False) == ("deny", "agent-tools")


@pytest.mark.parametrize("action", ["skill.run", "skill.load"])
def test_a_skill_that_is_not_the_agents_is_denied(action: str) -> None:
    assert decide(action, skills=("other",)) == ("deny", "agent-skills")
    assert decide(action, skills=()) == ("deny", "agent-skills")
    assert decide(action, skills=("disk-check",)) == ("allow", "default-observe")
    assert decide("file.read", skills=()) == ("allow", "default-observe")


@pytest.mark.parametrize("effect", [Effect.OBSERVE, Effect.REACH])
def test_without_a_sandbox_a_command_counts_as_change(effect: Effect) -> None:
    assert decide("bash.exec", effect, enforced=False) == ("deny", "unenforced-shell")
    assert decide("bash.exec", effect, enforced=False, has=ALL) == ("ask", "default-change")


def test_without_a_sandbox_only_trusted_scripts_run() -> None:
    assert decide("skill.run", enforced=False) == ("allow", "default-observe")
    assert decide("skill.run", enforced=False, trusted=False) == ("deny", "unenforced-script")
    assert decide("skill.run", enforced=False, args={"name": "mine"}) == ("deny", "unenforced-script")
    assert decide("skill.run", enforced=False, trusted=False, has=ALL) == ("ask", "default-change")
    assert decide("skill.run", enforced=False, args={}) == ("deny", "unenforced-script")


def test_without_a_sandbox_tools_that_run_nothing_go_on() -> None:
    assert decide("file.read", enforced=False) == ("allow", "default-observe")
    assert decide("net.ping", Effect.REACH, enforced=False) == ("allow", "default-reach")


@pytest.mark.parametrize("name", [None, 7, ["disk-check"], {"a": 1}, "x" * 100_000])
def test_a_skills_name_may_be_anything(name: object) -> None:
    assert decide("skill.run", skills=("disk-check",), args={"name": name})[0] == "deny"
    assert decide("skill.run", enforced=False, args={"name": name})[0] == "deny"
