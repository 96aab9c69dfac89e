"""The history's writing half: group commit, atomic changes of state, crashes, and files that are damaged."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import lmdb
import pytest

from lightagentd.errors import HistoryDamaged, NotFound, StorageError
from lightagentd.events import history as module
from lightagentd.events.audit.verification import verify
from lightagentd.events.history import Change, Event, History, NewEvent
from lightagentd.events.model import GENESIS, within
from lightagentd.events.queries import Filter, StoredHistory
from lightagentd.events.store import layout
from tests.conftest import REPOSITORY
from tests.events.stored import note, opened, raw_events

WRITER = """
import asyncio, sys
from pathlib import Path
from lightagentd.events.store import layout
from lightagentd.events.history import Change, History, NewEvent

layout.INITIAL_MAP_BYTES = 1 << 20

async def write(history, name):
    number = 0
    while True:
        number += 1
        data = {"name": name, "n": number, "text": "x" * 600}
        events = await history.append(
            NewEvent(topic="agent.message", type="message", data=data),
            NewEvent(topic="session.turn", type="started", data=data),
            changes=[Change(state="undo", key=name, value={"n": number})],
        )
        print(name, number, events[0].seq, events[1].seq, flush=True)

async def main():
    history = History(Path(sys.argv[1]))
    await history.start()
    await asyncio.gather(*(write(history, name) for name in ("one", "two", "three")))

asyncio.run(main())
"""


def run_python(program: str, *args: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, *args],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
        **options,
    )


def numbers(events: list[Event]) -> list[int]:
    return [event.data["n"] for event in events if event.data]


async def test_events_get_their_numbers_and_are_chained(tmp_path: Path) -> None:
    async with opened(tmp_path / "history") as history:
        assert history.head_seq == 0
        first, second = await history.append(note(1), note(2))
        [third] = await history.append(note(3))
        assert [first.seq, second.seq, third.seq] == [1, 2, 3]
        assert [first.prev, second.prev, third.prev] == [GENESIS, first.hash, second.hash]
        assert history.queries.range() == [first, second, third]
        assert history.head_seq == 3
    async with opened(tmp_path / "history") as history:
        [fourth] = await history.append(note(4))
        assert (fourth.seq, fourth.prev) == (4, third.hash)
        assert verify(history.environment).ok


async def test_many_appends_in_flight_keep_their_order_and_share_commits(tmp_path: Path) -> None:
    commits: list[int] = []
    async with opened(tmp_path / "history", on_commit=lambda events: commits.append(len(events))) as history:
        waiting = [history.append(note(number)) for number in range(2000)]
        done = await asyncio.gather(*waiting)
        assert [events[0].seq for events in done] == list(range(1, 2001))
        assert numbers(history.queries.select(Filter(), limit=5000)) == list(range(2000))
        assert verify(history.environment).events == 2000
    assert sum(commits) == 2000
    assert len(commits) < 500


async def test_what_may_wait_shares_the_commit_of_the_next_append_unless_somebody_hurries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits: list[list[int]] = []
    on_commit = commits.append
    async with opened(
        tmp_path / "history", on_commit=lambda events: on_commit([event.seq for event in events])
    ) as history:
        await history.append(note(1), may_wait=True)  # for a moment only
        monkeypatch.setattr(module, "WAIT_S", 3600.0)
        first = history.append(note(2), may_wait=True)
        await asyncio.gather(first, history.append(note(3)))
        hurried = history.append(note(4), may_wait=True)
        history.hurry()
        await hurried
        closing = history.append(note(5), may_wait=True)
    assert commits == [[1], [2, 3], [4], [5]]
    assert closing.done()
    history.hurry()  # nobody waits any more


@pytest.mark.parametrize(
    "bad",
    [
        {"data": {"object": object()}},
        {"data": 7},
        {"changes": [Change(state="sessions", key="k" * 600, value={})]},
        {"changes": [Change(state="sessions", key="", value={})]},
        {"changes": [Change(state="no-such-state", key="k", value={})]},
        {"changes": [Change(state="sessions", key="k", value={"set": {1}})]},
    ],
    ids=["object", "no-mapping", "long-key", "no-key", "state", "value"],
)
async def test_an_append_that_cannot_be_stored_does_not_fail_its_neighbours(
    tmp_path: Path, bad: dict[str, Any]
) -> None:
    wrong = note(0)
    object.__setattr__(wrong, "data", bad.get("data", {}))
    async with opened(tmp_path / "history") as history:
        before = [history.append(note(number)) for number in range(20)]
        failing = history.append(note(100), wrong, changes=bad.get("changes", ()))
        after = [history.append(note(number)) for number in range(20, 40)]
        with pytest.raises(StorageError, match="could not store an event"):
            await failing
        await asyncio.gather(*before, *after)
        assert numbers(history.queries.range()) == list(range(40))
        assert history.queries.state("sessions") == {}
        assert verify(history.environment).ok


async def test_data_that_nests_too_deep_fails_alone_and_the_history_lives_on(tmp_path: Path) -> None:
    deep: Any = 1
    for _ in range(5000):
        deep = [deep]
    async with opened(tmp_path / "history") as history:
        with pytest.raises(StorageError):
            await history.append(note(deep=deep))
        await history.append(note(1))
        assert numbers(history.queries.range()) == [1]


async def test_what_is_told_of_a_commit_is_in_order_and_on_disk_already(tmp_path: Path) -> None:
    told: list[int] = []

    def on_commit(events: list[Event]) -> None:
        last = history.queries.last()
        assert last is not None
        assert last.seq >= events[-1].seq
        told.extend(event.seq for event in events)

    async with opened(tmp_path / "history", on_commit=on_commit) as history:
        await asyncio.gather(*(history.append(note(number)) for number in range(300)))
    assert told == list(range(1, 301))


async def test_a_caller_that_stops_waiting_loses_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path / "history") as history:
        given_up = history.append(note(1))
        given_up.cancel()
        await history.append(note(2))
        assert numbers(history.queries.range()) == [1, 2]


async def test_state_is_stored_replaced_and_deleted_with_its_event(tmp_path: Path) -> None:
    async with opened(tmp_path / "history") as history:
        await history.append(note(), changes=[Change(state="watches", key="ses_1", value={"a": 1})])
        await history.append(
            note(),
            changes=[
                Change(state="watches", key="ses_1", value={"a": 2}),
                Change(state="undo", key="trace_1", value={"b": "ü"}),
            ],
        )
        assert history.queries.state("watches") == {"ses_1": {"a": 2}}
        assert history.queries.state_of("undo", "trace_1") == {"b": "ü"}
        await history.append(note(), changes=[Change(state="watches", key="ses_1", value=None)])
        assert history.queries.state("watches") == {}
        with pytest.raises(NotFound, match="ses_1"):
            history.queries.state_of("watches", "ses_1")


async def test_closing_stores_what_was_appended_and_refuses_more(tmp_path: Path) -> None:
    history = History(tmp_path / "history")
    with pytest.raises(StorageError, match="closed"):
        history.append(note())
    await history.start()
    waiting = [history.append(note(number)) for number in range(100)]
    closing = asyncio.create_task(history.close())
    await asyncio.sleep(0)
    with pytest.raises(StorageError, match="closed"):
        history.append(note(100))
    await closing
    assert [events[0].seq for events in await asyncio.gather(*waiting)] == list(range(1, 101))
    with pytest.raises(StorageError):
        history.queries.last()
    await history.close()


async def test_the_map_grows_under_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "INITIAL_MAP_BYTES", 512 << 10)
    reads = 0
    async with opened(tmp_path / "history") as history:
        waiting = [history.append(note(number, text="x" * 4000)) for number in range(1000)]
        while not all(future.done() for future in waiting):
            reads += len(history.queries.newest(Filter(), 5)) > 0
            await asyncio.sleep(0)
        assert numbers(history.queries.select(Filter(), limit=2000)) == list(range(1000))
        assert verify(history.environment).ok
        assert history.environment.env.info()["map_size"] >= 4 << 20
    assert reads


async def test_one_event_larger_than_the_whole_map_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "INITIAL_MAP_BYTES", 512 << 10)
    async with opened(tmp_path / "history") as history:
        [stored] = await history.append(note(1, text="ü" * (1 << 20)))
        assert history.queries.last() == stored


def test_every_acknowledged_event_is_there_after_kill_9(tmp_path: Path) -> None:
    seed = random.randrange(10**6)
    rng = random.Random(seed)
    acknowledged: dict[int, tuple[str, int]] = {}
    for _ in range(10):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path / "history")],
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(rng.randrange(1, 60))]
        process.send_signal(signal.SIGKILL)
        lines += process.stdout.read().splitlines(keepends=True)
        process.wait()
        process.stdout.close()
        for line in lines:
            if line.endswith("\n"):
                name, number, first, second = line.split()
                assert int(second) == int(first) + 1
                acknowledged[int(first)] = (name, int(number))
        check_after_kill(tmp_path / "history", acknowledged, seed)
    assert len(acknowledged) > 10


def check_after_kill(folder: Path, acknowledged: dict[int, tuple[str, int]], seed: int) -> None:
    """Acknowledged events are there, events of one append are whole, and the state is that of the last."""
    stored = StoredHistory(folder)
    try:
        events = {event.seq: event for event in stored.queries.select(Filter(), limit=10**6)}
        verification = verify(stored.environment)
        state = stored.queries.state("undo")
    finally:
        stored.close()
    assert verification.ok, f"{verification} (seed {seed})"
    for seq, (name, number) in acknowledged.items():
        data = events[seq].data
        assert data is not None, f"seed {seed}"
        assert (data["name"], data["n"]) == (name, number), f"seed {seed}"
    last: dict[str, int] = {}
    for seq in range(1, len(events) + 1, 2):
        first, second = events[seq], events[seq + 1]
        assert (first.topic, second.topic) == ("agent.message", "session.turn"), f"seed {seed}"
        assert first.data == second.data, f"seed {seed}"
        assert first.data is not None
        last[first.data["name"]] = first.data["n"]
    assert {name: value["n"] for name, value in state.items()} == last, f"seed {seed}"


async def test_the_reserve_is_allocated_and_its_lack_is_told_not_raised(tmp_path: Path) -> None:
    async with opened(tmp_path / "history") as history:
        await history.append(note(1))
        data_file = tmp_path / "history" / "data.mdb"
        assert data_file.stat().st_blocks * 512 >= layout.RESERVE_BYTES
        low = [history.disk_low]
        data_file.rename(tmp_path / "elsewhere")
        [stored] = await history.append(note(2, text="x" * 100))
        low.append(history.disk_low)
        (tmp_path / "elsewhere").rename(data_file)
        await history.append(note(3))
        low.append(history.disk_low)
        assert low == [False, True, False]
        assert stored.seq == 2


async def test_it_is_read_beside_the_writer_while_the_map_grows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "INITIAL_MAP_BYTES", 512 << 10)
    program = """
import sys
from pathlib import Path
from lightagentd.events import history as module
from lightagentd.events.audit.verification import verify
from lightagentd.events.queries import Filter, StoredHistory
stored = StoredHistory(Path(sys.argv[1]))
for _ in sys.stdin:
    found = verify(stored.environment)
    print(found.ok, found.events, len(stored.queries.newest(Filter(agent=""), 10)), flush=True)
stored.close()
"""
    async with opened(tmp_path / "history") as history:
        await history.append(note(0))
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            program,
            str(tmp_path / "history"),
            cwd=REPOSITORY,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        for count in (1, 301, 601):
            process.stdin.write(b"\n")
            assert await process.stdout.readline() == f"True {count} {min(count, 10)}\n".encode()
            await asyncio.gather(*(history.append(note(n, text="x" * 4000)) for n in range(300)))
        process.stdin.close()
        assert await process.wait() == 0
        process._transport.close()  # type: ignore[attr-defined] # asyncio leaves the pipe to the collector


async def test_it_is_read_while_no_daemon_runs_and_never_written(tmp_path: Path) -> None:
    async with opened(tmp_path / "history") as history:
        events = await history.append(note(1), note(2))
    stored = StoredHistory(tmp_path / "history")
    try:
        assert stored.queries.range() == events
        assert verify(stored.environment).ok
        with pytest.raises(lmdb.ReadonlyError):
            stored.environment.env.begin(write=True)
    finally:
        stored.close()


def test_a_history_that_is_not_there_is_an_error_that_makes_nothing(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="history"):
        StoredHistory(tmp_path / "history")
    assert not (tmp_path / "history").exists()


async def test_a_folder_that_cannot_be_made_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    history = History(tmp_path / "file" / "history")
    with pytest.raises(StorageError, match="cannot be used"):
        await history.start()
    await history.close()


async def test_a_newer_schema_is_refused_and_the_folder_can_be_opened_again(tmp_path: Path) -> None:
    async with opened(tmp_path / "history"):
        pass

    def set_version(version: bytes) -> None:
        environment = lmdb.open(str(tmp_path / "history"), max_dbs=16)
        with environment.begin(write=True, db=environment.open_db(b"meta")) as txn:
            txn.put(b"schema_version", version)
        environment.close()

    set_version(b"99")
    for _ in range(2):
        with pytest.raises(StorageError, match="schema version 99"):
            await History(tmp_path / "history").start()
    set_version(str(layout.SCHEMA_VERSION).encode())
    async with opened(tmp_path / "history"):
        pass


def garble(raw: bytes) -> bytes:
    return b"\xaa" * 8192 + raw[8192:]


def halve(raw: bytes) -> bytes:
    return raw[: len(raw) // 2]


def keep_little(raw: bytes) -> bytes:
    return raw[:8192]


@pytest.mark.parametrize("damage", [garble, halve, keep_little])
async def test_a_damaged_file_is_named_and_left_as_it_is(
    tmp_path: Path, damage: Callable[[bytes], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "RESERVE_BYTES", 256 << 10)
    async with opened(tmp_path / "history") as history:
        await asyncio.gather(*(history.append(note(n, text="x" * 50_000)) for n in range(100)))
    data_file = tmp_path / "history" / "data.mdb"
    damaged = damage(data_file.read_bytes())
    data_file.write_bytes(damaged)
    # In a process of its own: without the check of the size, LMDB ends the process with SIGBUS.
    program = (
        "import asyncio, sys; from pathlib import Path; from lightagentd.events.history import History\n"
        "from lightagentd.errors import HistoryDamaged\n"
        "try: asyncio.run(History(Path(sys.argv[1])).start())\n"
        "except HistoryDamaged as err: print(err, err.suggestion)\n"
    )
    done = run_python(program, str(tmp_path / "history"))
    assert done.returncode == 0, done.stderr
    assert str(tmp_path / "history") in done.stdout
    assert "backup" in done.stdout
    assert data_file.read_bytes() == damaged


async def test_a_last_record_that_cannot_be_read_stops_the_start(tmp_path: Path) -> None:
    async with opened(tmp_path / "history") as history:
        await history.append(note(1), note(2))
    with raw_events(tmp_path / "history") as txn:
        txn.put(layout.seq_key(2), b"not an event")
    for _ in range(2):
        with pytest.raises(HistoryDamaged, match="cannot be read"):
            await History(tmp_path / "history").start()


async def test_the_files_belong_to_their_user_alone(tmp_path: Path) -> None:
    async with opened(tmp_path / "history") as history:
        await history.append(note(1))
    assert (tmp_path / "history").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "history" / "data.mdb").stat().st_mode & 0o077 == 0


async def test_the_stored_bytes_are_those_of_schema_version_1(tmp_path: Path) -> None:
    async with opened(tmp_path / "history") as history:
        await history.append(note(1, text="ü"))
    with raw_events(tmp_path / "history") as txn:
        [(key, record)] = list(txn.cursor())
    line, data = record.split(b"\n")
    assert key == b"\0\0\0\0\0\0\0\1"
    assert data == '{"n":1,"text":"ü"}'.encode()
    assert json.loads(line)["prev"] == GENESIS


# Deleted sessions


def of_session(session: str, number: int, topic: str = "agent.message") -> NewEvent:
    with within(session=session):
        return note(number, topic)


def deleted(session: str, number: int) -> NewEvent:
    with within(session=session):
        return replace(note(number, "session.deleted"), type="deleted")


async def test_an_erased_session_keeps_headers_hashes_and_the_chain(tmp_path: Path) -> None:
    async with opened(tmp_path / "history") as history:
        long_ids = "s" * 300
        for number in range(30):
            name = ("gone", "kept", long_ids + "1", long_ids + "2")[number % 4]
            await history.append(of_session(name, number))
        before = history.queries.range()
        change = Change(state="sessions", key="gone", value=None)
        await history.append(changes=[replace(change, value={"a": 1})])
        [tombstone] = await history.erase("gone", deleted("gone", 99), changes=[change])
        assert tombstone.data == {"n": 99, "erased_events": 8, "erased_rows": {"sessions": 1}}
        after = history.queries.range()
        assert [(one.seq, one.hash, one.data_sha256) for one in after[:-1]] == [
            (one.seq, one.hash, one.data_sha256) for one in before
        ]
        assert [one.data for one in after if one.session == "gone"] == [None] * 8 + [tombstone.data]
        assert [one for one in after if one.session != "gone"] == [
            one for one in before if one.session != "gone"
        ]
        assert history.queries.messages("gone") == []
        assert history.queries.state("sessions") == {}
        [again] = await history.erase(long_ids + "1", deleted(long_ids + "1", 100))
        assert (again.data or {})["erased_events"] == 7
        assert len(history.queries.messages(long_ids + "2")) == 7
        assert verify(history.environment).ok
    async with opened(tmp_path / "history") as history:
        assert verify(history.environment).ok
        await history.append(note(1))


async def test_what_is_appended_with_an_erasure_keeps_its_place(tmp_path: Path) -> None:
    async with opened(tmp_path / "history") as history:
        waiting = [history.append(of_session("gone", number)) for number in range(20)]
        erased = history.erase("gone", of_session("gone", 20, "session.deleted"))
        after = [history.append(of_session("other", number)) for number in range(20)]
        await asyncio.gather(*waiting, *after)
        [tombstone] = await erased
        assert (tombstone.seq, (tombstone.data or {})["erased_events"]) == (21, 20)
        assert verify(history.environment).ok


async def test_an_erasure_that_cannot_be_stored_erases_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path / "history") as history:
        await history.append(of_session("gone", 1))
        bad = Change(state="no-such-state", key="k", value=None)
        with pytest.raises(StorageError):
            await history.erase("gone", of_session("gone", 2), changes=[bad])
        assert numbers(history.queries.range()) == [1]


async def test_the_newest_messages_are_those_at_the_end(tmp_path: Path) -> None:
    async with opened(tmp_path / "history") as history:
        for session in ("a", "b", "ab"):
            for number in range(10):
                await history.append(of_session(session, number), of_session(session, 50, "session.turn"))
        for limit in (1, 3, 10, 100):
            found = history.queries.newest_messages("b", limit)
            assert found == history.queries.messages("b")[-limit:]
        assert history.queries.newest_messages("ab", 2) == history.queries.messages("ab")[-2:]
        assert history.queries.newest_messages("none", 2) == history.queries.newest_messages("", 2) == []


# Errors of the disk


def break_root(folder: Path) -> None:
    """Have the next write of a root page fail, and those alone: LMDB has a descriptor for them (O_DSYNC)."""
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            if entry.readlink() != folder / "data.mdb":
                continue
            [flags] = re.findall(r"flags:\s+(\d+)", Path(f"/proc/self/fdinfo/{entry.name}").read_text())
            if int(flags, 8) & os.O_DSYNC:
                readable = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
                os.dup2(readable, int(entry.name), inheritable=False)
                os.close(readable)
                return
    raise AssertionError("LMDB has no descriptor for its root pages")


async def test_a_file_that_lmdb_gave_up_is_opened_again(tmp_path: Path) -> None:
    async with opened(tmp_path / "history") as history:
        await history.append(note(1), changes=[Change(state="undo", key="a", value={"n": 1})])
        for number in (2, 3):
            break_root(tmp_path / "history")
            with pytest.raises(StorageError, match="could not store"):
                await history.append(note(100), changes=[Change(state="undo", key="a", value={"n": 100})])
            assert "could not be written" in history.problem
            assert numbers(history.queries.range()) == list(range(1, number))
            await history.append(note(number))
            assert not history.problem
        assert history.queries.state("undo") == {"a": {"n": 1}}
        assert verify(history.environment).ok
    async with opened(tmp_path / "history") as history:
        assert numbers(history.queries.range()) == [1, 2, 3]


async def test_a_file_that_cannot_be_opened_again_is_read_and_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "history"

    def refuse(_: Path) -> None:
        raise PermissionError(13, "no")

    async with opened(folder) as history:
        await history.append(note(1))
        with monkeypatch.context() as patch:
            patch.setattr(layout, "_allocate_lock_file", refuse)
            break_root(folder)
            for _ in range(2):
                with pytest.raises(StorageError):
                    await history.append(note(2))
                assert numbers(history.queries.range()) == [1]
        await history.append(note(2))
        assert numbers(history.queries.range()) == [1, 2]
        assert verify(history.environment).ok


async def test_a_number_that_is_taken_is_an_error_and_nothing_is_stored(tmp_path: Path) -> None:
    """Nobody else writes the store of a running daemon; if somebody does, that must not be silent."""
    async with opened(tmp_path / "history") as history:
        await history.append(note(1), note(2))
        history._head = (1, history.queries.range()[0].hash)
        with pytest.raises(HistoryDamaged, match="has an event 2 already"):
            await history.append(note(3))
        assert numbers(history.queries.range()) == [1, 2]
        history._head = history.queries.stored_head()
        await history.append(note(3))
        assert verify(history.environment).ok
