"""The choke point: which rule decides, with and without a sandbox, rules, taint, and somebody to ask."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from lightagentd.config.configuration import Worker
from lightagentd.errors import ApprovalRequired, ChangeNotEnabled, PolicyDenied
from lightagentd.policy.call import BUILT_IN_RULES, PERSON
from lightagentd.policy.decide import Decision, Policy, PolicyCall
from lightagentd.tool import Effect
from tests.policy.calls import a_call, explain
from tests.policy.calls import decide as ruled
from tests.policy.calls import rules as rules_of

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
    policy = Policy(enforced=lambda: enforced, trusted_skill=lambda _, name: trusted and name == "disk-check")
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
            caller=1000,
            trigger=PERSON,
            tainted=False,
            host="",
            known_host=False,
            change_enabled=True,
            plan="",
        )
    )
    expected = {Decision.ALLOW: type(None), Decision.ASK: ApprovalRequired, Decision.DENY: PolicyDenied}
    assert isinstance(ruling.error, expected[ruling.decision])
    return ruling.decision.value, ruling.rule


@pytest.mark.parametrize("name", ["file.read", "bash.exec", "skill.run"])
def test_an_agent_may_observe_and_reach_where_the_kernel_enforces_it(name: str) -> None:
    assert decide(name) == ("allow", "default-observe")
    assert decide(name, Effect.REACH) == ("allow", "default-reach")


@pytest.mark.parametrize("trusts", [False, True])
def test_the_use_of_a_key_is_asked_for_where_the_key_store_verifies(trusts: bool) -> None:
    """Unless the daemon is trusted with it, or a rule needs no word of the daemon."""

    def ruling(*tables: str, verified: bool = True, action: str = "sign") -> str:
        policy = Policy(
            enforced=lambda: True,
            trusted_skill=lambda *_: True,
            rules=rules_of(*tables),
            verified=lambda: verified,
            trusts=Worker(trust_daemon_keys=trusts),
        )
        return policy.decide(a_call(f"crypto.{action}", effect=Effect.OBSERVE)).rule

    allow = 'name = "sign"\ndecision = "allow"\ntool = "crypto"\naction = "sign"'
    assert ruling() == ("default-observe" if trusts else "unsigned-key")
    assert ruling(verified=False) == ruling(action="public_key") == "default-observe"
    assert ruling(allow).startswith("sign") == trusts
    assert ruling(f"{allow}\neven_if_tainted = true").startswith("sign")


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
    own = {"name": "disk-check", "script": "scripts/x.py"}
    assert decide("skill.run", enforced=False, args=own) == ("deny", "unenforced-script")


def test_without_a_sandbox_tools_that_run_nothing_go_on() -> None:
    assert decide("file.read", enforced=False) == ("allow", "default-observe")
    assert decide("net.ping", Effect.REACH, enforced=False) == ("allow", "default-reach")


@pytest.mark.parametrize("name", [None, 7, ["disk-check"], {"a": 1}, "x" * 100_000])
def test_a_skills_name_may_be_anything(name: object) -> None:
    assert decide("skill.run", skills=("disk-check",), args={"name": name})[0] == "deny"
    assert decide("skill.run", enforced=False, args={"name": name})[0] == "deny"


# Rules

ALLOW, ASK, DENY = (f'decision = "{word}"\ntool = "systemd"' for word in ("allow", "ask", "deny"))


def test_of_the_rules_that_match_the_strictest_decides_in_any_order() -> None:
    by_name = {
        "a": f'name = "a"\n{ALLOW}',
        "b": f'name = "b"\n{ASK}',
        "c": f'name = "c"\n{DENY}',
        "d": 'name = "d"\ndecision = "deny"\ntool = "file"',
    }
    for size in (1, 2, 3, 4):
        for names in itertools.permutations(by_name, size):
            strictest = max((name for name in names if name != "d"), default="default-change")
            decision = {"a": "allow", "b": "ask", "c": "deny"}.get(strictest, "ask")
            assert ruled(a_call(), *(by_name[name] for name in names)) == (decision, strictest)


def test_a_default_decides_only_where_no_rule_matches() -> None:
    for effect in Effect:
        call = a_call(effect=effect)
        default = "ask" if effect is Effect.CHANGE else "allow"
        assert ruled(call) == (default, f"default-{effect}")
        assert ruled(call, 'decision = "deny"\ntool = "file"') == (default, f"default-{effect}")
        assert ruled(call, ALLOW) == ("allow", "rule-1")
        assert ruled(call, ASK) == ("ask", "rule-1")
        assert ruled(call, DENY) == ("deny", "rule-1")


@pytest.mark.parametrize(
    ("missing", "rule"),
    [
        ({"offered": False}, "agent-tools"),
        ({"agent_effects": (Effect.OBSERVE, Effect.REACH)}, "agent-effects"),
        ({"agent_effects": ()}, "agent-effects"),
        ({"change_enabled": False}, "no-change-worker"),
        ({"tool": "skill", "args": {"name": "x"}, "agent_skills": ()}, "agent-skills"),
    ],
)
def test_no_rule_grants_what_the_agent_does_not_have(missing: dict[str, Any], rule: str) -> None:
    allow = 'decision = "allow"\neffect = ["observe", "reach", "change"]\neven_if_tainted = true'
    for tainted in (True, False):
        found = explain(a_call(**missing, tainted=tainted), allow)
        assert (found.ruling.decision, found.ruling.rule) == (Decision.DENY, rule)
        assert found.decided is None
        assert len(found.matched) == 1
    assert ruled(a_call(), allow)[0] == "allow"


def test_a_change_without_a_worker_for_it_says_how_to_get_one() -> None:
    error = explain(a_call(change_enabled=False)).ruling.error
    assert isinstance(error, ChangeNotEnabled)
    assert error.code == "change_not_enabled"
    assert "systemctl enable --now lightagent-change@ops.socket" in error.suggestion
    assert "[worker] change_agents" in error.suggestion
    assert ruled(a_call("file.read", effect=Effect.OBSERVE, change_enabled=False))[0] == "allow"


def test_without_a_sandbox_rules_see_a_command_as_the_change_that_it_may_be() -> None:
    call = a_call("bash.exec", effect=Effect.OBSERVE, args={"command": "df"})
    deny = 'decision = "deny"\neffect = "change"'
    assert ruled(call, deny) == ("allow", "default-observe")
    assert ruled(call, deny, enforced=False) == ("deny", "rule-1")
    allow = 'decision = "allow"\neffect = "observe"'
    assert ruled(call, allow, enforced=False) == ("ask", "default-change")
    assert ruled(a_call("bash.exec", effect=Effect.OBSERVE, change_enabled=False), enforced=False) == (
        "deny",
        "unenforced-shell",
    )


def test_a_refusal_names_the_rule_its_file_and_its_reason() -> None:
    ruling = explain(a_call(), f'name = "not-now"\n{DENY}\nreason = "It is Friday."').ruling
    assert ruling.rule == "not-now (10-test.toml)"
    assert ruling.reason == "It is Friday."
    assert isinstance(ruling.error, PolicyDenied)
    assert ruling.error.message == "The rule not-now (10-test.toml) denies systemd.restart: It is Friday."
    ruling = explain(a_call(), ASK).ruling
    assert isinstance(ruling.error, ApprovalRequired)
    assert "rule-1 (10-test.toml) asks" in ruling.error.message


# Taint

TAINTED = [
    # effect, host, known, the rule that asks
    (Effect.OBSERVE, "", False, ""),
    (Effect.CHANGE, "", False, "tainted-change"),
    (Effect.CHANGE, "a.example", True, "tainted-change"),
    (Effect.REACH, "a.example", True, ""),
    (Effect.REACH, "a.example", False, "tainted-reach"),
    (Effect.REACH, "", False, "tainted-reach"),
    (Effect.REACH, "", True, "tainted-reach"),
]


@pytest.mark.parametrize(("effect", "host", "known", "rule"), TAINTED)
def test_a_tainted_session_asks_for_what_was_allowed(
    effect: Effect, host: str, known: bool, rule: str
) -> None:
    call = a_call(effect=effect, host=host, known_host=known, tainted=True)
    by_default = ("ask", "default-change") if effect is Effect.CHANGE else ("allow", f"default-{effect}")
    if rule:
        assert ruled(call, ALLOW) == ("ask", rule)
        assert ruled(call) == (by_default if effect is Effect.CHANGE else ("ask", rule))
    else:
        assert ruled(call, ALLOW) == ("allow", "rule-1")
        assert ruled(call) == by_default
    assert ruled(call, ALLOW + "\neven_if_tainted = true") == ("allow", "rule-1")
    assert ruled(call, ASK) == ("ask", "rule-1")
    assert ruled(call, DENY, ALLOW + "\neven_if_tainted = true") == ("deny", "rule-1")
    assert ruled(call, ASK, ALLOW + "\neven_if_tainted = true") == ("ask", "rule-1")


def test_of_two_rules_that_allow_one_that_does_so_even_if_tainted_is_enough() -> None:
    for rules in ((ALLOW, ALLOW + "\neven_if_tainted = true"), (ALLOW + "\neven_if_tainted = true", ALLOW)):
        assert ruled(a_call(tainted=True), *rules)[0] == "allow"


def test_a_shell_command_that_reaches_has_no_host_and_is_asked_for_when_tainted() -> None:
    call = a_call("bash.exec", effect=Effect.REACH, args={"command": "curl x"}, tainted=True, known_host=True)
    assert ruled(call) == ("ask", "tainted-reach")


# Nobody to ask


@pytest.mark.parametrize("trigger", ["timer", "event", "unattended", "", "Person"])
def test_without_a_person_ask_means_deny_and_the_rule_stays(trigger: str) -> None:
    for call, rules, rule in (
        (a_call(trigger=trigger), (), "default-change"),
        (a_call(trigger=trigger), (ASK,), "rule-1"),
        (a_call(trigger=trigger, tainted=True), (ALLOW,), "tainted-change"),
    ):
        assert ruled(call, *rules) == ("deny", rule)
        ruling = explain(call, *rules).ruling
        assert isinstance(ruling.error, PolicyDenied)
        assert "Nobody is there to ask" in ruling.error.message
        assert "Nobody is there to ask" in ruling.reason
    assert ruled(a_call(trigger=trigger), ALLOW) == ("allow", "rule-1")
    assert ruled(a_call(trigger=trigger), DENY) == ("deny", "rule-1")


# Explaining


def test_an_explanation_has_the_rule_that_decided_and_all_that_matched() -> None:
    found = explain(a_call(), ALLOW, ASK, 'decision = "deny"\ntool = "file"')
    assert found.decided is not None
    assert (found.decided.name, found.decided.line) == ("rule-2", 5)
    assert [rule.name for rule in found.matched] == ["rule-1", "rule-2"]
    assert found.notes == ()


def test_an_explanation_says_what_taint_trigger_and_sandbox_changed() -> None:
    call = a_call("bash.exec", effect=Effect.OBSERVE, tainted=True, trigger="timer")
    found = explain(call, 'decision = "allow"\ntool = "bash"', enforced=False)
    assert found.effect is Effect.CHANGE
    assert found.decided is None
    assert [note.partition(":")[0][:26] for note in found.notes] == [
        "No sandbox enforces observ",
        "The session is tainted",
        "Nobody is there to ask, si",
    ]
    assert "rule-1 (10-test.toml) alone would allow" in found.notes[1]


def test_every_built_in_rule_has_a_name_that_no_file_may_use() -> None:
    calls = [
        a_call("bash.exec", **changes)
        for changes in (
            {"offered": False},
            {"agent_effects": ()},
            {"change_enabled": False},
            {"effect": Effect.OBSERVE},
            {"effect": Effect.REACH},
            {},
            {"tainted": True},
            {"tainted": True, "effect": Effect.REACH},
        )
    ]
    for enforced in (True, False):
        for call in calls:
            assert explain(call, enforced=enforced).ruling.rule in BUILT_IN_RULES


@pytest.mark.parametrize(
    "args", [{"path": ["/etc/x"]}, {"path": 7}, {"path": {"a": None}}, {"x": [[[]]] * 1000}]
)
def test_no_arguments_make_a_decision_fail(args: dict[str, Any]) -> None:
    tables = [
        f'decision = "{word}"\nargs = {{ {name} = "{pattern}" }}'
        for word in ("allow", "deny")
        for name, pattern in (
            ("path", "/etc/*"),
            ("command", "ls *"),
            ("url", "https://x/*"),
            ('"a.b"', "re:x+"),
        )
    ]
    assert explain(a_call(args=args), *tables).ruling.decision in (Decision.ASK, Decision.DENY)
