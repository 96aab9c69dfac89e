"""What was stored, asked for and followed as clients do."""

from __future__ import annotations

import asyncio
import json
import os
from contextlib import aclosing
from typing import Any

import pytest

from lightagentd.control.authz import Caller
from lightagentd.control.dbus.methods import methods
from lightagentd.control.operations import history as history_operations
from lightagentd.daemon.daemon import Daemon
from lightagentd.errors import (
    AgentNotFound,
    InvalidArgument,
    LightagentError,
    PermissionDenied,
    TimedOut,
    ToolNotFound,
)
from lightagentd.events.filter import Filter
from lightagentd.events.model import Event, decode
from lightagentd.events.store import records, search
from lightagentd.events.subscriptions import LIMIT
from lightagentd.events.types.daemon import DaemonReady
from lightagentd.events.types.tool import emitted
from tests.raw_varlink import Raw, message, small_buffers

ME = Caller(uid=os.geteuid(), gid=os.getegid(), pid=os.getpid())
READY = Filter(topic="daemon.state", type="ready")


async def fill(daemon: Daemon, count: int, size: int = 0) -> list[int]:
    """Store so many events; gives their numbers."""
    new = (DaemonReady(message=f"{number} {'x' * size}").event() for number in range(count))
    return [event.seq for event in await daemon.history.append(*new)]


async def pages(daemon: Daemon, wanted: Filter, limit: int, *, oldest_first: bool) -> list[list[int]]:
    found: list[list[int]] = []
    position: int | None = None
    while position != 0:
        place = (
            {"from_seq": position, "to_seq": None} if oldest_first else {"from_seq": None, "to_seq": position}
        )
        page = await daemon.service.history.page(ME, wanted, **place, oldest_first=oldest_first, limit=limit)
        found.append([event.seq for event in page.events])
        position = page.next_seq
    return found


def all_of(daemon: Daemon, wanted: Filter) -> list[int]:
    return [event.seq for event in daemon.history.queries.range(1, 10_000) if wanted.wants(event)]


@pytest.mark.parametrize("limit", [1, 7, 1000])
async def test_pages_join_in_both_directions(daemon: Daemon, limit: int) -> None:
    await fill(daemon, 50)
    for wanted in (Filter(), READY, Filter(text="no such text"), Filter(type="ready", text="7 ")):
        expected = all_of(daemon, wanted)
        upwards = await pages(daemon, wanted, limit, oldest_first=True)
        assert [seq for page in upwards for seq in page] == expected
        backwards = await pages(daemon, wanted, limit, oldest_first=False)
        assert [seq for page in reversed(backwards) for seq in page] == expected


async def test_a_page_stays_between_its_numbers(daemon: Daemon) -> None:
    seqs = await fill(daemon, 50)
    for oldest_first in (False, True):
        page = await daemon.service.history.page(
            ME, READY, from_seq=seqs[10], to_seq=seqs[20], oldest_first=oldest_first, limit=1000
        )
        assert ([event.seq for event in page.events], page.next_seq) == (seqs[10:21], 0)
    empty = await daemon.service.history.page(
        ME, READY, from_seq=seqs[20], to_seq=seqs[10], oldest_first=False, limit=9
    )
    assert (empty.events, empty.next_seq) == ([], 0)
    for wrong in (0, 1001):
        with pytest.raises(InvalidArgument):
            await daemon.service.history.page(
                ME, READY, from_seq=1, to_seq=None, oldest_first=True, limit=wrong
            )


async def test_what_takes_too_long_is_an_error_for_a_query_and_goes_on_with_pages(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    seqs = await fill(daemon, 500)
    wanted = Filter(text="0 ")
    monkeypatch.setattr(search, "SLICE_S", 0.0)
    monkeypatch.setattr(history_operations, "QUERY_S", 0.0)
    monkeypatch.setattr(history_operations, "PAGE_S", 0.0)
    with pytest.raises(TimedOut) as caught:
        await daemon.service.history.query(ME, wanted, 100)
    assert "pages" in caught.value.suggestion
    found = await pages(daemon, wanted, 100, oldest_first=False)
    assert len(found) > 5
    assert [seq for page in reversed(found) for seq in page] == seqs[::10]


async def test_a_page_of_large_events_ends_early(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    seqs = await fill(daemon, 10, size=2000)
    monkeypatch.setattr(history_operations, "PAGE_BYTES", 5000)
    found = await pages(daemon, READY, 100, oldest_first=True)
    assert max(map(len, found)) <= 3
    assert [seq for page in found for seq in page][-10:] == seqs


async def test_what_no_event_can_be_about_is_an_error(daemon: Daemon) -> None:
    cases: list[tuple[Filter, type[LightagentError], str]] = [
        (Filter(agent="opps"), AgentNotFound, "Did you mean ops?"),
        (Filter(tool="bsh"), ToolNotFound, "Did you mean bash?"),
        (Filter(type="redy"), InvalidArgument, "Did you mean ready?"),
        (Filter(type="nosuch"), InvalidArgument, "Run: lactl events schema"),
    ]
    for wanted, missing, near in cases:
        with pytest.raises(missing) as caught:
            await daemon.service.history.query(ME, wanted, 100)
        assert near in caught.value.suggestion
        for follow in (False,) if wanted.agent else (False, True):  # an agent may come later
            with pytest.raises(missing):
                await anext(daemon.service.events.subscribe(ME, wanted, None, follow=follow))


async def test_a_type_of_a_tools_own_is_known_once_it_is_stored(daemon: Daemon) -> None:
    stored = await daemon.history.append(emitted("tool.mine", "odd", {}))
    odd = Filter(type="odd")
    assert (await pages(daemon, odd, 100, oldest_first=True)) == [[one.seq for one in stored]]
    assert await daemon.service.history.query(ME, Filter(tool="human"), 100) == []


async def test_following_begins_at_a_time(daemon: Daemon) -> None:
    await fill(daemon, 5)
    [seq] = await fill(daemon, 1)
    since_us = daemon.history.queries.range(seq, 1)[0].time_us
    expected = [event.seq for event in daemon.history.queries.range(1, 10_000) if event.time_us >= since_us]
    stream = daemon.service.events.subscribe(ME, Filter(since_us=since_us), None, follow=False)
    async with aclosing(stream) as items:
        assert [item["event"].seq async for item in items if item["event"] is not None] == expected


def prune(daemon: Daemon, last_seq: int) -> Any:
    """Take everything up to an event away, as retention does."""

    def remove() -> None:
        history = daemon.history
        with history.environment.env.begin(write=True) as txn:
            for event in history.queries.range(1, 10_000):
                if event.seq <= last_seq:
                    records.remove(history.environment, txn, event)
                    last_hash = event.hash
            history.environment.set_anchor(txn, last_seq, last_hash)

    return daemon.history.exclusively(remove)


async def test_a_client_is_told_what_it_missed(daemon: Daemon) -> None:
    await fill(daemon, 20)
    await prune(daemon, 5)
    async with Raw(daemon.paths.socket) as raw:
        stream = raw.stream("Events.Subscribe", from_seq=2, follow=False)
        replies = [reply["parameters"] async for reply in stream]
    assert replies[0] == {"event": None, "missed": {"count": 4, "first_seq": 2, "from_seq": 6}}
    assert [reply["event"]["seq"] for reply in replies[1:-1]] == list(range(6, daemon.history.head_seq + 1))
    assert replies[-1]["event"] is None
    async with Raw(daemon.paths.socket) as raw:
        stream = raw.stream("Events.Subscribe", from_seq=6, max_lag=4, follow=False)
        first = (await anext(aiter(stream)))["parameters"]
    head = daemon.history.head_seq
    assert first["missed"] == {"count": head - 7, "first_seq": 6, "from_seq": head - 1}


async def test_who_follows_all_gets_records_as_they_are_stored(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(daemon, 20)
    await prune(daemon, 5)
    for kind in ("tool.mined/odd", "tool.mine.x/a"):
        topic, _, of_type = kind.partition("/")
        await daemon.history.append(emitted(topic, of_type, {"said": "\n"}))
    monkeypatch.setattr(history_operations, "PAGE_BYTES", 1000)
    found: list[Event] = []
    position, missed = 2, 0
    while True:
        page = await daemon.service.history.records(ME, from_seq=position)
        lines = page.records.split("\n")
        found += [decode("\n".join(pair).encode()) for pair in zip(lines[::2], lines[1::2], strict=False)]
        missed += page.missed
        if page.next_seq == position:
            break
        position = page.next_seq
    assert found == daemon.history.queries.range(6, 1000)
    assert (missed, position) == (4, daemon.history.head_seq + 1)

    async def seen(*kinds: str) -> list[str]:
        page = await daemon.service.history.records(ME, from_seq=1, kinds=[*kinds])
        headers = [json.loads(line) for line in page.records.split("\n")[:-1:2]]
        return [f"{one['topic']}/{one['type']}" for one in headers]

    assert await seen("tool.mine") == ["tool.mine.x/a"]
    assert await seen("tool.mine/b", "tool.mined/odd") == ["tool.mined/odd"]
    assert await seen("tool") == ["tool.mined/odd", "tool.mine.x/a"]
    assert await seen("tool.min", ".*", 'x"') == []
    other = Caller(uid=65534, gid=65534, pid=os.getpid())
    with pytest.raises(PermissionDenied):
        await daemon.service.history.records(other, from_seq=1)
    with pytest.raises(InvalidArgument):
        await daemon.service.history.records(ME, from_seq=0)


async def test_on_d_bus_what_was_missed_is_an_item_of_its_own(daemon: Daemon) -> None:
    await fill(daemon, 20)
    await prune(daemon, 5)
    method = methods()["org.lightagent1.Events", "Subscribe"]
    assert method.results == {"stream": "o"}
    items = method.invoke(daemon.service, ME, {"from_seq": 1, "follow": False})
    found = [item async for item in items]
    assert found[0] == {"missed": {"count": 5, "first_seq": 1, "from_seq": 6}}
    assert [item.seq for item in found[1:]] == list(range(6, daemon.history.head_seq + 1))


async def test_who_never_reads_costs_little_and_delays_nobody(daemon: Daemon) -> None:
    async with Raw(daemon.paths.socket) as idle, Raw(daemon.paths.socket) as reader:
        small_buffers(idle.writer)
        idle.writer.transport.pause_reading()  # type: ignore[attr-defined]
        wanted: dict[str, Any] = {"from_seq": daemon.history.head_seq + 1, "type": "ready"}
        await idle.send(message("Events.Subscribe", more=True, **wanted))
        stream = reader.stream("Events.Subscribe", **wanted)
        waiting = asyncio.ensure_future(anext(stream))
        async with asyncio.timeout(60):
            while daemon.feed.followers < 2:
                await asyncio.sleep(0)
        seqs = []
        for _ in range(40):
            seqs += await fill(daemon, 50, size=10_000)
            queued = [len(one) for one in daemon.subscriptions]
            assert max(queued) <= LIMIT
        assert daemon._server is not None
        assert daemon._server.waiting_bytes < 2 << 20  # of 20 MB that the idle one did not read
        read = [(await waiting)["parameters"]["event"]["seq"]]
        read += [(await anext(stream))["parameters"]["event"]["seq"] for _ in seqs[1:]]
        assert read == seqs
        idle.writer.transport.resume_reading()  # type: ignore[attr-defined]
        rest = [(await idle.reply())["parameters"]["event"]["seq"] for _ in seqs]
        assert rest == seqs
