"""A running agent: driven from Python, stopped, drained, failed and restarted; its neighbours unmoved."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from typing import Any

import pytest

from lightagentd.agents import supervision
from lightagentd.agents.sessions.session import Session, new_record
from lightagentd.agents.tool_choice.choice import Offer, Offers
from lightagentd.agents.turn import Step
from lightagentd.errors import AgentNotRunning, Cancelled, QueueFull, StepLimit
from lightagentd.host.paths import Paths
from tests.agents.scripted import ME, Scripted, check_conversation, scripted, types, until, watch
from tests.conftest import write
from tests.scripted_model import Fault, Stream, call, chunk, say

HANG = Stream(pieces=[chunk({"content": "hm"})], hang=True)


class Exploding(Offers):
    async def begin(self, *_: Any, **__: Any) -> Offer:
        raise RuntimeError("a bug in the daemon")


def sabotage(test: Scripted) -> None:
    """Have the agent's next turn fail in a way that nobody expects."""
    assert test.agent.parts is not None
    offers = Exploding(test.daemon.history, test.daemon.registry.shared.policy, lambda _: {}, lambda _: [])
    shared = dataclasses.replace(test.daemon.registry.shared, offers=offers)
    test.agent.parts = dataclasses.replace(test.agent.parts, shared=shared)


@pytest.fixture
def short_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "FIRST_PAUSE_S", 0.02)


async def test_a_session_is_driven_step_by_step_from_python(paths: Paths) -> None:
    async with scripted(paths, [call("proc_info", {"pid": 1}), say("done")]) as test:
        session = await test.session()
        steps: list[Step] = []
        async for step in session.run("go"):
            steps.append(step)
            await asyncio.sleep(0.05)
            assert len(test.model.requests) == len(steps), "the next step waits until this one is done with"
        assert [(step.number, step.final) for step in steps] == [(1, False), (2, True)]
        assert [outcome.result for outcome in steps[0].outcomes] == ["ok"]
        assert steps[1].text == "done"
        assert test.stored(topic="session.turn")[-1].type == "done"


async def test_leaving_the_loop_cancels_the_turn(paths: Paths) -> None:
    async with scripted(paths, [call("proc_info", {"pid": 1}), say("never"), say("back")]) as test:
        session = await test.session()
        async with contextlib.aclosing(session.run("go")) as steps:
            async for _ in steps:
                break
        assert session.running is None or session.running.over.is_set()
        assert test.stored(topic="agent.error")[-1].type == "cancelled"
        assert len(test.model.requests) == 1
        check_conversation(test.conversation(session))


async def test_what_a_driven_turn_ends_with_is_raised(paths: Paths) -> None:
    async with scripted(paths, [call("proc_info", {"pid": 1})], front="limits: {max_steps: 1}") as test:
        session = await test.session()
        with pytest.raises(StepLimit):
            async for _ in session.run("go"):
                pass
        steps = session.run("go")
        await anext(steps)
        test.agent.cancel(session)
        with pytest.raises(Cancelled):
            await anext(steps)


async def test_two_turns_driven_by_one_task_keep_their_events_apart(paths: Paths) -> None:
    async with scripted(paths, [call("proc_info", {"pid": 1})], front="limits: {max_steps: 3}") as test:
        one, two = await test.session(), await test.session()
        first, second = one.run("go"), two.run("go")
        for _ in range(2):
            await anext(first)
            await anext(second)
        await first.aclose()
        await second.aclose()
        for session in (one, two):
            traces = {event.trace_id for event in test.stored() if event.session == session.id} - {""}
            assert len(traces) == 1
            check_conversation(test.conversation(session))
        assert not [event for event in test.stored(topic="agent") if not event.session]


async def test_a_driven_turn_waits_for_the_one_before_it(paths: Paths) -> None:
    async with scripted(paths, [say("one", pause_s=0.02), say("two")]) as test:
        session = await test.session()
        turn = await test.agent.prompt(session, "first")
        assert [step.text async for step in session.run("second")] == ["two"]
        assert turn.over.is_set()


async def test_a_session_that_no_agent_has_adopted_does_not_run(paths: Paths) -> None:
    async with scripted(paths, [say("x")]) as test:
        stray = Session(new_record("test", ME.uid, ""), test.daemon.history)
        with pytest.raises(AgentNotRunning):
            stray.run("go")


async def test_a_full_queue_refuses_and_stores_nothing(paths: Paths) -> None:
    async with scripted(paths, [HANG], front="limits: {max_queue: 2}") as test:
        session = await test.session()
        await test.agent.prompt(session, "runs")
        await until(lambda: test.model.open_requests)
        waiting = [await test.agent.prompt(session, f"waits {number}") for number in range(2)]
        with pytest.raises(QueueFull):
            await test.agent.prompt(session, "too much")
        assert len(test.stored(topic="agent.prompt")) == 3
        test.agent.cancel(session)
        for turn in waiting:
            await watch(turn)


async def test_a_prompt_whose_caller_went_away_is_run_all_the_same(paths: Paths) -> None:
    async with scripted(paths, [say("x")]) as test:
        session = await test.session()
        task = asyncio.create_task(test.agent.prompt(session, "go"))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: test.stored(topic="session.turn"))
        await until(lambda: test.daemon.history.queries.state("turns") == {})
        assert [message.role for message in test.conversation(session)] == ["user", "assistant"]


async def test_a_stop_ends_the_running_turn_and_keeps_the_queue_for_the_next_start(paths: Paths) -> None:
    async with scripted(paths, [HANG, say("later")]) as test:
        session = await test.session()
        running = await test.agent.prompt(session, "first")
        waiting = await test.agent.prompt(session, "second")
        late = waiting.stream.watch().events()
        await until(lambda: test.model.open_requests)
        await test.agent.stop()
        assert (await watch(running))[-1]["code"] == "cancelled"
        assert "agent stopped" in (await watch(running))[-1]["message"]
        assert [event["type"] async for event in late] == ["queued", "error"]
        assert (await watch(waiting))[-1]["code"] == "agent_not_running"
        with pytest.raises(AgentNotRunning):
            await test.agent.prompt(session, "third")
        await test.agent.start()
        await until(lambda: test.daemon.history.queries.state("turns") == {})
        assert [message.content for message in test.conversation(session)][2:] == ["second", "later"]
        assert test.agent.sessions[session.id] is session


async def test_a_stop_right_after_a_prompt_loses_no_prompt_and_leaves_nobody_waiting(paths: Paths) -> None:
    async with scripted(paths, [say("x")]) as test:
        session = await test.session()
        for turns_of_the_loop in range(6):
            turn = await test.agent.prompt(session, f"p{turns_of_the_loop}")
            for _ in range(turns_of_the_loop):
                await asyncio.sleep(0)
            await test.agent.stop()
            assert (await watch(turn))[-1]["type"] in ("done", "error")
            await test.agent.start()
            await until(lambda: test.daemon.history.queries.state("turns") == {})
        prompts = {event.trace_id for event in test.stored(topic="agent.prompt")}
        ends = [event.trace_id for event in test.stored() if event.type in ("done", "cancelled")]
        assert sorted(ends) == sorted(prompts)


async def test_starts_and_stops_from_several_sides_do_not_mix(paths: Paths) -> None:
    async with scripted(paths, [say("x")]) as test:
        agent = test.agent
        await asyncio.gather(agent.stop(), agent.start(), agent.stop(), agent.stop(), agent.start())
        assert agent.state == "running"
        session = await test.session()
        assert (await test.prompt(session))[-1]["text"] == "x"


async def test_a_stop_whose_caller_went_away_is_carried_out(paths: Paths) -> None:
    async with scripted(paths, [HANG]) as test:
        session = await test.session()
        turn = await test.agent.prompt(session, "go")
        await until(lambda: test.model.open_requests)
        task = asyncio.create_task(test.agent.stop())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert test.agent.state == "stopped"
        assert turn.over.is_set()
        assert test.stored(topic="daemon.agent")[-1].type == "stopped"


async def test_a_drain_lets_the_turn_end_and_begins_no_other(paths: Paths) -> None:
    async with scripted(paths, [say("on", "e", pause_s=0.02), say("two")]) as test:
        session = await test.session()
        running = await test.agent.prompt(session, "first")
        waiting = await test.agent.prompt(session, "second")
        await until(lambda: test.model.open_requests)
        await test.agent.supervision.drain()
        assert (await watch(running))[-1]["text"] == "one"
        assert not waiting.begun
        await test.agent.stop()
        assert (await watch(waiting))[-1]["code"] == "agent_not_running"
        assert list(test.daemon.history.queries.state("turns")) == [waiting.trace_id]


@pytest.mark.usefixtures("short_pause")
async def test_a_failed_agent_comes_back_with_its_history_and_its_queue(paths: Paths) -> None:
    async with scripted(paths, [say("one"), say("three")]) as test:
        session = await test.session()
        await test.prompt(session, "first")
        sabotage(test)
        failing = await test.agent.prompt(session, "second")
        waiting = await test.agent.prompt(session, "third")
        ends = await asyncio.gather(watch(failing), watch(waiting))
        assert ends[0][-1]["code"] == "internal"
        assert "a bug" not in ends[0][-1]["message"]
        assert types(ends[1]) == ["queued", "started", "text_delta", "usage", "done"]
        assert test.agent.restarts == 1
        assert test.agent.state == "running"
        contents = [message.content for message in test.conversation(session)]
        assert contents == ["first", "one", "second", "", "third", "three"]
        told = [event for event in test.stored(topic="daemon.agent") if event.agent == "test"]
        assert [event.type for event in told] == ["started", "failed", "restarted"]
        assert told[1].data is not None
        assert "a bug in the daemon" in told[1].data["message"]


@pytest.mark.usefixtures("short_pause")
async def test_a_failure_ends_the_agents_other_turns_and_no_other_agent(paths: Paths) -> None:
    write(paths.config / "agent" / "other" / "AGENT.md", "---\nmodel: runbook\n---\nOther.\n")
    async with scripted(paths, [HANG, say("back")]) as test:
        hanging, failing = await test.session(), await test.session()
        other = test.daemon.registry.get("other")
        made = await test.daemon.service.sessions.create(ME, "other", "")
        beside = await other.prompt(other.sessions[made.id], "check disk")
        turn = await test.agent.prompt(hanging, "go")
        await until(lambda: test.model.open_requests)
        assert test.agent.parts is not None
        sabotage(test)
        await test.prompt(failing)
        assert (await watch(turn))[-1]["code"] == "cancelled"
        assert (await watch(beside))[-1]["type"] == "done"
        assert other.restarts == 0
        await until(lambda: test.agent.state == "running")
        assert (await test.prompt(hanging))[-1]["text"] == "back"


@pytest.mark.usefixtures("short_pause")
async def test_the_pause_doubles_while_the_agent_fails_and_begins_anew_when_a_turn_ended(
    paths: Paths,
) -> None:
    async with scripted(paths, [say("fine")]) as test:
        session = await test.session()
        for _ in range(3):
            sabotage(test)
            await test.prompt(session)
            await until(lambda: test.agent.state == "running")
        await test.prompt(session)
        sabotage(test)
        await test.prompt(session)
        await until(lambda: test.agent.restarts == 4)
        failed = [event for event in test.stored(topic="daemon.agent") if event.type == "failed"]
        pauses = [event.data["pause_s"] for event in failed if event.data]
        assert pauses == [0.02, 0.04, 0.08, 0.02]


async def test_an_agent_can_be_stopped_while_it_waits_to_be_restarted(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervision, "FIRST_PAUSE_S", 60.0)
    async with scripted(paths, [say("back")]) as test:
        session = await test.session()
        sabotage(test)
        await test.prompt(session)
        assert test.agent.state == "failed"
        with pytest.raises(AgentNotRunning, match="failed"):
            await test.agent.prompt(session, "go")
        await test.agent.stop()
        await test.agent.start()
        assert (await test.prompt(session))[-1]["text"] == "back"


async def test_a_turn_that_fails_in_a_known_way_does_not_fail_the_agent(paths: Paths) -> None:
    async with scripted(paths, [Fault(status=400), say("fine")]) as test:
        session = await test.session()
        assert (await test.prompt(session))[-1]["code"] == "model_rejected"
        assert (await test.prompt(session))[-1]["text"] == "fine"
        assert test.agent.restarts == 0


async def test_only_the_conversations_used_last_stay_in_memory(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lightagentd.agents.supervision._LOADED_SESSIONS", 2)
    async with scripted(paths, [say("fine")] * 5) as test:
        sessions = [await test.session() for _ in range(3)]
        for number in (0, 1, 0, 2):
            await test.prompt(sessions[number])
            await until(lambda: not test.agent.supervision.tasks)
        assert [session.loaded_chars > 0 for session in sessions] == [True, False, True]
        await test.prompt(sessions[1])
        assert [message["role"] for message in test.model.requests[-1].body["messages"]].count("user") == 2


async def test_a_long_conversation_is_in_memory_only_while_a_turn_runs(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lightagentd.agents.supervision._LOADED_CHARS", 1000)
    async with scripted(paths, [say("short"), say("x" * 2000), say("back")]) as test:
        session = await test.session()
        await test.prompt(session)
        await until(lambda: not test.agent.supervision.tasks)
        assert session.loaded_chars == len("go" + "short")
        await test.prompt(session)
        await until(lambda: not test.agent.supervision.tasks)
        assert session.loaded_chars == 0
        await test.prompt(session)
        assert [one["content"] for one in test.model.requests[-1].body["messages"][1:]] == [
            "go",
            "short",
            "go",
            "x" * 2000,
            "go",
        ]
