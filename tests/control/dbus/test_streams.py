"""Streams on D-Bus: all arrives, at the one who asked and nobody else, and a slow reader costs little."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from typing import Any

import pytest

from lightagentd.bus.connection import Bus, Signals, Variant, connect
from lightagentd.control.dbus import peers as dbus_peers
from lightagentd.control.dbus import streams as dbus_streams
from lightagentd.daemon.daemon import Daemon
from lightagentd.errors import DBUS_PREFIX, LightagentError, LimitExceeded, SessionNotFound
from lightagentd.events.types.daemon import DaemonReady
from lightagentd.host.paths import Paths
from tests.agents.scripted import until
from tests.control.dbus.on_the_bus import MANAGER, ROOT, serving
from tests.dbus_client import BusClient
from tests.raw_dbus import RawBus
from tests.scripted_model import Stream, say

NAME = "org.lightagent1"
STREAM = f"{NAME}.Stream"
NOBODY = 65534
ENDED_WELL = ["", "", ""]
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")


@pytest.fixture
async def bus(paths: Paths) -> AsyncIterator[tuple[Daemon, Bus]]:
    """A daemon on a private bus with the agent talker, and a connection of a client."""
    async with serving(paths, [say("the answer")]) as (daemon, address), connect(address) as client:
        yield daemon, client


async def open_stream(client: Bus, interface: str, member: str, signature: str, *args: Any) -> str:
    [path] = await client.call(NAME, ROOT, f"{NAME}.{interface}", member, signature, args, 60.0)
    return str(path)


async def until_ended(signals: Signals, path: str) -> tuple[list[dict[str, Any]], list[str]]:
    """The items of a stream and what its end says."""
    items: list[dict[str, Any]] = []
    async for signal in signals:
        if signal.path == path and signal.member == "Item":
            items.append(signal.args[0])
        elif signal.path == path and signal.member == "Ended":
            return items, signal.args
    raise AssertionError("the connection ended")


def streams(daemon: Daemon) -> list[dbus_streams.Stream]:
    return daemon.dbus._streams()


async def test_prompt_gives_paths_at_once_and_then_the_turns_events(bus: tuple[Daemon, Bus]) -> None:
    daemon, client = bus

    def prompt() -> list[Any]:
        with RawBus(client._address) as raw:
            raw.sock.sendall(raw.packed(ROOT, MANAGER, "Prompt", "ssa{sv}", ["talker", "hello", {}]))
            found = [raw.message()]
            while found[-1].member != "Event" or found[-1].body[0] != "done":
                found.append(raw.message())
            return [one for one in found if one.sender != "org.freedesktop.DBus"]

    reply, *signals = await asyncio.to_thread(prompt)
    session, turn = reply.body
    assert {one.path for one in signals} == {turn}
    assert {one.interface for one in signals} == {f"{NAME}.Turn"}
    assert signals[0].body[0] in ("queued", "started")
    last = signals[-1].body[1]
    assert last["text"].value == "the answer"
    assert session == f"{ROOT}/sessions/{last['session'].value.replace('_', '_5f')}"
    assert turn == f"{ROOT}/turns/{last['trace_id'].value.replace('_', '_5f')}"
    await until(lambda: not streams(daemon))


async def test_a_stream_has_its_items_and_an_end(bus: tuple[Daemon, Bus]) -> None:
    daemon, client = bus
    async with client.signals(sender=NAME, interface=STREAM) as signals:
        options = {"agent": Variant("s", "talker")}
        path = await open_stream(client, "Sessions", "Prompt", "sa{sv}", "hello", options)
        items, end = await until_ended(signals, path)
        assert items[-1]["type"] == "done"
        assert items[-1]["text"] == "the answer"
        assert end == ENDED_WELL
        stored = {"from_seq": Variant("x", 1), "follow": Variant("b", False)}
        path = await open_stream(client, "Events", "Subscribe", "a{sv}", stored)
        items, end = await until_ended(signals, path)
        assert [item["seq"] for item in items] == list(range(1, items[-1]["seq"] + 1))
        assert end == ENDED_WELL
        files = Variant("a{sv}", {"10-x.toml": Variant("s", "")})
        path = await open_stream(client, "Policy", "Replay", "va{sv}", files, {})
        items, end = await until_ended(signals, path)
        assert items[-1]["judged"] == 0
        args = Variant("a{sv}", {"path": Variant("s", "/etc/hostname")})
        path = await open_stream(client, "Tools", "Call", "sssv", "talker", "file", "stat", args)
        items, end = await until_ended(signals, path)
        assert (items[-1]["type"], end) == ("done", ENDED_WELL)
    assert not streams(daemon)


async def test_what_fails_at_once_is_the_answer_and_what_fails_later_the_end(
    bus: tuple[Daemon, Bus], monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon, client = bus
    options = {"session": Variant("s", "ses_0123456789abcdef")}
    with pytest.raises(SessionNotFound):
        await open_stream(client, "Sessions", "Prompt", "sa{sv}", "hello", options)
    with pytest.raises(SessionNotFound):
        await client.call(NAME, ROOT, MANAGER, "Prompt", "ssa{sv}", ["", "hello", options])
    async with client.signals(sender=NAME, interface=STREAM) as signals:
        wrong = Variant("a{sv}", {"10-x.toml": Variant("s", "nonsense [")})
        path = await open_stream(client, "Policy", "Replay", "va{sv}", wrong, {})
        _, end = await until_ended(signals, path)
        assert end[0] == DBUS_PREFIX + "ConfigError"
        assert "10-x.toml" in end[1]

        async def broken(*_: object, **__: object) -> AsyncIterator[None]:
            for word in ("secret detail",):
                raise RuntimeError(word)
            yield

        monkeypatch.setattr(daemon.service.events, "subscribe", broken)
        path = await open_stream(client, "Events", "Subscribe", "a{sv}", {})
        _, end = await until_ended(signals, path)
        assert end[0] == DBUS_PREFIX + "Internal"
        assert "secret" not in "".join(end)
    assert not streams(daemon)


async def test_nobody_else_gets_a_signal(bus: tuple[Daemon, Bus]) -> None:
    _, client = bus
    async with (
        connect(client._address) as curious,
        curious.signals(sender=NAME) as overheard,
        client.signals(sender=NAME) as own,
    ):
        options = {"agent": Variant("s", "talker")}
        path = await open_stream(client, "Sessions", "Prompt", "sa{sv}", "hello", options)
        items, _ = await until_ended(own, path)
        assert items
        await curious.call(NAME, ROOT, "org.freedesktop.DBus.Peer", "Ping")
        assert not overheard._queue


async def test_a_stream_is_there_for_its_owner_until_it_is_closed(bus: tuple[Daemon, Bus]) -> None:
    daemon, client = bus
    introspect = ("org.freedesktop.DBus.Introspectable", "Introspect")
    path = await open_stream(client, "Events", "Subscribe", "a{sv}", {})
    [stream] = streams(daemon)
    [xml] = await client.call(NAME, path, *introspect)
    assert '<signal name="Ended">' in xml
    [xml] = await client.call(NAME, f"{ROOT}/streams", *introspect)
    assert '<node name="1"' in xml
    async with connect(client._address) as other:
        for call in (introspect, (STREAM, "Close")):
            with pytest.raises(LightagentError, match="There is no object"):
                await other.call(NAME, path, *call)
        [xml] = await other.call(NAME, f"{ROOT}/streams", *introspect)
        assert "<node name" not in xml
        assert await open_stream(other, "Events", "Subscribe", "a{sv}", {}) == path, (
            "numbered for each by itself"
        )
    await client.call(NAME, path, STREAM, "Close")
    await until(lambda: not streams(daemon))
    with pytest.raises(LightagentError, match="There is no object"):
        await client.call(NAME, path, STREAM, "Close")
    assert stream._sending.done()


async def test_a_stream_ends_when_its_reader_leaves_and_the_turn_goes_on(paths: Paths) -> None:
    async with serving(paths, [Stream(pieces=[], hang=True)]) as (daemon, address):
        async with connect(address) as client:
            await client.call(NAME, ROOT, MANAGER, "Prompt", "ssa{sv}", ["talker", "hello", {}], 60.0)
            await open_stream(client, "Events", "Subscribe", "a{sv}", {})
            assert len(streams(daemon)) == 2
        await until(lambda: not streams(daemon))
        assert daemon.registry.get("talker").turns_running == 1


async def test_streams_are_limited(bus: tuple[Daemon, Bus], monkeypatch: pytest.MonkeyPatch) -> None:
    daemon, client = bus
    monkeypatch.setattr(dbus_streams, "PER_PEER", 3)
    paths = [await open_stream(client, "Events", "Subscribe", "a{sv}", {}) for _ in range(3)]
    with pytest.raises(LimitExceeded, match="3 streams"):
        await open_stream(client, "Events", "Subscribe", "a{sv}", {})
    await client.call(NAME, paths[0], STREAM, "Close")
    assert await open_stream(client, "Events", "Subscribe", "a{sv}", {}) not in paths
    assert len(streams(daemon)) == 3


@needs_root
@pytest.mark.parametrize("limit", ["PER_UID", "IN_ALL"])
async def test_a_user_cannot_take_all_streams(
    bus: tuple[Daemon, Bus], monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    _, client = bus
    monkeypatch.setattr(dbus_streams, limit, 1)
    async with BusClient(client._address, NOBODY) as first, BusClient(client._address, NOBODY) as second:
        assert await first.call(ROOT, f"{NAME}.Events.Subscribe", "a{sv}", {}) == [f"{ROOT}/streams/1"]
        refused = await second.call(ROOT, f"{NAME}.Events.Subscribe", "a{sv}", {})
        assert refused["error"][0] == DBUS_PREFIX + "LimitExceeded"
        assert await open_stream(client, "Events", "Subscribe", "a{sv}", {})


async def test_the_daemons_end_is_told(paths: Paths) -> None:
    async with (
        serving(paths, [say("hi")]) as (daemon, address),
        connect(address) as client,
        client.signals(interface=STREAM) as signals,
    ):
        path = await open_stream(
            client, "Sessions", "Prompt", "sa{sv}", "x", {"agent": Variant("s", "talker")}
        )
        await until_ended(signals, path)
        path = await open_stream(client, "Events", "Subscribe", "a{sv}", {})
        await daemon.close()
        assert (await until_ended(signals, path))[1][0] in ("", DBUS_PREFIX + "ShuttingDown")


# Slow readers


EVENTS = 1000


async def fill(daemon: Daemon) -> None:
    """Store events of 1 kB each; a reader of all of them has something to read."""
    told = DaemonReady(message="x" * 1000)
    for _ in range(EVENTS // 50):
        await asyncio.gather(*(daemon.history.append(told.event()) for _ in range(50)))


def slow_reader(address: str) -> RawBus:
    """A client that asked for all events, and reads nothing."""
    raw = RawBus(address)
    options = {"from_seq": Variant("x", 1), "follow": Variant("b", False)}
    raw.sock.sendall(raw.packed(ROOT, f"{NAME}.Events", "Subscribe", "a{sv}", [options]))
    return raw


def peer_of(daemon: Daemon, raw: RawBus) -> dbus_peers.Peer:
    assert daemon.dbus._peers is not None
    return daemon.dbus._peers.by_name[raw.unique_name]


async def test_a_slow_reader_costs_a_bounded_amount_and_holds_nobody_up(
    bus: tuple[Daemon, Bus], monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon, client = bus
    monkeypatch.setattr(dbus_peers, "WINDOW_BYTES", 50_000)
    await fill(daemon)
    raw = await asyncio.to_thread(slow_reader, client._address)
    with raw:
        await until(lambda: streams(daemon) and not peer_of(daemon, raw)._room.is_set())
        async with client.signals(sender=NAME, interface=STREAM) as signals:
            options = {"from_seq": Variant("x", 1), "follow": Variant("b", False)}
            path = await open_stream(client, "Events", "Subscribe", "a{sv}", options)
            items, end = await until_ended(signals, path)
        assert len(items) > EVENTS
        assert end == ENDED_WELL
        assert peer_of(daemon, raw)._on_its_way_bytes < 60_000

        def read_all() -> list[int]:
            seqs = []
            while (signal := raw.signal()).member == "Item":
                seqs.append(signal.body[0]["seq"].value)
            assert signal.body == ENDED_WELL
            return seqs

        seqs = await asyncio.to_thread(read_all)
        assert len(seqs) > EVENTS
        assert seqs == list(range(1, len(seqs) + 1)), "in the end nothing is missing"


async def test_a_reader_that_does_not_read_loses_its_stream(
    bus: tuple[Daemon, Bus], monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon, client = bus
    monkeypatch.setattr(dbus_peers, "WINDOW_BYTES", 50_000)
    monkeypatch.setattr(dbus_peers, "PATIENCE_S", 0.2)
    await fill(daemon)
    raw = await asyncio.to_thread(slow_reader, client._address)
    with raw:
        await until(lambda: raw.unique_name in daemon.dbus._peers.by_name)  # type: ignore[union-attr]
        await until(lambda: not streams(daemon))

        def last() -> Any:
            while (signal := raw.signal()).member == "Item":
                pass
            return signal.body

        assert (await asyncio.to_thread(last))[0] == DBUS_PREFIX + "LimitExceeded"
