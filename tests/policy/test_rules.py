"""Rules: each condition, callers, and what counts in doubt."""

from __future__ import annotations

import grp
import os
import pwd
from typing import Any

import pytest

from lightagentd.errors import ConfigError
from lightagentd.policy.call import PolicyCall
from lightagentd.tool import Effect
from tests.policy.calls import a_call, matches, rules

ME = pwd.getpwuid(os.getuid())
MY_GROUP = grp.getgrgid(ME.pw_gid).gr_name
OTHER_GROUP = next(
    group.gr_name for group in grp.getgrall() if group.gr_gid != ME.pw_gid and not group.gr_mem
)


@pytest.mark.parametrize(
    ("condition", "right", "wrong"),
    [
        ('agent = "ops"', {"agent": "ops"}, {"agent": "ops2"}),
        ('agent = "web-*"', {"agent": "web-1"}, {"agent": "web"}),
        ('agent = ["a", "b?"]', {"agent": "bc"}, {"agent": "ab"}),
        ('tool = "systemd"', {"tool": "systemd"}, {"tool": "systemd2"}),
        ('tool = "[sf]*"', {"tool": "file"}, {"tool": "net"}),
        ('action = ["restart", "reload"]', {"action": "reload"}, {"action": "stop"}),
        ('effect = "change"', {"effect": Effect.CHANGE}, {"effect": Effect.REACH}),
        ('effect = ["observe", "reach"]', {"effect": Effect.REACH}, {"effect": Effect.CHANGE}),
        ('trigger = "timer"', {"trigger": "timer"}, {"trigger": "person"}),
        ("caller = 1000", {"caller": 1000}, {"caller": 0}),
        ('caller = [5, "root"]', {"caller": 0}, {"caller": 1000}),
        ('args = { unit = "nginx*" }', {"args": {"unit": "nginx"}}, {"args": {"unit": "sshd"}}),
        ('args = { unit = ["a", "b"] }', {"args": {"unit": "b"}}, {"args": {"unit": "c"}}),
        ('args.a.b = "x"', {"args": {"a": {"b": "x"}}}, {"args": {"a": "x"}}),
        ('args."a.b" = "x"', {"args": {"a": {"b": "x"}}}, {"args": {"b": "x"}}),
        ("args = { force = true }", {"args": {"force": True}}, {"args": {"force": False}}),
    ],
)
def test_each_condition_is_about_its_calls(
    condition: str, right: dict[str, Any], wrong: dict[str, Any]
) -> None:
    for decision in ("allow", "ask", "deny"):
        table = f'decision = "{decision}"\n{condition}'
        assert matches(table, a_call(**right))
        assert not matches(table, a_call(**wrong))


@pytest.mark.parametrize("prefix", ["", "deep."])
def test_a_command_is_allowed_in_the_root_folder_unless_the_rule_names_another(prefix: str) -> None:
    """In a stranger's folder `sh deploy.sh` is the stranger's script."""

    def call(**args: str) -> PolicyCall:
        args = {"command": "sh deploy.sh", **args}
        return a_call("bash.exec", args={"deep": args} if prefix else args)

    command = f'args.{prefix}command = "sh deploy.sh"'
    allow = f'decision = "allow"\n{command}'
    assert matches(allow, call(cwd="/"))
    assert matches(allow, call()), "the tool knows no folder"
    for folder in ("/home/stranger", "/..", "home", "", "/tmp/"):
        assert not matches(allow, call(cwd=folder)), folder
    named = f'{allow}\nargs.{prefix}cwd = "/srv/*"'
    assert matches(named, call(cwd="/srv/app"))
    assert not matches(named, call(cwd="/"))
    assert not matches(named, call())
    assert matches(f'decision = "deny"\n{command}', call(cwd="/home/stranger"))


def test_all_conditions_must_hold() -> None:
    table = 'decision = "deny"\nagent = "ops"\ntool = "systemd"\nargs = { unit = "a", mode = "b" }'
    args = {"unit": "a", "mode": "b"}
    assert matches(table, a_call(args=args))
    for wrong in (
        {"agent": "x"},
        {"tool": "x"},
        {"args": {"unit": "a"}},
        {"args": {"unit": "a", "mode": "c"}},
    ):
        assert not matches(table, a_call(**{"args": args} | wrong))


def test_a_rule_without_conditions_is_about_every_call_and_may_not_allow() -> None:
    assert matches('decision = "deny"', a_call("x.y", agent="z", caller=None))
    with pytest.raises(ConfigError, match="would allow everything"):
        rules('decision = "allow"')


def test_a_caller_may_be_a_user_or_a_group() -> None:
    me = a_call(caller=ME.pw_uid)
    for decision in ("allow", "deny"):
        assert matches(f'decision = "{decision}"\ncaller = "{ME.pw_name}"', me)
        assert matches(f'decision = "{decision}"\ncaller = "group:{MY_GROUP}"', me)
        assert not matches(f'decision = "{decision}"\ncaller = "group:{OTHER_GROUP}"', me)


def test_a_caller_who_is_not_known_is_not_allowed_and_not_let_off() -> None:
    for caller in ("caller = 0", f'caller = "group:{MY_GROUP}"'):
        assert not matches(f'decision = "allow"\n{caller}', a_call(caller=None))
        assert matches(f'decision = "ask"\n{caller}', a_call(caller=None))
    nobody_has = 2_000_000_123
    assert not matches(f'decision = "allow"\ncaller = "group:{MY_GROUP}"', a_call(caller=nobody_has))
    assert matches(f'decision = "deny"\ncaller = "group:{MY_GROUP}"', a_call(caller=nobody_has))
    assert not matches('decision = "deny"\ncaller = 0', a_call(caller=nobody_has))


def test_names_have_a_case() -> None:
    assert not matches('decision = "allow"\ntool = "bash"', a_call("Bash.exec"))
    with pytest.raises(ConfigError, match="can match nothing"):
        rules('decision = "deny"\ntool = "Bash"')


def test_examples_are_filled_up_from_what_the_rule_names() -> None:
    table = """decision = "allow"
agent = "ops"
tool = ["systemd", "file*"]
action = "restart"
effect = "change"
caller = ["group:root", 0]
args = { unit = "web*", mode = "fail" }
match = [{ args = { unit = "web1" } }, { args = { unit = "web2", mode = "fail" } }]
not_match = [
  { args = { unit = "db" } },
  { args = { unit = "web1", mode = "replace" } },
  { args = { unit = "web1" }, agent = "other" },
  { args = { unit = "web1" }, tool = "bash" },
  { args = { unit = "web1" }, action = "stop" },
  { args = { unit = "web1" }, effect = "reach" },
  { args = { unit = "web1" }, caller = 4711 },
  {},
]"""
    (rule,) = rules(table).rules
    assert rule.rule.conditions()["args"] == {"unit": "web*", "mode": "fail"}


@pytest.mark.parametrize(
    ("table", "why"),
    [
        (
            'args = { unit = "a*" }\nmatch = [{ args = { unit = "b" } }]',
            "match, example 1: the rule does not match",
        ),
        (
            'args = { unit = "a*" }\nmatch = [{ args = { unit = "a" } }, {}]',
            "match, example 2: the rule does not match",
        ),
        (
            'args = { unit = "a*" }\nnot_match = [{ args = { unit = "a" } }]',
            "not_match, example 1: the rule matches",
        ),
        ('tool = "a"\nnot_match = [{}]', "not_match, example 1: the rule matches"),
        ('tool = "a*"\nmatch = [{}]', "match, example 1: it must name tool"),
        ('agent = ["a*", "b*"]\nmatch = [{ tool = "x" }]', "match, example 1: it must name agent"),
        ('caller = "group:root"\nmatch = [{}]', "match, example 1: it must name a user as caller"),
    ],
)
def test_an_example_that_behaves_otherwise_is_an_error_that_names_it(table: str, why: str) -> None:
    for decision in ("allow", "deny"):
        with pytest.raises(ConfigError, match="the rule 'rule-1': ") as caught:
            rules(f'decision = "{decision}"\n{table}')
        assert why in caught.value.message
        assert "10-test.toml:" in caught.value.message


def test_an_example_sees_the_strictness_of_its_rule() -> None:
    example = 'args = { command = "ls *" }\n{} = [{{ args = {{ command = "ls a; rm b" }} }}]'
    body = example.replace('{ command = "ls *" }', '{{ command = "ls *" }}')
    rules('decision = "allow"\n' + body.format("not_match"))
    rules('decision = "deny"\n' + body.format("match").replace("rm b", "ls b"))
    with pytest.raises(ConfigError, match="does not match"):
        rules('decision = "allow"\n' + body.format("match"))
