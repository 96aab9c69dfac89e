"""What a prompt chose for its turn holds for all that the turn has done: by children, by skills, later."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from lightagentd.agents.choosing import chosen
from lightagentd.client.aio import AsyncClient
from lightagentd.host.paths import Paths
from tests.agents.asking import FRONT, add, lines, prepare
from tests.agents.scripted import ME, until, watch
from tests.agents.team.rig import Team, ask, by_agent, define_team, results, team
from tests.agents.test_approvals_restart import ask as call_method
from tests.agents.test_approvals_restart import kill, open_question, settled
from tests.conftest import DaemonProcess, write
from tests.scripted_model import ScriptedModel, call, say

CHANGE_ALL = '[worker]\nchange_agents = ["test", "dba", "web"]\n'
ALL = dict.fromkeys(("test", "dba", "web"), FRONT)
TOUCH = {"command": "true", "effect": "change"}
CHANGING = {"name": "health", "effect": "change"}


def codes(test: Team) -> list[tuple[str, str, str]]:
    """Of each call that was decided: agent, action, decision."""
    decided = test.stored(topic="agent.tool_dispatch")
    return [(one.agent, data["action"], data["decision"]) for one in decided if (data := one.data or {})]


@pytest.mark.parametrize(
    ("choice", "wanted", "args", "decision"),
    [
        ({"effects": ["observe"]}, "probe_add", None, "deny"),
        ({"effects": ["observe"]}, "bash_exec", TOUCH, "deny"),
        ({"effects": ["observe"]}, "skill_run", CHANGING, "deny"),
        ({"effects": ["observe"]}, "probe_reach", {"url": "http://127.0.0.1/"}, "deny"),
        ({"tools": ["agent"]}, "skill_run", {"name": "health"}, "deny"),
        ({"tools": ["agent"]}, "probe_read", {"url": "x"}, "deny"),
        ({"tools": ["agent", "probe.read"]}, "probe_add", None, "deny"),
        ({"tools": ["agent", "probe.read"]}, "probe_read", {"url": "x"}, "allow"),
        ({}, "probe_add", None, "allow"),
    ],
    ids=str,
)
async def test_a_choice_holds_for_children_and_theirs(
    paths: Paths, choice: dict[str, Any], wanted: str, args: dict[str, Any] | None, decision: str
) -> None:
    """`dba` and `web` may do all that `test` may; they are asked in a turn that chose less."""
    out = prepare(paths)
    rule = 'decision = "allow"\neven_if_tainted = true\n'
    rules = [f'[[rule]]\nname = "{one}"\ntool = "{one}"\n{rule}' for one in ("probe", "bash", "skill")]
    write(paths.config / "policy.d" / "10-x.toml", "".join(rules))
    wants = call(wanted, args or add(out), call_id="w")
    scripts = {
        "test": [ask("dba"), say("ok")],
        "dba": [wants, ask("web"), say("tried")],
        "web": [wants, say("tried")],
    }
    async with team(paths, scripts, fronts=ALL, toml=CHANGE_ALL) as test:
        turn = await test.agent.prompt(await test.begin(), "go", choice=await chosen(**choice))
        assert (await watch(turn))[-1]["type"] == "done"
        action = wanted.partition("_")[2]
        found = [(agent, said) for agent, one, said in codes(test) if one == action]
        assert found == [("dba", decision), ("web", decision)]
        told = [text for one in test.model.requests for text in results(one.body) if "denied)" in text]
        assert all("agent test" in text for text in told), told
        assert lines(out) == ([] if choice else ["ran", "ran"])


async def test_a_choice_without_the_tool_agent_asks_nobody(paths: Paths) -> None:
    scripts = {"test": [ask("dba"), say("ok")], "dba": [say("x")]}
    async with team(paths, scripts) as test:
        choice = await chosen(tools=["proc"])
        await watch(await test.agent.prompt(await test.begin(), "go", choice=choice))
        assert codes(test) == [("test", "ask", "deny")]
        assert test.records("dba") == []
        assert "# Other agents" not in test.model.requests[0].body["messages"][0]["content"]


@pytest.mark.parametrize(
    ("choice", "args"),
    [({"tools": ["probe"]}, {"name": "health"}), ({"effects": ["observe"]}, CHANGING)],
    ids=["tools", "effects"],
)
async def test_a_skill_runs_no_further_than_the_choice(
    paths: Paths, choice: dict[str, Any], args: dict[str, Any]
) -> None:
    prepare(paths)
    async with team(
        paths, {"test": [call("skill_run", args), say("ok")]}, fronts=ALL, toml=CHANGE_ALL
    ) as test:
        turn = await test.agent.prompt(await test.begin(), "go", choice=await chosen(**choice))
        events = await watch(turn)
        assert codes(test) == [("test", "run", "deny")]
        assert [one["result"] for one in events[-1]["calls"]] == ["policy_denied"]


async def test_a_plan_of_a_narrowed_turn_waits_for_a_person(paths: Paths) -> None:
    """What the turn itself may not do, no task of its plan does unless its owner applies it."""
    out = prepare(paths)
    plan = {"title": "t", "tasks": [{"text": "add", "check": f"touch {out}"}]}
    script = [call("plan_propose", plan), call("probe_add", add(out)), call("bash_exec", TOUCH), say("ok")]
    async with team(paths, {"test": script}, fronts=ALL, toml=CHANGE_ALL) as test:
        session = await test.begin()
        await test.daemon.service.plans.begin(ME, session.id)
        choice = await chosen(tools=["plan"], effects=["observe"])
        await watch(await test.agent.prompt(session, "go", choice=choice))
        await until(lambda: session.at_rest)
        assert [decision for _, _, decision in codes(test)] == ["allow", "deny", "deny"]
        assert session.plan is not None
        assert (session.plan.phase, session.plan.tasks[0].state) == ("ready", "pending")
        assert not out.exists()


async def test_a_child_asks_the_model_of_its_own_agent(paths: Paths) -> None:
    scripts = {"test": [ask("dba"), say("ok")], "dba": [say("7")]}
    async with team(paths, scripts, fronts={"test": "fallback: [openai/y]"}) as test:
        choice = await chosen(model="openai/y")
        events = await watch(await test.agent.prompt(await test.begin(), "go", choice=choice))
        assert events[-1]["usage"]["total_tokens"] == 45, "what the child used counts, too"
        assert [one.body["model"] for one in test.model.requests] == ["y", "x", "y"]


async def test_a_reload_counts_at_once_for_a_line_of_turns(paths: Paths) -> None:
    """While `dba` waits for a person, `test` loses an effect, and later the agent that it may ask."""
    out = prepare(paths)
    scripts = {
        "test": [ask("dba"), ask("web", call_id="w"), say("ok")],
        "dba": [call("probe_add", add(out)), say("tried")],
        "web": [say("x")],
    }
    async with team(paths, scripts, fronts=ALL, toml=CHANGE_ALL) as test:
        turn = await test.agent.prompt(await test.begin(), "go")
        questions = test.daemon.registry.shared.asked.approvals
        await until(lambda: questions.questions.waiting)
        (question,) = questions.questions.open_ones()
        less = {**ALL, "test": "effects: [observe]\nagents: [dba]"}
        define_team(paths, test.model, scripts, less, CHANGE_ALL)
        await test.daemon.reload()
        await questions.answer(question.id, grant=True, uid=ME.uid)
        events = await watch(turn)
        assert lines(out) == []
        assert [one["result"] for one in events[-1]["calls"]] == ["ok", "agent_not_found"]


async def test_a_choice_holds_for_children_after_kill_9(paths: Paths) -> None:
    """The child waits for a person when the daemon is killed; then it, and its parent, want more."""
    out = prepare(paths)
    more = call("bash_exec", TOUCH, call_id="more")
    scripts = {
        "test": [ask("dba"), more, say("over")],
        "dba": [call("probe_add", add(out)), more, say("tried")],
    }
    async with ScriptedModel(by_agent(scripts)) as model:
        define_team(paths, model, scripts, ALL, CHANGE_ALL)
        daemon = DaemonProcess(paths)
        try:
            await asyncio.to_thread(daemon.start)
            async with AsyncClient(paths.socket) as client:
                stream = client.stream("Sessions.Prompt", agent="test", text="go", tools=["agent", "probe"])
                await anext(stream)
                question = (await open_question(paths))["id"]
            await asyncio.to_thread(kill, daemon)
            await asyncio.to_thread(daemon.start)
            await call_method(paths, "Approvals.Approve", approval=question, note="")
            session = await settled(paths)
        finally:
            await asyncio.to_thread(daemon.close)
    assert lines(out) == ["ran"]
    assert session["messages"][-1]["content"] == "over"
    refused = [results(one.body)[-1] for one in model.requests if len(results(one.body)) == 2]
    assert ["The agent test may not use bash.exec" in text for text in refused] == [True, True], refused


async def test_the_context_skill_of_a_child_runs_no_further_than_its_parents_choice(paths: Paths) -> None:
    folder = paths.config / "skills" / "now"
    write(folder / "SKILL.md", "---\nname: now\ndescription: Says how it is.\n---\nRun it.\n")
    write(folder / "scripts" / "now.py", "print('load 1.5')\n").chmod(0o755)
    write(folder / "runbook.yaml", "script: scripts/now.py\n")
    scripts = {"test": [ask("dba"), say("ok")], "dba": [say("7")]}
    fronts = {"dba": "context_skill: now"}
    for tools, decision in ((["agent"], "deny"), (["agent", "skill.run"], "allow")):
        async with team(paths, scripts, fronts=fronts) as test:
            turn = await test.agent.prompt(await test.begin(), "go", choice=await chosen(tools=tools))
            await watch(turn)
            told = test.stored(topic="agent.tool_dispatch")
            assert [one.data["decision"] for one in told if one.data and one.agent == "dba"][-1] == decision
            (asked,) = [b for one in test.model.requests[-3:] if "agent dba on" in str(b := one.body)]
            assert ("load 1.5" in asked["messages"][0]["content"]) is (decision == "allow")
