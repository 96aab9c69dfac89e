"""Deleting sessions, over the control socket: what goes, what stays, and who is in the way."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from lightagentd import errors
from lightagentd.client.aio import AsyncClient
from lightagentd.events.audit.verification import verify
from lightagentd.events.store import layout
from lightagentd.host.paths import Paths
from tests.agents.asking import asked, lines
from tests.agents.scripted import ME, Scripted, until
from tests.control.caring import Watching, ask, caring, conversation, make, out_of, texts


@pytest.fixture
async def test(paths: Paths) -> AsyncIterator[Scripted]:
    async with caring(paths) as running:
        yield running


@pytest.fixture
async def client(test: Scripted) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(test.daemon.paths.socket, timeout_s=60) as connected:
        yield connected


# Deleting


async def test_a_deleted_session_leaves_headers_and_a_tombstone(test: Scripted, client: AsyncClient) -> None:
    kept = await make(client, "keep this marmot")
    made = await make(client, "a secret marmot-4711", title="marmot-4711 title")
    session = test.agent.sessions[made["id"]]
    approval = await _used_approval(test, session.id)
    with pytest.raises(errors.ConfirmationRequired) as caught:
        await client.call("Sessions.Delete", session=made["id"])
    assert (caught.value.code, caught.value.field) == ("confirmation_required", "confirmed")
    count = len([event for event in test.stored() if event.session == made["id"]])
    await client.call("Sessions.Delete", session=made["id"], confirmed=True)
    history = test.daemon.history
    left = [event for event in test.stored() if event.session == made["id"]]
    said = {"by": ME.uid, "erased_rows": (left[-1].data or {})["erased_rows"]}
    assert {"sessions", "usage"} <= said["erased_rows"].keys()
    assert [event.data for event in left[:-1]] == [None] * count
    assert (left[-1].topic, left[-1].data) == ("session.deleted", {**said, "erased_events": count})
    assert verify(history.environment).ok
    assert (await client.call("History.Verify"))["verification"]["ok"]
    for state in ("sessions", "turns", "plans", "inputs", "approvals", "compactions", "current"):
        assert made["id"] not in json.dumps(history.queries.state(state))
    assert f"session/{made['id']}" not in history.queries.state("usage")
    assert "marmot-4711" not in json.dumps([history.queries.state(state) for state in layout.STATES])
    assert texts(await conversation(client, kept["id"])) == ["keep this marmot", "re: keep this marmot"]
    for method in ("Get", "Messages", "Delete", "Switch", "Pause", "Fork", "Export", "Cancel", "Wait"):
        with pytest.raises(errors.SessionNotFound):
            await client.call(f"Sessions.{method}", session=made["id"])
    with pytest.raises(errors.ApprovalNotFound):
        await client.call("Approvals.Get", approval=approval)
    assert (await ask(client, "next"))["session"] == kept["id"]


async def _used_approval(test: Scripted, session: str) -> str:
    turn = await test.agent.prompt(test.agent.sessions[session], "ask")
    approval = await asked(test)
    await test.daemon.service.approvals.approve(ME, approval.id, "")
    await turn.over.wait()
    return approval.id


async def test_what_is_shown_of_the_history_copes_with_deleted_data(
    test: Scripted, client: AsyncClient
) -> None:
    made = await make(client, "one")
    trace = test.stored(topic="agent.prompt")[-1].trace_id
    await client.call("Sessions.Delete", session=made["id"], confirmed=True)
    for filters in ({}, {"session": made["id"]}, {"trace": trace}, {"topic": "agent"}):
        found = (await client.call("History.Query", limit=1000, **filters))["events"]
        assert found
        assert any(event["data"] is None for event in found)
    async with aclosing(client.stream("Events.Subscribe", from_seq=1, follow=False)) as replies:
        assert len([reply async for reply in replies]) > 5


async def test_an_empty_session_is_deleted_without_a_question(test: Scripted, client: AsyncClient) -> None:
    made = await make(client)
    await client.call("Sessions.Delete", session=made["id"])
    assert (await client.call("Sessions.List"))["sessions"] == []
    assert test.daemon.history.queries.state("current") == {}


async def test_deleting_ends_what_runs_and_what_waits(test: Scripted, client: AsyncClient) -> None:
    made = await make(client)
    session = test.agent.sessions[made["id"]]
    turns = [await test.agent.prompt(session, text) for text in ("ask", "later", "last")]
    approval = await asked(test)
    async with Watching(test, session.id) as watching:
        await client.call("Sessions.Delete", session=session.id, confirmed=True)
        await until(watching.task.done)
        assert watching.types()[-1] == "null"
        assert [one for one in watching.events if one and one["type"] == "session"][-1][
            "session_info"
        ] is None
    assert all(isinstance(turn.failure, errors.Cancelled) for turn in turns)
    with pytest.raises(errors.ApprovalNotFound):
        await test.daemon.service.approvals.approve(ME, approval.id, "")
    assert test.daemon.registry.shared.asked.approvals.questions.open_ones() == []
    assert test.daemon.history.queries.state("turns") == {}
    assert lines(out_of(test)) == []
    assert verify(test.daemon.history.environment).ok


async def test_two_who_delete_one_session_and_one_who_prompts_it(test: Scripted, client: AsyncClient) -> None:
    made = await make(client, "one")
    service = test.daemon.service
    prompt = asyncio.create_task(
        service.conversations.ask(ME, agent="test", text="two", session=made["id"], new=False, timeout_s=60)
    )
    deleting = [service.sessions.delete(ME, made["id"], confirmed=True) for _ in range(2)]
    done = await asyncio.gather(*deleting, prompt, return_exceptions=True)
    assert sorted(type(one).__name__ for one in done[:2]) == ["NoneType", "SessionNotFound"]
    assert isinstance(done[2], errors.SessionNotFound | errors.Cancelled)
    assert made["id"] not in json.dumps(
        [test.daemon.history.queries.state(name) for name in ("sessions", "turns")]
    )
    assert verify(test.daemon.history.environment).ok
    last = [event for event in test.stored() if event.session == made["id"]][-1]
    assert last.topic == "session.deleted"


async def test_a_session_of_a_stopped_agent_is_deleted_with_what_waits_in_it(
    test: Scripted, client: AsyncClient
) -> None:
    made = await make(client)
    session = test.agent.sessions[made["id"]]
    await test.agent.prompt(session, "ask")
    await test.agent.prompt(session, "later")
    await asked(test)
    await client.call("Agents.Stop", name="test")
    assert test.daemon.history.queries.state("turns")
    await client.call("Sessions.Delete", session=session.id, confirmed=True)
    assert test.daemon.history.queries.state("turns") == {}
    await client.call("Agents.Start", name="test")
    assert test.agent.sessions == {}
    assert verify(test.daemon.history.environment).ok
