"""The operations of the daemon, called as a control plane calls them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

import pytest

from lightagentd import errors
from lightagentd.control.authz import Caller
from lightagentd.daemon.daemon import Daemon
from lightagentd.events.queries import Filter
from lightagentd.host.paths import Paths
from lightagentd.policy.operation import Operation
from tests.conftest import write
from tests.scripted_model import ScriptedModel, Stream, chunk, say
from tests.talker import talker

ME = Caller(uid=os.geteuid(), gid=os.getegid(), pid=os.getpid())
BLANK = {"description": "", "role": "default", "model": "", "base_url": "", "api_key_file": "", "prompt": ""}


@pytest.fixture
async def model() -> AsyncIterator[ScriptedModel]:
    async with ScriptedModel([say("the answer")]) as running:
        yield running


@pytest.fixture
async def daemon(paths: Paths, model: ScriptedModel) -> AsyncIterator[Daemon]:
    """A daemon with the agents ops and talker, and a broken one."""
    talker(paths, model)
    write(paths.config / "agent" / "crooked" / "AGENT.md", "---\nmodle: runbook\n---\n")
    async with Daemon(paths) as running:
        yield running


async def ask(daemon: Daemon, text: str = "hello", **more: Any) -> Any:
    given: dict[str, Any] = {"agent": "talker", "session": "", "new": False, "timeout_s": 30.0, **more}
    return await daemon.service.conversations.ask(ME, text=text, **given)


async def until_idle(daemon: Daemon) -> None:
    """Wait until no turn runs or waits."""
    async with asyncio.timeout(60):
        while daemon.history.queries.state("turns"):
            await asyncio.sleep(0.01)


# Agents


async def test_an_agent_is_made_used_and_deleted(daemon: Daemon, model: ScriptedModel) -> None:
    service = daemon.service
    given = BLANK | {"description": "new", "model": "openai/x", "base_url": model.base_url, "prompt": "Be."}
    made = await service.agents.create(ME, name="fresh", **given)
    assert (made.state, made.description, made.model) == ("running", "new", "openai/x")
    assert (await ask(daemon, agent="fresh")).text == "the answer"
    await service.agents.delete(ME, "fresh")
    with pytest.raises(errors.AgentNotFound):
        await service.agents.get(ME, "fresh")
    assert await service.history.query(ME, Filter(agent="fresh", topic="agent.prompt"), 10)


async def test_of_many_that_make_the_same_agent_at_once_one_succeeds(daemon: Daemon) -> None:
    results = await asyncio.gather(
        *(daemon.service.agents.create(ME, name="twin", **BLANK | {"prompt": str(n)}) for n in range(8)),
        return_exceptions=True,
    )
    assert sum(isinstance(result, errors.AgentExists) for result in results) == 7
    assert [agent.name for agent in await daemon.service.agents.listed(ME)].count("twin") == 1


async def test_many_starts_and_stops_at_once_leave_a_working_agent(daemon: Daemon) -> None:
    service = daemon.service
    await asyncio.gather(
        *(service.agents.stop(ME, "talker") for _ in range(4)),
        *(service.agents.start(ME, "talker") for _ in range(4)),
        *(service.agents.restart(ME, "talker") for _ in range(4)),
        *(service.manager.reload(ME) for _ in range(2)),
    )
    assert (await service.agents.start(ME, "talker")).state == "running"
    assert (await ask(daemon)).text == "the answer"


async def test_a_wrong_definition_is_refused_and_leaves_nothing(daemon: Daemon) -> None:
    for wrong, field in (
        ({"name": "Bad Name"}, "name"),
        ({"name": "../up"}, "name"),
        ({"name": "x" * 32}, "name"),
        ({"role": "No Role"}, "role"),
        ({"model": "nonsense"}, "model"),
        ({"base_url": "ftp://x"}, "base_url"),
        ({"prompt": "a\0b"}, "prompt"),
        ({"api_key_file": "/a\0b"}, "api_key_file"),
        ({"description": "a\0b"}, "description"),
    ):
        with pytest.raises(errors.InvalidArgument) as caught:
            await daemon.service.agents.create(ME, **{"name": "fresh", **BLANK, **wrong})
        assert caught.value.field == field
    with pytest.raises(errors.ConfigError):
        await daemon.service.agents.create(ME, name="fresh", **BLANK | {"model": "nobody/x"})
    assert not list(daemon.paths.own_agents.iterdir())
    assert "fresh" not in {agent.name for agent in await daemon.service.agents.listed(ME)}


class Managers:
    """Everybody may manage agents, and nobody may administer."""

    async def allows(self, caller: Caller, operation: Operation, *, agent: str, ask: bool) -> bool:
        return operation in (Operation.INSPECT, Operation.MANAGE_AGENTS)


async def test_only_an_administrator_names_the_key_file_of_an_agent(
    daemon: Daemon, model: ScriptedModel, tmp_path: Path
) -> None:
    """Else who may only make agents has the daemon send him any file that it can read."""
    write(tmp_path / "key", "of-somebody-else")
    daemon.authority._deciders = (Managers(),)
    manager = Caller(uid=65534, gid=65534, pid=os.getpid())
    given = BLANK | {"model": "openai/x", "base_url": model.base_url}
    with pytest.raises(errors.PermissionDenied):
        await daemon.service.agents.create(
            manager, name="thief", **given | {"api_key_file": str(tmp_path / "key")}
        )
    assert (await daemon.service.agents.create(manager, name="fresh", **given)).state == "running"
    assert not model.requests


async def test_a_broken_agent_is_listed_with_its_problem_and_cannot_be_prompted(daemon: Daemon) -> None:
    agent = await daemon.service.agents.get(ME, "crooked")
    assert agent.state == "broken"
    assert "modle" in agent.problem
    assert any("crooked" in problem for problem in (await daemon.service.manager.status(ME)).problems)
    with pytest.raises(errors.AgentBroken, match="modle"):
        await ask(daemon, agent="crooked")


async def test_a_stopped_agent_says_how_to_start_it(daemon: Daemon) -> None:
    assert (await daemon.service.agents.stop(ME, "talker")).state == "stopped"
    with pytest.raises(errors.AgentNotRunning) as caught:
        await ask(daemon)
    assert caught.value.suggestion == "Start it with: lactl agents start talker"
    assert await daemon.service.sessions.listed(ME, "talker") == [], "a refused prompt leaves no session"
    assert (await daemon.service.agents.start(ME, "talker")).state == "running"
    assert (await ask(daemon)).text == "the answer"


# Sessions


async def test_without_a_session_the_latest_one_goes_on(daemon: Daemon) -> None:
    first = await ask(daemon)
    assert (await ask(daemon)).session == first.session
    second = await ask(daemon, new=True)
    assert second.session != first.session
    assert (await ask(daemon)).session == second.session
    assert (await ask(daemon, agent="", session=first.session)).session == first.session
    listed = await daemon.service.sessions.listed(ME, "talker")
    assert [(one.id, one.turns) for one in listed] == [(first.session, 3), (second.session, 2)]


async def test_a_session_is_looked_for_with_its_agent(daemon: Daemon) -> None:
    first = await ask(daemon)
    with pytest.raises(errors.SessionNotFound):
        await ask(daemon, agent="ops", session=first.session)
    with pytest.raises(errors.InvalidArgument) as caught:
        await ask(daemon, agent="")
    assert caught.value.field == "agent"


async def test_a_session_that_was_created_has_its_title_and_no_turns(daemon: Daemon) -> None:
    made = await daemon.service.sessions.create(ME, "talker", "t" * 300)
    assert (made.title, made.turns, made.state) == ("t" * 200, 0, "idle")
    assert await daemon.service.sessions.get(ME, made.id) == made
    assert await daemon.service.sessions.messages(ME, made.id, 100) == []
    assert await daemon.service.conversations.cancel(ME, made.id) == 0


async def test_messages_gives_the_newest_oldest_first(daemon: Daemon) -> None:
    for text in ("one", "two"):
        session = (await ask(daemon, text)).session
    shown = await daemon.service.sessions.messages(ME, session, 3)
    assert [message.content for message in shown] == ["the answer", "two", "the answer"]


# Limits


async def test_a_number_out_of_range_is_refused_before_anything_is_stored(daemon: Daemon) -> None:
    service = daemon.service
    session = (await service.sessions.create(ME, "talker", "")).id
    before = daemon.history.head_seq
    refused: list[tuple[Coroutine[Any, Any, Any], str]] = []
    for limit in (0, -1, 1001, 1 << 62):
        refused += [
            (service.sessions.messages(ME, session, limit), "limit"),
            (service.history.query(ME, Filter(), limit), "limit"),
        ]
    refused += [(ask(daemon, timeout_s=time), "timeout_s") for time in (0.0, -1.0, float("nan"), 1e9)]
    for call, field in refused:
        with pytest.raises(errors.InvalidArgument) as caught:
            await call
        assert caught.value.field == field
    with pytest.raises(errors.InvalidArgument):
        await anext(service.events.subscribe(ME, Filter(), -1, follow=False))
    assert daemon.history.head_seq == before


async def test_a_long_correlation_id_is_refused_and_a_short_one_is_on_the_events(daemon: Daemon) -> None:
    async def prompt(correlation_id: str) -> list[Any]:
        events = daemon.service.conversations.prompt(
            ME, agent="talker", text="hello", session="", new=False, correlation_id=correlation_id
        )
        return [event async for event in events]

    with pytest.raises(errors.InvalidArgument):
        await prompt("c" * 257)
    last = (await prompt("ticket-7"))[-1]
    events = await daemon.service.history.query(ME, Filter(trace=last["trace_id"]), 100)
    assert {event.correlation_id for event in events} == {"ticket-7"}


# Callers that leave


async def test_an_answer_that_is_late_leaves_the_turn_running(daemon: Daemon, model: ScriptedModel) -> None:
    model.script = [say("slow ", "answer", pause_s=0.1)]
    with pytest.raises(errors.TimedOut, match="the turn goes on"):
        await ask(daemon, timeout_s=0.05)
    await until_idle(daemon)
    session = (await daemon.service.sessions.listed(ME, "talker"))[0]
    shown = await daemon.service.sessions.messages(ME, session.id, 10)
    assert [message.content for message in shown] == ["hello", "slow answer"]


async def test_a_caller_who_leaves_while_his_prompt_is_stored_leaves_no_half_a_turn(daemon: Daemon) -> None:
    for steps in range(12):
        task = asyncio.create_task(ask(daemon, new=True))
        for _ in range(steps):
            await asyncio.sleep(0.0003)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await until_idle(daemon)
    events = await daemon.service.history.query(ME, Filter(), 1000)
    prompts = {event.trace_id for event in events if event.topic == "agent.prompt"}
    ends = {event.trace_id for event in events if (event.topic, event.type) == ("session.turn", "done")}
    assert prompts == ends
    stored = {event.session for event in events if event.topic == "session.created"}
    assert stored == {session.id for session in await daemon.service.sessions.listed(ME, "")}


async def test_cancel_ends_the_running_turn_and_the_queue(daemon: Daemon, model: ScriptedModel) -> None:
    model.script = [Stream(pieces=[chunk({"content": "begun"})], hang=True)]
    first = asyncio.create_task(ask(daemon, "one"))
    async with asyncio.timeout(60):
        while not model.requests:
            await asyncio.sleep(0.01)
    session = (await daemon.service.sessions.listed(ME, "talker"))[0]
    second = asyncio.create_task(ask(daemon, "two", session=session.id))
    async with asyncio.timeout(60):
        while (await daemon.service.sessions.get(ME, session.id)).queued != 1:
            await asyncio.sleep(0.01)
    assert (await daemon.service.sessions.get(ME, session.id)).state == "running"
    assert await daemon.service.conversations.cancel(ME, session.id) == 2
    for task in (first, second):
        with pytest.raises(errors.Cancelled):
            await task


# Stopping


async def test_a_draining_daemon_takes_no_new_work_and_still_answers(daemon: Daemon) -> None:
    service = daemon.service
    session = await service.sessions.create(ME, "talker", "")
    await daemon.drain()
    for refused in (
        ask(daemon),
        service.sessions.create(ME, "talker", ""),
        service.agents.create(ME, name="fresh", **BLANK),
        service.agents.start(ME, "talker"),
        service.agents.restart(ME, "talker"),
        anext(service.tools.call(ME, agent="ops", tool="proc", action="list", args={})),
    ):
        with pytest.raises(errors.ShuttingDown):
            await refused
    assert (await service.manager.status(ME)).state == "draining"
    assert (await service.agents.get(ME, "talker")).state == "running"
    assert (await service.sessions.get(ME, session.id)).id == session.id


async def test_what_is_not_there_is_not_found(daemon: Daemon) -> None:
    service = daemon.service
    for call, error in (
        (service.agents.get(ME, "nobody"), errors.AgentNotFound),
        (service.agents.stop(ME, "nobody"), errors.AgentNotFound),
        (service.agents.delete(ME, "nobody"), errors.AgentNotFound),
        (service.sessions.get(ME, "ses_nothing"), errors.SessionNotFound),
        (service.tools.get(ME, "nothing"), errors.ToolNotFound),
        (service.skills.get(ME, "nothing"), errors.SkillNotFound),
    ):
        with pytest.raises(error) as caught:
            await call
        assert caught.value.suggestion
    with pytest.raises(errors.SkillNotFound) as near:
        await service.skills.get(ME, "disk-chek")
    assert near.value.suggestion.startswith("Did you mean disk-check?")
    with pytest.raises(errors.Conflict, match="is defined in"):
        await service.agents.delete(ME, "talker")


async def test_following_the_events_ends_with_the_feed(daemon: Daemon) -> None:
    seen: list[int] = []

    async def follow() -> None:
        stream = daemon.service.events.subscribe(ME, Filter(), 1, follow=True)
        seen.extend([item["event"].seq async for item in stream if item["event"] is not None])

    following = asyncio.create_task(follow())
    await ask(daemon)
    daemon.feed.close()
    await following
    assert seen == list(range(1, len(seen) + 1))
    assert len(seen) > 5
