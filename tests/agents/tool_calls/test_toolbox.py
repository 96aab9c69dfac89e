"""The tools as a worker describes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lightagentd.agents.definition import AgentDefinition, AgentFrontMatter
from lightagentd.agents.tool_calls.toolbox import Toolbox, toolbox_of
from lightagentd.errors import InvalidArgument, ToolNotFound
from lightagentd.policy.rulefiles import RuleSet, load_texts
from lightagentd.tool import Effect


def action(name: str, effect: str = "observe", timeout_s: float = 30.0) -> dict[str, Any]:
    return {
        "name": name,
        "description": f"{name}!",
        "effect": effect,
        "taints": False,
        "timeout_s": timeout_s,
        "schema": {"properties": {}},
    }


def tool(name: str, *actions: dict[str, Any], problem: str = "") -> dict[str, Any]:
    return {"name": name, "description": "", "path": f"{name}.py", "problem": problem, "actions": actions}


def box() -> Toolbox:
    return toolbox_of(
        [
            tool("proc", action("list"), action("info"), action("signal", "change")),
            tool("bash", action("exec", "", 120)),
            tool("net", action("ping", "reach")),
            tool("a", action("b_c", "observe")),
            tool("a_b", action("c", "change")),
            tool("broken", problem="SyntaxError"),
        ]
    )


def agent(**front: Any) -> AgentDefinition:
    return AgentDefinition(name="x", front=AgentFrontMatter(**front), prompt="", path=Path("x"))


def test_a_function_is_found_by_its_name() -> None:
    found = box().by_function("proc_info")
    assert (found.tool, found.name, found.effect) == ("proc", "info", Effect.OBSERVE)


def test_an_unknown_function_is_answered_with_the_nearest() -> None:
    with pytest.raises(ToolNotFound) as caught:
        box().by_function("proc_inof")
    assert "proc_info" in caught.value.suggestion


def test_an_unknown_name_may_be_of_any_length() -> None:
    with pytest.raises(ToolNotFound) as caught:
        box().by_function("x" * 1_000_000)
    assert len(caught.value.message) < 200


def test_a_server_takes_no_function_of_another_tool() -> None:
    servers = [{**tool(name, *actions), "path": f"mcp.d/{name}.toml"} for name, *actions in _SERVERS]
    for described in (servers, servers[::-1]):
        found = toolbox_of([tool("net", action("list_links"), action("ping", "reach")), *described])
        assert found.by_function("net_list_links").tool == "net"
        assert "net_list_links is one of the tool net, too" in found.tools["net_list"].problem
        assert [found.tools[name].problem == "" for name in ("git", "git_hub")].count(True) == 1


_SERVERS: list[Any] = [
    ("git", action("hub_x", "change")),
    ("net_list", action("links")),
    ("git_hub", action("x")),
]


def test_an_action_is_found_exactly_and_never_another_tools() -> None:
    assert box().find("a", "b_c").effect is Effect.OBSERVE
    assert box().find("a_b", "c").effect is Effect.CHANGE
    with pytest.raises(ToolNotFound):
        box().find("proc_info", "")
    with pytest.raises(ToolNotFound) as caught:
        box().find("proc", "lits")
    assert "proc.list" in caught.value.suggestion


def test_a_disabled_tool_is_told_with_the_reason() -> None:
    for name in ("find", "by_function"):
        with pytest.raises(ToolNotFound, match="broken is disabled, because") as caught:
            box().find("broken", "list") if name == "find" else box().by_function("broken_list")
        assert ("SyntaxError" in caught.value.message, "broken.py" in caught.value.suggestion) == (True, True)


def test_an_agent_is_offered_what_its_tools_and_effects_allow() -> None:
    def names(*, change: bool = True, **front: Any) -> set[str]:
        return {function.name for function in box().offered(agent(**front), change=change, rules=RuleSet())}

    assert names(tools=["proc", "net"]) == {"proc_list", "proc_info", "proc_signal", "net_ping"}
    assert names(tools=["proc", "net"], change=False) == {"proc_list", "proc_info", "net_ping"}
    assert names(tools=["proc", "net"], effects=["observe"]) == {"proc_list", "proc_info"}
    assert names(tools=["proc.signal", "bash"], effects=["observe", "change"]) == {"proc_signal", "bash_exec"}
    assert names(tools=[]) == set()
    assert names(effects=[]) == {"bash_exec"}


@pytest.mark.parametrize(
    ("conditions", "left_out"),
    [
        ('tool = "proc"', {"proc_list", "proc_info", "proc_signal"}),
        ('tool = "proc"\naction = ["i*", "signal"]\neffect = ["observe", "reach"]', {"proc_info"}),
        ('tool = "bash"\neffect = ["observe", "reach"]', set()),
        ('tool = "bash"\neffect = ["observe", "reach", "change"]', {"bash_exec"}),
        ('tool = "proc"\nagent = "another"', set()),
        ('tool = "proc"\ntrigger = "timer"', set()),
        ('tool = "proc"\ncaller = 0', set()),
        ('tool = "proc"\nargs = { pid = 1 }', set()),
    ],
)
def test_what_a_rule_always_denies_is_not_offered(conditions: str, left_out: set[str]) -> None:
    tester, none = agent(tools=["proc", "bash"]), RuleSet()
    denied = load_texts({"a.toml": f'[[rule]]\nname = "no"\ndecision = "deny"\n{conditions}\n'})
    every, kept = (
        {function.name for function in box().offered(tester, change=True, rules=rules)}
        for rules in (none, denied)
    )
    assert every - kept == left_out
    asks = load_texts({"a.toml": f'[[rule]]\nname = "no"\ndecision = "ask"\n{conditions}\n'})
    assert {one.name for one in box().offered(tester, change=True, rules=asks)} == every


def test_a_call_chooses_its_effect_where_the_action_leaves_it_open() -> None:
    chosen = box().by_function("bash_exec")
    assert chosen.effect_of({}) is Effect.OBSERVE
    assert chosen.effect_of({"effect": "change"}) is Effect.CHANGE
    wrong_ones: list[Any] = ["delete", None, 7, ["observe"], {}]
    for wrong in wrong_ones:
        with pytest.raises(InvalidArgument):
            chosen.effect_of({"effect": wrong})
    assert box().by_function("net_ping").effect_of({"effect": "observe"}) is Effect.REACH


@pytest.mark.parametrize(
    ("args", "expected"),
    [({}, 120.0), ({"timeout_s": 5}, 5.0), ({"timeout_s": 9999}, 600.0), ({"timeout_s": -1}, 120.0)]
    + [({"timeout_s": odd}, 120.0) for odd in ("5", None, [5], float("nan"))],
)
def test_a_call_gets_the_time_that_it_asks_for_within_the_limit(
    args: dict[str, Any], expected: float
) -> None:
    assert box().by_function("bash_exec").timeout_of(args, 600.0) == expected
