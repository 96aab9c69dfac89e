"""Calls of one answer that run at once: which do, in which order they are stored, and how they end."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from lightagentd.daemon.daemon import Daemon
from lightagentd.host.paths import Paths
from tests.agents.asking import FRONT, add, prepare
from tests.agents.commits import copied, killed_after
from tests.agents.own_questions import ASKER
from tests.agents.scripted import ME, check_conversation, until, watch
from tests.agents.team.rig import Team, ask, by_agent, define_team, results, team
from tests.agents.team.test_children import HANG, answers
from tests.cli.conftest import environment, finish
from tests.conftest import write
from tests.scripted_model import Answer, ScriptedModel, Stream, call, calls, say

PARALLEL = f"{FRONT}\nparallel: true"
CHANGE = '[worker]\nchange_agents = ["test"]\n'

MEET = """
import asyncio
from pathlib import Path

from lightagentd.tool import Args, Context, Effect, Result, Tool, action


class MeetArgs(Args):
    path: str
    who: str = ""


class Meet(Tool):
    "Waits for a file."

    name = "meet"

    @action(effect=Effect.OBSERVE)
    async def wait(self, ctx: Context, args: MeetArgs) -> Result:
        "Wait until there is a file."
        while not Path(args.path).exists():
            await asyncio.sleep(0.01)
        return Result(output=args.who)
"""


def asks(*agents: str) -> Stream:
    return calls(*[("agent_ask", {"agent": one, "text": f"for {one}"}, f"id-{one}") for one in agents])


def of_calls(test: Team, session: str) -> list[str]:
    """The begins and ends of the calls of a session, in their order."""
    topics = ("agent.tool_dispatch", "tool.")
    return [
        f"{event.type} {(event.data or {})['action']}"
        for event in test.stored()
        if event.session == session and event.topic.startswith(topics)
    ]


async def test_children_of_one_answer_work_at_once_and_their_answers_are_in_order(paths: Paths) -> None:
    second = asyncio.Event()

    def fast(_: dict[str, Any]) -> Answer:
        second.set()
        return say("fast")

    scripts: dict[str, Any] = {
        "test": [asks("dba", "web"), say("both")],
        "dba": [Stream(pieces=say("slow").pieces, gate=(1, second))],
        "web": fast,
    }
    async with team(paths, scripts, fronts={"test": "parallel: true"}) as test:
        session = await test.begin()
        found = await asyncio.wait_for(test.prompt(session), 30)
        assert answers(found) == [("ok", "slow"), ("ok", "fast")]
        assert [one.split("\n")[1] for one in results(test.model.requests[-1].body)] == ["slow", "fast"]
        assert of_calls(test, session.id) == [*["intent ask"] * 2, *["invocation ask"] * 2]
        check_conversation(test.conversation(session))


async def test_calls_that_observe_run_at_once_and_others_alone_in_their_place(paths: Paths) -> None:
    out = prepare(paths)
    there = paths.config / "tools" / "there"
    write(paths.config / "tools" / "meet.py", MEET)
    answer = calls(
        ("meet_wait", {"path": str(there), "who": "a"}, "a"),
        ("meet_wait", {"path": str(there), "who": "b"}, "b"),
        ("probe_add", add(out), "c"),
        ("probe_read", {"url": "x"}, "d"),
        ("probe_read", {"url": 5}, "e"),
        ("probe_read", {"url": "z"}, "f"),
    )
    async with team(paths, {"test": [answer, say("ok")]}, fronts={"test": PARALLEL}, toml=CHANGE) as test:
        session = await test.begin()
        turn = await test.agent.prompt(session, "go")
        events = turn.stream.watch()
        approvals = test.daemon.registry.shared.asked.approvals
        await until(lambda: of_calls(test, session.id) == ["intent wait"] * 2)
        there.touch()
        await until(lambda: bool(approvals.questions.waiting))
        both = ["intent wait", "intent wait", "invocation wait", "invocation wait"]
        assert of_calls(test, session.id) == both
        await approvals.answer(approvals.questions.open_ones()[0].id, grant=True, uid=0)
        told = [event async for event in events.events()]
        assert [code for code, _ in answers(told)] == ["ok", "ok", "ok", "ok", "invalid_argument", "ok"]
        assert [text for _, text in answers(told)[:2]] == ["a", "b"]
        ran = ["intent add", "invocation add", "intent read", "invocation read", "refused read"]
        assert of_calls(test, session.id) == [*both, *ran, "intent read", "invocation read"]
        check_conversation(test.conversation(session))


async def test_without_the_key_calls_run_one_by_one(paths: Paths) -> None:
    prepare(paths)
    answer = calls(("probe_read", {"url": "x"}, "a"), ("probe_read", {"url": "y"}, "b"))
    for name, front, at_once in (("test", "", False), ("dba", "parallel: true", True)):
        async with team(paths, {name: [answer, say("ok")]}, fronts={name: front}) as test:
            made = await test.daemon.service.sessions.create(ME, name, "")
            agent = test.daemon.registry.get(name)
            await watch(await agent.prompt(agent.sessions[made.id], "go"))
            one = ["intent read", "invocation read"]
            both = ["intent read", "intent read", "invocation read", "invocation read"]
            assert of_calls(test, made.id) == (both if at_once else [*one, *one])


async def test_the_same_failing_call_many_times_in_one_answer_ends_the_turn(paths: Paths) -> None:
    prepare(paths)
    wanted = [("probe_read", {"url": "x", "fail": True}, f"n{number}") for number in range(5)]
    async with team(paths, {"test": [calls(*wanted), say("ok")]}, fronts={"test": PARALLEL}) as test:
        events = await test.prompt(await test.begin())
        assert len(answers(events)) == 3
        assert events[-1]["code"] == "call_loop"


async def test_no_more_children_work_at_once_than_may_and_no_more_are_made(
    paths: Paths,
) -> None:
    busy: list[int] = []

    def slow(_: dict[str, Any]) -> Answer:
        busy.append(sum(agent.turns_running for agent in test.daemon.registry.agents.values()) - 1)
        return say("x", pause_s=0.02)

    names = [f"a{number}" for number in range(7)]
    scripts: dict[str, Any] = {"test": [asks(*names), say("ok")], **dict.fromkeys(names, slow)}
    toml = "[limits]\nchildren = 6\nchildren_at_once = 2\n"
    async with team(paths, scripts, fronts={"test": PARALLEL}, toml=toml) as test:
        found = answers(await test.prompt(await test.begin()))
        assert [code for code, _ in found] == [*["ok"] * 6, "limit_exceeded"]
        assert (len(busy), max(busy)) == (6, 2)


async def test_a_budget_is_not_overrun_by_calls_at_once(paths: Paths) -> None:
    prepare(paths)
    answer = calls(*[("probe_read", {"url": one}, one) for one in "abcd"])
    scripts: dict[str, Any] = {"test": [answer, say("ok")]}
    async with team(paths, scripts, fronts={"test": PARALLEL}, toml="[budgets.turn]\ncalls = 2\n") as test:
        session = await test.begin()
        events = await test.prompt(session)
        assert answers(events) == [("ok", "a"), ("ok", "b")]
        assert events[-1]["code"] == "budget_exceeded"
        assert of_calls(test, session.id) == [*["intent read"] * 2, *["invocation read"] * 2]
        check_conversation(test.conversation(session))


async def test_a_cancel_ends_all_that_runs_at_once(paths: Paths) -> None:
    prepare(paths)
    write(paths.config / "tools" / "meet.py", MEET)
    wanted = [("agent_ask", {"agent": one, "text": "x"}, one) for one in ("dba", "web")]
    answer = calls(*wanted, ("meet_wait", {"path": "/nowhere"}, "m"), ("probe_read", {"url": "x"}, "r"))
    scripts: dict[str, Any] = {"test": [answer, say("ok")], "dba": [HANG], "web": [HANG]}
    async with team(paths, scripts, fronts={"test": PARALLEL}) as test:
        session = await test.begin()
        turn = await test.agent.prompt(session, "go")
        await until(lambda: len(turn.joined) == 2 and turn.at_work == 1)
        turn.cancel()
        await turn.over.wait()
        assert [test.ends(one.id) for name in ("dba", "web") for one in test.records(name)] == [
            ["cancelled"]
        ] * 2
        found = of_calls(test, session.id)
        assert (found.count("invocation ask"), found.count("invocation wait")) == (2, 1)
        assert found.count("invocation read") == 1
        ended = [event.data or {} for event in test.stored() if event.type == "invocation"]
        assert sorted(one["result"] for one in ended) == ["cancelled", "cancelled", "cancelled", "ok"]
        check_conversation(test.conversation(session))


async def test_the_clock_runs_while_a_call_works_beside_children_who_ask(paths: Paths) -> None:
    there = paths.config / "tools" / "there"
    write(paths.config / "tools" / "meet.py", MEET)
    answer = calls(
        ("agent_ask", {"agent": "dba", "text": "x"}, "a"), ("meet_wait", {"path": str(there)}, "m")
    )
    scripts: dict[str, Any] = {
        "test": [answer, say("ok")],
        "dba": [call("human_ask", {"question": "Which?"}), say("done")],
    }
    async with team(paths, scripts, fronts={"test": PARALLEL}) as test:
        session = await test.begin()
        turn = await test.agent.prompt(session, "go")
        inputs = test.daemon.registry.shared.asked.inputs
        await until(lambda: bool(inputs.questions.waiting) and turn.at_work == 1)
        waits = [turn.is_waiting]
        there.touch()
        await until(lambda: turn.at_work == 0)
        assert [*waits, turn.is_waiting] == [False, True]
        await inputs.answer(inputs.questions.open_ones()[0].id, "this", uid=ME.uid)
        await watch(turn)
        assert turn.answer == "ok"


async def test_calls_that_reach_run_alone(paths: Paths) -> None:
    prepare(paths)
    urls = ("http://a.example/", "http://b.example/")
    answer = calls(*[("probe_reach", {"url": url}, url[7]) for url in urls])
    async with team(paths, {"test": [answer, say("ok")]}, fronts={"test": PARALLEL}) as test:
        session = await test.begin()
        assert [code for code, _ in answers(await test.prompt(session))] == ["ok", "ok"]
        assert of_calls(test, session.id) == ["intent reach", "invocation reach"] * 2


async def test_a_tool_that_asks_a_person_is_refused_beside_others_and_asks_alone(paths: Paths) -> None:
    prepare(paths)
    write(paths.config / "tools" / "asker.py", ASKER)
    look = ("asker_look", {"out": "/nowhere"}, "l")
    scripts: dict[str, Any] = {"test": [calls(look, ("probe_read", {"url": "x"}, "r")), say("ok")]}
    scripts["dba"] = [calls(look), say("ok")]
    async with team(paths, scripts, fronts={"test": PARALLEL, "dba": PARALLEL}) as test:
        found = answers(await test.prompt(await test.begin()))
        assert [code for code, _ in found] == ["refused", "ok"]
        made = await test.daemon.service.sessions.create(ME, "dba", "")
        dba = test.daemon.registry.get("dba")
        turn = await dba.prompt(dba.sessions[made.id], "go")
        inputs = test.daemon.registry.shared.asked.inputs
        await until(lambda: turn.is_waiting)
        await inputs.answer(inputs.questions.open_ones()[0].id, "sda", uid=ME.uid)
        assert answers(await watch(turn))[0][0] == "ok"


async def test_a_call_that_had_begun_is_not_run_again_where_its_turn_goes_on_after_a_kill(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(paths.config / "tools" / "meet.py", MEET)
    answer = calls(
        ("agent_ask", {"agent": "dba", "text": "x"}, "a"), ("meet_wait", {"path": "/nowhere"}, "m")
    )
    scripts: dict[str, Any] = {
        "test": [answer, say("ok")],
        "dba": [call("human_ask", {"question": "Which?"}), say("done")],
    }
    async with ScriptedModel(by_agent(scripts)) as model:
        define_team(paths, model, scripts, {"test": PARALLEL})
        tests: list[Team] = []

        def waits() -> bool:
            """Whether all turns wait in what was copied, and the call beside has begun."""
            turns = [
                one["state"] for test in tests for one in test.daemon.history.queries.state("turns").values()
            ]
            begun = [event for test in tests for event in test.stored() if event.type == "intent"]
            return turns == ["waiting", "waiting"] and len(begun) == 3

        with copied(paths, monkeypatch, waits) as taken:
            async with Daemon(paths) as daemon:
                test = Team(daemon=daemon, model=model)
                tests.append(test)
                session = await test.begin()
                turn = await test.agent.prompt(session, "go")
                await until(lambda: any(taken))
                number = taken.index(True)
                turn.cancel()
                await turn.over.wait()
        with killed_after(paths, number) as left:
            async with Daemon(left) as daemon:
                test = Team(daemon=daemon, model=model)
                inputs = daemon.registry.shared.asked.inputs
                await until(lambda: bool(inputs.questions.waiting) and test.agent.turns_running == 1)
                await inputs.answer(inputs.questions.open_ones()[0].id, "this", uid=ME.uid)
                await until(lambda: test.ends(session.id) == ["done"])
                assert of_calls(test, session.id).count("intent wait") == 1
                told = [one.content for one in test.conversation(session) if one.role == "tool"]
                assert told[0] == "done"
                assert "Error (outcome_unknown)" in told[1]


async def test_the_turn_of_a_child_is_shown_below_the_call_that_asked_it(paths: Paths) -> None:
    scripts: dict[str, Any] = {
        "test": [
            calls(*[("agent_ask", {"agent": one, "text": "x"}, one) for one in ("dba", "web")]),
            say("ok"),
        ],
        "dba": [ask("web"), say("7")],
        "web": [say("x")],
    }
    async with team(paths, scripts, fronts={"test": "parallel: true"}) as test:
        events = await test.prompt(await test.begin())
        env = environment(LIGHTAGENT_SOCKET=str(paths.socket))
        trace = str(events[-1]["trace_id"])
        shown = await asyncio.to_thread(finish, ["trace", "show", trace, "--json"], b"", env)
        step = next(one for one in json.loads(shown.out)["children"] if one["kind"] == "step")
        asked = [one for one in step["children"] if one["kind"] == "call"]
        turns = [[below for below in one["children"] if below["kind"] == "turn"] for one in asked]
        assert [[one["agent"] for one in each] for each in turns] == [["dba"], ["web"]]
        (deeper,) = [one for one in turns[0][0]["children"][1]["children"] if one["kind"] == "call"]
        assert [one["agent"] for one in deeper["children"] if one["kind"] == "turn"] == ["web"]
        text = (await asyncio.to_thread(finish, ["trace", "show", trace], b"", env)).out
        assert [line.count("turn trace_") for line in text.splitlines()].count(1) == 3
