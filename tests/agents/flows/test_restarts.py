"""Kills and restarts: no output is lost, no step that changed something runs twice without a person."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from lightagentd.agents.flows.run import Run
from lightagentd.agents.flows.step import AGAIN, DONE, FAILED
from lightagentd.daemon.daemon import Daemon
from lightagentd.errors import Conflict
from lightagentd.events.filter import Filter
from lightagentd.events.queries import Queries
from lightagentd.events.store.layout import Environment
from lightagentd.host.paths import Paths
from lightagentd.policy.questions.question import State
from tests.agents.asking import FRONT, lines, prepare
from tests.agents.commits import copied, killed_after
from tests.agents.flows.rig import (
    CHANGE,
    add,
    allow,
    answer,
    disk_full,
    echo,
    ended,
    flow,
    over,
    question,
    running,
    states,
    stored,
)
from tests.agents.scripted import ME, until
from tests.agents.team.rig import by_agent, define_team
from tests.scripted_model import ScriptedModel, call, say


async def _goes_on(daemon: Daemon, told: str) -> Run | None:
    """Let a run go on to its end, and answer what it asks; None when there is none."""
    if not daemon.flows.runs:
        return None
    (run,) = daemon.flows.runs.values()
    asked = daemon.registry.shared.asked

    def open_ones() -> list[str]:
        return [one.id for one in asked.inputs.questions.open_ones() if one.state is State.WAITING]

    while not run.ended.is_set():
        await until(lambda: run.ended.is_set() or open_ones())
        for found in open_ones():
            await asked.inputs.answer(found, told, uid=0)
    return run


async def test_a_kill_anywhere_loses_no_output_and_changes_nothing_twice(
    paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(paths)
    allow(paths)
    out = tmp_path / "out"
    flow(
        paths,
        "flow",
        {"name": "look"} | echo("seen"),
        {"name": "change"} | add(out, "call {look.output}"),
        {"name": "each", "for_each": ["x", "y"]} | add(out, "{item}"),
        {"name": "agent", "prompt": "change it"},
        {"name": "last"} | echo("{look.output} {agent.output}"),
    )
    script = {"ops": [call("probe_add", {"path": str(out), "line": "prompt"}), say("done")]}
    async with ScriptedModel(by_agent(script)) as model:
        define_team(paths, model, script, {"ops": FRONT}, CHANGE)
        async with Daemon(paths) as daemon:
            with copied(paths, monkeypatch, lambda: lines(out)) as copies:
                run = await ended(daemon)
        assert lines(out) == ["call seen", "x", "y", "prompt"]
        assert run.steps["last"].output == "seen done"
        whole = lines(out)
        for number in range(len(copies)):
            # What the call did that this commit is the intent of is done, and its end is not stored.
            done = whole[: _intended(paths, number)]
            out.write_text("".join(f"{line}\n" for line in done))
            with killed_after(paths, number) as left:
                async with Daemon(left) as again:
                    records = again.flows.stored.records()
                    known = {name: one for of in records for name, one in stored(again, of).items()}
                    found = await _goes_on(again, DONE)
                    if found is None:
                        continue
                    assert found.record.state == "success", (number, found.record.message)
                    for name, one in known.items():
                        assert not one.is_over or found.steps[name] == one, (number, name)
                assert lines(out) == whole, number


def _intended(paths: Paths, number: int) -> int:
    """How many lines the copy of a commit has the intent to add."""
    environment = Environment(paths.state.parent / "copies" / f"{number:03}", read_only=True)
    try:
        intents = Queries(environment).select(Filter(topic="agent.tool_dispatch", type="intent"), limit=100)
        return sum((one.data or {}).get("action") == "add" for one in intents)
    finally:
        environment.close()


@pytest.mark.parametrize("told", [AGAIN, DONE, FAILED])
async def test_what_may_have_changed_something_waits_for_a_person(
    paths: Paths, tmp_path: Path, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(paths)
    allow(paths)
    out = tmp_path / "out"
    flow(paths, "flow", {"name": "change"} | add(out), {"name": "last"} | echo("x"))
    async with running(paths) as daemon:
        with copied(paths, monkeypatch, lambda: lines(out)) as copies:
            await ended(daemon)
    number = next(n for n in range(len(copies)) if _intended(paths, n))
    out.unlink(missing_ok=True)
    with killed_after(paths, number) as left:
        async with running(left) as daemon:
            (run,) = daemon.flows.runs.values()
            found = await question(daemon, run, "change")
            asked = daemon.registry.shared.asked.inputs.questions.get(found)
            assert "probe.add" in asked.question
            assert "was stopped in the middle" in asked.question
        async with running(left) as daemon:  # it waits still
            (run,) = daemon.flows.runs.values()
            assert await question(daemon, run, "change") == found
            await answer(daemon, run, "change", told)
            await over(run)
            assert lines(out) == (["ran"] if told == AGAIN else [])
            assert run.record.state == ("failed" if told == FAILED else "success")


async def test_approvals_and_questions_wait_across_restarts(paths: Paths, tmp_path: Path) -> None:
    allow(paths)
    out = tmp_path / "out"
    flow(
        paths,
        "flow",
        {"name": "ask", "ask": "Which?"},
        {"name": "add", "requires_approval": True} | add(out, "{ask.output}"),
        {"name": "think", "requires_approval": True, "prompt": "Think"},
    )
    async with running(paths) as daemon:
        run = await daemon.flows.run("flow", {}, ME.uid)
        await question(daemon, run, "ask")
    async with running(paths) as daemon:
        (run,) = daemon.flows.runs.values()
        await answer(daemon, run, "ask", "this one")
        await question(daemon, run, "add")
        assert lines(out) == []
    async with running(paths) as daemon:
        (run,) = daemon.flows.runs.values()
        await answer(daemon, run, "add")
        await question(daemon, run, "think")
        assert lines(out) == ["this one"]
    async with running(paths, [say("thought")]) as daemon:
        (run,) = daemon.flows.runs.values()
        await answer(daemon, run, "think")
        await over(run)
        assert (run.record.state, run.steps["think"].output) == ("success", "thought")
        assert not daemon.registry.shared.asked.inputs.questions.open_ones()


async def test_what_a_person_denies_fails_and_can_be_asked_again(paths: Paths, tmp_path: Path) -> None:
    allow(paths)
    out = tmp_path / "out"
    flow(paths, "flow", {"name": "add", "requires_approval": True, "max_retry": 3} | add(out))
    flow(paths, "think", {"name": "add", "requires_approval": True, "prompt": "x", "max_retry": 3})
    async with running(paths) as daemon:
        for name in ("flow", "think"):
            run = await daemon.flows.run(name, {}, ME.uid)
            await answer(daemon, run, "add", "no")
            await over(run)
            assert (run.record.state, run.steps["add"].code) == ("failed", "approval_denied")
            run = await daemon.flows.resume(run.record.id)
            await answer(daemon, run, "add")
            assert (await over(run)).record.state == "success"
        assert lines(out) == ["ran"]


async def test_a_question_that_nobody_answers_in_time_fails_and_can_be_asked_again(paths: Paths) -> None:
    flow(paths, "flow", {"name": "ask", "ask": "Which?", "timeout_s": 0.05})
    async with running(paths) as daemon:
        run = await ended(daemon)
        assert (run.record.state, run.steps["ask"].code) == ("failed", "timeout")
        run = await over(await daemon.flows.resume(run.record.id))
        assert run.steps["ask"].attempt == 2


async def test_of_two_resumes_at_once_one_is_refused(paths: Paths, tmp_path: Path) -> None:
    allow(paths)
    target = tmp_path / "dir"
    target.mkdir()
    flow(paths, "flow", {"name": "add"} | add(target), {"name": "ask", "ask": "Go on?"})
    async with running(paths) as daemon:
        run = await ended(daemon)
        assert run.record.state == "failed"
        target.rmdir()
        resumes = [daemon.flows.resume(run.record.id) for _ in range(2)]
        first, second = await asyncio.gather(*resumes, return_exceptions=True)
        assert isinstance(first, Run)
        assert isinstance(second, Conflict)
        await answer(daemon, first, "ask")
        await over(first)
        assert lines(target) == ["ran"]


async def test_a_full_disk_between_two_steps_is_waited_for(
    paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lightagentd.agents.flows.run.AGAIN_S", 0.01)
    allow(paths)
    out = tmp_path / "out"
    steps = [{"name": f"s{number}"} | add(out, f"{number}") for number in range(3)]
    flow(paths, "flow", *steps)
    async with running(paths) as daemon:
        disk_full(monkeypatch, "s1", times=2)
        run = await ended(daemon)
        assert run.record.state == "success", run.record.message
        assert lines(out) == ["0", "1", "2"]


async def test_a_run_whose_agent_is_gone_fails_and_goes_on_when_it_is_back(
    paths: Paths, tmp_path: Path
) -> None:
    allow(paths)
    out = tmp_path / "out"
    flow(paths, "flow", {"name": "ask", "ask": "Go on?"}, {"name": "add", "agent": "other"} | add(out))
    async with running(paths, other=[say("ok")]) as daemon:
        run = await daemon.flows.run("flow", {}, ME.uid)
        await question(daemon, run, "ask")
    (paths.config / "agent" / "other" / "AGENT.md").unlink()
    async with running(paths) as daemon:
        (run,) = daemon.flows.runs.values()
        await answer(daemon, run, "ask")
        await over(run)
        assert (run.record.state, run.steps["add"].code) == ("failed", "agent_not_found")
    async with running(paths, other=[say("ok")]) as daemon:
        run = await over(await daemon.flows.resume(run.record.id))
        assert run.record.state == "success", run.record.message
        assert lines(out) == ["ran"]


async def test_a_run_goes_on_with_the_definition_that_it_began_with(paths: Paths) -> None:
    flow(paths, "flow", {"name": "ask", "ask": "Go on?"}, {"name": "say"} | echo("old"))
    async with running(paths) as daemon:
        run = await daemon.flows.run("flow", {}, ME.uid)
        await question(daemon, run, "ask")
        flow(paths, "flow", {"name": "ask", "ask": "Go on?"}, {"name": "say"} | echo("new"))
    async with running(paths) as daemon:
        (run,) = daemon.flows.runs.values()
        await answer(daemon, run, "ask")
        assert (await over(run)).steps["say"].output == "old"


async def test_cancelling_ends_what_runs_and_what_waits(paths: Paths, tmp_path: Path) -> None:
    flow(
        paths,
        "flow",
        {"name": "think", "prompt": "x"},
        {"name": "ask", "depends_on": [], "ask": "Go on?"},
        {"name": "behind", "depends_on": ["think", "ask"]} | echo("x"),
    )
    flow(paths, "above", {"name": "nested", "flow": "flow"})
    async with running(paths, [say("slow", pause_s=30)]) as daemon:
        run = await daemon.flows.run("above", {}, ME.uid)
        await until(lambda: len(daemon.flows.runs) == 2)
        nested = next(one for one in daemon.flows.runs.values() if one is not run)
        await question(daemon, nested, "ask")
        await until(lambda: nested.asked_turns)
        record = await daemon.flows.cancel(run.record.id)
        assert record.state == "cancelled"
        assert nested.record.state == "cancelled"
        assert states(nested) == {"think": "cancelled", "ask": "cancelled"}
        assert not daemon.registry.shared.asked.inputs.questions.open_ones()
        assert not any(session.running for session in daemon.registry.get("ops").sessions.values())
        with pytest.raises(Conflict):
            await daemon.flows.cancel(run.record.id)


async def test_deleting_its_session_ends_a_run_and_removes_what_is_stored(paths: Paths) -> None:
    flow(paths, "flow", {"name": "say"} | echo("x"), {"name": "ask", "ask": "Go on?"})
    async with running(paths) as daemon:
        run = await daemon.flows.run("flow", {}, ME.uid)
        await question(daemon, run, "ask")
        await daemon.service.sessions.delete(ME, run.session.id, confirmed=True)
        for state in ("flow_runs", "flow_steps", "inputs"):
            assert not daemon.history.queries.state(state), state
        assert not daemon.flows.runs


async def test_a_step_that_takes_too_long_fails(paths: Paths) -> None:
    flow(paths, "flow", {"name": "think", "prompt": "x", "timeout_s": 0.2})
    flow(paths, "whole", {"name": "think", "prompt": "x"}, timeout_s=0.2)
    async with running(paths, [say("slow", pause_s=30)]) as daemon:
        for name, state in (("flow", "failed"), ("whole", "cancelled")):
            run = await ended(daemon, name)
            assert (run.record.state, run.record.code) == ("failed", "timeout")
            assert run.steps["think"].state == state


async def test_an_emergency_stop_fails_the_run_and_it_can_be_resumed(paths: Paths) -> None:
    flow(paths, "flow", {"name": "think", "prompt": "x"}, {"name": "last"} | echo("x"))
    async with running(paths, [say("slow", pause_s=30)]) as daemon:
        run = await daemon.flows.run("flow", {}, ME.uid)
        await until(lambda: run.asked_turns)
        await daemon.service.safety.panic(ME, reason="test")
        await over(run)
        assert run.record.state == "failed"
    async with running(paths) as daemon:
        await daemon.service.safety.end_panic(ME)
        run = await over(await daemon.flows.resume(run.record.id))
        assert run.record.state == "success", run.record.message


async def test_an_agent_that_is_started_again_meanwhile_is_waited_for(paths: Paths) -> None:
    flow(paths, "flow", {"name": "ask", "ask": "Go on?"}, {"name": "say"} | echo("x"))
    async with running(paths) as daemon:
        run = await daemon.flows.run("flow", {}, ME.uid)
        await question(daemon, run, "ask")
        agent = daemon.registry.get("ops")
        await agent.stop()
        await answer(daemon, run, "ask")
        await until(lambda: run.steps["ask"].state == "success")
        await asyncio.sleep(0.05)
        await agent.start()
        await over(run)
        assert run.record.state == "success", run.record.message


async def test_a_prompt_without_a_session_goes_into_no_run(paths: Paths) -> None:
    flow(paths, "flow", {"name": "say"} | echo("x"))
    async with running(paths) as daemon:
        agent = daemon.registry.get("ops")
        made = await daemon.service.sessions.create(ME, "ops", "")
        run = await ended(daemon)
        current = agent.current_of(ME.uid)
        assert current is not None
        assert current.id == made.id != run.session.id
