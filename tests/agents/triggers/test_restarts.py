"""Kills and restarts, and answers until they are delivered."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from lightagentd.config.triggers import TriggerFile
from lightagentd.daemon.daemon import Daemon
from lightagentd.errors import NotFound, StorageError
from lightagentd.events.history import NewEvent
from lightagentd.host.paths import Paths
from tests.agents.asking import FRONT, lines, prepare
from tests.agents.commits import copied, killed_after
from tests.agents.scripted import ME, until
from tests.agents.team.rig import by_agent, define_team
from tests.agents.triggers.rig import (
    CHANGE,
    at_rest,
    changing,
    counts,
    happened,
    running,
    taken,
    told,
    trigger,
)
from tests.scripted_model import ScriptedModel, say


async def test_a_kill_anywhere_asks_once_and_loses_nothing(
    paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(paths)
    trigger(paths, effects=["observe", "change"], session="new", rate_limit=100)
    out = tmp_path / "out"
    async with ScriptedModel(by_agent({"ops": changing(out)})) as model:
        define_team(paths, model, {"ops": None}, {"ops": FRONT}, CHANGE)
        async with Daemon(paths) as daemon:
            with copied(paths, monkeypatch, lambda: lines(out)) as states:
                await daemon.triggers.fire("disk", [happened("it")], "1")
                await at_rest(daemon.triggers)
        assert lines(out) == ["ran"]
        for number, before in enumerate(states):
            out.write_text("".join(f"{line}\n" for line in before))
            with killed_after(paths, number) as left:
                async with Daemon(left) as again:
                    if not again.triggers.standing("disk").position:
                        await again.triggers.fire("disk", [happened("it")], "1")
                    await at_rest(again.triggers)
                    assert counts(again.triggers) == {"fired": 1}, number
                    (answer,) = await taken(again.triggers)
                    (event,) = told(again, "fired")
                    assert (event.data or {})["firing"] == answer.id, number
                    assert len(lines(out)) <= 1, number


async def test_an_answer_is_given_until_it_is_said_to_be_delivered(paths: Paths) -> None:
    trigger(paths)
    async with running(paths, {"ops": [say("ok")]}) as (daemon, _):
        await daemon.triggers.fire("disk", [happened()])
        await at_rest(daemon.triggers)
        (first,) = await taken(daemon.triggers)
    async with running(paths, {"ops": [say("ok")]}) as (daemon, _):
        (again,) = await taken(daemon.triggers)
        assert again == first
        await daemon.triggers.outbox.delivered(first.id, "the disk is full")
        assert await taken(daemon.triggers) == []
        (event,) = told(daemon, "undelivered")
        assert "the disk is full" in (event.data or {})["message"]
        with pytest.raises(NotFound):
            await daemon.triggers.outbox.delivered(first.id)
    async with running(paths, {"ops": [say("ok")]}) as (daemon, _):
        assert await taken(daemon.triggers) == []


async def test_a_second_follower_ends_the_first(paths: Paths) -> None:
    async with running(paths, {"ops": [say("ok")]}) as (daemon, _):
        first, second = daemon.triggers.outbox.follow(), daemon.triggers.outbox.follow()
        assert await anext(first) is None
        waiting = asyncio.create_task(anext(first, "over"))
        assert await anext(second) is None
        await until(waiting.done)
        assert waiting.result() in (None, "over")
        if waiting.result() is None:
            assert await anext(first, "over") == "over"
        assert daemon.triggers.outbox.followed
        await second.aclose()
        assert not daemon.triggers.outbox.followed


async def test_more_answers_than_fit_are_told_to_be_undelivered(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lightagentd.agents.triggers.outbox.MOST", 1)
    trigger(paths)
    async with running(paths, {"ops": [say("ok")]}) as (daemon, _):
        for _ in range(2):
            await daemon.triggers.fire("disk", [happened()])
            await at_rest(daemon.triggers)
        await until(lambda: told(daemon, "undelivered"))
        assert len(await taken(daemon.triggers)) == 1


async def test_a_question_that_waited_in_a_session_has_its_effects_after_a_restart(
    paths: Paths, tmp_path: Path
) -> None:
    prepare(paths)
    out = tmp_path / "out"
    scripts: dict[str, Any] = {"ops": [say("slow", pause_s=30)]}
    async with running(paths, scripts, fronts={"ops": FRONT}, toml=CHANGE) as (daemon, model):
        made = await daemon.service.sessions.create(ME, "ops", "")
        for name in ("disk", "other"):
            trigger(paths, name, session=made.id, effects=["observe", "change"])
        await daemon.reload()
        await daemon.triggers.fire("disk", [happened()])
        await until(lambda: model.requests)
        await daemon.triggers.fire("other", [happened()])
        session = daemon.registry.get("ops").sessions[made.id]
        await until(lambda: session.queue)
    async with running(paths, {"ops": changing(out)}, fronts={"ops": FRONT}, toml=CHANGE) as (daemon, _):
        await at_rest(daemon.triggers)
        answers = {one.trigger: one.text for one in await taken(daemon.triggers)}
        assert answers["other"] == "done"
        assert lines(out) == ["ran"]


async def test_an_end_that_cannot_be_stored_is_stored_later(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lightagentd.agents.triggers.triggers.AGAIN_S", 0.05)
    trigger(paths)
    async with running(paths, {"ops": [say("ok")]}) as (daemon, _):
        append = daemon.history.append
        failed: list[Any] = []

        async def failing(*events: NewEvent, **more: Any) -> Any:
            if not failed and any(event.topic == "trigger.answered" for event in events):
                failed.append(events)
                raise StorageError("The disk is full.")
            return await append(*events, **more)

        monkeypatch.setattr(daemon.history, "append", failing)
        await daemon.triggers.fire("disk", [happened()])
        await at_rest(daemon.triggers)
        assert failed
        assert daemon.triggers.standing("disk").answered == 1
        assert [one.text for one in await taken(daemon.triggers)] == ["ok"]


async def test_a_position_of_something_else_is_none(paths: Paths) -> None:
    trigger(paths, on="timer", calendar="daily", prompt="x")
    async with running(paths, {"ops": [say("ok")]}) as (daemon, _):
        await daemon.triggers.fire("disk", [], "0123456789ab 1795784467000000")
    trigger(paths, on="event", topic="session.turn", type="done", prompt="x {type}")
    async with running(paths, {"ops": [say("ok")]}) as (daemon, _):
        file = daemon.triggers.files.get("disk")
        assert isinstance(file, TriggerFile)
        await until(lambda: file.unmarked(daemon.triggers.standing("disk").position))
        made = await daemon.service.sessions.create(ME, "ops", "")
        agent = daemon.registry.get("ops")
        turn = await agent.prompt(agent.sessions[made.id], "go")
        await turn.over.wait()
        await until(lambda: daemon.triggers.standing("disk").counts["fired"])
