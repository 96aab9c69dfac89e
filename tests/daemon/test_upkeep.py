"""Upkeep: the limits of the configuration, applied to a daemon's history while it is used."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from lightagentd import errors
from lightagentd.client.aio import AsyncClient
from lightagentd.control.authz import Caller
from lightagentd.daemon import upkeep
from lightagentd.events.audit.verification import verify
from lightagentd.events.model import NewEvent
from lightagentd.events.queries import Filter
from lightagentd.events.store import retention
from lightagentd.host.paths import Paths
from tests.agents.scripted import Scripted, until
from tests.conftest import write
from tests.control.caring import ask, caring, conversation, make, texts
from tests.other_user import OUTSIDERS_GID

LIMITS = """
[history]
max_age_days = {age}
max_bytes = {size}
session_max_idle_days = {idle}
checkpoint_s = 3600.0
"""
DAY_US = 86_400_000_000


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "PAUSE_S", 0.0)
    monkeypatch.setattr(upkeep, "IDLE_S", 0.0)
    monkeypatch.setattr(retention, "NEWEST", 0)


def limit(paths: Paths, *, age: float = 0.0, size: int = 0, idle: float = 0.0) -> None:
    write(
        paths.config / "lightagentd.toml.d" / "50-limits.toml", LIMITS.format(age=age, size=size, idle=idle)
    )


@pytest.fixture
async def test(paths: Paths) -> AsyncIterator[Scripted]:
    limit(paths, size=1 << 20)
    async with caring(paths) as running:
        yield running


@pytest.fixture
async def client(test: Scripted) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(test.daemon.paths.socket, timeout_s=60) as connected:
        yield connected


def set_limits(test: Scripted, **limits: Any) -> None:
    test.daemon.upkeep._settings = test.daemon.now.config.history.model_copy(update=limits)


def make_old(test: Scripted, session: str, days: int) -> None:
    """As if nobody had used a session for so long."""
    record = test.agent.sessions[session].record
    object.__setattr__(record, "updated_us", record.updated_us - days * DAY_US)


async def filler(test: Scripted, count: int, size: int = 2000) -> None:
    await test.daemon.history.append(
        *(
            NewEvent(topic="tool.note", type="note", data={"text": "x" * size}, source="tool")
            for _ in range(count)
        )
    )


async def prune(client: AsyncClient, *, dry_run: bool = False) -> dict[str, Any]:
    found: dict[str, Any] = (await client.call("History.Prune", dry_run=dry_run))["pruned"]
    return found


async def test_a_history_that_is_too_large_loses_its_oldest_events_and_no_message(
    test: Scripted, client: AsyncClient
) -> None:
    made = await make(client, "keep this marmot")
    await filler(test, 800)
    forecast = await prune(client, dry_run=True)
    assert forecast["dry_run"]
    assert forecast["removed"] > 100
    assert test.daemon.history.environment.anchor()[0] == 0
    done = await prune(client)
    assert done["removed"] > 100
    assert done["sessions"] == []
    assert done["live_bytes"] <= 1 << 20
    assert done["first_seq"] > 1
    assert test.daemon.history.environment.live_bytes() <= 1 << 20
    assert texts(await conversation(client, made["id"])) == ["keep this marmot", "re: keep this marmot"]
    await ask(client, "go on", session=made["id"])
    assert (await client.call("History.Verify"))["verification"]["ok"]
    assert test.daemon.history.queries.select(Filter(topic="daemon.history", type="pruned"))
    again = await prune(client)
    assert (again["removed"], again["sessions"]) == (0, [])


async def test_who_stores_more_than_all_others_loses_sessions_before_others_lose_events(
    test: Scripted, client: AsyncClient
) -> None:
    made = await make(client, "keep this marmot")
    member = Caller(uid=12_001, gid=OUTSIDERS_GID, pid=1)
    service = test.daemon.service
    for _ in range(4):
        await service.conversations.ask(member, agent="test", text="x" * 100_000, new=True)
    theirs = {session.id for session in await service.sessions.listed(member)}
    done = await prune(client)
    assert (done["removed"], done["first_seq"]) == (0, 1)
    assert done["live_bytes"] <= 1 << 20
    assert done["sessions"]
    assert set(done["sessions"]) <= theirs
    prompts = test.daemon.history.queries.select(Filter(session=made["id"], topic="agent.prompt"))
    assert [event.data is not None for event in prompts] == [True]
    assert (await client.call("History.Verify"))["verification"]["ok"]


async def test_when_only_messages_are_left_the_sessions_idle_longest_go(
    test: Scripted, client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "NEWEST", 1000)
    made = [await make(client, "x" * 100_000) for _ in range(4)]
    for days, one in enumerate(made):
        make_old(test, one["id"], days=(2, 9, 5, 0)[days])
    done = await prune(client)
    assert done["sessions"][:2] == [made[1]["id"], made[2]["id"]]
    assert made[3]["id"] in test.agent.sessions
    assert done["live_bytes"] <= 1 << 20
    assert (await client.call("History.Verify"))["verification"]["ok"]
    with pytest.raises(errors.SessionNotFound):
        await client.call("Sessions.Get", session=made[1]["id"])
    tombstone = test.daemon.history.queries.select(Filter(topic="session.deleted"))[0]
    assert (tombstone.data or {})["reason"] == "The history is too large."


async def test_sessions_that_nobody_used_for_long_are_deleted_but_not_one_that_waits(
    test: Scripted, client: AsyncClient
) -> None:
    old, young, waiting = [await make(client, "hello") for _ in range(3)]
    async with AsyncClient(test.daemon.paths.socket, timeout_s=60) as other:
        turn = asyncio.create_task(ask(other, "ask", session=waiting["id"]))
        await until(lambda: test.agent.sessions[waiting["id"]].waiting)
        for one in (old, waiting):
            make_old(test, one["id"], days=30)
        set_limits(test, session_max_idle_days=7.0)
        forecast = await prune(client, dry_run=True)
        assert forecast["sessions"] == [old["id"]]
        done = await prune(client)
        assert done["sessions"] == [old["id"]]
        assert {young["id"], waiting["id"]} <= set(test.agent.sessions)
        assert test.agent.sessions[waiting["id"]].waiting
        turn.cancel()
        await asyncio.wait([turn])


async def test_age_goes_by_the_configuration_and_what_is_young_stays(
    test: Scripted, client: AsyncClient
) -> None:
    made = await make(client, "hello")
    assert (await prune(client))["removed"] == 0
    set_limits(test, max_age_days=1e-9)
    done = await prune(client)
    assert done["removed"] > 5
    assert texts(await conversation(client, made["id"])) == ["hello", "re: hello"]
    assert (await client.call("History.Verify"))["verification"]["ok"]


async def test_a_deleted_session_is_swept_away_with_the_next_look(
    test: Scripted, client: AsyncClient
) -> None:
    made = await make(client, "hello")
    set_limits(test, max_age_days=1e-9)
    await prune(client)
    await client.call("Sessions.Delete", session=made["id"], confirmed=True)
    await prune(client)
    await prune(client)
    left = test.daemon.history.queries.select(Filter(session=made["id"]), limit=100)
    assert [event.topic for event in left if event.topic == "agent.message"] == []
    assert (await client.call("History.Verify"))["verification"]["ok"]


async def test_it_looks_by_itself_and_names_what_keeps_it_from_its_work(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "FIRST_S", 0.0)
    monkeypatch.setattr(upkeep, "PERIOD_S", 0.01)
    limit(paths, age=1e-9)
    async with caring(paths) as test:
        history = test.daemon.history
        await until(lambda: history.environment.anchor()[0] > 0)
        damaged = errors.HistoryDamaged("The event 7 was altered.")

        def fail(*_: Any) -> Any:
            raise damaged

        with monkeypatch.context() as patch:
            patch.setattr(retention, "prune", fail)
            await filler(test, 1)
            await until(lambda: damaged.message in test.daemon.problems())
        await until(lambda: damaged.message not in test.daemon.problems())


async def test_a_compaction_gives_room_back_and_only_one_goes_on_at_a_time(
    test: Scripted, client: AsyncClient
) -> None:
    await filler(test, 1500)
    await prune(client)
    before = test.daemon.history.environment.used_bytes()
    async with AsyncClient(test.daemon.paths.socket, timeout_s=60) as other:
        first = asyncio.create_task(client.call("History.Compact"))
        await until(test.daemon.upkeep._working.locked)
        with pytest.raises(errors.Conflict, match="just now"):
            await other.call("History.Prune")
        done = (await first)["compacted"]
    assert done["bytes_before"] == before
    assert done["bytes_after"] < before / 2
    assert test.daemon.history.environment.used_bytes() < before / 2
    await ask(client, "hello")
    assert (await client.call("History.Verify"))["verification"]["ok"]


async def test_a_file_that_is_mostly_empty_is_compacted_by_itself(
    test: Scripted, client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await filler(test, 1500)
    assert not (await prune(client))["compacted"]
    monkeypatch.setattr(upkeep, "COMPACT_BYTES", 1 << 20)
    assert (await prune(client))["compacted"]


async def test_a_daemon_stops_in_the_middle_of_it(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "PASS_EVENTS", 5)
    limit(paths, size=1 << 20)
    async with caring(paths) as test:
        await filler(test, 1500)
        pruning = asyncio.create_task(test.daemon.upkeep.prune(0))
        await until(lambda: test.daemon.history.environment.anchor()[0] > 0)
    with pytest.raises(errors.LightagentError):
        await pruning
    async with caring(paths) as test:
        assert verify(test.daemon.history.environment).ok
