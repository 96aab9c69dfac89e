"""Plans that outlive the daemon: killed at any moment, they are as they were acknowledged, and go on."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lightagentd.agents.planning.task import STOPPED
from lightagentd.client.aio import AsyncClient
from lightagentd.daemon.daemon import Daemon
from lightagentd.events.model import Event
from lightagentd.events.store.layout import Environment
from lightagentd.host.paths import Paths
from tests.agents.asking import FRONT, TOML, add, lines, prepare
from tests.agents.planning import THREE, TWO, Planning, planning
from tests.agents.scripted import Scripted, define, scripted, until
from tests.agents.test_approvals_restart import ask, open_question, process
from tests.scripted_model import Script, ScriptedModel, Stream, call, say

HANG = Stream(pieces=[], hang=True)


async def applied(paths: Paths, plan: dict[str, Any]) -> str:
    """Set a plan in a new session, and apply it; gives the session."""
    session = str((await ask(paths, "Sessions.Create", agent="test"))["id"])
    await ask(paths, "Plans.Set", session=session, plan=plan)
    assert (await ask(paths, "Plans.Apply", session=session))["phase"] == "applying"
    return session


async def rests(paths: Paths, session: str) -> dict[str, Any]:
    """The plan once nothing goes on in the session any more."""
    async with AsyncClient(paths.socket, timeout_s=60) as client:
        await client.call("Sessions.Wait", session=session)
    return dict(await ask(paths, "Plans.Get", session=session))


def states(plan: dict[str, Any]) -> list[str]:
    return [task["state"] for task in plan["tasks"]]


async def test_killed_in_the_middle_of_a_task_it_waits_for_a_choice(paths: Paths) -> None:
    script = [say("did 1"), HANG, say("did 2"), say("did 3")]
    async with ScriptedModel(script) as model, process(paths, model) as daemon:
        await asyncio.to_thread(daemon.start)
        session = await applied(paths, THREE)
        await until(lambda: len(model.requests) == 2)
        before = await ask(paths, "Plans.Get", session=session)
        assert states(before) == ["done", "running", "pending"]
        await asyncio.to_thread(daemon.kill)
        await asyncio.to_thread(daemon.start)
        plan = await rests(paths, session)
        assert (plan["phase"], plan["stopped_at"]) == ("applying", "2")
        assert states(plan) == ["done", "failed", "pending"]
        assert plan["tasks"][1]["note"] == STOPPED
        assert plan["tasks"][1]["trace_id"] == before["tasks"][1]["trace_id"]
        assert len(model.requests) == 2
        assert (await ask(paths, "Sessions.Get", session=session))["mode"] == "applying"
        await ask(paths, "Plans.Apply", session=session, choice="retry")
        plan = await rests(paths, session)
        assert (plan["phase"], states(plan)) == ("completed", ["done"] * 3)
        assert len(model.requests) == 4


async def test_stopped_in_order_in_the_middle_of_a_task_it_waits_for_a_choice(paths: Paths) -> None:
    toml = "[daemon]\ndrain_timeout_s = 0.5\n"
    async with ScriptedModel([HANG, say("a"), say("b")]) as model, process(paths, model, toml) as daemon:
        await asyncio.to_thread(daemon.start)
        session = await applied(paths, TWO)
        await until(lambda: len(model.requests) == 1)
        assert await asyncio.to_thread(daemon.stop) == 0
        await asyncio.to_thread(daemon.start)
        plan = await rests(paths, session)
        assert plan["stopped_at"] == "a"
        assert "stopped" in plan["tasks"][0]["note"]
        await ask(paths, "Plans.Apply", session=session, choice="retry")
        assert (await rests(paths, session))["phase"] == "completed"


async def test_a_task_that_waits_for_an_approval_goes_on_waiting(paths: Paths) -> None:
    out = prepare(paths)
    script = [call("probe_add", add(out)), say("did a"), say("did b")]
    async with ScriptedModel(script) as model, process(paths, model) as daemon:
        await asyncio.to_thread(daemon.start)
        session = await applied(paths, TWO)
        question = (await open_question(paths))["id"]
        await asyncio.to_thread(daemon.kill)
        await asyncio.to_thread(daemon.start)
        assert states(await ask(paths, "Plans.Get", session=session)) == ["running", "pending"]
        await ask(paths, "Approvals.Approve", approval=question)
        plan = await rests(paths, session)
        assert (plan["phase"], states(plan)) == ("completed", ["done", "done"])
        assert lines(out) == ["ran"]


@pytest.mark.parametrize("ended", [False, True], ids=["still wanted", "plan ended"])
async def test_a_queued_task_is_found_again_and_runs_only_if_its_plan_is_there(
    paths: Paths, ended: bool
) -> None:
    out = prepare(paths)
    script = [call("probe_add", add(out)), say("did a"), say("did b")]
    async with ScriptedModel(script) as model, process(paths, model) as daemon:
        await asyncio.to_thread(daemon.start)
        session = await applied(paths, TWO)
        question = (await open_question(paths))["id"]
        await ask(paths, "Sessions.Pause", session=session)
        await ask(paths, "Approvals.Approve", approval=question)
        async with asyncio.timeout(30):
            while states(await ask(paths, "Plans.Get", session=session)) != ["done", "running"]:
                await asyncio.sleep(0.02)
        if ended:
            await ask(paths, "Plans.End", session=session)
        await asyncio.to_thread(daemon.kill)
        await asyncio.to_thread(daemon.start)
        assert len(model.requests) == 2
        await ask(paths, "Sessions.Resume", session=session)
        plan = await rests(paths, session)
        assert plan["phase"] == ("off" if ended else "completed")
        assert len(model.requests) == (2 if ended else 3)
        assert (await ask(paths, "Sessions.Get", session=session))["queued"] == 0


@pytest.mark.parametrize("phase", ["drafting", "ready"])
async def test_plan_mode_holds_after_a_restart(paths: Paths, phase: str) -> None:
    out = prepare(paths)
    script = [call("probe_add", add(out)), say("I see")]
    async with ScriptedModel(script) as model, process(paths, model) as daemon:
        await asyncio.to_thread(daemon.start)
        session = (await ask(paths, "Sessions.Create", agent="test"))["id"]
        before = await ask(paths, "Plans.Begin", session=session)
        if phase == "ready":
            before = await ask(paths, "Plans.Set", session=session, plan=TWO)
        await asyncio.to_thread(daemon.kill)
        await asyncio.to_thread(daemon.start)
        assert await ask(paths, "Plans.Get", session=session) == before
        await ask(paths, "Manager.Ask", agent="test", session=session, text="go")
        events = await ask(paths, "History.Query", session=session, topic="agent.tool_dispatch")
        assert [event["data"]["result"] for event in events] == ["plan_mode_blocked"]
        assert lines(out) == []


class Snapshots:
    """Copies of the history, one after each commit: what a daemon that is killed there leaves."""

    def __init__(self, daemon: Daemon, folder: Path) -> None:
        self.folder = folder
        self.folder.mkdir()
        self.count = 0
        self._history = daemon.history
        self._told = daemon.history._on_commit
        daemon.history._on_commit = self._take

    def _take(self, events: list[Event]) -> None:
        target = self.folder / f"{self.count:03}"
        target.mkdir()
        self._history.environment.env.copy(str(target), compact=True)
        self.count += 1
        if self._told is not None:
            self._told(events)

    def stop(self) -> None:
        self._history._on_commit = self._told

    def __iter__(self) -> Iterator[Path]:
        return iter(sorted(self.folder.iterdir()))


@contextlib.asynccontextmanager
async def started_on(snapshot: Path, paths: Paths, script: Script) -> AsyncIterator[Scripted]:
    """A daemon that finds this history."""
    base = snapshot.parent.parent / f"again-{snapshot.name}"
    again = replace(paths, state=base / "state", runtime=base / "run")
    again.history.parent.mkdir(parents=True)
    snapshot.rename(again.history)
    async with ScriptedModel(script) as model:
        define(again, model)
        async with Daemon(again) as daemon:
            yield Scripted(daemon=daemon, model=model)


def stored(snapshot: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The plan and the unfinished turns of a snapshot, by the session and the trace."""
    environment = Environment(snapshot, read_only=True)
    try:
        return _state(environment, "plans"), _state(environment, "turns")
    finally:
        environment.close()


def _state(environment: Environment, name: str) -> dict[str, Any]:
    with environment.env.begin() as txn:
        return {key.decode(): json.loads(value) for key, value in txn.cursor(db=environment.db[name])}


@pytest.mark.usefixtures("sandboxed")
async def test_killed_after_any_commit_it_is_as_it_was_stored_and_goes_on(paths: Paths) -> None:
    wanted = {"title": "T", "tasks": [{"text": "do a", "check": "true"}, {"text": "do b"}]}
    async with scripted(paths, [say("done")]) as test:
        plan = await planning(test)
        snapshots = Snapshots(test.daemon, paths.state.parent / "snapshots")
        await plan.set(wanted)
        await plan.apply()
        assert (await plan.rests()).phase == "completed"
        snapshots.stop()
    seen, states = set(), set()
    for snapshot in snapshots:
        plans, turns = stored(snapshot)
        if (state := json.dumps([plans, turns])) in states:
            continue  # what was committed there is no state of the plan and its turns
        states.add(state)
        async with started_on(snapshot, paths, [say("done")]) as again:
            session = next(iter(again.agent.sessions.values()))
            plan = Planning(again, session)
            await until(lambda session=session: session.at_rest)  # type: ignore[misc]
            before = plans.get(session.id)
            assert before is not None
            seen.add(_check_went_on(before, turns, plan, again))
    assert seen == {"ready", "queued", "running", "between", "completed"}


def _check_went_on(before: dict[str, Any], turns: dict[str, Any], plan: Planning, again: Scripted) -> str:
    """Check what became of a plan that was found like that; says how it was found."""
    now = plan.session.plan
    assert now is not None
    for task, found in zip(now.tasks, before["tasks"], strict=True):
        assert found["state"] not in ("done", "failed") or task.state == found["state"]
    if before["phase"] != "applying":
        assert now.to_dict() == before
        assert again.model.requests == []
        return str(before["phase"])
    assert before["stopped_at"] == ""
    running = [task for task in before["tasks"] if task["state"] == "running"]
    if running and turns[running[0]["trace_id"]]["state"] == "running":
        assert (now.phase, now.stopped_at) == ("applying", running[0]["id"])
        assert now.task(running[0]["id"]).note == STOPPED
        assert again.model.requests == []
        return "running"
    assert now.phase == "completed"
    left = sum(task["state"] in ("running", "pending") for task in before["tasks"])
    assert len(again.model.requests) == left
    assert again.daemon.history.queries.state("turns") == {}
    return "queued" if running else "between"


async def test_an_agent_that_is_started_again_goes_on_with_its_plan(paths: Paths) -> None:
    async with scripted(paths, [HANG, say("b")], front=FRONT, toml=TOML) as test:
        plan = await planning(test)
        await plan.set(TWO)
        await plan.apply()
        await until(lambda: test.model.open_requests)
        await test.agent.stop()
        assert plan.states() == "failed pending"
        await test.agent.start()
        assert (await plan.get()).stopped_at == "a"
        await plan.apply("retry")
        assert (await plan.rests()).phase == "completed"
