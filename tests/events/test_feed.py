"""The live feed: who follows misses nothing and sees nothing twice."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lightagentd.events.feed import Feed
from lightagentd.events.history import History
from lightagentd.events.layout import BATCH
from lightagentd.events.model import within
from lightagentd.events.queries import Filter
from tests.events.stored import note, opened


@pytest.fixture
async def feed() -> Feed:
    return Feed(asyncio.get_running_loop())


@pytest.fixture
async def history(tmp_path: Path, feed: Feed) -> AsyncIterator[History]:
    """A history whose commits wake the feed, as in the daemon."""
    async with opened(tmp_path / "history", on_commit=lambda events: feed.notify()) as history:
        yield history


async def seen(
    feed: Feed, history: History, wanted: Filter, *, first: int = 1, last: int | None = None, slow: int = 0
) -> list[int]:
    """The numbers of what a follower gets until the feed ends; for each it takes `slow` turns of the loop."""
    found = []
    async with contextlib.aclosing(feed.follow(history, wanted, first, last)) as events:
        async for event in events:
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
            assert (await waiting).seq == number + 1


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


def test_a_commit_after_the_loop_has_ended_wakes_nobody_and_is_no_error() -> None:
    loop = asyncio.new_event_loop()
    feed = Feed(loop)
    loop.close()
    feed.notify()
