"""Cancels, faults and deletions at odd moments: nothing goes on unseen, and nothing that is done is lost."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from lightagentd.agents.flows.asked import ending_of
from lightagentd.agents.flows.run import Run
from lightagentd.agents.flows.step import FAILED
from lightagentd.daemon.daemon import Daemon
from lightagentd.host.paths import Paths
from tests.agents.asking import FRONT, lines, prepare
from tests.agents.flows.rig import (
    ALLOW,
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
    stored,
)
from tests.agents.scripted import ME, until
from tests.agents.team.rig import ask, team
from tests.conftest import write
from tests.scripted_model import Answer, Fault, call, say

SLOW = [say("slow", pause_s=30)]


def _busy(daemon: Daemon) -> bool:
    """Whether a turn goes on anywhere."""
    agents = daemon.registry.agents.values()
    return any(one.running or one.queue for agent in agents for one in agent.sessions.values())


async def test_a_run_is_cancelled_while_it_offers_to_undo(paths: Paths, tmp_path: Path) -> None:
    allow(paths)
    out = tmp_path / "out"
    undo = {"call": "probe.add", "args": {"path": str(out), "line": "undone"}}
    flow(paths, "flow", {"name": "first", "undo": undo} | add(out), {"name": "second"} | add(tmp_path))
    async with running(paths) as daemon:
        run = await daemon.flows.run("flow", {}, ME.uid)
        await question(daemon, run, "first/undo")
        assert (await daemon.flows.cancel(run.record.id)).state == "cancelled"
        assert daemon.flows.stored.record(run.record.id).state == "cancelled"
        assert stored(daemon, run)["first/undo"].state == "cancelled"
        assert not daemon.registry.shared.asked.approvals.questions.open_ones()


async def test_a_run_that_waits_for_the_disk_is_cancelled(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow(paths, "flow", {"name": "say"} | echo("x"))
    async with running(paths) as daemon:
        monkeypatch.setattr("lightagentd.agents.flows.run.AGAIN_S", 30)
        left = disk_full(monkeypatch, "say")
        run = await daemon.flows.run("flow", {}, ME.uid)
        await until(lambda: not left[0])
        assert (await daemon.flows.cancel(run.record.id)).state == "cancelled"


async def test_a_step_waits_for_the_disk_while_another_waits_for_a_person(
    paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lightagentd.agents.flows.run.AGAIN_S", 0.01)
    allow(paths)
    out = tmp_path / "out"
    flow(paths, "flow", {"name": "ask", "ask": "Go on?"}, {"name": "add", "depends_on": []} | add(out))
    async with running(paths) as daemon:
        disk_full(monkeypatch, "add")
        run = await daemon.flows.run("flow", {}, ME.uid)
        await until(lambda: "add" in run.steps and run.steps["add"].state == "success")
        assert lines(out) == ["ran"]
        await answer(daemon, run, "ask")
        await over(run)


async def test_a_run_that_takes_too_long_ends_what_it_asked(paths: Paths) -> None:
    flow(paths, "flow", {"name": "think", "prompt": "x"}, timeout_s=0.3)
    async with running(paths, SLOW) as daemon:
        run = await ended(daemon)
        assert (run.record.state, run.record.code) == ("failed", "timeout")
        assert not _busy(daemon)


async def test_a_cancel_while_a_prompt_is_stored_leaves_no_turn_behind(paths: Paths) -> None:
    flow(paths, "flow", {"name": "think", "prompt": "x"})
    async with running(paths, SLOW) as daemon:
        for pauses in range(1, 9):
            run = await daemon.flows.run("flow", {}, ME.uid)
            for _ in range(pauses):
                await asyncio.sleep(0.0003)
            await daemon.flows.cancel(run.record.id)
            assert not _busy(daemon), pauses


async def test_what_is_stored_of_a_run_goes_on_when_its_caller_goes_away(paths: Paths) -> None:
    flow(paths, "flow", {"name": "ask", "ask": "Go on?"})
    async with running(paths) as daemon:
        task = asyncio.create_task(daemon.flows.run("flow", {}, ME.uid))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert {one.id for one in daemon.flows.stored.records()} == {*daemon.flows.runs}


async def test_a_cancel_while_a_nested_run_is_stored_ends_both(paths: Paths) -> None:
    flow(paths, "below", {"name": "ask", "ask": "Go on?"})
    flow(paths, "flow", {"name": "nested", "flow": "below"})
    async with running(paths) as daemon:
        for pauses in range(1, 5):
            run = await daemon.flows.run("flow", {}, ME.uid)
            for _ in range(pauses):
                await asyncio.sleep(0)
            await daemon.flows.cancel(run.record.id)
            assert not [one for one in daemon.flows.stored.records() if one.state == "running"], pauses


async def test_deleting_a_run_ends_those_that_are_its_steps(paths: Paths) -> None:
    flow(paths, "below", {"name": "ask", "ask": "Go on?"})
    flow(paths, "flow", {"name": "nested", "flow": "below"})
    async with running(paths) as daemon:
        run = await daemon.flows.run("flow", {}, ME.uid)
        await until(lambda: len(daemon.flows.runs) == 2)
        nested = next(one for one in daemon.flows.runs.values() if one is not run)
        await question(daemon, nested, "ask")
        await daemon.service.sessions.delete(ME, run.session.id, confirmed=True)
        assert not daemon.flows.runs
        assert nested.record.state == "cancelled"
        assert not daemon.registry.shared.asked.inputs.questions.open_ones()
        again = await daemon.flows.resume(nested.record.id)  # although the one above is gone
        await answer(daemon, again, "ask")
        assert (await over(again)).record.state == "success"


async def test_a_run_goes_on_when_the_agent_that_waits_in_it_failed(paths: Paths, tmp_path: Path) -> None:
    out = tmp_path / "out"
    flow(paths, "flow", {"name": "think", "prompt": "x"})
    async with running(paths, [call("probe_add", {"path": str(out)}), say("done")]) as daemon:
        run = await daemon.flows.run("flow", {}, ME.uid)
        agent, asked = daemon.registry.get("ops"), daemon.registry.shared.asked.approvals
        await until(lambda: any(one.waiting for one in agent.sessions.values()))
        agent.supervision.fail(RuntimeError("a fault"))
        await until(lambda: agent.restarts == 1)
        await until(lambda: any(one.waiting for one in agent.sessions.values()))
        (one,) = asked.questions.open_ones()
        await asked.answer(one.id, grant=True, uid=0)
        await over(run)
        assert (run.record.state, run.steps["think"].output) == ("success", "done")
        assert lines(out) == ["ran"]


async def test_a_fault_of_the_engine_ends_the_run_and_it_can_be_resumed(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow(paths, "flow", {"name": "say"} | echo("x"))
    async with running(paths) as daemon:
        with monkeypatch.context() as patch:
            patch.setattr(Run, "_over", lambda *_: 1 / 0)
            run = await ended(daemon)
        assert (run.record.state, run.record.code) == ("failed", "internal")
        assert daemon.flows.stored.record(run.record.id) == run.record
        assert (await over(await daemon.flows.resume(run.record.id))).record.state == "success"


async def test_nested_runs_of_items_go_on_where_they_failed(paths: Paths, tmp_path: Path) -> None:
    allow(paths)
    out, target = tmp_path / "out", tmp_path / "dir"
    target.mkdir()
    flow(paths, "below", {"name": "one"} | add(out), {"name": "two"} | add(target))
    flow(paths, "flow", {"name": "nested", "flow": "below", "for_each": ["a"]})
    async with running(paths) as daemon:
        run = await ended(daemon)
        assert run.record.state == "failed"
        target.rmdir()
        run = await over(await daemon.flows.resume(run.record.id))
        assert (run.record.state, lines(out), lines(target)) == ("success", ["ran"], ["ran"])


async def test_a_nested_run_that_is_tried_again_goes_on_where_it_failed(
    paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lightagentd.agents.flows.step.FIRST_PAUSE_S", 0.01)
    allow(paths)
    out = tmp_path / "out"
    flow(paths, "below", {"name": "one"} | add(out), {"name": "two"} | add(tmp_path))
    flow(paths, "flow", {"name": "nested", "flow": "below", "max_retry": 1})
    async with running(paths) as daemon:
        run = await ended(daemon)
        assert (run.record.state, run.steps["nested"].tries, lines(out)) == ("failed", 2, ["ran"])


async def test_what_was_cut_off_and_may_have_changed_something_asks_when_it_is_resumed(
    paths: Paths, tmp_path: Path
) -> None:
    rule = ALLOW.replace('"probe"', '"bash"')
    write(paths.config / "policy.d" / "bash.toml", rule)
    out = tmp_path / "out"
    args = {"command": f"echo ran >> {out}; sleep 30", "effect": "change"}
    flow(paths, "flow", {"name": "add", "call": "bash.exec", "args": args})
    flow(paths, "short", {"name": "add", "call": "bash.exec", "args": args, "timeout_s": 1})
    async with running(paths) as daemon:
        cut = await daemon.flows.run("flow", {}, ME.uid)
        await until(lambda: lines(out))
        await daemon.flows.cancel(cut.record.id)
        late = await ended(daemon, "short")
        assert lines(out) == ["ran", "ran"]
        for run, code in ((cut, "cancelled"), (late, "timeout")):
            assert run.steps["add"].code == code
            again = await daemon.flows.resume(run.record.id)
            await answer(daemon, again, "add", FAILED)
            await over(again)
            assert again.record.state == "failed"
        assert lines(out) == ["ran", "ran"]
        again = await daemon.flows.resume(cut.record.id)  # a person said that it failed
        await until(lambda: len(lines(out)) == 3)
        await daemon.flows.cancel(again.record.id)


async def test_what_an_agent_changed_that_a_prompt_asked_is_known(paths: Paths, tmp_path: Path) -> None:
    prepare(paths)
    allow(paths)
    out = tmp_path / "out"
    flow(paths, "flow", {"name": "think", "prompt": "x", "max_retry": 3})
    scripts: dict[str, list[Answer]] = {
        "ops": [ask("other"), Fault(status=400)],
        "other": [call("probe_add", {"path": str(out)}), say("done")],
    }
    fronts = {"ops": f"{FRONT}\nagents: [other]", "other": FRONT}
    async with team(paths, scripts, fronts=fronts, toml=CHANGE) as test:
        run = await ended(test.daemon)
        assert (run.steps["think"].state, run.steps["think"].tries) == ("failed", 1)
        assert lines(out) == ["ran"]
        known, changed = ending_of(test.daemon.history, run.steps["think"]).known
        assert changed
        assert "probe.add" in known


async def test_no_attempt_begins_while_the_daemon_drains(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lightagentd.agents.flows.step.FIRST_PAUSE_S", 0.5)
    flow(
        paths,
        "flow",
        {"name": "read", "call": "probe.read", "args": {"url": "x", "fail": True}, "max_retry": 1},
    )
    async with running(paths) as daemon:
        run = await daemon.flows.run("flow", {}, ME.uid)
        await until(lambda: "read" in run.steps and run.steps["read"].tries)
        await daemon.drain()
        assert (run.record.state, run.steps["read"].state, run.steps["read"].attempt) == (
            "running",
            "pending",
            1,
        )


async def test_who_lets_a_flow_begin_sees_what_it_is_given(paths: Paths) -> None:
    flow(paths, "below", {"name": "say", "ask": "Go?"}, inputs={"host": {"type": "string"}})
    given = {"host": "{first.output}"}
    flow(
        paths,
        "flow",
        {"name": "first"} | echo("web1"),
        {"name": "runs", "flow": "below", "inputs": given, "requires_approval": True},
    )
    async with running(paths) as daemon:
        run = await daemon.flows.run("flow", {}, ME.uid)
        asked = await question(daemon, run, "runs")
        said = daemon.registry.shared.asked.inputs.questions.get(asked).question
        assert said == 'May the step runs begin? It runs: the flow below with host = "web1"'
