"""What one user can take of a Varlink server: connections, memory and time. Real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from lightagentd.errors import LimitExceeded, MalformedMessage, MessageTooLarge
from lightagentd.text.strict_json import MAX_VALUES
from lightagentd.varlink.bounds import FREE_BYTES, Account, Bounds, Ledger
from lightagentd.varlink.wire import check_size, decode_message
from tests.raw_varlink import Raw, code, message
from tests.varlink.test_server import NOBODY, serving, until
from tests.varlink_echo import Echo

ORDINARY, OTHER, ROOT = 1001, 1002, 0
MIB = 1 << 20


@pytest.fixture
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("v") / "s"


@contextlib.asynccontextmanager
async def connected(path: Path, count: int) -> AsyncIterator[list[Raw]]:
    async with contextlib.AsyncExitStack() as stack:
        yield [await stack.enter_async_context(Raw(path)) for _ in range(count)]


# Connections


async def test_one_user_has_64_connections_and_is_told_what_to_do(path: Path) -> None:
    async with serving(Echo(), path, bounds=Bounds(privileged=NOBODY)) as server:
        async with connected(path, 64) as raws:
            assert code(await raws[-1].call("Echo.Say", text="a")) == "ok"
            async with Raw(path) as one_more:
                refused = await asyncio.wait_for(one_more.reply(), 60)
                assert code(refused) == "limit_exceeded"
                assert f"User {os.geteuid()} has 64 connections" in refused["parameters"]["message"]
                assert "Close some" in refused["parameters"]["suggestion"]
                assert await one_more.reader.read() == b""
        await until(lambda: server.connections == 0)
        async with Raw(path) as raw:
            assert code(await raw.call("Echo.Say", text="a")) == "ok"


async def test_the_servers_own_user_has_more_connections_than_others(path: Path) -> None:
    async with serving(Echo(), path), connected(path, 100) as raws:
        assert code(await raws[-1].call("Echo.Say", text="a")) == "ok"


def test_users_who_take_all_connections_leave_root_the_reserve() -> None:
    ledger = Ledger(128, Bounds(privileged=frozenset({ROOT})))
    held = [ledger.open(uid) for uid in (ORDINARY, OTHER) for _ in range(64)]
    for uid in (ORDINARY, 1003):
        with pytest.raises(LimitExceeded):
            ledger.open(uid)
    held += [ledger.open(ROOT) for _ in range(32)]
    with pytest.raises(LimitExceeded, match="160 programs"):
        ledger.open(ROOT)
    for account in held:
        account.close()
    assert ledger.connections == 0
    ledger.open(ORDINARY).close()


async def test_being_turned_away_again_and_again_is_one_line_in_the_journal(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(Echo(), path, max_connections=1, bounds=Bounds(privileged=NOBODY)), Raw(path) as first:
        assert code(await first.call("Echo.Say", text="a")) == "ok"
        for _ in range(20):
            async with Raw(path) as raw:
                assert code(await raw.reply()) == "limit_exceeded"
    assert len(caplog.records) == 1


# Memory


async def test_one_user_cannot_fill_the_memory_with_unfinished_messages(path: Path) -> None:
    """Twelve connections of 15 MB each: those over 32 MiB are cut off, and nothing stays behind."""
    async with (
        serving(Echo(), path, bounds=Bounds(privileged=NOBODY)) as server,
        connected(path, 12) as raws,
    ):
        most = 0

        async def send(raw: Raw) -> None:
            nonlocal most
            with contextlib.suppress(OSError):  # cut off already
                for _ in range(15):
                    raw.writer.write(b"x" * MIB)
                    await raw.writer.drain()
                    most = max(most, server.waiting_bytes)

        answers = [asyncio.create_task(raw.reply()) for raw in raws]
        await asyncio.gather(*(send(raw) for raw in raws))
        await until(lambda: server.waiting_bytes == 2 * (15 * MIB - FREE_BYTES))
        await until(lambda: sum(answer.done() for answer in answers) == 10)
        assert most <= 32 * MIB
        assert {code(answer.result()) for answer in answers if answer.done()} == {"limit_exceeded"}
        for raw, answer in zip(raws, answers, strict=True):
            answer.cancel()
            await raw.hang_up()
        await asyncio.gather(*answers, return_exceptions=True)
        await until(lambda: server.connections == 0)
        assert server.waiting_bytes == 0


def test_bytes_are_counted_for_each_user_and_in_all_and_root_has_a_reserve() -> None:
    ledger = Ledger(1024, Bounds(privileged=frozenset({ROOT})))
    accounts = [ledger.open(uid) for uid in range(1001, 1006) for _ in range(2)]
    for account in accounts[:8]:
        account.take(16 * MIB + FREE_BYTES)
    assert ledger.waiting_bytes == 128 * MIB
    with pytest.raises(LimitExceeded, match="user 1001"):
        accounts[0].take(1)
    with pytest.raises(LimitExceeded, match="all users"):
        accounts[8].take(FREE_BYTES + 1)
    accounts[8].take(FREE_BYTES)  # small calls of anybody pass
    root = ledger.open(ROOT)
    root.take(32 * MIB + FREE_BYTES)
    with pytest.raises(LimitExceeded):
        root.take(1)
    for account in [*accounts, root]:
        account.close()
        account.give(5)
    assert ledger.waiting_bytes == 0


async def test_over_the_limit_is_refused_and_cut_and_small_calls_go_on(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lightagentd.varlink.connection.LINGER_S", 0.05)
    bounds = Bounds(privileged=NOBODY, waiting_bytes_per_user=2 * MIB)
    async with serving(Echo(), path, bounds=bounds) as server, connected(path, 3) as (first, greedy, small):
        await first.send(b"x" * 2 * MIB)
        await until(lambda: server.waiting_bytes == 0)  # it was no message, and was answered
        assert code(await first.reply()) == "malformed_message"
        first.writer.write(b"x" * 2 * MIB)
        await until(lambda: server.waiting_bytes == 2 * MIB - FREE_BYTES)
        greedy.writer.write(b"x" * MIB)
        refused = await greedy.reply()
        assert code(refused) == "limit_exceeded"
        assert refused["parameters"]["suggestion"]
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):
            assert await greedy.reader.read() == b""
        assert server.waiting_bytes == 2 * MIB - FREE_BYTES
        assert code(await small.call("Echo.Say", text="a")) == "ok"
        await first.send(b"")
        assert code(await first.reply()) == "malformed_message"
        assert server.waiting_bytes == 0


async def test_answers_that_nobody_reads_count_too(path: Path) -> None:
    bounds = Bounds(privileged=NOBODY, waiting_bytes_per_user=8 * MIB)
    async with serving(Echo(), path, bounds=bounds) as server, connected(path, 2) as (deaf, other):
        deaf.writer.transport.pause_reading()  # type: ignore[attr-defined]  # a read transport as well
        await deaf.send(message("Echo.Make", length=6 * MIB))
        await until(lambda: server.waiting_bytes > 5 * MIB)
        assert code(await other.call("Echo.Make", length=3 * MIB)) == "limit_exceeded"
        assert code(await other.call("Echo.Make", length=MIB)) == "ok"
        deaf.writer.transport.resume_reading()  # type: ignore[attr-defined]
        assert len((await deaf.reply())["parameters"]["text"]) == 6 * MIB
        await until(lambda: server.waiting_bytes == 0)


async def test_a_running_call_does_not_keep_the_bytes_that_it_came_as(path: Path) -> None:
    echo = Echo()
    async with serving(echo, path) as server, Raw(path) as raw:
        padding = b" " * MIB
        await raw.send(message("Echo.Wait") + padding, message("Echo.Say", text="after it"))
        await until(lambda: echo.waiting == 1)
        assert server.waiting_bytes == 0
        echo.go.set()
        assert [code(await raw.reply()) for _ in range(2)] == ["ok", "ok"]


def test_the_unit_has_a_wall() -> None:
    unit = (Path(__file__).parents[2] / "units/lightagentd.service").read_text().splitlines()
    assert "MemoryMax=75%" in unit


# Time


def large(inner: bytes) -> bytes:
    return message("Echo.Whatever", value="HERE").replace(b'"HERE"', inner)


@pytest.mark.parametrize(
    "inner",
    [
        lambda: b"[" + b"[]," * (5 * MIB - 100) + b"1]",
        lambda: b"[" + b'{"a":1},' * 1_900_000 + b"1]",
        lambda: b"{" + b",".join(b'"%x":1' % number for number in range(1_000_000)) + b"}",
        lambda: b"[" + b'"\\\\",' * (MAX_VALUES + 1) + b"1]",
        lambda: b"[" + b'"\\"",' * (MAX_VALUES + 1) + b"1]",
        lambda: b'["' + b"\\" * 2 * MIB + b'",' + b"1," * MAX_VALUES + b"1]",
        lambda: b"1." + b"1" * 15 * MIB,
    ],
    ids=["lists", "objects", "keys", "backslashes", "quotes", "after a long string", "one number"],
)
async def test_a_message_of_many_values_is_refused_and_the_connection_goes_on(
    path: Path, inner: Callable[[], bytes]
) -> None:
    async with serving(Echo(), path) as server, Raw(path) as raw:
        await raw.send(large(inner()), message("Echo.Say", text="still here"))
        refused = await raw.reply()
        assert code(refused) == "message_too_large"
        assert "one string" in refused["parameters"]["suggestion"]
        assert await raw.reply() == {"parameters": {"text": "still here"}}
        assert server.waiting_bytes == 0


@pytest.mark.parametrize(
    "piece",
    ['[{"a":1},', '"', "\\", "{:,", "é😀,", "\n\\,"],
    ids=["json", "quotes", "backslashes", "marks", "wide", "lines"],
)
async def test_a_long_text_may_hold_any_characters(path: Path, piece: str) -> None:
    text = piece * (2 * MIB // len(piece))
    async with serving(Echo(), path), Raw(path) as raw:
        assert await raw.call("Echo.Length", text=text) == {"parameters": {"length": len(text)}}


@pytest.mark.parametrize("shift", range(4))
async def test_escapes_across_the_pieces_of_a_count_are_understood(
    monkeypatch: pytest.MonkeyPatch, shift: int
) -> None:
    monkeypatch.setattr("lightagentd.text.strict_json._SCAN_BYTES", 7)
    monkeypatch.setattr("lightagentd.text.strict_json.MAX_VALUES", 2)
    for text in (b'\\\\\\",,,,\\\\', b"\\\\", b'\\",', b"\\\\\\\\\\\\", b'\\\\\\"\\\\\\",,,,'):
        await check_size(b" " * shift + b'{"a":"' + text * 3 + b'"}')
        with pytest.raises(MessageTooLarge):
            await check_size(b" " * shift + b'{"a":["' + text * 3 + b'",1]}')


async def test_one_large_message_at_a_time_and_each_user_in_turn() -> None:
    ledger = Ledger(10, Bounds(privileged=NOBODY))
    order: list[str] = []

    async def decode(name: str, account: Account) -> None:
        async with account.turn():
            order.append(f"{name} begins")
            await check_size(b'"' + b"x" * MIB + b'"')
            order.append(f"{name} ends")

    users = {"one": ORDINARY, "two": ORDINARY, "other": OTHER}
    await asyncio.gather(*(decode(name, ledger.open(uid)) for name, uid in users.items()))
    assert order == [f"{name} {what}" for name in ("one", "other", "two") for what in ("begins", "ends")]


async def test_others_run_while_a_large_message_is_counted() -> None:
    counting = asyncio.create_task(check_size(b'"' + b"x" * 12 * MIB + b'"'))
    turns = 0
    while not counting.done():
        turns += 1
        await asyncio.sleep(0)
    await counting
    assert turns >= 48


@pytest.mark.parametrize("half", [b"\\ud83d", b"\\uD83D", b"\\udc00"])
@pytest.mark.parametrize("where", [b'{"%s":1}', b'{"a":["%s"]}', b'{"a":{"b":"%s"}}'])
def test_half_a_surrogate_pair_is_found_wherever_it_is(where: bytes, half: bytes) -> None:
    with pytest.raises(MalformedMessage, match="surrogate"):
        decode_message(where % half)
    assert decode_message(where % b"\\ud83d\\uDE00")
