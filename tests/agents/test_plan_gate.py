"""Attacks on plan mode: whatever a model tries while a plan is drafted, nothing runs but what observes."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lightagentd.agents.tool_calls.by_person import call_as_person
from lightagentd.host.paths import Paths
from lightagentd.host.seat import Seat
from tests.agents.asking import FRONT, TOML, Watched, add, asked, kinds, lines, prepare, result
from tests.agents.planning import TWO, answer, planning
from tests.agents.scripted import ME, Scripted, check_conversation, scripted
from tests.conftest import write
from tests.scripted_model import call, calls, say

BLOCKED = "plan_mode_blocked"
BARE = '[worker]\nsandbox = "none"\nchange_agents = ["test"]\n'
ALLOW_ALL = '[[rule]]\nname = "all"\nagent = "test"\ndecision = "allow"\neven_if_tainted = true\n'

Call = tuple[str, dict[str, Any]]


def outputs(test: Scripted) -> list[str]:
    """The topics of the calls that ran, which are those of the tools."""
    return [event.topic for event in test.stored() if event.type == "invocation"]


async def attacked(test: Scripted, attempts: list[Call], *, ready: bool) -> None:
    """Have the model try all of it in one turn, and check that each is refused, and the model is told."""
    plan = await planning(test)
    await (plan.set(TWO) if ready else plan.begin())
    events = await test.prompt(plan.session)
    results = [(event["tool"], event["result"]) for event in events if event["type"] == "tool_result"]
    assert [code for _, code in results] == [BLOCKED] * len(attempts), results
    assert all("plan mode" in event["text"] for event in events if event["type"] == "tool_result")
    assert plan.refusals() == [(name, BLOCKED) for name, _ in attempts]
    assert plan.intents() == []
    assert outputs(test) == []
    assert test.daemon.registry.shared.asked.approvals.questions.all() == []
    stored = test.stored(topic="agent.tool_dispatch")[0].data
    assert stored is not None
    assert (stored["decision"], stored["rule"], stored["plan"]) == ("deny", "plan-mode", stored["plan"])
    assert events[-1]["type"] == "done"
    check_conversation(test.conversation(plan.session))


def script(attempts: list[Call]) -> list[Any]:
    return [calls(*((name, args, f"c{n}") for n, (name, args) in enumerate(attempts))), say("I see")]


def harmful(out: Path) -> list[Call]:
    return [
        ("probe_add", add(out)),
        ("bash_exec", {"command": f"echo x > {out}", "effect": "change"}),
        ("bash_exec", {"command": "true", "effect": "reach"}),
        ("file_write", {"path": str(out), "content": "x"}),
        ("file_delete", {"path": str(out)}),
        ("web_get", {"url": "http://127.0.0.1:9/"}),
        ("probe_reach", {"url": "http://127.0.0.1:9/"}),
        ("systemd_restart", {"unit": "x.service"}),
        ("proc_signal", {"pid": 1, "signal": "TERM"}),
    ]


@pytest.mark.parametrize("ready", [False, True], ids=["drafting", "ready"])
@pytest.mark.parametrize("allow", [False, True], ids=["no rules", "a rule allows all"])
async def test_nothing_but_observe_runs(paths: Paths, ready: bool, allow: bool) -> None:
    out = prepare(paths)
    if allow:
        write(paths.config / "policy.d" / "10-all.toml", ALLOW_ALL)
    attempts = harmful(out)
    async with scripted(paths, script(attempts), front=FRONT, toml=TOML) as test:
        await attacked(test, attempts, ready=ready)
        # No worker was started for what is refused anyway.
        assert (await test.daemon.service.manager.status(ME)).workers == []
        assert lines(out) == []


async def test_where_nothing_enforces_observe_no_shell_and_no_loose_script_runs(paths: Paths) -> None:
    out = paths.state.parent / "lines"
    write(paths.config / "policy.d" / "10-all.toml", ALLOW_ALL)
    folder = paths.config / "skills" / "loose"
    text = (
        "---\nname: loose\ndescription: Looks\nmetadata: {lightagentd: {script: scripts/x.sh}}\n---\nLook.\n"
    )
    write(folder / "SKILL.md", text)
    write(folder / "scripts" / "x.sh", f"#!/bin/sh\necho x > {out}\n").chmod(0o777)
    attempts: list[Call] = [
        ("bash_exec", {"command": f"echo x > {out}"}),
        ("bash_exec", {"command": f"echo x > {out}", "effect": "observe"}),
        ("bash_exec", {"command": f"echo x > {out}", "effect": "reach"}),
        ("bash_exec", {"command": f"echo x > {out}", "effect": "change"}),
        ("skill_run", {"name": "loose"}),
    ]
    async with scripted(paths, script(attempts), front=FRONT, toml=BARE) as test:
        assert not test.daemon.pool.backend.enforced
        await attacked(test, attempts, ready=True)
        assert lines(out) == []


async def test_with_plan_tools_none_no_call_runs_not_even_of_what_is_built_in(paths: Paths) -> None:
    out = prepare(paths)
    attempts: list[Call] = [
        ("file_read", {"path": "/etc/hostname"}),
        ("bash_exec", {"command": "true", "effect": "observe"}),
        ("proc_list", {}),
        ("human_ask", {"question": "May I?"}),
        ("plan_propose", {"title": "x", "tasks": [{"text": "x"}]}),
        ("plan_show", {}),
        *harmful(out),
    ]
    async with scripted(paths, script(attempts), front=f"{FRONT}\nplan_tools: none", toml=TOML) as test:
        await attacked(test, attempts, ready=False)
        assert lines(out) == []
        assert test.daemon.registry.shared.asked.inputs.questions.open_ones() == []


async def test_a_call_that_is_written_as_text_is_refused_as_well(paths: Paths) -> None:
    out = prepare(paths)
    written = f'{{"tool": "probe", "action": "add", "args": {{"path": "{out}"}}}}'
    async with scripted(paths, [say(written), say("I see")], front=FRONT, toml=TOML) as test:
        plan = await planning(test)
        await plan.begin()
        await test.prompt(plan.session)
        assert plan.refusals() == [("probe_add", BLOCKED)]
        assert lines(out) == []


async def test_an_answer_cannot_hide_a_call_beside_a_plan(paths: Paths) -> None:
    """An object with tasks is a plan or nothing, and one with a tool is a call or nothing."""
    async with scripted(paths, [answer({"tool": "x", "action": "y", **TWO}), say("a")]) as test:
        plan = await planning(test)
        await plan.begin()
        await test.prompt(plan.session)
        assert (await plan.get()).phase == "drafting"
        assert plan.intents() == []


@pytest.mark.parametrize("plan_tools", ["observe", "none"])
async def test_an_approval_that_was_asked_for_before_runs_nothing_in_plan_mode(
    paths: Paths, plan_tools: str
) -> None:
    out = prepare(paths)
    front = f"{FRONT}\nplan_tools: {plan_tools}"
    async with scripted(paths, [call("probe_add", add(out)), say("I see")], front=front, toml=TOML) as test:
        plan = await planning(test)
        async with Watched(test, plan.session) as turn:
            question = await asked(test)
            await plan.begin()
            await test.daemon.service.approvals.approve(ME, question.id, "go on")
            events = await turn.end()
        assert result(events)["result"] == BLOCKED
        assert lines(out) == []
        assert "used" not in kinds(test)


async def test_an_approval_is_of_no_use_for_the_same_call_later(paths: Paths) -> None:
    out = prepare(paths)
    script = [call("probe_add", add(out)), say("I see"), call("probe_add", add(out)), say("I see")]
    async with scripted(paths, script, front=FRONT, toml=TOML) as test:
        plan = await planning(test)
        async with Watched(test, plan.session) as turn:
            question = await asked(test)
            await plan.begin()
            await test.daemon.service.approvals.approve(ME, question.id, "")
            await turn.end()
        await plan.end()
        async with Watched(test, plan.session):
            assert (await asked(test)).id != question.id
            assert lines(out) == []


async def test_plan_mode_that_begins_in_a_turn_holds_for_the_rest_of_it(paths: Paths) -> None:
    out = prepare(paths)
    write(paths.config / "policy.d" / "10-all.toml", ALLOW_ALL)
    # What the second answer says settles the first result; the call comes when plan mode has begun.
    begun = asyncio.Event()
    again = replace(call("probe_add", add(out), call_id="c2", text="Again."), gate=(1, begun))
    script = [call("probe_add", add(out)), again, say("I see")]
    async with scripted(paths, script, front=FRONT, toml=TOML) as test:
        plan = await planning(test)
        turn = await test.agent.prompt(plan.session, "go")
        async for event in turn.stream.watch().events():
            if event["type"] == "tool_result" and event["result"] == "ok":
                await plan.begin()
                begun.set()
        assert lines(out) == ["ran"]
        assert plan.refusals() == [("probe_add", BLOCKED)]


async def test_what_a_person_calls_is_no_matter_of_plan_mode(paths: Paths) -> None:
    out = prepare(paths)
    async with scripted(paths, [say("x")], front=FRONT, toml=TOML) as test:
        plan = await planning(test)
        await plan.begin()
        calls = call_as_person(test.agent, ME.uid, "probe", "add", add(out), approver=Seat())
        assert [event["type"] async for event in calls][-1] == "done"
        assert lines(out) == ["ran"]
        calls = call_as_person(test.agent, ME.uid, "plan", "propose", TWO)
        last = [event async for event in calls][-1]
        assert (last["type"], last["code"]) == ("error", "plan_conflict")
        assert (await plan.get()).phase == "drafting"


async def test_another_session_of_the_same_agent_is_not_in_plan_mode(paths: Paths) -> None:
    out = prepare(paths)
    write(paths.config / "policy.d" / "10-all.toml", ALLOW_ALL)
    async with scripted(paths, [call("probe_add", add(out)), say("x")], front=FRONT, toml=TOML) as test:
        await (await planning(test)).begin()
        await test.prompt(await test.session())
        assert lines(out) == ["ran"]
