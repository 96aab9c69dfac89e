"""What a hostile program on the bus can cost: its messages are answered from their headers, or not at all."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from dbus_next.constants import MessageFlag
from dbus_next.signature import Variant

from lightagentd.bus import calls, decoding
from lightagentd.bus.connection import Reply, connect
from lightagentd.control.authz import Caller
from lightagentd.control.dbus import door as door_module
from lightagentd.control.dbus.door import PlaneDoor
from lightagentd.control.dbus.peers import Peers
from lightagentd.control.dbus.watchers import OBJECT_MANAGER
from lightagentd.daemon.daemon import Daemon
from lightagentd.errors import DBUS_PREFIX
from lightagentd.host.paths import Paths
from tests.agents.scripted import until
from tests.control.dbus.on_the_bus import MANAGER, ROOT, serving
from tests.raw_dbus import RawBus
from tests.scripted_model import say

NAME = "org.lightagent1"
INVALID_ARGS = "org.freedesktop.DBus.Error.InvalidArgs"
UNKNOWN_METHOD = "org.freedesktop.DBus.Error.UnknownMethod"
UNKNOWN_OBJECT = "org.freedesktop.DBus.Error.UnknownObject"
TOO_LARGE = DBUS_PREFIX + "MessageTooLarge"
ASK = "ssa{sv}"
NO_REPLY = MessageFlag.NO_REPLY_EXPECTED


@pytest.fixture
async def served(paths: Paths) -> AsyncIterator[tuple[Daemon, str]]:
    async with serving(paths, [say("the answer")]) as (daemon, address):
        yield daemon, address


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the bodies of calls that were decoded."""
    sizes: list[int] = []

    async def counted(data: bytes, *rest: Any) -> list[Any]:
        sizes.append(len(data))
        return await decoding.decode(data, *rest)

    monkeypatch.setattr(calls, "decode", counted)
    return sizes


@pytest.fixture
def nobody_is_administrator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Caller, "is_administrator", property(lambda _: False))


def door_of(daemon: Daemon) -> PlaneDoor:
    assert daemon.dbus._door is not None
    return daemon.dbus._door


def with_body(packed: bytes, body: bytes) -> bytes:
    """A message with another body, which need not be one of Python's objects first."""
    [size_bytes] = struct.unpack_from("<I", packed, 4)
    return packed[:4] + struct.pack("<I", len(body)) + packed[8 : len(packed) - size_bytes] + body


def array(item: bytes, size_bytes: int) -> bytes:
    data = item * (size_bytes // len(item))
    return struct.pack("<I", len(data)) + data


def text(length: int) -> bytes:
    return struct.pack("<I", length) + b"x" * length + b"\0"


def entries(count: int) -> bytes:
    """The body of a call of `Ask` with so many options."""
    options = b"".join(
        struct.pack("<I8s2sxxI", 7, f"{number:07}\0".encode(), b"\x01u", number) + b"\0\0\0\0"
        for number in range(count)
    )
    options = options[:-4]  # what pads to the next entry
    # two empty strings, the length of the dictionary and its padding
    return struct.pack("<IB3xIB3xI4x", 0, 0, 0, 0, len(options)) + options


async def answer_to(address: str, message: Any) -> tuple[str, float]:
    """The name of the error that a hostile message gets, and how long the event loop was held at most."""
    worst_s, done = 0.0, asyncio.Event()

    async def probe() -> None:
        nonlocal worst_s
        while not done.is_set():
            before_s = time.perf_counter()
            await asyncio.sleep(0.001)
            worst_s = max(worst_s, time.perf_counter() - before_s - 0.001)

    def send(raw: RawBus, data: bytes) -> str:
        raw.sock.sendall(data)
        while True:
            found = raw.message()
            if found.reply_serial == raw._serial:
                return str(found.error_name or "")

    with RawBus(address) as raw:
        data = message(raw)
        probing = asyncio.create_task(probe())
        try:
            name = await asyncio.to_thread(send, raw, data)
            return name, worst_s
        finally:
            done.set()
            await probing


HOSTILE: dict[str, tuple[Any, str, bool]] = {
    "31 MB of ag": (
        lambda raw: with_body(raw.packed(ROOT, MANAGER, "GetStatus", "ag", [[]]), array(b"\0\0", 31 << 20)),
        INVALID_ARGS,
        False,
    ),
    "31 MB to an unknown method": (
        lambda raw: with_body(raw.packed(ROOT, MANAGER, "Nope", "ag", [[]]), array(b"\0\0", 31 << 20)),
        UNKNOWN_METHOD,
        False,
    ),
    "31 MB to an unknown object": (
        lambda raw: with_body(raw.packed("/nope", MANAGER, "Ask", ASK, ["", "", {}]), entries(500_000)),
        UNKNOWN_OBJECT,
        False,
    ),
    "30 MB of text": (
        lambda raw: with_body(
            raw.packed(ROOT, f"{NAME}.Agents", "Get", "s", [""]),
            text(30 << 20),
        ),
        TOO_LARGE,
        False,
    ),
    "15 MB of text": (
        lambda raw: with_body(raw.packed(ROOT, f"{NAME}.Agents", "Get", "s", [""]), text(15 << 20)),
        DBUS_PREFIX + "AgentNotFound",
        True,
    ),
    "500,000 options": (
        lambda raw: with_body(raw.packed(ROOT, MANAGER, "Ask", ASK, ["", "", {}]), entries(500_000)),
        TOO_LARGE,
        True,
    ),
    "40,000 options": (
        lambda raw: with_body(raw.packed(ROOT, MANAGER, "Ask", ASK, ["", "", {}]), entries(40_000)),
        TOO_LARGE,
        True,
    ),
    "20,000 options": (
        lambda raw: with_body(raw.packed(ROOT, MANAGER, "Ask", ASK, ["", "", {}]), entries(20_000)),
        DBUS_PREFIX + "InvalidArgument",
        True,
    ),
    "variants 60 deep": (
        lambda raw: with_body(
            raw.packed(ROOT, "org.freedesktop.DBus.Properties", "Set", "ssv", ["", "", Variant("y", 1)]),
            struct.pack("<IB3xIB", 0, 0, 0, 0) + b"\x01v\0" * 60 + b"\x01y\0\x07",
        ),
        "org.freedesktop.DBus.Error.UnknownProperty",
        True,
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_hostile_message_is_answered_for_little(
    served: tuple[Daemon, str], decoded: list[int], name: str
) -> None:
    daemon, address = served
    message, error, decodes = HOSTILE[name]
    found, worst_s = await answer_to(address, message)
    print(f"{name}: {found}, the event loop was held for {worst_s * 1000:.0f} ms at most")
    assert found == error
    assert bool(decoded) == decodes
    await until(lambda: not door_of(daemon).held_bytes and not door_of(daemon).calls)


async def test_a_flood_that_wants_no_reply_is_dropped_and_objects_are_listed_one_by_one(
    served: tuple[Daemon, str], nobody_is_administrator: None
) -> None:
    daemon, address = served
    listing: list[int] = []
    most, seen, hold = 0, 0, asyncio.Event()

    async def listed(*_: Any) -> Reply:
        nonlocal most, seen
        listing.append(1)
        most, seen = max(most, len(listing)), seen + 1
        await hold.wait()
        listing.pop()
        return Reply()

    daemon.dbus._objects._of_root[OBJECT_MANAGER, "GetManagedObjects"] = ("", listed)
    count = 300
    with RawBus(address) as first, RawBus(address) as second:
        for _ in range(count):
            for raw in (first, second):
                raw.sock.sendall(raw.packed(ROOT, OBJECT_MANAGER, "GetManagedObjects", flags=NO_REPLY))
        door = door_of(daemon)
        await until(lambda: door.calls.total() >= door_module.CALLS_OF_UNKNOWN and not door.unknown)
        await until(lambda: bool(seen))
        refused, _ = await answer_to(address, lambda raw: raw.packed(ROOT, MANAGER, "GetStatus"))
        assert refused == DBUS_PREFIX + "LimitExceeded"
        assert door.calls.total() <= door_module.CALLS_OF_UNKNOWN
        hold.set()
        await until(lambda: not door.calls)
    assert most == 1
    assert seen <= door_module.CALLS_OF_UNKNOWN
    assert not door.one_by_one
    assert not door.turns._working


async def test_a_peer_that_is_not_known_yet_has_no_more_than_its_share(
    served: tuple[Daemon, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon, address = served
    known = asyncio.Event()

    async def late(self: Peers, name: str) -> Any:
        await known.wait()
        return await of(self, name)

    of = Peers.of
    monkeypatch.setattr(Peers, "of", late)
    door = door_of(daemon)
    async with connect(address) as client:
        with RawBus(address) as raw:
            for _ in range(200):
                raw.sock.sendall(raw.packed(ROOT, MANAGER, "GetStatus", flags=NO_REPLY))
            await until(lambda: door.unknown.total() >= door_module.CALLS_OF_UNKNOWN)
            asking = asyncio.create_task(client.call(NAME, ROOT, MANAGER, "GetStatus"))
            await until(lambda: len(door.unknown) == 2)
            assert sorted(door.unknown.values()) == [1, door_module.CALLS_OF_UNKNOWN]
            known.set()
            assert await asking
        await until(lambda: not door.calls and not door.unknown)
