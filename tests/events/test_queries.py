"""Reading the history: filters, both directions, pages, and stored state."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lightagentd.errors import HistoryDamaged, MessageTooLarge
from lightagentd.events import queries
from lightagentd.events.audit.verification import verify
from lightagentd.events.history import Event, NewEvent
from lightagentd.events.model import within
from lightagentd.events.queries import Filter, StoredHistory
from lightagentd.events.store import layout
from lightagentd.events.store.layout import BATCH, seq_key
from tests.events.stored import alter, note, opened, raw_events

TOPICS = ("agent.message", "agent.messages", "tool.bash", "tool.bash.event", "toolbox.x")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stored history of 1,000 events: of two agents, three sessions of two owners, and of the daemon."""
    folder = tmp_path_factory.mktemp("queries") / "history"
    asyncio.run(make(folder))
    return folder


@pytest.fixture
def history(folder: Path) -> Iterator[StoredHistory]:
    stored = StoredHistory(folder)
    yield stored
    stored.close()


async def make(folder: Path) -> None:
    async with opened(folder) as history:
        new = []
        for number in range(1000):
            agent, session, owner = (
                ("ops", "ses_1", 1),
                ("ops", "ses_2", 2),
                ("net", "ses_3", 1),
                ("", "", None),
            )[number % 4]
            with within(agent=agent, session=session, owner=owner, trace_id=f"trace_{number // 100}"):
                topic = TOPICS[number % len(TOPICS)]
                new.append(NewEvent(topic=topic, type="message", data={"n": number}, time_us=number * 1000))
        await history.append(*new)


def numbers(events: list[Event]) -> list[int]:
    return [event.data["n"] for event in events if event.data]


@pytest.mark.parametrize(
    ("wanted", "fits"),
    [
        ("", set(TOPICS)),
        ("agent", {"agent.message", "agent.messages"}),
        ("agent.message", {"agent.message"}),
        ("tool", {"tool.bash", "tool.bash.event"}),
        ("tool.bash", {"tool.bash", "tool.bash.event"}),
        ("tool.bash.event", {"tool.bash.event"}),
        ("tool.", set()),
        ("too", set()),
    ],
)
def test_a_topic_filter_fits_by_whole_words(history: StoredHistory, wanted: str, fits: set[str]) -> None:
    assert {event.topic for event in history.queries.newest(Filter(topic=wanted), 1000)} == fits


FILTERS = [
    Filter(),
    Filter(agent="ops"),
    Filter(session="ses_3"),
    Filter(trace="trace_7"),
    Filter(topic="tool"),
    Filter(viewer=1),
    Filter(viewer=2, agent="ops"),
    Filter(since_us=900_000),
    Filter(agent="ops", session="ses_1", topic="agent", trace="trace_3", since_us=350_000, viewer=1),
    Filter(agent="nobody"),
    Filter(agent="op"),
    Filter(session="ses_1", viewer=2),
]


@pytest.mark.parametrize("wanted", FILTERS, ids=str)
@pytest.mark.parametrize("limit", [1, 7, 256, 257, 5000])
def test_select_gives_the_first_and_newest_the_last_that_fit(
    history: StoredHistory, wanted: Filter, limit: int
) -> None:
    expected = [event for event in history.queries.range(1, 1000) if wanted.wants(event)]
    assert history.queries.select(wanted, limit=limit) == expected[:limit]
    assert history.queries.newest(wanted, limit) == expected[-limit:]


def test_a_viewer_sees_the_daemons_events_and_their_own_sessions_alone(history: StoredHistory) -> None:
    owners = {event.owner for event in history.queries.newest(Filter(viewer=2), 1000)}
    assert owners == {None, 2}
    assert {event.owner for event in history.queries.newest(Filter(viewer=0), 1000)} == {None}


@pytest.mark.parametrize("wanted", [Filter(), Filter(agent="ops"), Filter(topic="tool.bash")])
@pytest.mark.parametrize("step", [1, 100, BATCH, BATCH + 1])
def test_pages_join_without_a_gap_or_a_double(history: StoredHistory, wanted: Filter, step: int) -> None:
    seen: list[Event] = []
    position = 1
    for _ in itertools.count() if step > 1 else range(40):
        page = history.queries.select(wanted, from_seq=position, limit=step)
        if not page:
            break
        seen += page
        position = page[-1].seq + 1
    assert seen == history.queries.select(wanted, limit=len(seen))
    if step > 1:
        assert len(seen) == len(history.queries.newest(wanted, 5000))


def test_a_range_begins_anywhere_and_ends_at_the_end(history: StoredHistory) -> None:
    assert numbers(history.queries.range(1, 3)) == [0, 1, 2]
    assert numbers(history.queries.range(999, 10)) == [998, 999]
    assert history.queries.range(1001) == []


async def test_large_events_make_smaller_batches_and_lose_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "BATCH_BYTES", 3000)
    async with opened(tmp_path / "history") as history:
        with within(agent="ops"):
            await history.append(*(note(number, text="x" * 1000) for number in range(50)))
        assert len(history.queries.range(1, 50)) == 3
        for wanted in (Filter(), Filter(agent="ops")):
            assert numbers(history.queries.select(wanted)) == list(range(50))
            assert numbers(history.queries.newest(wanted)) == list(range(50))
        assert verify(history.environment).events == 50


async def test_a_name_is_not_mixed_up_with_one_that_begins_alike(tmp_path: Path) -> None:
    names = ["a", "a\0", "a\0b", "ab", "ü", "ü" * 200, "ü" * 201]
    async with opened(tmp_path / "history") as history:
        for number, name in enumerate(names):
            with within(agent=name, session=name):
                await history.append(note(number))
        for number, name in enumerate(names):
            assert numbers(history.queries.newest(Filter(agent=name))) == [number]
            assert numbers(history.queries.select(Filter(agent=name))) == [number]
            assert numbers(history.queries.messages(name)) == [number]


async def test_the_search_back_in_time_bears_a_clock_that_was_set_back(tmp_path: Path) -> None:
    async with opened(tmp_path / "history") as history:
        times = [10_000_000_000, 10_000_000_001, 9_000_000_000, 10_000_000_002]
        await history.append(
            *(NewEvent(topic="daemon.state", type="x", data={"n": time}, time_us=time) for time in times)
        )
        assert numbers(history.queries.newest(Filter(since_us=10_000_000_000))) == [
            times[0],
            times[1],
            times[3],
        ]


async def test_messages_are_the_conversation_of_one_session(tmp_path: Path) -> None:
    async with opened(tmp_path / "history") as history:
        for number in range(600):
            with within(session=f"ses_{number % 2}"):
                await history.append(note(number), note(number, topic="agent.prompt")) if number < 4 else None
        assert numbers(history.queries.messages("ses_0")) == [0, 2]
    alter(tmp_path / "history", 1, lambda line, data: line)
    async with opened(tmp_path / "history") as history:
        assert numbers(history.queries.messages("ses_0")) == [2]


@pytest.mark.parametrize(("steps", "size_bytes"), [(1, 1), (2, 1), (3, 1200), (1000, 1 << 20)])
async def test_messages_are_read_some_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int, size_bytes: int
) -> None:
    monkeypatch.setattr(queries, "_STEPS", steps)
    monkeypatch.setattr(queries, "BATCH_BYTES", size_bytes)
    async with opened(tmp_path / "history") as history:
        for name in ("ses_0", "ses_1", "ses_2"):
            with within(session=name):
                await history.append(*(note(n, topic=TOPICS[n % 3 and 2]) for n in range(20)))
        wanted = list(range(0, 20, 3))
        for name in ("ses_0", "ses_1", "ses_2"):
            assert numbers(history.queries.messages(name)) == wanted
            all_of_it = history.queries.messages(name)
            for number, event in enumerate(all_of_it):
                assert history.queries.messages(name, to_seq=event.seq) == all_of_it[: number + 1]
                assert history.queries.messages(name, event.seq) == all_of_it[number:]
                assert history.queries.messages(name, to_seq=event.seq - 1) == all_of_it[:number]
        with pytest.raises(MessageTooLarge):
            history.queries.messages("ses_1", most_bytes=1000)
        with pytest.raises(MessageTooLarge):
            history.queries.newest_messages("ses_1", 7, most_bytes=1000)
        assert len(history.queries.newest_messages("ses_1", 1, most_bytes=1000)) == 1
        with pytest.raises(MessageTooLarge, match="The events have more"):
            history.queries.newest(Filter(session="ses_1"), 20, most_bytes=1000)
        assert len(history.queries.newest(Filter(session="ses_1"), 1, most_bytes=1000)) == 1
        assert history.queries.messages("ses_3") == []


async def test_an_index_entry_whose_record_is_gone_is_passed_over(tmp_path: Path) -> None:
    async with opened(tmp_path / "history") as history:
        with within(agent="ops", session="ses_1"):
            await history.append(*(note(number) for number in range(600)))
    with raw_events(tmp_path / "history") as txn:
        for seq in range(100, 500):
            txn.delete(seq_key(seq))
    left = [*range(99), *range(499, 600)]
    async with opened(tmp_path / "history") as history:
        assert numbers(history.queries.select(Filter(agent="ops"), limit=1000)) == left
        assert numbers(history.queries.newest(Filter(agent="ops"), 1000)) == left
        assert numbers(history.queries.messages("ses_1")) == left


async def test_a_record_that_cannot_be_read_is_named_as_damage(tmp_path: Path) -> None:
    async with opened(tmp_path / "history") as history:
        await history.append(note(1), note(2))
    alter(tmp_path / "history", 1, lambda line, data: b"{}")
    async with opened(tmp_path / "history") as history:
        with pytest.raises(HistoryDamaged) as caught:
            history.queries.range()
        assert "lactl audit verify" in caught.value.suggestion


async def test_huge_and_broken_values_are_found_again(tmp_path: Path) -> None:
    data: dict[str, Any] = {"n": 1, "text": "a\udcff" * 100_000, "deep": {"a": [{"b": "\ud800"}]}}
    async with opened(tmp_path / "history") as history:
        with within(agent="ops"):
            [stored] = await history.append(NewEvent(topic="agent.message", type="message", data=data))
        assert history.queries.select(Filter(agent="ops")) == [stored]
        assert verify(history.environment).ok
        assert stored.data is not None
        assert stored.data["deep"] == {"a": [{"b": "\ufffd"}]}
