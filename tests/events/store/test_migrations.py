"""A store of schema version 1 becomes one of the present version, whatever happens in between."""

from __future__ import annotations

import gzip
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lightagentd.errors import HistoryDamaged
from lightagentd.events.audit.verification import verify
from lightagentd.events.history import History
from lightagentd.events.model import decode
from lightagentd.events.queries import Filter, StoredHistory
from lightagentd.events.store import migrations
from lightagentd.events.store.layout import EVENTS, INDEXES, SCHEMA_VERSION, Environment, index_keys, seq_key
from tests.conftest import REPOSITORY
from tests.events.stored import opened, raw_events

DATA = REPOSITORY / "tests" / "data" / "history-v1.mdb.gz"
EVENTS_OF_VERSION_1 = 45

MIGRATE = """
import os, signal, sys
from pathlib import Path
from lightagentd.events.store import migrations
from lightagentd.events.store.layout import Environment
migrations.BATCH = 5
left = int(sys.argv[2])
def progress(text):
    global left
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)
    left -= 1
migrations.migrate(Environment(Path(sys.argv[1])), progress)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the store of version 1."""
    folder = tmp_path / "history"
    folder.mkdir()
    with gzip.open(DATA) as packed, (folder / "data.mdb").open("wb") as unpacked:
        shutil.copyfileobj(packed, unpacked)
    return folder


def dump(folder: Path) -> dict[str, list[tuple[bytes, bytes]]]:
    """All that is stored of events."""
    environment = Environment(folder, read_only=True)
    try:
        with environment.reading() as txn:
            return {name: list(txn.cursor(environment.db[name])) for name in (EVENTS, *INDEXES)}
    finally:
        environment.close()


def indexed_anew(events: list[tuple[bytes, bytes]]) -> dict[str, list[tuple[bytes, bytes]]]:
    """What the indexes hold when these events are stored by this version."""
    found: dict[str, list[tuple[bytes, bytes]]] = {name: [] for name in INDEXES}
    for _, record in events:
        event = decode(record)
        for name, key in index_keys(event):
            found[name].append((key, event.topic.encode()))
    return {name: sorted(rows) for name, rows in found.items()}


async def test_a_store_of_version_1_becomes_what_this_version_would_have_stored(folder: Path) -> None:
    told: list[str] = []
    before = dump_version_1(folder)
    async with opened(folder, progress=told.append) as history:
        assert history.environment.version == SCHEMA_VERSION
        last = history.queries.last()
        assert last is not None
        assert (last.topic, last.type) == ("daemon.history", "migrated")
        assert last.data == {"from_version": 1, "to_version": SCHEMA_VERSION}
        assert verify(history.environment).ok
        assert history.queries.select(Filter(tool="skill"))
    assert "schema version 2" in told[0]
    stored = dump(folder)
    assert stored[EVENTS][:EVENTS_OF_VERSION_1] == before
    assert len(stored[EVENTS]) == EVENTS_OF_VERSION_1 + 1
    assert indexed_anew(stored[EVENTS]) == {name: stored[name] for name in INDEXES}
    async with opened(folder) as history:
        assert history.head_seq == EVENTS_OF_VERSION_1 + 1


def dump_version_1(folder: Path) -> list[tuple[bytes, bytes]]:
    with raw_events(folder) as txn:
        return list(txn.cursor())


@pytest.mark.parametrize("batches", [0, 1, 4, 8, 9])
async def test_a_migration_that_is_killed_goes_on_with_the_next_start(folder: Path, batches: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", MIGRATE, str(folder), str(batches)], cwd=REPOSITORY, timeout=60
    )
    assert done.returncode == -signal.SIGKILL
    async with opened(folder) as history:
        assert verify(history.environment).ok
        assert len(history.queries.select(Filter(topic="daemon.history"))) == 1
    stored = dump(folder)
    assert indexed_anew(stored[EVENTS]) == {name: stored[name] for name in INDEXES}


async def test_the_next_start_begins_where_the_migration_stopped(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subprocess.run([sys.executable, "-c", MIGRATE, str(folder), "4"], cwd=REPOSITORY, timeout=60)
    monkeypatch.setattr(migrations, "BATCH", 5)
    told: list[str] = []
    async with opened(folder, progress=told.append):
        assert "event 21 of about 45" in told[0]


def test_it_is_read_without_being_migrated_also_after_a_kill(folder: Path) -> None:
    def found() -> Any:
        stored = StoredHistory(folder)
        try:
            assert "by_field" not in stored.environment.db
            assert stored.environment.version == 1
            assert verify(stored.environment).ok
            return stored.queries.select(Filter(tool="skill"), limit=100), stored.queries.newest(
                Filter(type="message"), 100
            )
        finally:
            stored.close()

    of_tool, of_type = found()
    assert of_tool
    assert of_type
    subprocess.run([sys.executable, "-c", MIGRATE, str(folder), "4"], cwd=REPOSITORY, timeout=60)
    assert found() == (of_tool, of_type)


async def test_a_record_that_cannot_be_read_stops_the_migration_and_is_named(folder: Path) -> None:
    with raw_events(folder) as txn:
        txn.put(seq_key(7), b"not an event")
    for _ in range(2):
        with pytest.raises(HistoryDamaged, match="event 7 cannot be read"):
            await History(folder).start()
    with raw_events(folder) as txn:
        assert txn.get(seq_key(7)) == b"not an event"


async def test_the_map_grows_while_it_migrates(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size_bytes = (folder / "data.mdb").stat().st_size
    monkeypatch.setattr("lightagentd.events.store.layout.INITIAL_MAP_BYTES", size_bytes)
    async with opened(folder) as history:
        assert verify(history.environment).ok
