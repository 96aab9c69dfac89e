"""A map that is too small from the first event on grows while others read and many append."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from lightagentd.events.audit.verification import verify
from lightagentd.events.filter import Filter
from lightagentd.events.queries import StoredHistory
from lightagentd.events.store import layout
from tests.events.stored import note, opened

APPENDERS, EACH, BYTES = 20, 40, 12_000


async def test_a_map_that_must_grow_under_load_keeps_readers_and_appends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "INITIAL_MAP_BYTES", 256 << 10)
    async with opened(tmp_path / "history") as history:
        grown: list[int] = []
        grow = history.environment.grow

        def counted() -> None:
            grown.append(1)
            grow()

        monkeypatch.setattr(history.environment, "grow", counted)
        done = asyncio.Event()
        reads = 0

        async def read() -> None:
            nonlocal reads
            while not done.is_set():
                found = await asyncio.to_thread(history.queries.newest, Filter(topic="agent.message"), 20)
                assert [event.seq for event in found] == sorted(event.seq for event in found)
                reads += 1

        async def append(first: int) -> None:
            for number in range(first, first + EACH):
                (stored,) = await history.append(note(number, text="x" * BYTES))
                assert history.queries.range(stored.seq, 1)[0].hash == stored.hash

        async with asyncio.TaskGroup() as tasks:
            for _ in range(3):
                tasks.create_task(read())
            async with asyncio.TaskGroup() as appends:
                for number in range(APPENDERS):
                    appends.create_task(append(number * EACH))
            done.set()
        assert len(grown) >= 4
        assert reads > 0
        assert verify(history.environment).ok
    stored_history = StoredHistory(tmp_path / "history")
    try:
        found = stored_history.queries.newest(Filter(topic="agent.message"), APPENDERS * EACH + 1)
        assert sorted(event.data["n"] for event in found if event.data) == list(range(APPENDERS * EACH))
    finally:
        stored_history.close()
