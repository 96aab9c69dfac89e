"""Watching sessions and waiting for them, over the control socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest

from lightagentd import errors
from lightagentd.agents import stream
from lightagentd.agents.planning.plan import Plan
from lightagentd.api.turn_events import PlanChanged
from lightagentd.client.aio import AsyncClient
from lightagentd.control import sight
from lightagentd.control.authz import Caller
from lightagentd.host.paths import Paths
from tests.agents.asking import asked, asking
from tests.agents.scripted import ME, Scripted, until
from tests.control.caring import Watching, ask, caring, get, make
from tests.control.test_authz import NOBODY, needs_root
from tests.other_user import OUTSIDERS_GID
from tests.scripted_model import say

OTHER = Caller(uid=NOBODY, gid=OUTSIDERS_GID, pid=1)


@pytest.fixture
async def test(paths: Paths) -> AsyncIterator[Scripted]:
    async with caring(paths) as running:
        yield running


@pytest.fixture
async def client(test: Scripted) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(test.daemon.paths.socket, timeout_s=60) as connected:
        yield connected


# Waiting


async def test_waiting_ends_when_nothing_runs_or_waits(test: Scripted, client: AsyncClient) -> None:
    made = await make(client)
    session = test.agent.sessions[made["id"]]
    assert (await client.call("Sessions.Wait", session=session.id))["session_info"]["state"] == "idle"
    turns = [await test.agent.prompt(session, text) for text in ("ask", "later")]
    approval = await asked(test)
    waiting = asyncio.create_task(test.daemon.service.conversations.wait(ME, session.id, 60.0))
    with pytest.raises(errors.TimedOut) as caught:
        await client.call("Sessions.Wait", session=session.id, timeout_s=0.01)
    assert caught.value.exit_status == 124
    assert not waiting.done()
    await test.daemon.service.approvals.approve(ME, approval.id, "")
    assert (await waiting).queued == 0
    assert all(turn.over.is_set() for turn in turns)
    for bad in (0.0, -1.0, 1e9):
        with pytest.raises(errors.InvalidArgument):
            await client.call("Sessions.Wait", session=session.id, timeout_s=bad)


async def test_a_plan_that_is_applied_keeps_a_session_from_rest_until_it_stops(
    test: Scripted, client: AsyncClient
) -> None:
    made = await make(client)
    session = test.agent.sessions[made["id"]]
    session.plan = Plan(session=session.id, phase="applying")
    waiting = asyncio.create_task(test.daemon.service.conversations.wait(ME, session.id, 60.0))
    await until(lambda: session.stream._bell is not None)
    session.stream.emit(PlanChanged(plan={}, task=""))
    await until(lambda: session.stream._bell is not None)
    assert not waiting.done()
    session.plan = replace(session.plan, stopped_at="2")
    session.stream.emit(PlanChanged(plan={}, task=""))
    assert (await waiting).mode == "applying"
    session.plan = replace(session.plan, stopped_at="", phase="completed")
    assert (await test.daemon.service.conversations.wait(ME, session.id, 60.0)).mode == "normal"


async def test_whoever_waits_hears_that_the_session_is_gone_and_a_client_that_left_waits_no_more(
    test: Scripted, client: AsyncClient
) -> None:
    made = await make(client)
    session = test.agent.sessions[made["id"]]
    await test.agent.prompt(session, "ask")
    await asked(test)
    async with AsyncClient(test.daemon.paths.socket) as leaving:
        task = asyncio.create_task(leaving.call("Sessions.Wait", session=session.id))
        await until(lambda: session.stream._bell is not None)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await until(lambda: not [one for one in asyncio.all_tasks() if "until_at_rest" in repr(one)])
    waiting = asyncio.create_task(test.daemon.service.conversations.wait(ME, session.id, None))
    await until(lambda: [one for one in asyncio.all_tasks() if "until_at_rest" in repr(one)])
    await client.call("Sessions.Delete", session=session.id, confirmed=True)
    with pytest.raises(errors.SessionNotFound):
        await waiting


# Watching


async def test_whoever_watches_sees_every_turn_and_every_change(test: Scripted, client: AsyncClient) -> None:
    made = await make(client)
    async with Watching(test, made["id"]) as watching:
        first = watching.events[0]
        assert first is not None
        assert first["session_info"] == await get(client, made["id"])
        await ask(client, "one", session=made["id"])
        prompt = await watching.has("prompt")
        assert (prompt["text"], bool(prompt["trace_id"])) == ("one", True)
        done = await watching.has("done")
        assert (done["text"], done["trace_id"]) == ("re: one", prompt["trace_id"])
        await ask(client, "two", session=made["id"])
        await watching.has("done", 2)
        await client.call("Sessions.Rename", session=made["id"], title="renamed")
        assert (await watching.has("session", 2))["session_info"]["title"] == "renamed"
        await client.call("Sessions.Pause", session=made["id"])
        assert (await watching.has("session", 3))["session_info"]["paused"]
        await make(client)
        assert not (await watching.has("session", 4))["session_info"]["current"]
        types = [one for one in watching.types() if one != "session"]
        assert types.index("prompt") < types.index("started") < types.index("done")


async def test_who_comes_while_a_turn_waits_hears_of_the_question_again(
    test: Scripted, client: AsyncClient
) -> None:
    made = await make(client)
    await test.agent.prompt(test.agent.sessions[made["id"]], "ask")
    approval = await asked(test)
    async with Watching(test, made["id"]) as watching:
        assert (await watching.has("approval_requested"))["approval"] == approval.id
        assert watching.events[0] is not None
        assert watching.events[0]["session_info"]["waits_for"] == approval.id
        await test.daemon.service.approvals.approve(ME, approval.id, "")
        await watching.has("done")
        assert watching.types().count("approval_requested") == 1


async def test_a_watcher_that_reads_nothing_is_let_go(
    test: Scripted, client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "_MAX_BEHIND_CHARS", 20_000)
    made = await make(client)
    async with aclosing(test.daemon.service.conversations.watch(ME, made["id"])) as events:
        assert (await anext(events))["type"] == "session"
        for _ in range(3):
            await ask(client, "x" * 10_000, session=made["id"])
        with pytest.raises(errors.LimitExceeded, match="waited to be read"):
            await anext(events)
    assert test.agent.sessions[made["id"]].stream.watchers == []


async def test_watchers_hear_the_end_when_the_daemon_stops(paths: Paths) -> None:
    async with asking(paths, [say("x")]) as test:
        session = await test.session()
        watching = Watching(test, session.id)
        await watching.__aenter__()
    await until(watching.task.done)
    assert watching.events[-1] is None
    await watching.__aexit__()


@needs_root
async def test_a_watcher_who_loses_his_rights_hears_no_more(
    test: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sight, "RIGHTS_S", 0.0)
    rules = _Rules()
    test.daemon.authority._deciders = (rules,)
    made = await test.daemon.service.sessions.create(OTHER, "test", "")
    watched = test.daemon.service.conversations.watch(OTHER, made.id)
    async with aclosing(watched) as events:
        assert (await anext(events))["type"] == "session"
        await test.daemon.service.sessions.rename(OTHER, made.id, "seen")
        assert (await anext(events))["session_info"]["title"] == "seen"
        rules.allowed = False
        await test.daemon.service.sessions.rename(ME, made.id, "not seen")
        with pytest.raises(errors.PermissionDenied):
            await anext(events)


class _Rules:
    """Lets everybody do everything but administer, until it does not."""

    allowed = True

    async def allows(self, caller: Caller, operation: Any, *, agent: str, ask: bool) -> bool:
        del caller, agent, ask
        return self.allowed and operation != "administer"
