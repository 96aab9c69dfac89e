"""Compaction: what it leaves, what comes in meanwhile, and a kill at every stage."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import pytest

from lightagentd.errors import Conflict, HistoryDamaged, StorageError
from lightagentd.events.audit.verification import verify
from lightagentd.events.history import Change, History, NewEvent
from lightagentd.events.model import within
from lightagentd.events.queries import Filter, StoredHistory
from lightagentd.events.store import compacting, exchange
from lightagentd.events.store.layout import Environment
from lightagentd.host import renaming, state_lock
from tests.conftest import REPOSITORY
from tests.events.store import killed
from tests.events.stored import note, opened
from tests.prepared import prepared

STAGES = ("copy", "follow", "finish", "made", "swap", "swapped", "reopened")
"""Where `killed` ends itself: before or in each step of a compaction, in their order."""


async def copied(source: Path, target: Path) -> None:
    """The copy as another process makes it: nobody of this one may have the store open twice."""
    assert await copying(source, target, os.getpid()) == 0


async def copying(source: Path, target: Path, daemon: int) -> int:
    program = "import sys; from lightagentd.events.store.compacting import main; sys.exit(main())"
    argv = [sys.executable, "-c", program, str(source), str(target), str(daemon)]
    child = await asyncio.create_subprocess_exec(*argv, cwd=REPOSITORY)
    return await child.wait()


def whole(environment: Environment) -> dict[str, list[tuple[bytes, bytes]]]:
    """All that a store holds."""
    with environment.reading() as txn:
        return {name: list(txn.cursor(database)) for name, database in environment.db.items()}


async def filled(history: History, count: int = 300) -> None:
    """Events of two sessions, of which one is deleted, so that there are free pages."""
    for number in range(count):
        name = "ses_2" if number % 4 == 3 else "ses_1"
        with within(session=name):
            change = Change(state="watches", key=name, value={"n": number})
            await history.append(note(number, text="x" * 3000, tool="bash"), changes=[change])
    with within(session="ses_1"):
        tombstone = NewEvent(topic="session.deleted", type="deleted", data={"by": 0})
    await history.erase("ses_1", tombstone, changes=[Change(state="watches", key="ses_1", value=None)])


def beside(folder: Path) -> set[str]:
    return {path.name for path in folder.parent.iterdir()}


async def test_a_compacted_store_holds_the_same_in_less_room(tmp_path: Path) -> None:
    folder = tmp_path / "history"
    async with opened(folder) as history:
        await filled(history)
        before = whole(history.environment)
        inode = folder.stat().st_ino
        done = await compacting.compact(history, copied)
        assert done.bytes_after < done.bytes_before * 0.8
        assert history.environment.used_bytes() < done.bytes_before * 0.8
        assert folder.stat().st_ino != inode
        assert beside(folder) == {"history"}
        last = history.queries.last()
        assert last is not None
        assert (last.topic, last.type) == ("daemon.history", "compacted")
        assert last.data == {"bytes_before": done.bytes_before, "bytes_after": done.bytes_after}
        after = whole(history.environment)
        assert [row for row in after["events"] if row in before["events"]] == before["events"]
        assert after["watches"] == before["watches"]
        assert verify(history.environment).ok
        assert (folder / "data.mdb").stat().st_mode & 0o777 == 0o600
        assert (folder / "data.mdb").stat().st_blocks * 512 >= 16 << 20  # the reserve
        await history.append(note(1))
    async with opened(folder) as history:
        assert verify(history.environment).ok
        assert history.head_seq == last.seq + 1


async def test_what_is_stored_and_erased_while_it_is_copied_is_in_the_new_store(tmp_path: Path) -> None:
    folder = tmp_path / "history"
    async with opened(folder) as history:
        await filled(history)
        appended = 0

        async def copy(source: Path, target: Path) -> None:
            nonlocal appended
            await copied(source, target)
            change = Change(state="undo", key="trace_1", value={"a": 1})
            with within(session="ses_2"):
                await history.append(*(note(n, tool="file") for n in range(1500)), changes=[change])
                gone = NewEvent(topic="session.deleted", type="deleted", data={"by": 0})
            await history.erase("ses_2", gone, changes=[Change(state="watches", key="ses_2", value=None)])
            appended = history.head_seq

        await compacting.compact(history, copy)
        assert history.head_seq == appended + 1
        assert history.queries.state("watches") == {}
        assert history.queries.state("undo") == {"trace_1": {"a": 1}}
        assert history.queries.select(Filter(tool="bash")) == []
        assert history.queries.select(Filter(tool="file")) == []
        assert [
            one.type for one in history.queries.select(Filter(session="ses_2"), limit=5000) if one.data
        ] == ["deleted"]
        assert verify(history.environment).ok


async def test_events_are_stored_all_the_time_and_none_is_lost(tmp_path: Path) -> None:
    folder = tmp_path / "history"
    async with opened(folder) as history:
        await filled(history)
        stored: list[int] = []

        async def write() -> None:
            while True:
                stored.extend(event.seq for event in await history.append(note(7), note(8)))
                assert history.queries.newest(Filter(), 3)

        writer = asyncio.create_task(write())
        for _ in range(3):
            await compacting.compact(history, copied)
        writer.cancel()
        await asyncio.wait([writer])
        assert verify(history.environment).ok
        assert set(stored) <= {event.seq for event in history.queries.select(Filter(), limit=10**6)}
        assert len(history.queries.select(Filter(topic="daemon.history"))) == 3


async def test_somebody_who_reads_beside_it_goes_on_with_what_there_was(tmp_path: Path) -> None:
    folder = tmp_path / "history"
    program = """
import sys
from pathlib import Path
from lightagentd.events.audit.verification import verify
from lightagentd.events.queries import StoredHistory
stored = StoredHistory(Path(sys.argv[1]))
for line in sys.stdin:
    if line == "again\\n":
        stored.close()
        stored = StoredHistory(Path(sys.argv[1]))
    print(verify(stored.environment).ok, stored.queries.last().seq, flush=True)
stored.close()
"""
    async with opened(folder) as history:
        await filled(history)
        head = history.head_seq
        reader = subprocess.Popen(
            [sys.executable, "-c", program, str(folder)],
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert reader.stdin is not None
        assert reader.stdout is not None

        def ask(word: str) -> str:
            assert reader.stdin is not None
            assert reader.stdout is not None
            reader.stdin.write(f"{word}\n")
            reader.stdin.flush()
            return reader.stdout.readline().strip()

        assert await asyncio.to_thread(ask, "read") == f"True {head}"
        await compacting.compact(history, copied)
        await history.append(note(1))
        assert await asyncio.to_thread(ask, "read") == f"True {head}"
        assert await asyncio.to_thread(ask, "again") == f"True {head + 2}"
        reader.stdin.close()
        assert await asyncio.to_thread(reader.wait) == 0
        reader.stdout.close()


@pytest.mark.parametrize(
    ("stage", "atomic"),
    [*((stage, "atomic") for stage in STAGES), *((stage, "two-steps") for stage in STAGES[-3:])],
)
async def test_a_kill_at_any_stage_loses_nothing(tmp_path: Path, stage: str, atomic: str) -> None:
    folder = tmp_path / "history"
    async with opened(folder) as history:
        await filled(history, 60)
        head = history.head_seq
    argv = [str(folder), stage, atomic]
    done = await asyncio.to_thread(prepared().run, killed.__name__, argv, env={"LANG": "C.UTF-8"})
    assert done.returncode == -signal.SIGKILL
    async with opened(folder) as history:
        assert verify(history.environment).ok
        assert [event.data["n"] for event in history.queries.range(head + 1) if event.data] == [1000]
        assert history.queries.state("watches") == {"ses_2": {"n": 59}}
        assert beside(folder) == {"history"}
        await compacting.compact(history, copied)
    async with opened(folder) as history:
        assert verify(history.environment).ok


async def test_without_an_atomic_exchange_it_works_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(renaming, "exchange", lambda one, other: False)
    folder = tmp_path / "history"
    async with opened(folder) as history:
        await filled(history)
        await compacting.compact(history, copied)
        assert beside(folder) == {"history"}
        assert verify(history.environment).ok


async def test_a_copy_that_fails_changes_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "history"

    async def fail(source: Path, target: Path) -> None:
        (target / "data.mdb").write_bytes(b"half")
        raise StorageError("the copy failed")

    async with opened(folder) as history:
        await filled(history)
        inode = folder.stat().st_ino
        with pytest.raises(StorageError, match="the copy failed"):
            await compacting.compact(history, fail)
        assert folder.stat().st_ino == inode
        assert beside(folder) == {"history"}
        await history.append(note(1))
        assert verify(history.environment).ok


async def test_a_copier_that_outlived_its_daemon_writes_nothing_for_the_next(tmp_path: Path) -> None:
    async with opened(tmp_path / "history") as history:
        await filled(history)
    target = tmp_path / "history.compacting"
    target.mkdir()
    assert await copying(tmp_path / "history", target, os.getppid()) == Conflict.exit_status
    assert list(target.iterdir()) == []


async def test_a_copy_that_is_not_the_same_is_not_used(tmp_path: Path) -> None:
    folder = tmp_path / "history"

    async def copy(source: Path, target: Path) -> None:
        await copied(source, target)
        other = Environment(target)
        with other.env.begin(write=True) as txn:
            txn.delete(next(iter(txn.cursor(other.db["by_topic"])))[0], db=other.db["by_topic"])
        other.close()

    async with opened(folder) as history:
        await filled(history)
        with pytest.raises(HistoryDamaged, match="by_topic"):
            await compacting.compact(history, copy)
        await history.append(note(1))
        assert verify(history.environment).ok


async def test_who_gives_up_waiting_leaves_the_history_whole(tmp_path: Path) -> None:
    folder = tmp_path / "history"
    async with opened(folder) as history:
        await filled(history)
        copying = asyncio.Event()

        async def copy(source: Path, target: Path) -> None:
            copying.set()
            await asyncio.Event().wait()

        compaction = asyncio.create_task(compacting.compact(history, copy))
        await copying.wait()
        compaction.cancel()
        with pytest.raises(asyncio.CancelledError):
            await compaction
        assert beside(folder) == {"history"}
        assert verify(history.environment).ok


async def test_no_room_is_said_before_anything_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "history"
    real = os.statvfs

    def small(path: Any) -> os.statvfs_result:
        found = list(real(path))
        found[3] = found[4] = 100  # free blocks
        return os.statvfs_result(found)

    async with opened(folder) as history:
        await filled(history)
        monkeypatch.setattr(os, "statvfs", small)
        with pytest.raises(StorageError, match="MiB left") as caught:
            await compacting.compact(history, copied)
        assert "prune" in caught.value.suggestion
        assert beside(folder) == {"history"}


async def test_a_stopped_store_is_compacted_and_the_next_start_says_so(tmp_path: Path) -> None:
    async with opened(tmp_path / "history") as history:
        await filled(history)
        head = history.head_seq
    [done] = compacting.compact_state(str(tmp_path))
    assert done["bytes_after"] < done["bytes_before"] * 0.8
    assert beside(tmp_path / "history") == {"history", "lock"}
    stored = StoredHistory(tmp_path / "history")
    last = stored.queries.last()
    assert last is not None
    assert last.seq == head
    stored.close()
    told: list[Any] = []
    async with opened(tmp_path / "history", on_commit=told.extend) as history:
        last = history.queries.last()
        assert last is not None
        assert (last.seq, last.type, last.data) == (head + 1, "compacted", done)
        assert told == [last]
        assert verify(history.environment).ok
    async with opened(tmp_path / "history") as history:
        assert history.head_seq == head + 1


async def test_the_store_of_a_running_daemon_is_not_compacted_from_outside(tmp_path: Path) -> None:
    async with opened(tmp_path / "history") as history:
        await history.append(note(1))
    fd = state_lock.hold(tmp_path)
    try:
        with pytest.raises(Conflict):
            list(compacting.compact_state(str(tmp_path)))
    finally:
        os.close(fd)


@pytest.mark.parametrize(
    "left",
    [
        lambda path: exchange.being_made(path).mkdir(),
        lambda path: exchange.made(path).mkdir(),
        lambda path: exchange.replaced(path).mkdir(),
    ],
    ids=["being-made", "made", "replaced"],
)
async def test_what_a_crash_left_beside_is_removed(tmp_path: Path, left: Callable[[Path], None]) -> None:
    folder = tmp_path / "history"
    async with opened(folder) as history:
        await history.append(note(1))
    left(folder)
    async with opened(folder) as history:
        assert history.head_seq == 1
    assert beside(folder) == {"history"}


async def test_who_opens_it_in_the_middle_of_an_exchange_gets_one_store_and_not_halves_of_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "history"
    async with opened(folder) as history:
        await history.append(note(1), note(2), note(3))
    async with opened(exchange.made(folder)) as history:
        await history.append(note(1))
    real, times = lmdb.open, 0

    def open_and_exchange(*args: Any, **options: Any) -> Any:
        nonlocal times
        times += 1
        found = real(*args, **options)
        if times == 1:
            exchange.exchange(folder)
        return found

    monkeypatch.setattr(lmdb, "open", open_and_exchange)
    stored = StoredHistory(folder)
    last = stored.queries.last()
    stored.close()
    assert last is not None
    assert (last.seq, times) == (1, 2)
