"""The bus inside the daemon: who hears of what, and what becomes of events that do not fit."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lightagentd.events.history import Event, History, NewEvent
from lightagentd.events.model import within
from lightagentd.events.subscriptions import Overflow, Subscription, Subscriptions
from tests.events.stored import note, opened


@pytest.fixture
async def bus() -> Subscriptions:
    return Subscriptions(asyncio.get_running_loop())


@contextlib.asynccontextmanager
async def published(folder: Path, bus: Subscriptions) -> AsyncIterator[History]:
    """A history whose commits are published."""
    async with opened(folder / "history", on_commit=bus.publish) as history:
        yield history


def taken(subscription: Subscription) -> list[int]:
    """The numbers of what is in a queue."""
    found = []
    while (event := subscription.take()) is not None:
        found.append(event.seq)
    return found


async def test_each_gets_what_it_subscribed_to(tmp_path: Path, bus: Subscriptions) -> None:
    subscribed = {
        "all": bus.subscribe(),
        "exact": bus.subscribe(topic="tool.bash"),
        "prefix": bus.subscribe(prefix="tool"),
        "longer": bus.subscribe(prefix="tool.bash"),
        "nothing": bus.subscribe(prefix="too"),
        "session": bus.subscribe(session="ses_1"),
        "fits": bus.subscribe(prefix="tool", fits=lambda event: event.seq > 2),
    }
    async with published(tmp_path, bus) as history:
        for topic, session in (
            ("tool.bash", "ses_1"),
            ("tool.bash.event", ""),
            ("toolbox.x", "ses_2"),
            ("tool.file", ""),
        ):
            with within(session=session):
                await history.append(note(topic=topic))
    assert {name: taken(one) for name, one in subscribed.items()} == {
        "all": [1, 2, 3, 4],
        "exact": [1],
        "prefix": [1, 2, 4],
        "longer": [1, 2],
        "nothing": [],
        "session": [1],
        "fits": [4],
    }


async def test_events_are_there_when_the_append_is_done(tmp_path: Path, bus: Subscriptions) -> None:
    subscription = bus.subscribe()
    async with published(tmp_path, bus) as history:
        for number in range(1, 50):
            await history.append(note())
            assert taken(subscription) == [number]


@pytest.mark.parametrize(
    ("overflow", "queued", "lost_from"),
    [
        (Overflow.DROP_NEWEST, [1, 2, 3], 4),
        (Overflow.DROP_OLDEST, [6, 7, 8], 1),
        (Overflow.MARK, [1, 2, 3], 4),
    ],
)
async def test_what_does_not_fit_is_lost_as_was_said_and_counted(
    tmp_path: Path, bus: Subscriptions, overflow: Overflow, queued: list[int], lost_from: int
) -> None:
    subscription = bus.subscribe(limit=3, overflow=overflow)
    other = bus.subscribe()
    async with published(tmp_path, bus) as history:
        await history.append(*(note() for _ in range(8)))
        assert len(subscription) == 3
        assert taken(subscription) == queued
        assert (subscription.dropped, bus.dropped, subscription.lost_from) == (5, 5, lost_from)
        assert taken(other) == list(range(1, 9))
        await history.append(note())
        assert taken(subscription) == ([] if overflow is Overflow.MARK else [9])
        assert subscription.resume() == lost_from
        assert subscription.resume() == 0
        await history.append(note())
        assert taken(subscription) == [10]


async def test_a_queue_is_bounded_in_bytes_too(tmp_path: Path, bus: Subscriptions) -> None:
    newest = bus.subscribe(limit_bytes=10_000)
    marked = bus.subscribe(limit_bytes=10_000, overflow=Overflow.MARK)
    async with published(tmp_path, bus) as history:
        await history.append(*(note(text="x" * 3_000) for _ in range(5)))
        assert taken(newest) == [4, 5]
        assert taken(marked) == [1, 2]
        assert marked.resume() == 3
        await history.append(note(text="x" * 50_000))
        assert taken(newest) == [6]  # alone it has room
        assert (taken(marked), marked.resume()) == ([], 6)  # it can be read from the store


async def test_iterating_gives_events_as_they_come_until_it_is_closed(
    tmp_path: Path, bus: Subscriptions
) -> None:
    found: list[int] = []

    async def read(subscription: Subscription) -> None:
        found.extend([event.seq async for event in subscription])

    subscription = bus.subscribe()
    reading = asyncio.create_task(read(subscription))
    async with published(tmp_path, bus) as history:
        for _ in range(10):
            await history.append(note())
    bus.close()
    await reading
    assert found == list(range(1, 11))
    assert len(bus) == 0
    late = bus.subscribe()
    assert [event async for event in late] == []


async def test_with_mark_the_iteration_ends_where_something_is_lost(
    tmp_path: Path, bus: Subscriptions
) -> None:
    with bus.subscribe(limit=2, overflow=Overflow.MARK) as subscription:
        async with published(tmp_path, bus) as history:
            await history.append(*(note() for _ in range(4)))
            assert [event.seq async for event in subscription] == [1, 2]
            assert subscription.resume() == 3
    assert len(bus) == 0


async def test_a_commit_crosses_to_the_loop_once(
    tmp_path: Path, bus: Subscriptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    deliveries: list[int] = []
    deliver = bus._deliver

    def counted(events: list[Event]) -> None:
        deliveries.append(len(events))
        deliver(events)

    monkeypatch.setattr(bus, "_deliver", counted)
    async with published(tmp_path, bus) as history:
        await history.append(note(), note())
        assert deliveries == []  # nobody subscribes
        subscriptions = [bus.subscribe() for _ in range(100)]
        await history.append(*(note() for _ in range(50)))
    assert deliveries == [50]
    assert all(len(one) == 50 for one in subscriptions)


async def test_a_subscriber_of_one_session_costs_others_nothing(tmp_path: Path, bus: Subscriptions) -> None:
    looked = 0

    def fits(_: Event) -> bool:
        nonlocal looked
        looked += 1
        return True

    for number in range(100):
        bus.subscribe(session=f"ses_{number}", fits=fits)
    async with published(tmp_path, bus) as history:
        with within(session="ses_7"):
            await history.append(note(), note())
        await history.append(NewEvent(topic="daemon.state", type="ready", data={}))
    assert looked == 2


def test_what_is_published_after_the_loop_has_ended_is_no_error(tmp_path: Path) -> None:
    loop = asyncio.new_event_loop()
    bus = Subscriptions(loop)
    loop.run_until_complete(_subscribe(bus))
    loop.close()
    bus.publish([])


async def _subscribe(bus: Subscriptions) -> None:
    bus.subscribe()
