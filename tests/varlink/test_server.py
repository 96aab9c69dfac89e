"""The Varlink server and client: real sockets, and peers that do everything wrong."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from lightagentd.errors import InvalidArgument, MessageTooLarge, SkillNotFound, Unavailable
from lightagentd.limits import MAX_MESSAGE_BYTES
from lightagentd.varlink.bounds import Bounds
from lightagentd.varlink.server import Peer, VarlinkConnection, VarlinkServer
from lightagentd.varlink.turns import AT_ONCE_OF_UID
from tests.raw_varlink import Raw, code, message
from tests.varlink_echo import Echo, EchoInterface

ECHO = "org.lightagent1.Echo."
NOBODY: frozenset[int] = frozenset()


@pytest.fixture
def echo() -> Echo:
    return Echo()


@pytest.fixture
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("v") / "s"


@pytest.fixture
async def server(echo: Echo, path: Path) -> AsyncIterator[VarlinkServer]:
    """A server of the interface org.lightagent1.Echo, with room for 600 connections."""
    async with serving(echo, path, max_connections=600) as running:
        yield running


class serving:  # noqa: N801 - reads as a verb
    """`bounds` are those of the daemon if none are given; they privilege whoever runs the tests."""

    def __init__(
        self, echo: Echo, path: Path, *, max_connections: int = 600, bounds: Bounds | None = None
    ) -> None:
        socks = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) for _ in range(2)]
        for sock, name in zip(socks, (path, private(path)), strict=True):
            sock.bind(str(name))

        def interfaces(peer: Peer) -> list[EchoInterface]:
            return [EchoInterface(echo, peer)]

        self._server = VarlinkServer(
            socks, interfaces, product="echo", max_connections=max_connections, bounds=bounds
        )

    async def __aenter__(self) -> VarlinkServer:
        self._server.start()
        return self._server

    async def __aexit__(self, *_: object) -> None:
        await self._server.close()


def private(path: Path) -> Path:
    """The second socket of a server."""
    return path.with_name("p")


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what another task of this test brings about."""
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.005)


async def steady(count: Callable[[], int]) -> int:
    """What a count stands at when it has not risen for 0.2 seconds."""
    seen = -1
    while seen != count():
        seen = count()
        await asyncio.sleep(0.2)
    return seen


# Framing


async def test_a_message_cut_into_single_bytes_is_answered(server: VarlinkServer, path: Path) -> None:
    async with Raw(path) as raw:
        for byte in message("Echo.Say", text="grüße") + b"\0":
            raw.writer.write(bytes([byte]))
            await raw.writer.drain()
            await asyncio.sleep(0)
        assert await raw.reply() == {"parameters": {"text": "grüße"}}


async def test_messages_in_one_write_are_answered_in_order(server: VarlinkServer, path: Path) -> None:
    async with Raw(path) as raw:
        await raw.send(*(message("Echo.Say", text=str(number)) for number in range(300)))
        assert [(await raw.reply())["parameters"]["text"] for _ in range(300)] == [
            str(number) for number in range(300)
        ]


async def test_errors_keep_their_place_among_the_answers(
    server: VarlinkServer, echo: Echo, path: Path
) -> None:
    async with Raw(path) as raw:
        await raw.send(
            message("Echo.Wait"),
            b'{"method":"\xff"}',
            b"[" * 5000,
            b"",
            message("Echo.Say", text="last"),
        )
        await until(lambda: echo.waiting == 1)
        echo.go.set()
        replies = [await raw.reply() for _ in range(5)]
        assert [code(reply) for reply in replies] == ["ok", *["malformed_message"] * 3, "ok"]


async def test_a_half_closed_client_gets_all_its_replies(
    server: VarlinkServer, echo: Echo, path: Path
) -> None:
    async with Raw(path) as raw:
        await raw.send(message("Echo.Wait"), message("Echo.Say", text="a"), message("Echo.Say", text="b"))
        raw.half_close()
        await until(lambda: echo.waiting == 1)
        echo.go.set()
        assert [code(await raw.reply()) for _ in range(3)] == ["ok"] * 3
        assert await raw.reader.read() == b""
    await until(lambda: server.connections == 0)


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (b"", "not JSON"),
        (b"hello", "not JSON"),
        (b'{"method":', "not JSON"),
        (b"[]", "not a JSON object"),
        (b"null", "not a JSON object"),
        (b'{"method":"org.lightagent1.Echo.Say","parameters":{"text":"\xc3\x28"}}', "not UTF-8"),
        (b'\xef\xbb\xbf{"method":"org.lightagent1.Echo.Say"}', "not JSON"),
        (b'{"method":"org.lightagent1.Echo.Say","parameters":{"text":"\\ud800"}}', "surrogate"),
        (b'{"method":"org.lightagent1.Echo.Say","parameters":{"text":"a","text":"b"}}', "'text' stands"),
        (b'{"method":"a.b.C","method":"a.b.D"}', "'method' stands twice"),
        (b'{"method":"org.lightagent1.Echo.Number","parameters":{"number":NaN}}', "NaN"),
        (b'{"method":"org.lightagent1.Echo.Number","parameters":{"number":-Infinity}}', "Infinity"),
        (b'{"method":"org.lightagent1.Echo.Number","parameters":{"number":1e999}}', "out of range"),
        (b'{"method":"org.lightagent1.Echo.Number","parameters":{"number":' + b"9" * 5000 + b"}}", "not"),
        (b"[" * 20_000, "nested too deeply"),
        (b'{"a":' * 20_000, "nested too deeply"),
        (b'{"method":"a.b.C","parameters":{"a":' + b"[" * 150 + b"]" * 150 + b"}}", "nested too deeply"),
        (b"{}", "not a Varlink call"),
        (b'{"method":7}', "not a Varlink call"),
        (b'{"method":"Say"}', "not a Varlink call"),
        (b'{"method":"org.lightagent1.Echo.say"}', "not a Varlink call"),
        (b'{"method":"org.lightagent1.Echo.Say","parameters":[]}', "not a Varlink call"),
        (b'{"method":"org.lightagent1.Echo.Say","more":1}', "not a Varlink call"),
        (b'{"method":"org.lightagent1.Echo.Say","more":true,"upgrade":true}', "not a Varlink call"),
    ],
)  # fmt: skip
async def test_a_malformed_message_is_an_error_and_the_connection_goes_on(
    server: VarlinkServer, path: Path, bad: bytes, why: str
) -> None:
    async with Raw(path) as raw:
        await raw.send(bad, message("Echo.Say", text="still here"))
        refused = await raw.reply()
        assert refused["error"] == "org.lightagent1.MalformedMessage"
        assert why in refused["parameters"]["message"]
        assert refused["parameters"]["suggestion"].endswith(".")
        assert await raw.reply() == {"parameters": {"text": "still here"}}


async def test_nesting_within_the_limit_is_passed_on(server: VarlinkServer, path: Path) -> None:
    value: Any = "in the middle"
    for _ in range(90):
        value = [value]
    async with Raw(path) as raw:
        assert await raw.call("Echo.Whatever", value=value) == {"parameters": {"value": value}}


async def test_a_message_of_exactly_the_limit_is_taken(server: VarlinkServer, path: Path) -> None:
    room = MAX_MESSAGE_BYTES - len(message("Echo.Length", text=""))
    async with Raw(path) as raw:
        assert await raw.call("Echo.Length", text="x" * room) == {"parameters": {"length": room}}
        assert code(await raw.call("Echo.Length", text="x" * (room + 1))) == "message_too_large"


async def test_a_sender_without_end_is_cut_off_while_others_are_answered(
    server: VarlinkServer, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lightagentd.varlink.connection.LINGER_S", 0.3)
    piece = b"x" * (1 << 20)

    async def send_on(raw: Raw) -> int:
        for number in range(100):
            try:
                raw.writer.write(piece)
                await raw.writer.drain()
            except OSError:
                return number
        return 100

    async with Raw(path) as endless, Raw(path) as other:
        sending = asyncio.create_task(send_on(endless))
        answer = asyncio.create_task(endless.reply())
        for number in range(50):
            assert (await other.call("Echo.Say", text=str(number)))["parameters"]["text"] == str(number)
        assert code(await answer) == "message_too_large"
        assert await sending >= 16
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):
            assert await endless.reader.read() == b""
    await until(lambda: server.connections == 0)


async def test_an_answer_over_the_limit_becomes_an_error(server: VarlinkServer, path: Path) -> None:
    async with Raw(path) as raw:
        assert code(await raw.call("Echo.Make", length=MAX_MESSAGE_BYTES)) == "message_too_large"
        assert code(await raw.call("Echo.Make", length=10)) == "ok"


# Calls


async def test_varlink_own_errors_name_the_method_the_interface_and_the_parameter(
    server: VarlinkServer, path: Path
) -> None:
    async with Raw(path) as raw:
        service = "org.varlink.service."
        assert await raw.call("Echo.Nothing") == {
            "error": service + "MethodNotFound",
            "parameters": {"method": "Nothing"},
        }
        assert (await raw.call("org.example.Nobody.Say"))["parameters"] == {"interface": "org.example.Nobody"}
        for parameters, name in (
            ({}, "text"),
            ({"text": 7}, "text"),
            ({"text": None}, "text"),
            ({"text": "a", "other": 1}, "other"),
        ):
            assert await raw.call("Echo.Say", **parameters) == {
                "error": service + "InvalidParameter",
                "parameters": {"parameter": name},
            }


@pytest.mark.parametrize("number", [True, 1 << 63, -(1 << 63), "7", 1.5, [7], None])
async def test_only_a_64_bit_integer_is_an_int(server: VarlinkServer, path: Path, number: object) -> None:
    async with Raw(path) as raw:
        reply = await raw.call("Echo.Number", number=number)
        assert code(reply) == "org.varlink.service.InvalidParameter"
        assert reply["parameters"] == {"parameter": "number"}
        assert (await raw.call("Echo.Number", number=(1 << 63) - 1))["parameters"]["number"] == (1 << 63) - 1


async def test_a_stream_without_more_is_refused(server: VarlinkServer, path: Path) -> None:
    async with Raw(path) as raw:
        assert code(await raw.call("Echo.Count", to=3)) == "org.varlink.service.ExpectedMore"


async def test_a_stream_ends_with_a_reply_that_does_not_continue(server: VarlinkServer, path: Path) -> None:
    async with Raw(path) as raw:
        replies = [reply async for reply in raw.stream("Echo.Count", to=3)]
        assert [reply["parameters"]["number"] for reply in replies] == [1, 2, 3]
        assert [reply.get("continues", False) for reply in replies] == [True, True, False]


async def test_oneway_calls_run_and_are_not_answered(server: VarlinkServer, echo: Echo, path: Path) -> None:
    async with Raw(path) as raw:
        await raw.send(
            message("Echo.Say", oneway=True, text="one"),
            message("Echo.Count", oneway=True, to=3),
            message("Echo.Fail", oneway=True, how="known"),
            message("Echo.Fail", oneway=True, how="unknown"),
            message("Echo.Nothing", oneway=True),
            b'{"method":"x","oneway":true}',
            message("Echo.Say", text="two"),
        )
        assert await raw.reply() == {"parameters": {"text": "two"}}
    assert echo.said == ["one", "two"]


async def test_a_oneway_call_runs_although_its_caller_hung_up_at_once(
    server: VarlinkServer, echo: Echo, path: Path
) -> None:
    for number in range(20):
        async with Raw(path) as raw:
            await raw.send(message("Echo.Say", oneway=True, text=str(number)))
    await until(lambda: len(echo.said) == 20)


async def test_more_on_a_method_with_one_reply_gets_one_reply(server: VarlinkServer, path: Path) -> None:
    async with Raw(path) as raw:
        assert len([reply async for reply in raw.stream("Echo.Say", text="a")]) == 1


async def test_an_error_of_ours_carries_code_message_and_suggestion(
    server: VarlinkServer, path: Path
) -> None:
    async with Raw(path) as raw:
        assert await raw.call("Echo.Fail", how="known") == {
            "error": "org.lightagent1.SkillNotFound",
            "parameters": {
                "code": "skill_not_found",
                "message": "There is no such skill.",
                "field": "name",
                "suggestion": "Look again.",
            },
        }


async def test_an_unexpected_error_tells_the_journal_and_not_the_peer(
    server: VarlinkServer, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with Raw(path) as raw:
        reply = await raw.call("Echo.Fail", how="unknown")
        assert code(reply) == "internal"
        assert "secret" not in str(reply)
        assert "secret detail" in caplog.text
        assert code(await raw.call("Echo.Say", text="a")) == "ok"


# Peers that leave or do not read


async def test_a_hang_up_ends_a_silent_stream_at_once(server: VarlinkServer, echo: Echo, path: Path) -> None:
    async with Raw(path) as raw:
        await raw.send(message("Echo.Silence", more=True))
        await until(lambda: echo.streams == 1)
    await until(lambda: echo.streams == 0 and server.connections == 0)


async def test_a_stream_whose_caller_left_before_it_began_does_not_stay(
    server: VarlinkServer, echo: Echo, path: Path
) -> None:
    for _ in range(20):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.connect(str(path))
        sock.sendall(message("Echo.Silence", more=True) + b"\0")
        sock.close()
    await until(lambda: echo.connected == 20)
    await until(lambda: echo.streams == 0 and server.connections == 0)


async def test_a_hang_up_ends_a_stream_that_waits_for_its_reader(
    server: VarlinkServer, echo: Echo, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with Raw(path) as raw:
        raw.writer.transport.pause_reading()  # type: ignore[attr-defined]  # a read transport as well
        await raw.send(message("Echo.Flood", more=True, length=100_000))
        assert await steady(lambda: echo.flooded) > 0
    await until(lambda: echo.streams == 0 and server.connections == 0)
    assert not caplog.records


async def test_a_hang_up_lets_a_call_with_one_answer_come_to_its_end(
    server: VarlinkServer, echo: Echo, path: Path
) -> None:
    async with Raw(path) as raw:
        await raw.send(message("Echo.Wait"))
        await until(lambda: echo.waiting == 1)
    await asyncio.sleep(0.05)
    echo.go.set()
    await until(lambda: echo.waited == 1 and server.connections == 0)


async def test_a_stream_is_not_produced_faster_than_it_is_read(
    server: VarlinkServer, echo: Echo, path: Path
) -> None:
    async with Raw(path) as slow, Raw(path) as other:
        slow.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await slow.send(message("Echo.Flood", more=True, length=10_000))
        stopped_at = await steady(lambda: echo.flooded)
        assert stopped_at < 1000
        assert code(await other.call("Echo.Say", text="a")) == "ok"
        slow.writer.transport.resume_reading()  # type: ignore[attr-defined]
        for number in range(1, stopped_at + 200):
            assert (await slow.reply())["parameters"]["flood"]["number"] == number


async def test_a_client_that_does_not_read_has_one_call_answered(
    server: VarlinkServer, echo: Echo, path: Path
) -> None:
    async with Raw(path) as greedy, Raw(path) as other:
        greedy.writer.transport.pause_reading()  # type: ignore[attr-defined]
        greedy.writer.write((message("Echo.Make", length=100) + b"\0") * 20)
        await until(lambda: echo.made > 0)
        assert await steady(lambda: echo.made) == 1
        assert code(await other.call("Echo.Say", text="a")) == "ok"
        greedy.writer.transport.resume_reading()  # type: ignore[attr-defined]
        assert [code(await greedy.reply()) for _ in range(20)] == ["ok"] * 20


async def test_a_few_calls_of_one_user_work_at_once_and_waiting_ones_make_room(
    echo: Echo, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lightagentd.varlink.turns.WORKS_S", 3600.0)
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(serving(echo, path, bounds=Bounds(privileged=NOBODY)))
        raws = [await stack.enter_async_context(Raw(path)) for _ in range(AT_ONCE_OF_UID + 8)]
        for raw in raws[:8]:
            await raw.send(message("Echo.Wait"))
        await until(lambda: echo.waiting > 0)
        assert await steady(lambda: echo.waiting) == AT_ONCE_OF_UID
        monkeypatch.setattr("lightagentd.varlink.turns.WORKS_S", 0.05)
        echo.go.set()
        assert [code(await raw.reply()) for raw in raws[:8]] == ["ok"] * 8
        echo.go.clear()
        for raw in raws[8:]:
            await raw.send(message("Echo.Wait"))
        assert code(await raws[0].call("Echo.Say", text="a")) == "ok"


async def test_errors_for_a_client_that_never_reads_wait_too(server: VarlinkServer, path: Path) -> None:
    sent = 0

    async def send_nuls(raw: Raw) -> None:
        nonlocal sent
        while True:
            raw.writer.write(b"\0" * 65_536)
            await raw.writer.drain()
            sent += 65_536

    async with Raw(path) as raw:
        raw.writer.transport.pause_reading()  # type: ignore[attr-defined]
        flood = asyncio.create_task(send_nuls(raw))
        assert await steady(lambda: sent) < 8 << 20
        flood.cancel()
        await asyncio.gather(flood, return_exceptions=True)


async def test_closing_the_server_does_not_wait_for_who_never_reads(
    echo: Echo, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lightagentd.varlink.server._CLOSE_S", 0.05)
    async with serving(echo, path, max_connections=5) as server:
        raw = await Raw(path).__aenter__()
        raw.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await raw.send(message("Echo.Flood", more=True, length=1_000_000))
        await until(lambda: echo.streams == 1)
    assert echo.streams == 0
    assert server.connections == 0
    await raw.hang_up()


# Connections


async def test_the_kernel_names_the_peer(server: VarlinkServer, path: Path) -> None:
    async with Raw(path) as raw:
        assert (await raw.call("Echo.WhoAmI"))["parameters"]["who"] == (
            f"{os.getuid()}:{os.getgid()}:{os.getpid()}"
        )


async def test_500_connections_are_served_at_once(server: VarlinkServer, path: Path) -> None:
    raws = [await Raw(path).__aenter__() for _ in range(500)]
    try:
        for number, raw in enumerate(raws):
            await raw.send(message("Echo.Say", text=str(number)))
        texts = [(await raw.reply())["parameters"]["text"] for raw in raws]
        assert texts == [str(number) for number in range(500)]
        assert server.connections == 500
    finally:
        for raw in raws:
            await raw.hang_up()
    await until(lambda: server.connections == 0)


async def test_one_connection_too_many_is_told_so_and_the_next_has_room_again(echo: Echo, path: Path) -> None:
    async with serving(echo, path, max_connections=2, bounds=Bounds(privileged=NOBODY)) as server:
        async with Raw(path) as first, Raw(path):
            assert code(await first.call("Echo.Say", text="a")) == "ok"
            async with Raw(path) as third:
                refused = await third.reply()
                assert code(refused) == "limit_exceeded"
                assert "max_connections" in refused["parameters"]["suggestion"]
                assert await third.reader.read() == b""
            assert code(await first.call("Echo.Say", text="a")) == "ok"
        await until(lambda: server.connections == 0)
        async with Raw(path) as raw:
            assert code(await raw.call("Echo.Say", text="a")) == "ok"


async def test_a_full_queue_keeps_nobody_at_another_socket_waiting(server: VarlinkServer, path: Path) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(200):
            stack.enter_context(socket.socket(socket.AF_UNIX)).connect(str(path))
        async with Raw(private(path)) as raw:
            assert code(await raw.call("Echo.Say", text="a")) == "ok"
            assert server.connections < 50
        await until(lambda: server.connections == 200)


# The calling end


async def test_the_client_calls_and_streams(server: VarlinkServer, path: Path) -> None:
    connection = await VarlinkConnection.connect(path)
    try:
        assert await connection.call(ECHO + "Say", text="a") == {"text": "a"}
        numbers = [reply["number"] async for reply in connection.stream(ECHO + "Count", to=3)]
        assert numbers == [1, 2, 3]
        with pytest.raises(SkillNotFound, match="no such skill"):
            await connection.call(ECHO + "Fail", how="known")
        with pytest.raises(InvalidArgument):
            await connection.call(ECHO + "Say", text=7)
        assert await connection.call(ECHO + "Say", text="bytes \udcff") == {"text": "bytes \ufffd"}
    finally:
        connection.close()


async def test_the_client_sends_nothing_over_the_limit(server: VarlinkServer, path: Path) -> None:
    connection = await VarlinkConnection.connect(path)
    try:
        with pytest.raises(MessageTooLarge):
            await connection.call(ECHO + "Say", text="x" * MAX_MESSAGE_BYTES)
        assert await connection.call(ECHO + "Say", text="a") == {"text": "a"}
    finally:
        connection.close()


@pytest.mark.parametrize("answer", [b"", b"{", b"[]\0", b'{"parameters":7}\0', b"[" * 100_000 + b"\0"])
async def test_a_peer_that_answers_nonsense_is_unavailable(path: Path, answer: bytes) -> None:
    async def nonsense(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\0")
        writer.write(answer)
        await writer.drain()
        writer.close()

    async with await asyncio.start_unix_server(nonsense, path):
        connection = await VarlinkConnection.connect(path)
        with pytest.raises(Unavailable):
            await connection.call(ECHO + "Say", text="a")
        connection.close()
