"""The live feed: who follows misses nothing and sees nothing twice."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from lightagentd.events.feed import Feed, Missed
from lightagentd.events.history import History, NewEvent
from lightagentd.events.model import Event, within
from lightagentd.events.queries import Filter
from lightagentd.events.store import records
from lightagentd.events.store.layout import BATCH
from lightagentd.events.store.search import Slice
from lightagentd.events.subscriptions import LIMIT, Subscriptions
from tests.events.stored import note, opened


@pytest.fixture
async def subscriptions() -> Subscriptions:
    return Subscriptions(asyncio.get_running_loop())


@pytest.fixture
async def feed(subscriptions: Subscriptions) -> Feed:
    return Feed(subscriptions)


@pytest.fixture
async def history(tmp_path: Path, subscriptions: Subscriptions) -> AsyncIterator[History]:
    """A history whose commits are published, as in the daemon."""
    async with opened(tmp_path / "history", on_commit=subscriptions.publish) as history:
        yield history


async def seen(
    feed: Feed, history: History, wanted: Filter, *, first: int = 1, last: int | None = None, slow: int = 0
) -> list[int]:
    """The numbers of what a follower gets until the feed ends; for each it takes `slow` turns of the loop."""
    found = []
    async with contextlib.aclosing(feed.follow(history, wanted, first, last)) as events:
        async for event in events:
            assert isinstance(event, Event)
            found.append(event.seq)
            for _ in range(slow):
                await asyncio.sleep(0)
    return found


async def test_stored_and_new_events_come_once_each_in_order(feed: Feed, history: History) -> None:
    await history.append(*(note(number) for number in range(600)))
    follower = asyncio.create_task(seen(feed, history, Filter(), first=100))
    for number in range(100):
        await history.append(note(number))
    feed.close()
    assert await follower == list(range(100, 701))


async def test_no_miss_and_no_double_with_concurrent_appends_and_slow_followers(
    feed: Feed, history: History
) -> None:
    followers = [asyncio.create_task(seen(feed, history, Filter(), slow=slow)) for slow in (0, 1, 7, 40)]

    async def write(count: int) -> None:
        for number in range(count):
            await history.append(note(number), note(number))

    await asyncio.gather(*(write(60) for _ in range(5)))
    feed.close()
    for found in await asyncio.gather(*followers):
        assert found == list(range(1, 601))


async def test_a_follower_that_waits_is_woken_by_each_commit(feed: Feed, history: History) -> None:
    async with contextlib.aclosing(feed.follow(history, Filter(), 1)) as events:
        for number in range(20):
            waiting = asyncio.ensure_future(anext(events))
            await asyncio.sleep(0)
            assert not waiting.done()
            await history.append(note(number))
            event = await waiting
            assert isinstance(event, Event)
            assert event.seq == number + 1


async def test_a_follower_gets_only_what_its_filter_wants(feed: Feed, history: History) -> None:
    follower = asyncio.create_task(seen(feed, history, Filter(session="ses_1", viewer=1)))
    stranger = asyncio.create_task(seen(feed, history, Filter(viewer=2)))
    for number in range(BATCH + 10):
        with within(session=f"ses_{number % 2}", owner=1):
            await history.append(note(number))
    feed.close()
    assert await follower == list(range(2, BATCH + 11, 2))
    assert await stranger == []


@pytest.mark.parametrize("last", [0, 1, BATCH, BATCH + 1, 600, 9999])
async def test_with_a_last_number_it_ends_there_or_at_the_end(
    feed: Feed, history: History, last: int
) -> None:
    await history.append(*(note(number) for number in range(600)))
    assert await seen(feed, history, Filter(), last=last) == list(range(1, min(last, 600) + 1))


async def test_closing_ends_followers_after_what_is_stored(feed: Feed, history: History) -> None:
    followers = [asyncio.create_task(seen(feed, history, Filter(), first=first)) for first in (1, 3, 50)]
    await history.append(note(1), note(2), note(3))
    feed.close()
    assert await asyncio.gather(*followers) == [[1, 2, 3], [3], []]
    assert await seen(feed, history, Filter()) == [1, 2, 3]


async def test_a_follower_can_leave_while_it_waits(feed: Feed, history: History) -> None:
    follower = asyncio.create_task(seen(feed, history, Filter()))
    await asyncio.sleep(0)
    follower.cancel()
    with pytest.raises(asyncio.CancelledError):
        await follower
    await history.append(note(1))


async def test_a_follower_that_is_overrun_reads_the_store_and_misses_nothing(
    feed: Feed, history: History, subscriptions: Subscriptions
) -> None:
    async with contextlib.aclosing(feed.follow(history, Filter(), 1)) as events:
        await history.append(note(1))
        assert await anext(events)
        for number in range(3):
            await history.append(*(note(number) for number in range(LIMIT)))
        assert subscriptions.dropped
        found = [await anext(events) for _ in range(3 * LIMIT)]
        await history.append(note(1))
        found.append(await anext(events))
    assert [event.seq for event in found if isinstance(event, Event)] == list(range(2, 3 * LIMIT + 3))


async def test_a_follower_reads_no_store_for_what_comes_while_it_listens(
    feed: Feed, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = []
    read = history.queries.slice

    def counted(*args: Any, **options: Any) -> Slice:
        reads.append(args)
        return read(*args, **options)

    monkeypatch.setattr(history.queries, "slice", counted)
    async with contextlib.aclosing(feed.follow(history, Filter(), 1)) as events:
        waiting = asyncio.ensure_future(anext(events))
        while not reads:
            await asyncio.sleep(0)
        for _ in range(20):
            await history.append(note(1))
            await waiting
            waiting = asyncio.ensure_future(anext(events))
        waiting.cancel()
        await asyncio.wait([waiting])
    assert len(reads) == 1


async def test_who_may_not_be_late_is_told_what_it_missed_and_goes_on_near_the_end(
    feed: Feed, history: History
) -> None:
    await history.append(*(note(number) for number in range(1000)))
    async with contextlib.aclosing(feed.follow(history, Filter(), 11, max_lag=100)) as events:
        assert await anext(events) == Missed(count=940, first_seq=11, from_seq=951)
        first = await anext(events)
        assert isinstance(first, Event)
        assert first.seq == 951
        await history.append(*(note(number) for number in range(100)))
        assert await anext(events) == Missed(count=99, first_seq=952, from_seq=1051)
        rest = [await anext(events) for _ in range(50)]
    assert [event.seq for event in rest if isinstance(event, Event)] == list(range(1051, 1101))


async def test_who_is_not_late_misses_nothing(feed: Feed, history: History) -> None:
    async with contextlib.aclosing(feed.follow(history, Filter(), 1, max_lag=2)) as events:
        for number in range(20):
            await history.append(note(number))
            event = await anext(events)
            assert isinstance(event, Event)
            assert event.seq == number + 1


async def test_what_was_removed_is_told_once_and_what_was_kept_is_given(feed: Feed, history: History) -> None:
    with within(session="ses_1"):
        await history.append(*(note(number) for number in range(20)))
    kept, hash_of_10 = (4, 7), history.queries.range(10, 1)[0].hash

    def prune() -> None:
        with history.environment.env.begin(write=True) as txn:
            for event in history.queries.range(1, 10):
                if event.seq not in kept:
                    records.remove(history.environment, txn, event)
            history.environment.set_anchor(txn, 10, hash_of_10)

    await history.exclusively(prune)
    for first_seq, count, given in ((1, 8, [4, 7]), (5, 5, [7]), (10, 1, [])):
        async with contextlib.aclosing(feed.follow(history, Filter(), first_seq, 20)) as events:
            missed, *rest = [item async for item in events]
        assert missed == Missed(count=count, first_seq=first_seq, from_seq=11)
        assert [event.seq for event in rest if isinstance(event, Event)] == [*given, *range(11, 21)]
    assert await seen(feed, history, Filter(), first=11, last=20) == list(range(11, 21))


async def test_what_is_removed_before_a_time_that_was_asked_for_is_nothing_missed(
    feed: Feed, history: History
) -> None:
    await history.append(
        *(NewEvent(topic="test.x", type="y", data={}, time_us=n * 1000) for n in range(1, 21))
    )
    hash_of_10 = history.queries.range(10, 1)[0].hash

    def prune() -> None:
        with history.environment.env.begin(write=True) as txn:
            for event in history.queries.range(1, 10):
                records.remove(history.environment, txn, event)
            history.environment.set_anchor(txn, 10, hash_of_10)

    await history.exclusively(prune)
    assert await seen(feed, history, Filter(since_us=12_000), last=20) == list(range(12, 21))


async def test_what_a_full_queue_holds_when_the_feed_is_closed_comes_too(
    feed: Feed, history: History
) -> None:
    async with contextlib.aclosing(feed.follow(history, Filter(), 1)) as events:
        await history.append(note(0))
        first = await anext(events)
        assert isinstance(first, Event)
        await history.append(note(1))
        second = await anext(events)  # from the queue
        assert isinstance(second, Event)
        for number in range(2, LIMIT * 2):
            await history.append(note(number))
        feed.close()
        rest = [event.seq async for event in events if isinstance(event, Event)]
    assert [first.seq, second.seq, *rest] == list(range(1, LIMIT * 2 + 1))
