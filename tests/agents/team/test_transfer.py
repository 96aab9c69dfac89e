"""Conversations that are handed to another agent of the team, and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from lightagentd.daemon.daemon import Daemon
from lightagentd.errors import Conflict, NotFound
from lightagentd.host.paths import Paths
from tests.agents.asking import FRONT, add, lines, prepare
from tests.agents.scripted import ME, check_conversation, until
from tests.agents.team.rig import Team, ask, by_agent, define_team, functions, results, team
from tests.agents.team.test_children import CHANGE_BOTH, answers
from tests.agents.team.test_mail import is_idle, said
from tests.conftest import write
from tests.scripted_model import Answer, ScriptedModel, Stream, call, calls, say


def hand(agent: str, call_id: str = "t1") -> Stream:
    return call("agent_transfer", {"agent": agent, "note": "rows are yours"}, call_id=call_id)


def after(number: int, first: Answer, last: Answer) -> Callable[[dict[str, Any]], Answer]:
    """Says the first until there are more results than that."""
    return lambda body: last if len(results(body)) > number else first


def last_of(test: Team, agent: str) -> dict[str, Any]:
    """The newest request of an agent."""
    return [one.body for one in test.model.requests if f"agent {agent} on" in str(one.body)][-1]


async def test_another_agent_goes_on_and_gets_later_prompts_until_it_hands_back(paths: Paths) -> None:
    def dba(body: dict[str, Any]) -> Answer:
        prompt = [one["content"] for one in body["messages"] if one["role"] == "user"][-1]
        if prompt == "back":
            return hand("test", "t2")
        return say("7 rows") if prompt == "count" else say("still dba")

    def front(body: dict[str, Any]) -> Answer:
        return say("front again") if len(results(body)) else hand("dba")

    async with team(paths, {"test": front, "dba": dba}) as test:
        session = await test.begin()
        events = await test.prompt(session, "count")
        assert answers(events) == [("ok", "dba has the conversation now.\nrows are yours")]
        assert events[-1]["text"] == "7 rows"
        assert [one["message"] for one in events if one["type"] == "notice"] == [
            "dba has the conversation now."
        ]
        assert (await test.daemon.service.sessions.get(ME, session.id)).holder == "dba"
        assert (await test.prompt(session, "more"))[-1]["text"] == "still dba"
        spoke = [(role, speaker) for role, speaker, _ in said(test, session.id)]
        assert spoke == [
            *[("user", ""), ("assistant", ""), ("tool", ""), ("assistant", "dba")],
            *[("user", ""), ("assistant", "dba")],
        ]
        assert (await test.prompt(session, "back"))[-1]["text"] == "front again"
        assert (await test.daemon.service.sessions.get(ME, session.id)).holder == ""
        check_conversation(test.conversation(session))
        transferred = [event for event in test.stored() if event.type == "transferred"]
        assert [(event.data or {})["to_agent"] for event in transferred] == ["dba", "test"]


@pytest.mark.parametrize(
    ("front", "wanted"),
    [
        ("effects: [observe]", "probe_add"),
        ("effects: [observe]", "probe_reach"),
        ("tools: [agent]", "probe_read"),
    ],
)
async def test_who_has_it_can_do_no_more_than_its_first_agent(paths: Paths, front: str, wanted: str) -> None:
    out = prepare(paths)
    args = add(out) if wanted == "probe_add" else {"url": "http://example.org/"}
    scripts: dict[str, Any] = {
        "test": [hand("dba"), say("x")],
        "dba": after(1, call(wanted, args, call_id="p"), say("tried")),
    }
    async with team(paths, scripts, fronts={"test": front, "dba": FRONT}, toml=CHANGE_BOTH) as test:
        found = answers(await test.prompt(await test.begin()))
        assert [code for code, _ in found] == ["ok", "policy_denied"]
        assert "agent test" in found[1][1]
        assert lines(out) == []


async def test_its_questions_show_the_chain_once_and_taint_stays(paths: Paths) -> None:
    out = prepare(paths)
    scripts: dict[str, Any] = {
        "test": [
            calls(("probe_read", {"url": "outside"}, "r"), ("agent_transfer", {"agent": "dba"}, "t")),
            say("x"),
        ],
        "dba": lambda body: (
            say("done") if len(results(body)) > 2 else call("probe_add", add(out), call_id="p")
        ),
    }
    fronts = {"test": FRONT, "dba": FRONT}
    async with team(paths, scripts, fronts=fronts, toml=CHANGE_BOTH) as test:
        session = await test.begin()
        turn = await test.agent.prompt(session, "go")
        events = turn.stream.watch()
        approvals = test.daemon.registry.shared.asked.approvals
        await until(lambda: turn.asks_person)  # it is told of by then
        (asked,) = approvals.questions.open_ones()
        assert (asked.agent, asked.reason.startswith("test → dba: ")) == ("dba", True)
        await approvals.answer(asked.id, grant=True, uid=ME.uid)
        told = [event["type"] async for event in events.events()]
        assert told.count("approval_requested") == 1
        assert session.record.tainted
        assert lines(out) == ["ran"]


async def test_a_transfer_that_cannot_be_is_told_with_the_reason(paths: Paths) -> None:
    wrong = [("agent_transfer", {"agent": name}, name) for name in ("nosuch", "web", "test", "low")]
    script = {0: calls(*wrong), 4: ask("dba"), 5: say("ok")}
    scripts: dict[str, Any] = {
        "test": lambda body: script[len(results(body))],
        "dba": [hand("web"), say("child")],
        "web": [say("x")],
        "low": [say("x")],
    }
    async with team(paths, scripts, fronts={"test": "agents: [dba, low]"}) as test:
        await test.daemon.registry.get("low").stop()
        session = await test.begin()
        found = answers(await test.prompt(session))
        codes = ["agent_not_found", "agent_not_found", "conflict", "agent_not_running", "ok"]
        assert [code for code, _ in found] == codes
        assert "There are: test, dba, low." in found[0][1]
        child = last_of(test, "dba")
        assert "Error (refused)" in results(child)[0]
        assert "agent_transfer" not in functions(child)
        assert session.record.holder == ""


async def test_a_person_transfers_and_a_holder_that_is_stopped_is_stood_in_for(paths: Paths) -> None:
    async with team(paths, {"test": [say("front")], "dba": [say("dba here")]}) as test:
        session = await test.begin()
        sessions = test.daemon.service.sessions
        assert (await sessions.transfer(ME, session.id, "dba")).holder == "dba"
        with pytest.raises(Conflict):
            await sessions.transfer(ME, session.id, "dba")
        with pytest.raises(NotFound):
            await sessions.transfer(ME, session.id, "nosuch")
        assert (await test.prompt(session))[-1]["text"] == "dba here"
        await test.daemon.registry.get("dba").stop()
        events = await test.prompt(session)
        assert events[-1]["text"] == "front"
        assert "So test answers." in str([one for one in events if one["type"] == "notice"])
        await test.daemon.registry.get("dba").start()
        assert (await test.prompt(session))[-1]["text"] == "dba here"


async def test_a_holder_that_waits_for_a_person_goes_on_after_a_restart(paths: Paths) -> None:
    out = prepare(paths)
    scripts: dict[str, Any] = {
        "test": [hand("dba"), say("x")],
        "dba": lambda body: (
            say("done") if len(results(body)) > 1 else call("probe_add", add(out), call_id="p")
        ),
    }
    async with ScriptedModel(by_agent(scripts)) as model:
        define_team(paths, model, scripts, {"test": FRONT, "dba": FRONT}, CHANGE_BOTH)
        async with Daemon(paths) as daemon:
            test = Team(daemon=daemon, model=model)
            session = await test.begin()
            turn = await test.agent.prompt(session, "go")
            await until(lambda: turn.is_waiting)
        async with Daemon(paths) as daemon:
            test = Team(daemon=daemon, model=model)
            approvals = daemon.registry.shared.asked.approvals
            await until(lambda: test.agent.turns_waiting == 1)
            await approvals.answer(approvals.questions.open_ones()[0].id, grant=True, uid=ME.uid)
            await until(lambda: is_idle(test))
            assert lines(out) == ["ran"]
            assert said(test, session.id)[-1] == ("assistant", "dba", "done")


async def test_with_the_runbook_model_the_member_whose_skills_fit_gets_the_prompt(paths: Paths) -> None:
    front = "---\nmodel: runbook\nskills: []\nagents: [disks, mem]\n---\nBe brief.\n"
    write(paths.config / "agent" / "front" / "AGENT.md", front)
    member = "---\nmodel: runbook\nskills: [disk-check]\n---\nBe brief.\n"
    write(paths.config / "agent" / "disks" / "AGENT.md", member)
    other = "---\nmodel: runbook\nskills: [memory-check]\n---\nBe brief.\n"
    write(paths.config / "agent" / "mem" / "AGENT.md", other)
    async with Daemon(paths) as daemon:
        made = await daemon.service.sessions.create(ME, "front", "")
        agent = daemon.registry.get("front")
        turn = await agent.prompt(agent.sessions[made.id], "check disk")
        await turn.over.wait()
        assert turn.failure is None, turn.failure
        assert agent.sessions[made.id].record.holder == "disks"
        found = [event.data or {} for event in daemon.history.queries.messages(made.id)]
        assert found[1]["content"] == "The agent disks has a skill for that: disk-check."
        assert [call["name"] for one in found for call in one.get("tool_calls", [])] == [
            "agent_transfer",
            "skill_run",
        ]
