"""Trees of turns that a stop or a kill cuts off: found again, ended once, and no call runs twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from lightagentd.agents.sessions.session import Session
from lightagentd.daemon.daemon import Daemon
from lightagentd.host.paths import Paths
from lightagentd.policy.questions.asked import is_input
from tests.agents.asking import FRONT, add, lines, prepare
from tests.agents.commits import copied, killed_after
from tests.agents.scripted import ME, check_conversation, until, watch
from tests.agents.team.rig import Team, ask, by_agent, define_team, results
from tests.conftest import write
from tests.scripted_model import Answer, ScriptedModel, call, calls, say

NAMES = ("test", "dba", "web", "low")
TOML = '[worker]\nchange_agents = ["test", "dba", "web", "low"]\n'


def tree(out: Path) -> dict[str, Any]:
    """Three levels: `test` asks `dba`, which adds a line, and asks `web`, which adds one too. `low` is asked
    beside them, and asks a person.
    """
    beside = ("agent_start", {"agent": "low", "text": "x"}, "s")
    return {
        "test": [
            calls(beside, ("agent_ask", {"agent": "dba", "text": "x"}, "a")),
            call("agent_wait", {}, call_id="w"),
            call("agent_wait", {}, call_id="w"),
            say("all done"),
        ],
        "dba": [
            call("probe_add", add(out, line="dba"), call_id="p"),
            ask("web"),
            say("dba done"),
        ],
        "web": [call("probe_add", add(out, line="web"), call_id="p"), say("web done")],
        "low": [call("human_ask", {"question": "Which?"}, call_id="h"), say("low done")],
    }


async def answer_all(test: Team) -> None:
    """Allow and answer what is asked until no turn is left."""
    asked = test.daemon.registry.shared.asked
    while True:
        await until(lambda: _waiting(test) or _is_over(test))
        if not (found := _waiting(test)):
            return
        if is_input(found[0]):
            await asked.inputs.answer(found[0], "this", uid=ME.uid)
        else:
            await asked.approvals.answer(found[0], grant=True, uid=ME.uid)
        await until(lambda: found[0] not in _waiting(test))


def _is_over(test: Team) -> bool:
    """Whether no turn is left, stored or running."""
    agents = test.daemon.registry.agents.values()
    running = any(agent.turns_running for agent in agents)
    return not running and test.daemon.history.queries.state("turns") == {}


def _waiting(test: Team) -> list[str]:
    """The questions for which turns wait now."""
    agents = test.daemon.registry.agents.values()
    turns = [session.running for agent in agents for session in agent.sessions.values()]
    return [turn.waits_for for turn in turns if turn is not None and turn.asks_person]


def check_ends(test: Team, out: Path) -> None:
    """Each turn that was asked ended once, each call that began ended once, and nothing was done twice."""
    events = test.stored()
    asked = [event.trace_id for event in events if event.topic == "agent.prompt"]
    ends = Counter(
        event.trace_id
        for event in events
        if (event.topic == "session.turn" and event.type == "done") or event.topic == "agent.error"
    )
    assert ends == Counter(asked)
    begun = Counter((event.data or {})["call_id"] for event in events if event.type == "intent")
    assert max(begun.values(), default=0) <= 1
    over = Counter((event.data or {})["call_id"] for event in events if event.type == "invocation")
    assert over == begun
    assert max(Counter(lines(out)).values(), default=0) <= 1
    for agent in test.daemon.registry.agents.values():
        assert agent.turns_running == 0
        assert not [one for one in agent.sessions.values() if one.record.parent]
    for record in test.daemon.history.queries.state("sessions").values():
        _, session = test.daemon.registry.session(record["id"])
        check_conversation(test.conversation(session))


async def test_questions_of_a_tree_are_found_after_a_stop(paths: Paths) -> None:
    out = prepare(paths)
    states: list[str] = []
    scripts = tree(out)
    *steps, last = scripts["test"]

    def says(body: dict[str, Any]) -> Answer:
        if (done := len(results(body))) < len(steps):
            return cast(Answer, steps[done])
        states.append(daemon.history.queries.state_of("turns", turn.trace_id)["state"])
        return cast(Answer, last)

    async with ScriptedModel(by_agent({**scripts, "test": says})) as model:
        define_team(paths, model, dict.fromkeys(NAMES), dict.fromkeys(NAMES, FRONT), TOML)
        async with Daemon(paths) as daemon:
            test = Team(daemon=daemon, model=model)
            session = await test.begin()
            turn = await test.agent.prompt(session, "go")
            asked = daemon.registry.shared.asked
            await until(lambda: asked.approvals.questions.waiting and asked.inputs.questions.waiting)
            await until(lambda: turn.is_waiting)
            (approval,) = asked.approvals.questions.open_ones()
            assert approval.reason.startswith("test → dba: ")
            stored = daemon.history.queries.state_of("turns", turn.trace_id)
            assert (stored["state"], stored["approval"]) == ("waiting", approval.id)
            (shown,) = await daemon.service.sessions.listed(ME)
            assert (shown.state, shown.waits_for) == ("waiting", approval.id)
        requests = len(model.requests)
        async with Daemon(paths) as daemon:
            test = Team(daemon=daemon, model=model)
            await until(lambda: test.agent.turns_running == 1)
            questions = daemon.registry.shared.asked.approvals.questions
            await until(lambda: daemon.registry.get("dba").turns_waiting == 1)
            assert [one.id for one in questions.open_ones()] == [approval.id]
            assert len(model.requests) == requests, "no model is asked again"
            await answer_all(test)
            assert lines(out) == ["dba", "web"]
            check_ends(test, out)
            said = test.conversation(test.agent.sessions[session.id])
            told = [message.content for message in said if message.role == "tool"]
            assert told[1] == "dba done"
            assert "low done" in told[2]
            assert said[-1].content == "all done"
            assert states == ["running"], "what waited is over, and stored so"


async def test_watchers_of_the_parent_hear_what_a_child_asks(paths: Paths) -> None:
    out = prepare(paths)
    async with ScriptedModel(by_agent(tree(out))) as model:
        define_team(paths, model, dict.fromkeys(NAMES), dict.fromkeys(NAMES, FRONT), TOML)
        async with Daemon(paths) as daemon:
            test = Team(daemon=daemon, model=model)
            turn = await test.agent.prompt(await test.begin(), "go")
            events = turn.stream.watch()
            await answer_all(test)
            told = [event["type"] async for event in events.events()]
            assert told.count("approval_requested") == told.count("approval_answered") == 2
            assert told.count("input_requested") == told.count("input_answered") == 1
            assert told[-1] == "done"


def at_once(out: Path) -> dict[str, Any]:
    """`test` asks two agents at once, and beside them it reads: one adds a line, the other asks a person."""
    asks = [("agent_ask", {"agent": one, "text": "x"}, one) for one in ("dba", "low", "web")]
    return {
        "test": [calls(("probe_read", {"url": "u"}, "r"), *asks), say("all done")],
        "dba": [call("probe_add", add(out, line="dba"), call_id="p"), say("dba done")],
        "low": [call("human_ask", {"question": "Which?"}, call_id="h"), say("low done")],
        "web": [say("web done")],
    }


@pytest.mark.parametrize(("script", "front"), [(tree, FRONT), (at_once, f"{FRONT}\nparallel: true")])
async def test_a_kill_after_any_commit_ends_each_turn_once_and_runs_no_call_twice(
    paths: Paths, monkeypatch: pytest.MonkeyPatch, script: Callable[[Path], dict[str, Any]], front: str
) -> None:
    out = prepare(paths)
    async with ScriptedModel(by_agent(script(out))) as model:
        define_team(paths, model, dict.fromkeys(NAMES), dict.fromkeys(NAMES, front), TOML)
        with copied(paths, monkeypatch, lambda: lines(out)) as taken:
            async with Daemon(paths) as daemon:
                test = Team(daemon=daemon, model=model)
                turn = await test.agent.prompt(await test.begin(), "go")
                await answer_all(test)
                await watch(turn)
                check_ends(test, out)
        for number, then in enumerate(taken):
            write(out, "".join(f"{line}\n" for line in then))
            with killed_after(paths, number) as left:
                async with Daemon(left) as daemon:
                    test = Team(daemon=daemon, model=model)
                    await answer_all(test)
                    check_ends(test, out)
                    sessions: list[Session] = [*test.agent.sessions.values()]
                    assert all(session.record.parent == "" for session in sessions)
        assert len(taken) >= 25
