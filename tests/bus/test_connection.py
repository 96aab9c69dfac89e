"""The connection to a real dbus-daemon: nothing is lost, nothing waits for ever, nothing leaks."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import socket
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from lightagentd import errors
from lightagentd.bus import connection as bus_module
from lightagentd.bus.connection import (
    Bus,
    Call,
    Reply,
    Signal,
    Signals,
    Variant,
    address_of,
    connect,
    error_for,
)
from lightagentd.bus.errors import NoAnswer
from lightagentd.bus.signals import match_rule
from lightagentd.host.users import called
from tests.conftest import REPOSITORY
from tests.fake_systemd import private_bus

NAME = "org.example.Peer"
PATH = "/org/example/Peer"
INTERFACE = "org.example.Peer"
BURST = 10_000
"""dbus-next needs 0.2 ms for each, so the whole burst is for CI; its own writer loses most of 5,000."""


@pytest.fixture
def address() -> Iterator[str]:
    with private_bus() as found:
        yield found


async def own(bus: Bus) -> None:
    await bus.request_name(NAME)


async def ask(
    bus: Bus, member: str, signature: str = "", args: tuple[object, ...] = (), timeout_s: float = 10.0
) -> list[object]:
    return await bus.call(NAME, PATH, INTERFACE, member, signature, args, timeout_s)


async def soon(arriving: Signals) -> Signal:
    """The next signal; one that does not come fails the test."""
    async with asyncio.timeout(20):
        return await anext(arriving)


async def test_burst_of_signals_arrives_whole_and_in_order(address: str) -> None:
    count = 10_000
    async with (
        connect(address) as sender,
        connect(address) as receiver,
        receiver.signals(sender=sender.unique_name, interface=INTERFACE) as arriving,
        asyncio.TaskGroup() as group,
    ):

        async def send() -> None:
            for number in range(count):
                await sender.emit(PATH, INTERFACE, "Tick", "u", [number])

        group.create_task(send())
        for expected in range(count):
            assert (await anext(arriving)).args == [expected]
        assert arriving.dropped == 0


async def test_32_concurrent_replies_of_100_kb_arrive_whole(address: str) -> None:
    async def big(call: Call) -> Reply:
        return Reply(signature="s", args=[str(call.args[0] % 10) * 100_000])

    async with connect(address) as server, connect(address) as client:
        server.serve(big)
        await own(server)
        replies = await asyncio.gather(*(ask(client, "Big", "u", (number,)) for number in range(32)))
    assert replies == [[str(number % 10) * 100_000] for number in range(32)]


@contextlib.asynccontextmanager
async def another_program(mode: str, address: str, peer: str, count: int) -> AsyncIterator[Process]:
    """A client that shares no code with ours, as a process; it must find all that it waits for."""
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.raw_dbus", mode, address, peer, str(count)),
        cwd=REPOSITORY,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert program.stdin is not None
    assert program.stdout is not None
    try:
        yield program
        assert await program.stdout.readline() == b"whole\n"
    finally:
        program.stdin.close()
        await program.wait()
        await asyncio.sleep(0)


@pytest.mark.parametrize(("slow", "count"), [(False, 2_000), (True, BURST)])
async def test_burst_of_signals_arrives_whole_at_another_program(
    address: str, slow: bool, count: int
) -> None:
    async with connect(address) as sender, another_program("signals", address, "", count) as reader:
        assert reader.stdin is not None
        assert reader.stdout is not None
        to = (await reader.stdout.readline()).decode().strip()
        if not slow:
            reader.stdin.write(b"read\n")
        for number in range(count):
            await sender.emit(PATH, INTERFACE, "Tick", "u", [number], destination=to)
        assert sender.queued_bytes <= bus_module.OUTBOX_LIMIT_BYTES
        reader.stdin.write(b"read\n")


@pytest.mark.parametrize("slow", [False, True])
async def test_32_concurrent_replies_arrive_whole_at_another_program(address: str, slow: bool) -> None:
    answered = 0

    async def big(call: Call) -> Reply:
        nonlocal answered
        answered += 1
        return Reply(signature="s", args=[str(call.args[0] % 10) * 100_000])

    async with connect(address) as server:
        server.serve(big)
        await own(server)
        async with another_program("replies", address, NAME, 32) as reader:
            assert reader.stdin is not None
            assert reader.stdout is not None
            await reader.stdout.readline()
            async with asyncio.timeout(60):
                while slow and (answered < 32 or server.queued_bytes):
                    await asyncio.sleep(0.01)
            reader.stdin.write(b"read\n")


async def test_messages_wait_while_the_socket_is_full() -> None:
    """A peer that reads nothing: the queue stays bounded, the sender gets TimedOut, and nothing is lost."""
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=ours)
    bus = Bus(reader, writer, "test")
    writer.transport.set_write_buffer_limits(high=bus_module.OUTBOX_LIMIT_BYTES)
    sent = 0
    with theirs:
        while bus.queued_bytes <= bus_module.OUTBOX_LIMIT_BYTES:
            await bus.emit(PATH, INTERFACE, "Tick", "s", ["x" * 100_000])
            sent += 1
        assert bus.queued_bytes <= bus_module.OUTBOX_LIMIT_BYTES + 200_000
        with pytest.raises(errors.TimedOut, match="took no signal"):
            await bus.emit(PATH, INTERFACE, "Tick", "s", ["x" * 100_000], timeout_s=0.1)
        assert sent * 100_000 >= bus_module.OUTBOX_LIMIT_BYTES
        theirs.setblocking(False)
        loop, arrived = asyncio.get_running_loop(), 0
        while arrived < sent * 100_000:
            arrived += len(await loop.sock_recv(theirs, 1 << 20))
        await bus.close()


async def test_full_subscription_reports_the_gap_once_and_goes_on(address: str) -> None:
    async with (
        connect(address) as sender,
        connect(address) as receiver,
        receiver.signals(interface=INTERFACE, limit=3) as arriving,
    ):
        for number in range(5):
            await sender.emit(PATH, INTERFACE, "Tick", "u", [number], destination=receiver.unique_name)
        await receiver.call(sender.unique_name, PATH, "org.freedesktop.DBus.Peer", "Ping")
        held = [(await soon(arriving)).args[0] for _ in range(3)]
        assert held == [0, 1, 2]
        with pytest.raises(errors.LimitExceeded, match="2 D-Bus signals were lost"):
            await soon(arriving)
        await sender.emit(PATH, INTERFACE, "Tick", "u", [5])
        assert (await soon(arriving)).args == [5]


async def test_signals_of_a_peer_that_does_not_own_the_name_are_ignored(address: str) -> None:
    async with connect(address) as owner, connect(address) as liar, connect(address) as receiver:
        await own(owner)
        async with receiver.signals(sender=NAME, member="Tick") as arriving:
            await liar.emit(PATH, INTERFACE, "Tick", "s", ["forged"], destination=receiver.unique_name)
            await receiver.call(liar.unique_name, PATH, "org.freedesktop.DBus.Peer", "Ping")
            await owner.emit(PATH, INTERFACE, "Tick", "s", ["true"])
            assert (await soon(arriving)).args == ["true"]


async def test_subscription_follows_a_name_to_its_next_owner(address: str) -> None:
    async with connect(address) as receiver, receiver.signals(sender=NAME, member="Tick") as arriving:
        for life in ("first", "second"):
            async with connect(address) as owner:
                await own(owner)
                await owner.emit(PATH, INTERFACE, "Tick", "s", [life])
                assert (await soon(arriving)).args == [life]


async def test_subscription_filters_by_path_member_and_first_argument(address: str) -> None:
    async with (
        connect(address) as sender,
        connect(address) as receiver,
        receiver.signals(path=PATH, member="Tick", arg0="it's") as arriving,
    ):
        to = receiver.unique_name
        await sender.emit("/other", INTERFACE, "Tick", "s", ["it's"], destination=to)
        await sender.emit(PATH, INTERFACE, "Tock", "s", ["it's"], destination=to)
        await sender.emit(PATH, INTERFACE, "Tick", "s", ["other"], destination=to)
        await sender.emit(PATH, INTERFACE, "Tick", "ss", ["it's", "this one"])
        assert (await soon(arriving)).args == ["it's", "this one"]


async def test_match_rule_quotes_an_apostrophe() -> None:
    assert match_rule(member="Tick", path="", arg0="it's") == "type='signal',member='Tick',arg0='it'\\''s'"


async def test_variants_go_out_typed_and_come_back_plain(address: str) -> None:
    got: list[object] = []

    async def echo(call: Call) -> Reply:
        got.extend(call.args)
        nested = {
            "a": Variant("u", 1),
            "b": Variant("as", ["x"]),
            "c": Variant("v", Variant("ay", b"\x00\xff")),
        }
        return Reply(signature="a{sv}", args=[nested])

    async with connect(address) as server, connect(address) as client:
        server.serve(echo)
        await own(server)
        answer = await ask(client, "Echo", "a{sv}", ({"k": Variant("(si)", ["x", -1])},))
    assert got == [{"k": ["x", -1]}]
    assert answer == [{"a": 1, "b": ["x"], "c": b"\x00\xff"}]


async def test_unexpected_exception_reaches_the_log_and_not_the_peer(
    address: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(call: Call) -> Reply:
        raise KeyError("secret detail")

    async with connect(address) as server, connect(address) as client:
        server.serve(broken)
        await own(server)
        with pytest.raises(errors.LightagentError) as caught:
            await ask(client, "Break")
    assert type(caught.value) is errors.LightagentError
    assert "secret" not in caught.value.message
    assert "Traceback" not in caught.value.message
    assert "secret detail" in caplog.text


async def test_our_errors_keep_their_class_across_the_bus(address: str) -> None:
    async def refuse(call: Call) -> Reply:
        raise errors.SessionNotFound("No session 'x' belongs to you.")

    async with connect(address) as server, connect(address) as client:
        server.serve(refuse)
        await own(server)
        with pytest.raises(errors.SessionNotFound, match="No session 'x' belongs to you"):
            await ask(client, "Open")


async def test_reply_that_does_not_fit_its_signature_is_an_error_reply(address: str) -> None:
    async def wrong(call: Call) -> Reply:
        return Reply(signature="u", args=["text"])

    async with connect(address) as server, connect(address) as client:
        server.serve(wrong)
        await own(server)
        with pytest.raises(errors.LightagentError):
            await ask(client, "Wrong")


async def test_calls_beyond_the_limit_are_refused(address: str) -> None:
    release = asyncio.Event()

    async def slow(call: Call) -> Reply:
        await release.wait()
        return Reply()

    async with connect(address) as server, connect(address) as client:
        server.serve(slow)
        await own(server)
        async with asyncio.TaskGroup() as group:
            waiting = [group.create_task(ask(client, "Slow")) for _ in range(bus_module.CALLS_LIMIT)]
            await asyncio.sleep(0)  # so that those are sent before this one
            with pytest.raises(errors.LimitExceeded):
                await ask(client, "Slow")
            release.set()
        assert all(task.result() == [] for task in waiting)


async def test_call_to_a_name_without_owner_is_unavailable(address: str) -> None:
    async with connect(address) as bus:
        with pytest.raises(errors.Unavailable, match=r"org\.example\.Peer"):
            await ask(bus, "Anything")
        with pytest.raises(errors.SystemdUnavailable):
            await bus.call("org.freedesktop.systemd1", "/", INTERFACE, "Anything")


async def test_method_that_nobody_serves_is_not_found(address: str) -> None:
    async with connect(address) as server, connect(address) as client:
        await own(server)
        with pytest.raises(errors.MethodNotFound):
            await ask(client, "Anything")


async def test_call_without_answer_times_out_and_a_late_answer_does_no_harm(address: str) -> None:
    release = asyncio.Event()

    async def slow(call: Call) -> Reply:
        if call.member == "Slow":
            await release.wait()
        return Reply(signature="s", args=[call.member])

    async with connect(address) as server, connect(address) as client:
        server.serve(slow)
        await own(server)
        with pytest.raises(errors.TimedOut, match=r"Slow within 0\.05 s"):
            await ask(client, "Slow", timeout_s=0.05)
        release.set()
        assert await ask(client, "Quick") == ["Quick"]


async def test_invalid_names_and_arguments_are_refused_before_sending(address: str) -> None:
    async with connect(address) as bus:
        with pytest.raises(errors.InvalidArgument):
            await bus.call("not a name", PATH, INTERFACE, "Get")
        with pytest.raises(errors.InvalidArgument):
            await bus.call(NAME, "no/path", INTERFACE, "Get")
        with pytest.raises(errors.InvalidArgument, match="signature 'u'"):
            await bus.call(NAME, PATH, INTERFACE, "Get", "u", ["text"])
        with pytest.raises(errors.InvalidArgument):
            await bus.call(NAME, PATH, INTERFACE, "Get", "u(", [1])


async def test_name_of_another_connection_is_a_conflict(address: str) -> None:
    async with connect(address) as first, connect(address) as second:
        await own(first)
        with pytest.raises(errors.Conflict, match="belongs to another process"):
            await own(second)


async def test_name_that_the_policy_forbids_is_permission_denied(address: str) -> None:
    async with connect(address) as bus:
        with pytest.raises(errors.PermissionDenied):
            await bus.request_name("org.example.Forbidden")


async def test_lost_connection_ends_calls_and_subscriptions() -> None:
    release = asyncio.Event()

    async def never(call: Call) -> Reply:
        await release.wait()
        return Reply()

    with private_bus() as address:
        server_context, client_context = connect(address), connect(address)
        server, client = await server_context.__aenter__(), await client_context.__aenter__()
        server.serve(never)
        await own(server)
        pending = asyncio.create_task(ask(client, "Wait"))
        subscription = client.signals(member="Tick")
        arriving = await subscription.__aenter__()
    with pytest.raises(errors.Unavailable, match="gone"):
        await pending
    with pytest.raises(errors.Unavailable, match="gone"):
        await soon(arriving)
    assert isinstance(await client.wait_lost(), errors.Unavailable)
    with pytest.raises(errors.Unavailable):
        await client.emit(PATH, INTERFACE, "Tick")
    await subscription.__aexit__(None, None, None)
    await client_context.__aexit__(None, None, None)
    await server_context.__aexit__(None, None, None)


async def test_connecting_where_nothing_listens_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(errors.Unavailable, match="No D-Bus daemon answers"):
        async with connect(f"unix:path={tmp_path}/none"):
            pass


async def test_second_address_is_tried_when_the_first_does_not_answer(address: str, tmp_path: Path) -> None:
    async with connect(f"unix:path={tmp_path}/none;{address}") as bus:
        assert bus.unique_name.startswith(":")


async def test_address_without_a_unix_socket_is_refused() -> None:
    with pytest.raises(errors.InvalidArgument, match="names no Unix socket"):
        async with connect("tcp:host=localhost,port=1"):
            pass


async def test_bus_that_hangs_up_during_authentication_is_unavailable(tmp_path: Path) -> None:
    """dbus-next spins for ever here, with the event loop blocked."""

    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"O")
        writer.close()
        await writer.wait_closed()

    path = tmp_path / "s"
    async with await asyncio.start_unix_server(hang_up, path):
        with pytest.raises(errors.Unavailable):
            async with connect(f"unix:path={path}"):
                pass


async def test_bus_that_rejects_the_user_is_permission_denied(tmp_path: Path) -> None:
    async def reject(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n")
        writer.write(b"REJECTED EXTERNAL\r\n")
        await reader.read()
        writer.close()

    path = tmp_path / "s"
    async with await asyncio.start_unix_server(reject, path):
        with pytest.raises(errors.PermissionDenied, match=f"refuses {called(os.geteuid())}"):
            async with connect(f"unix:path={path}"):
                pass


async def test_what_is_queued_is_sent_before_the_connection_closes(address: str) -> None:
    async with connect(address) as receiver, receiver.signals(member="Tick") as arriving:
        async with connect(address) as sender:
            for number in range(200):
                await sender.emit(PATH, INTERFACE, "Tick", "us", [number, "x" * 10_000])
        assert [(await soon(arriving)).args[0] for _ in range(200)] == list(range(200))


async def test_leaving_the_block_leaves_no_task_and_no_descriptor(address: str) -> None:
    gc.collect()
    before = len(list(Path("/proc/self/fd").iterdir()))

    async def quiet(call: Call) -> Reply:
        await asyncio.Event().wait()
        return Reply()

    async with connect(address) as server, connect(address) as client:
        server.serve(quiet)
        await own(server)
        with pytest.raises(errors.TimedOut):
            await ask(client, "Wait", timeout_s=0.05)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert len(list(Path("/proc/self/fd").iterdir())) == before


async def test_cancelled_call_leaves_nothing_behind(address: str) -> None:
    async def quiet(call: Call) -> Reply:
        await asyncio.Event().wait()
        return Reply()

    async with connect(address) as server, connect(address) as client:
        server.serve(quiet)
        await own(server)
        task = asyncio.create_task(ask(client, "Wait"))
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert client._pending == {}


@pytest.mark.parametrize(
    ("name", "cls"),
    [
        ("org.freedesktop.DBus.Error.AccessDenied", errors.PermissionDenied),
        ("org.freedesktop.DBus.Error.Spawn.ExecFailed", errors.Unavailable),
        ("org.freedesktop.systemd1.NoSuchUnit", errors.NotFound),
        ("org.freedesktop.DBus.Error.NoReply", NoAnswer),
        ("org.lightagent1.Error.PolicyDenied", errors.PolicyDenied),
        ("org.example.Strange", errors.ToolError),
    ],
)
def test_error_names_become_our_classes(name: str, cls: type[errors.LightagentError]) -> None:
    assert type(error_for(name, "text", NAME)) is cls


def test_addresses_come_from_the_environment_or_the_usual_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", "unix:path=/a")
    assert address_of("system") == "unix:path=/a"
    monkeypatch.delenv("DBUS_SYSTEM_BUS_ADDRESS")
    assert address_of("system") == "unix:path=/run/dbus/system_bus_socket"
    monkeypatch.delenv("DBUS_SESSION_BUS_ADDRESS", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/1~x")
    assert address_of("session") == "unix:path=/run/user/1%7Ex/bus"
