"""The search by indexes: it finds what a walk over all events finds, in both directions, slice by slice."""

from __future__ import annotations

import asyncio
import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from lightagentd.events.filter import Filter
from lightagentd.events.history import Event, NewEvent
from lightagentd.events.model import EventContext
from lightagentd.events.queries import StoredHistory
from lightagentd.events.store import clock, records, search
from lightagentd.events.store.search import LAST_SEQ
from tests.conftest import REPOSITORY
from tests.events.stored import note, opened

TESTED = hypothesis.settings(max_examples=80, deadline=None, print_blob=True)
AGENTS, SESSIONS = ["", "ops", "op", "ü" * 200], ["", "ses_1", "ses_2"]
TOPICS = [
    "agent.message",
    "agent.messages",
    "agent.tool_dispatch",
    "tool.bash",
    "tool.bash.event",
    "toolbox.x",
]
TYPES, TOOLS = ["message", "intent", "invocation"], ["bash", "file"]
EFFECTS, DECISIONS = ["observe", "change"], ["allow", "ask"]
TEXTS = ['say "hi"', "Straße", "STRASSE", "a\\b\n\tc", "\u017fs", "\u212a", "ﬁ", "İ", "\u2028"]
TEXTS += ["plain", "\x01", "404"]
TIMES = st.integers(min_value=1, max_value=40)


@st.composite
def new_events(draw: st.DrawFn) -> NewEvent:
    data: dict[str, Any] = {"text": draw(st.sampled_from(TEXTS))}
    for name, values in (("tool", TOOLS), ("effect", EFFECTS), ("decision", DECISIONS)):
        if draw(st.booleans()):
            data[name] = draw(st.sampled_from(values))
    if draw(st.booleans()):
        data["args"] = {
            draw(st.sampled_from(TEXTS)): [404, None, True, {"deep": draw(st.sampled_from(TEXTS))}]
        }
    context = EventContext(
        agent=draw(st.sampled_from(AGENTS)),
        session=draw(st.sampled_from(SESSIONS)),
        owner=draw(st.sampled_from([None, 1, 2])),
        caller=draw(st.sampled_from([None, 0, 1])),
        request_id=draw(st.sampled_from(["", "req_1", "req_2"])),
        trace_id=draw(st.sampled_from(["", "trace_1", "trace_2"])),
    )
    return NewEvent(
        topic=draw(st.sampled_from(TOPICS)),
        type=draw(st.sampled_from(TYPES)),
        source=draw(st.sampled_from(["daemon", "tool"])),
        data=data,
        context=context,
        time_us=draw(TIMES),
    )


VALUES: dict[str, st.SearchStrategy[Any]] = {
    "agent": st.sampled_from([*AGENTS, "nobody"]),
    "session": st.sampled_from([*SESSIONS, "ses_3"]),
    "topic": st.sampled_from([*TOPICS, "agent", "tool", "tool,agent.message", "nothing", ","]),
    "type": st.sampled_from(TYPES),
    "tool": st.sampled_from(TOOLS),
    "effect": st.sampled_from(EFFECTS),
    "decision": st.sampled_from(DECISIONS),
    "caller": st.sampled_from([0, 1, 2]),
    "trace": st.sampled_from(["trace_1", "trace_3"]),
    "request": st.sampled_from(["req_1", "req_3"]),
    "text": st.sampled_from([*TEXTS, "SAY", "ss", "k", "fi", "deep", "null", "e", '"', "\\"]),
    "since_us": TIMES,
    "until_us": TIMES,
    "viewer": st.sampled_from([1, 3]),
    "agents": st.sampled_from([frozenset(), frozenset({"ops"})]),
}


@st.composite
def filters(draw: st.DrawFn) -> Filter:
    """Of some fields, seldom of many: else nothing would fit."""
    names = draw(st.lists(st.sampled_from(sorted(VALUES)), max_size=3, unique=True))
    return Filter(**{name: draw(VALUES[name]) for name in names})


def walked(stored: StoredHistory, wanted: Filter) -> list[Event]:
    return [event for event in stored.queries.range(1, 10_000) if wanted.wants(event)]


def searched(stored: StoredHistory, wanted: Filter, *, limit: int, backwards: bool) -> list[Event]:
    """All that fits, by slices; each gets further."""
    found: list[Event] = []
    position = LAST_SEQ if backwards else 1
    while position:
        part = stored.queries.slice(wanted, position, limit=limit, backwards=backwards)
        assert len(part.events) <= limit
        assert part.next_seq == 0 or (part.next_seq < position if backwards else part.next_seq > position)
        found += [event for event, _ in part.events]
        position = part.next_seq
    return found[::-1] if backwards else found


async def fill(folder: Path, new: list[NewEvent], gone: set[int], erased: str) -> None:
    async with opened(folder) as history:
        for event in new:  # commits of their own, as the clock is kept up with each
            await history.append(event)
        if erased:
            await history.erase(erased, note())

        def remove() -> None:
            with history.environment.env.begin(write=True) as txn:
                for event in history.queries.range(1, 10_000):
                    if event.seq in gone:
                        records.remove(history.environment, txn, event)

        await history.exclusively(remove)


@TESTED
@hypothesis.given(
    new=st.lists(new_events(), min_size=1, max_size=30),
    gone=st.sets(st.integers(min_value=1, max_value=15)),
    erased=st.sampled_from(["", "", "ses_1"]),
    all_wanted=st.lists(filters(), min_size=5, max_size=25),
    limit=st.sampled_from([1, 3, 100]),
    is_old=st.booleans(),
)
def test_it_finds_what_a_walk_finds(
    tmp_path_factory: pytest.TempPathFactory,
    new: list[NewEvent],
    gone: set[int],
    erased: str,
    all_wanted: list[Filter],
    limit: int,
    is_old: bool,
) -> None:
    folder = tmp_path_factory.mktemp("search") / "history"
    asyncio.run(fill(folder, new, gone, erased))
    stored = StoredHistory(folder)
    try:
        if is_old:
            del stored.environment.db["by_field"]  # as in a store of version 1 that is only read
        for wanted in all_wanted:
            expected = walked(stored, wanted)
            for backwards in (False, True):
                assert searched(stored, wanted, limit=limit, backwards=backwards) == expected
            assert stored.queries.select(wanted, limit=limit) == expected[:limit]
            assert stored.queries.newest(wanted, limit) == expected[-limit:]
    finally:
        stored.close()


async def test_a_text_is_found_whatever_json_and_the_case_of_letters_make_of_it(tmp_path: Path) -> None:
    async with opened(tmp_path / "history") as history:
        await history.append(*(note(1_000_000 + n, text=text) for n, text in enumerate(TEXTS)))
        for text in TEXTS:
            found = {
                event.data["text"]
                for wanted in (text, text.upper(), text.casefold())
                for event in history.queries.select(Filter(text=wanted))
                if event.data
            }
            assert text in found
        assert [event.seq for event in history.queries.select(Filter(text="strasse"))] == [2, 3]
        assert [event.seq for event in history.queries.select(Filter(text="SS"))] == [2, 3, 5]
        assert [event.seq for event in history.queries.select(Filter(text='"hi"'))] == [1]
        assert history.queries.select(Filter(text='text":"say')) == []


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """3,000 events of two sessions, of which few are calls."""
    folder = tmp_path_factory.mktemp("search") / "history"
    asyncio.run(_three_thousand(folder))
    return folder


async def _three_thousand(folder: Path) -> None:
    async with opened(folder) as history:
        new = []
        for number in range(3000):
            who = EventContext(agent="ops", session=f"ses_{number % 2}", owner=number % 2)
            rare = {"tool": "bash"} if number % 1000 == 999 else {}
            new.append(note(number, **rare, text=f"number {number}"))
            new[-1] = replace(new[-1], context=who, time_us=number + 1)
        await history.append(*new)


@pytest.fixture
def stored(folder: Path) -> Iterator[StoredHistory]:
    found = StoredHistory(folder)
    yield found
    found.close()


@contextmanager
def counted_steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The numbers that lists were asked for."""
    asked: list[int] = []
    seek = search._List.seek

    def counting(self: Any, seq: int) -> int:
        asked.append(seq)
        return seek(self, seq)

    with monkeypatch.context() as patch:
        patch.setattr(search._List, "seek", counting)
        yield asked


@pytest.mark.parametrize("backwards", [False, True])
def test_the_rarest_of_what_is_wanted_bounds_the_work(
    stored: StoredHistory, monkeypatch: pytest.MonkeyPatch, backwards: bool
) -> None:
    wanted = Filter(session="ses_1", topic="agent.message", type="message", tool="bash")
    with counted_steps(monkeypatch) as asked:
        found = searched(stored, wanted, limit=10, backwards=backwards)
    assert [event.seq for event in found] == [1000, 2000, 3000]
    assert len(asked) < 50


def test_a_time_is_found_without_reading_what_is_before_it_or_after(
    stored: StoredHistory, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = Filter(since_us=1000, until_us=1005)
    for backwards in (False, True):
        with counted_steps(monkeypatch) as asked:
            found = searched(stored, wanted, limit=100, backwards=backwards)
        assert [event.seq for event in found] == list(range(1000, 1006))
        assert len(asked) < 10


def test_a_slice_ends_when_its_time_is_over_and_the_next_goes_on(
    stored: StoredHistory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "SLICE_S", 0.0)
    wanted = Filter(text="number 2999")
    part = stored.queries.slice(wanted, 1)
    assert (part.events, part.next_seq) == ([], search._LOOK_EVERY + 1)
    for backwards in (False, True):
        assert [event.seq for event in searched(stored, wanted, limit=9, backwards=backwards)] == [3000]


def test_a_join_that_agrees_on_nothing_ends_when_its_time_is_over(
    stored: StoredHistory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "SLICE_S", 0.0)
    monkeypatch.setattr(search, "_LOOK_EVERY", 1)
    wanted = Filter(session="ses_0", tool="bash")
    first = stored.queries.slice(wanted, 1)
    assert first.events == []
    assert 1 < first.next_seq < 3000
    for backwards in (False, True):
        assert searched(stored, wanted, limit=9, backwards=backwards) == []


def test_a_slice_ends_once_it_has_read_enough(stored: StoredHistory, monkeypatch: pytest.MonkeyPatch) -> None:
    part = stored.queries.slice(Filter(), 1, limit_bytes=2000)
    assert sum(size_bytes for _, size_bytes in part.events[:-1]) < 2000
    assert part.next_seq == len(part.events) + 1
    monkeypatch.setattr(search, "BATCH_BYTES", 2000)
    nothing = stored.queries.slice(Filter(text="number 2999"), 1)
    assert nothing.events == []
    assert 1 < nothing.next_seq < 20


def test_others_read_and_write_between_the_slices_of_a_long_search(tmp_path: Path) -> None:
    async def both() -> None:
        async with opened(tmp_path / "history") as history:
            await history.append(*(note(number) for number in range(2000)))
            stop = threading.Event()

            def scan() -> int:
                rounds = 0
                while not stop.is_set():
                    assert history.queries.newest(Filter(text="nowhere")) == []
                    rounds += 1
                return rounds

            scanning = asyncio.create_task(asyncio.to_thread(scan))
            for number in range(20):
                await history.append(note(number))
                assert history.queries.last() is not None
            stop.set()
            assert await scanning

    asyncio.run(both())


async def test_many_topics_below_one_are_found_without_their_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "_MOST_TOPICS", 5)
    async with opened(tmp_path / "history") as history:
        await history.append(*(note(number, topic=f"tool.t{number}") for number in range(20)), note(20))
        assert [event.seq for event in history.queries.select(Filter(topic="tool"))] == list(range(1, 21))
        assert [event.seq for event in history.queries.newest(Filter(topic="tool.t7"))] == [8]


async def test_a_clock_that_was_set_back_far_hides_nothing(tmp_path: Path) -> None:
    times = [10_000_000_000, 20_000_000_000, 1_000_000, 2_000_000, 10_000_000_000, 3_000_000]
    async with opened(tmp_path / "history") as history:
        for time_us in times:
            await history.append(NewEvent(topic="test.x", type="y", data={}, time_us=time_us))
        for since_us in (
            0,
            1,
            1_500_000,
            10_000_000_000,
            20_000_000_000,
            30_000_000_000,
            1 << 99,
            -(1 << 99),
        ):
            for until_us in (0, 500_000, 2_000_000, 10_000_000_000, 30_000_000_000, 1 << 99, -(1 << 99)):
                wanted = Filter(since_us=since_us, until_us=until_us)
                expected = [event for event in history.queries.range() if wanted.wants(event)]
                assert history.queries.select(wanted) == history.queries.newest(wanted) == expected


async def test_a_store_that_does_not_know_its_clock_measures_it_once(tmp_path: Path) -> None:
    times = [5_000, 9_000, 2_000, 8_000]
    async with opened(tmp_path / "history") as history:
        for time_us in times:
            await history.append(NewEvent(topic="test.x", type="y", data={}, time_us=time_us))
        environment = history.environment

        def known() -> clock.Clock | None:
            with environment.reading() as txn:
                return clock.load(environment, txn)

        expected = clock.Clock(newest_us=9_000, set_back_us=7_000)
        assert known() == expected

        def forget_and_measure() -> None:
            with environment.env.begin(write=True) as txn:
                txn.delete(clock._KEY, db=environment.db["meta"])
            assert known() is None
            assert [event.time_us for event in history.queries.select(Filter(since_us=8_000))] == [
                9_000,
                8_000,
            ]
            assert list(clock.measure(environment)) == [4]
            assert list(clock.measure(environment)) == []

        await history.exclusively(forget_and_measure)
        assert known() == expected


def test_a_store_of_version_1_answers_every_query(tmp_path: Path) -> None:
    (tmp_path / "data.mdb").write_bytes(
        gzip.decompress((REPOSITORY / "tests" / "data" / "history-v1.mdb.gz").read_bytes())
    )
    stored = StoredHistory(tmp_path)
    try:
        assert "by_field" not in stored.environment.db
        for wanted in (
            Filter(type="intent"),
            Filter(tool="skill", effect="observe"),
            Filter(decision="allow", topic="agent"),
            Filter(caller=0),
            Filter(text="CHECK disk"),
            Filter(since_us=stored.queries.range(30, 1)[0].time_us),
        ):
            assert searched(stored, wanted, limit=5, backwards=True) == walked(stored, wanted)
        assert len(stored.queries.newest(Filter(type="intent"))) == 2
    finally:
        stored.close()
