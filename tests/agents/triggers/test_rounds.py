"""Triggers whose own effects fire them again."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from lightagentd.host.paths import Paths
from tests.agents.asking import FRONT, add, prepare
from tests.agents.scripted import ME, until
from tests.agents.team.rig import results
from tests.agents.triggers.rig import (
    CHANGE,
    at_rest,
    changing,
    counts,
    happened,
    running,
    told,
    trigger,
)
from tests.scripted_model import Answer, Stream, call, say


async def test_a_trigger_that_its_own_events_fire_is_stopped_after_three_rounds(paths: Paths) -> None:
    trigger(
        paths,
        on="event",
        topic="agent.tool_dispatch",
        type="intent",
        prompt="again {tool}",
        rate_limit=100,
    )

    def script(body: dict[str, Any]) -> Stream:
        return say("ok") if results(body) else call("proc_info", {"pid": 1})

    async with running(paths, {"ops": script}) as (daemon, _):
        agent = daemon.registry.get("ops")
        made = await daemon.service.sessions.create(ME, "ops", "")
        turn = await agent.prompt(agent.sessions[made.id], "go")
        await turn.over.wait()
        await until(lambda: daemon.triggers.standing("disk").stopped)
        await at_rest(daemon.triggers)
        rounds = [(one.data or {})["round"] for one in told(daemon, "fired")]
        assert rounds == [1, 2, 3]
        (event,) = told(daemon, "stopped")
        assert "its own effects fired it 3 times in a row" in (event.data or {})["message"]
        assert any("is stopped" in one for one in daemon.problems())
        assert (await daemon.triggers.fire("disk", [happened()]))["refused"] == 1
        await daemon.triggers.set_paused("disk", paused=False)
        assert daemon.triggers.standing("disk").stopped == ""


@pytest.mark.parametrize(("acts", "rounds"), [(True, [1, 2, 3]), (False, [1] * 5)])
async def test_what_happens_while_its_agent_changes_things_counts_as_its_effect(
    paths: Paths, tmp_path: Path, acts: bool, rounds: list[int]
) -> None:
    prepare(paths)
    trigger(paths, effects=["observe", "change"], rate_limit=100)
    first = call("probe_add", add(tmp_path / "out")) if acts else call("proc_info", {"pid": 1})
    script: list[Answer] = [first, say("done")]
    async with running(paths, {"ops": script}, fronts={"ops": FRONT}, toml=CHANGE) as (daemon, _):
        for _ in range(5):
            await daemon.triggers.fire("disk", [happened()])
            await at_rest(daemon.triggers)
        assert [(one.data or {})["round"] for one in told(daemon, "fired")] == rounds
        assert bool(daemon.triggers.standing("disk").stopped) == acts
        assert sum(counts(daemon.triggers).values()) == 5


async def test_two_triggers_that_fire_each_other_are_stopped(paths: Paths, tmp_path: Path) -> None:
    prepare(paths)
    both = ("one", "two")
    for name in both:
        trigger(paths, name, effects=["observe", "change"], rate_limit=100)
    async with running(paths, {"ops": changing(tmp_path / "o")}, fronts={"ops": FRONT}, toml=CHANGE) as (
        daemon,
        _,
    ):
        for number in range(6):
            await daemon.triggers.fire(both[number % 2], [happened()])
            await at_rest(daemon.triggers)
        assert [(one.data or {})["round"] for one in told(daemon, "fired")] == [1, 2, 3]
        assert daemon.triggers.standing("two").stopped


async def test_an_entry_of_somebody_else_that_names_a_session_is_not_its_effect(paths: Paths) -> None:
    trigger(paths, rate_limit=100)
    async with running(paths, {"ops": [say("ok")]}) as (daemon, _):
        for uid in (None, str(os.geteuid()), "4000001"):
            await daemon.triggers.fire("disk", [happened()])
            await at_rest(daemon.triggers)
            last = told(daemon, "fired")[-1]
            named = happened(LIGHTAGENT_SESSION=last.session)
            if uid is not None:
                named.data["_UID"] = uid
            await daemon.triggers.fire("disk", [named])
            await at_rest(daemon.triggers)
        rounds = [(one.data or {})["round"] for one in told(daemon, "fired")]
        assert rounds == [1, 2, 1, 2, 1, 1]


async def test_a_trigger_may_follow_another_one_and_never_itself(paths: Paths) -> None:
    trigger(paths)
    trigger(paths, "chained", on="event", topic="trigger.fired", prompt="why did {trigger} fire")
    async with running(paths, {"ops": [say("ok")]}) as (daemon, model):
        await daemon.triggers.fire("disk", [happened()])
        await until(lambda: daemon.triggers.standing("chained").answered)
        await at_rest(daemon.triggers)
        asked = [str(one.body["messages"][-1]["content"]) for one in model.requests]
        assert [one.partition("\n")[0] for one in asked] == ["look at it", "why did disk fire"]
        await daemon.triggers.fire("disk", [happened()])
        await until(lambda: daemon.triggers.standing("chained").answered == 2)
        assert counts(daemon.triggers, "chained") == {"fired": 2}


async def test_a_test_by_hand_that_is_over_is_the_cause_of_nothing(
    paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lightagentd.agents.triggers.rounds.AFTER_US", 0)
    prepare(paths)
    trigger(paths, effects=["observe", "change"])
    script = {"ops": changing(tmp_path / "out")}
    async with running(paths, script, fronts={"ops": FRONT}, toml=CHANGE) as (daemon, _):
        turn = await daemon.triggers.run("disk", {"what": "x"}, granted=True)
        await turn.over.wait()
        await asyncio.sleep(0.05)
        await daemon.triggers.fire("disk", [happened()])
        await at_rest(daemon.triggers)
        assert [(one.data or {})["round"] for one in told(daemon, "fired")] == [1, 1]
