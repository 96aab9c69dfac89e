"""The history beside bare LMDB that does the same: appends, one event, and a large store's reads and start.

Bare LMDB gets the bytes that the history made before, so it writes the same keys and values into the same
databases with the same commits, and encodes and hashes nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import lmdb

from lightagentd.agents.sessions.session import SessionRecord
from lightagentd.events.audit.verification import verify
from lightagentd.events.corruption.runs import Runs
from lightagentd.events.history import Change, History, NewEvent
from lightagentd.events.model import GENESIS, Event, EventContext, encode
from lightagentd.events.queries import Filter, StoredHistory
from lightagentd.events.store.layout import EVENTS, INDEXES, Environment, index_keys, seq_key
from lightagentd.host.paths import Paths
from lightagentd.redaction import Redactor
from tests.bench.rig import show
from tests.conftest import DaemonProcess, write

RATIO_TARGET, DURABLE_TARGET_MS, READ_TARGET_MS = 0.5, 5.0, 1.0
VERIFY_TARGET, VERIFY_DISK_TARGET, START_TARGET_S, MEMORY_TARGET_MIB = 250_000, 150_000, 1.0, 150
COMMIT, COMMITS = 10, 300
"""Events of one commit, and commits of one round."""
APPENDERS, EACH = 64, 40
EVENTS_STORED = 200_000
"""How many the large store has, unless it is told otherwise."""
SESSIONS = 1000
TEXT = "The file system of / has 12 GiB left, and the journal takes 900 MiB of it. " * 3
_AT_ONCE = 20_000
"""Events of one transaction while a large store is built."""

_Item = TypeVar("_Item")
Puts = list[tuple[str, bytes, bytes]]
"""Database, key and value of everything that one event puts."""


def run(rounds: int, events: int = EVENTS_STORED) -> None:
    with tempfile.TemporaryDirectory(prefix="la-bench-", dir=roomy()) as folder:
        base = Path(folder)
        base.chmod(0o755)
        asyncio.run(_appends(base, rounds))
        _large(base, rounds, events)


def roomy() -> str | None:
    """Where there is room: a large store does not fit into a /tmp that is memory."""
    cache = Path(".cache")
    return str(cache.resolve()) if cache.is_dir() else None


def event_of(number: int) -> NewEvent:
    """One of a usual size: a call's result in a turn of one of many sessions."""
    session = number // 20 % SESSIONS  # a turn of some 20 events, then another session's
    who = EventContext(
        agent="bench",
        session=f"ses_{session:016x}",
        owner=1000,
        caller=1000,
        request_id=f"req_{number // 5:016x}",
        trace_id=f"trace_{number // 20:016x}",
    )
    data: dict[str, Any]
    if number % 2:
        data = {"role": "assistant", "content": f"{number}: {TEXT}", "tool_calls": []}
        return NewEvent(topic="agent.message", type="message", data=data, source="agent", context=who)
    call = {"call_id": f"call_{number}", "tool": "file", "action": "stat", "effect": "observe"}
    data = {**call, "function": "file_stat", "args": {"path": "/etc/hostname"}, "decision": "allow"}
    return NewEvent(topic="agent.tool_dispatch", type="intent", data=data, source="agent", context=who)


# Appends


async def _appends(base: Path, rounds: int) -> None:
    """Each figure of ours and its twin of the bare library in turns, so that both meet the same machine."""
    ours, bare = await opened(base / "ours"), Bare(base / "bare")
    figures: dict[str, list[float]] = {}
    try:
        number = 0
        for _ in range(rounds):
            events = [event_of(number + at) for at in range(COMMIT * COMMITS)]
            number += len(events)
            puts = puts_of(events)
            _note(figures, "10", len(events) / await _timed(ten_each(ours, events)))
            _note(figures, "10 bare", len(events) / bare.timed(puts, COMMIT))
            events = [event_of(number + at) for at in range(APPENDERS * EACH)]
            number += len(events)
            puts = puts_of(in_turns(events))
            seconds, commits = await group(ours, events)
            a_commit = max(1, round(len(events) / commits))
            _note(figures, "shared", a_commit)
            _note(figures, "group", len(events) / seconds)
            _note(figures, "group bare", len(events) / bare.timed(puts, a_commit))
            one, alone, synced = await _one(ours, bare, base, number)
            number += 20
            _note(figures, "one", one)
            _note(figures, "one bare", alone)
            _note(figures, "sync", synced)
    finally:
        await ours.history.close()
        bare.close()
    _show_pair("append, 10 events a commit", figures["10"], figures["10 bare"])
    shared = statistics.median(figures["shared"])
    _show_pair(f"append, {APPENDERS} at once ({shared:g} a commit)", figures["group"], figures["group bare"])
    show(f"one event, idle, until durable (target: at most {DURABLE_TARGET_MS:g})", figures["one"], "ms")
    show("the same puts and commit of bare lmdb", figures["one bare"], "ms")
    show("fdatasync(2) of 4 KiB beside it", figures["sync"], "ms")


def in_turns(events: Sequence[NewEvent]) -> list[NewEvent]:
    """The events of all appenders in the order in which they arrive."""
    return [event for at in range(EACH) for event in events[at::EACH]]


def _parts(values: Sequence[_Item], size: int) -> Iterator[Sequence[_Item]]:
    """So many of some values at a time."""
    return (values[at : at + size] for at in range(0, len(values), size))


def _note(figures: dict[str, list[float]], name: str, value: float) -> None:
    figures.setdefault(name, []).append(value)


def _show_pair(what: str, ours: Sequence[float], bare: Sequence[float]) -> None:
    show(f"{what}, lightagentd", ours, "events/s")
    show(f"{what}, bare lmdb", bare, "events/s")
    ratios = [one / other for one, other in zip(ours, bare, strict=True)]
    print(f"{what}, ratio: {statistics.median(ratios):.2f} (target: at least {RATIO_TARGET})")


class _Ours:
    """A history that counts its commits."""

    def __init__(self, folder: Path) -> None:
        self.commits = 0
        self.history = History(folder, on_commit=self._committed)

    def _committed(self, _: list[Event]) -> None:
        self.commits += 1


async def opened(folder: Path) -> _Ours:
    ours = _Ours(folder)
    await ours.history.start()
    return ours


async def _timed(work: Any) -> float:
    began = time.perf_counter()
    await work
    return time.perf_counter() - began


async def ten_each(ours: _Ours, events: Sequence[NewEvent]) -> None:
    for some in _parts(events, COMMIT):
        await ours.history.append(*some)


async def group(ours: _Ours, events: Sequence[NewEvent]) -> tuple[float, int]:
    """Many appenders of one event each at a time; gives the seconds and the commits."""

    async def appender(own: Sequence[NewEvent]) -> None:
        for event in own:
            await ours.history.append(event)

    before = ours.commits
    seconds = await _timed(asyncio.gather(*(appender(own) for own in _parts(events, EACH))))
    return seconds, ours.commits - before


async def _one(ours: _Ours, bare: Bare, base: Path, number: int) -> tuple[float, float, float]:
    """Medians in ms of one event alone: ours, bare, and a bare fdatasync(2)."""
    taken: tuple[list[float], ...] = ([], [], [])
    with (base / "synced").open("wb", buffering=0) as file:
        for at in range(20):
            event = event_of(number + at)
            puts = puts_of([event])
            await asyncio.sleep(0.01)
            taken[0].append(await _timed(ours.history.append(event)))
            taken[1].append(bare.timed(puts, 1))
            began = time.perf_counter()
            file.write(bytes(4096))
            os.fdatasync(file.fileno())
            taken[2].append(time.perf_counter() - began)
    one, alone, synced = (statistics.median(values) * 1000 for values in taken)
    return one, alone, synced


def puts_of(events: Sequence[NewEvent]) -> list[Puts]:
    """What the history puts for some events; numbers and hashes are those of a chain of their own."""
    redactor, prev, found = Redactor(), GENESIS, list[Puts]()
    for seq, new in enumerate(events, 1):
        record, event = encode(new, seq, prev, redactor)
        prev = event.hash
        found.append(_puts_of_one(record, event))
    return found


def _puts_of_one(record: bytes, event: Event) -> Puts:
    topic = event.topic.encode()
    return [(EVENTS, seq_key(event.seq), record), *((name, key, topic) for name, key in index_keys(event))]


class Bare:
    """The bare library, with the databases of the history and as few calls as it takes."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._env = lmdb.open(str(folder), map_size=1 << 34, max_dbs=32, readahead=False)
        self._db = {name: self._env.open_db(name.encode()) for name in (EVENTS, *INDEXES)}
        self._seq = 0

    def timed(self, events: Sequence[Puts], commit: int) -> float:
        """Put everything, with so many events a commit; gives the seconds. Keys go on from round to round."""
        moved = [[(name, self._moved(key), value) for name, key, value in puts] for puts in events]
        self._seq += len(events)
        began = time.perf_counter()
        for some in _parts(moved, commit):
            with self._env.begin(write=True) as txn:
                for puts in some:
                    for name, key, value in puts:
                        txn.put(key, value, db=self._db[name], append=name == EVENTS)
        return time.perf_counter() - began

    def _moved(self, key: bytes) -> bytes:
        return key[:-8] + seq_key(int.from_bytes(key[-8:], "big") + self._seq)

    def close(self) -> None:
        self._env.close()


# A large store


def _large(base: Path, rounds: int, events: int) -> None:
    paths = Paths(config=base / "etc", state=base / "state", runtime=base / "run")
    paths.state.mkdir(mode=0o700)
    began = time.perf_counter()
    asyncio.run(build(paths.history, events))
    size_mib = (paths.history / "data.mdb").stat().st_size >> 20
    print(f"a store of {events} events has {size_mib} MiB ({time.perf_counter() - began:.0f} s to build)")
    history = StoredHistory(paths.history)
    try:
        reads = [_read_ms(history, at) for at in range(max(rounds, 50))]
        again = range(rounds if events < 1_000_000 else 1)
        disk = [_verify_rate(history, events, from_disk=True) for _ in again]
        rates = [_verify_rate(history, events) for _ in again]
    finally:
        history.close()
    show(f"the newest 50 of a session of {events} (target: at most {READ_TARGET_MS:g})", reads, "ms")
    show(f"verify of {events}, from memory (target: at least {VERIFY_TARGET})", rates, "events/s")
    show(f"verify of {events}, from disk (target: at least {VERIFY_DISK_TARGET})", disk, "events/s")
    _daemon(paths, rounds, events)


def _read_ms(history: StoredHistory, at: int) -> float:
    wanted = Filter(session=f"ses_{at * 37 % SESSIONS:016x}")
    began = time.perf_counter()
    found = history.queries.newest(wanted, 50)
    seconds = time.perf_counter() - began
    assert len(found) == 50
    return seconds * 1000


def _verify_rate(history: StoredHistory, events: int, *, from_disk: bool = False) -> float:
    if from_disk:
        with history.environment.data_file.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    began = time.perf_counter()
    found = verify(history.environment)
    seconds = time.perf_counter() - began
    assert found.ok, found
    return events / seconds


def _daemon(paths: Paths, rounds: int, events: int) -> None:
    """Start-up, and memory after some queries and a turn, with and without the pages of the mapped file."""
    write(paths.config / "lightagentd.toml", "[history]\nmax_bytes = 0\n")
    with contextlib.closing(StoredHistory(paths.history)) as stored:
        Runs(paths.state / "last-run.json").stop(*stored.queries.stored_head())  # or all of it is examined
    daemon = DaemonProcess(paths)
    starts: list[float] = []
    own: list[float] = []
    resident: list[float] = []
    try:
        for _ in range(rounds):
            began = time.perf_counter()
            daemon.start()
            starts.append(time.perf_counter() - began)
            with daemon.client() as client:
                for at in range(20):
                    client.call("History.Query", session=f"ses_{at:016x}", limit=50)
                client.call("Manager.Ask", agent="ops", text="check disk", new=True)
            sizes = _sizes_mib(daemon.pid)
            own.append(sizes["RssAnon"])
            resident.append(sizes["VmRSS"])
            daemon.stop()
    finally:
        daemon.close()
    show(f"start with {events} events to the first answer (target: at most {START_TARGET_S:g})", starts, "s")
    show(f"memory of the daemon's own, RssAnon (target: at most {MEMORY_TARGET_MIB})", own, "MiB")
    show("with the pages of files that are mapped, VmRSS", resident, "MiB")


def _sizes_mib(pid: int) -> dict[str, float]:
    lines = (line.split() for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {line[0].rstrip(":"): int(line[1]) / 1024 for line in lines if line[-1:] == ["kB"]}


async def build(folder: Path, events: int) -> None:
    """Write a store as the history does, but in large transactions that nothing syncs."""
    history = History(folder)
    await history.start()
    first = await history.append(event_of(0), changes=[_session(number) for number in range(SESSIONS)])
    await history.close()
    environment = Environment(folder)
    names = environment.db.keys()
    environment.close()
    env = lmdb.open(str(folder), map_size=max(1 << 30, events * 4096), max_dbs=32, sync=False)
    try:
        db = {name: env.open_db(name.encode()) for name in names}
        await asyncio.to_thread(_fill, env, db, first[0], events)
        env.sync(True)
    finally:
        env.close()


def _session(number: int) -> Change:
    title, now = f"Session {number}", time.time_ns() // 1000
    record = SessionRecord(
        id=f"ses_{number:016x}", agent="bench", owner=1000, title=title, created_us=now, updated_us=now
    )
    return Change(state="sessions", key=record.id, value=record.to_dict())


def _fill(env: Any, db: dict[str, Any], first: Event, events: int) -> None:
    redactor, prev = Redactor(), first.hash
    for numbers in _parts(range(2, events + 1), _AT_ONCE):
        with env.begin(write=True) as txn:
            for seq in numbers:
                record, event = encode(event_of(seq - 1), seq, prev, redactor)
                prev = event.hash
                for name, key, value in _puts_of_one(record, event):
                    txn.put(key, value, db=db[name], append=name == EVENTS)
