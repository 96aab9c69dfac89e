from __future__ import annotations

import asyncio
import contextlib
import grp
import os
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lightagentd import errors
from lightagentd.client import blocking as client_module
from lightagentd.client.aio import AsyncClient
from lightagentd.client.blocking import SYSTEM_SOCKET, Client, socket_path
from tests.scripted_daemon import Connection, ScriptedDaemon


@pytest.fixture
def scripted(tmp_path: Path) -> Iterator[ScriptedDaemon]:
    server = ScriptedDaemon(tmp_path / "control.sock")
    server.start()
    yield server
    server.stop()


@pytest.fixture
def full(tmp_path: Path) -> Iterator[tuple[str, socket.socket]]:
    """A listening socket whose queue is full, and its path."""
    path = str(tmp_path / "control.sock")
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(path)
        listener.listen(0)
        stack.enter_context(socket.socket(socket.AF_UNIX)).connect(path)
        yield path, listener


class TestSocketPath:
    def test_the_environment_names_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("LIGHTAGENT_SOCKET", "/somewhere/a.sock")
        assert socket_path() == "/somewhere/a.sock"

    def test_a_user_prefers_the_socket_of_his_own_daemon(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        own = tmp_path / "lightagentd" / "control.sock"
        monkeypatch.delenv("LIGHTAGENT_SOCKET", raising=False)
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
        monkeypatch.setattr(os, "geteuid", lambda: 1000)
        assert socket_path() == SYSTEM_SOCKET
        own.parent.mkdir()
        own.touch()
        assert socket_path() == str(own)

    def test_root_never_takes_the_socket_of_a_user(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        (tmp_path / "lightagentd").mkdir()
        (tmp_path / "lightagentd" / "control.sock").touch()
        monkeypatch.delenv("LIGHTAGENT_SOCKET", raising=False)
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
        monkeypatch.setattr(os, "geteuid", lambda: 0)
        assert socket_path() == SYSTEM_SOCKET


class TestCall:
    def test_returns_the_parameters_of_the_reply(self, scripted: ScriptedDaemon) -> None:
        scripted.answer("Agents.Get", {"agent": {"name": "ops"}})
        with Client(scripted.path) as client:
            assert client.call("Agents.Get", name="ops") == {"agent": {"name": "ops"}}
            assert client.call("org.lightagent1.Agents.Get", name="ops") == {"agent": {"name": "ops"}}
        assert scripted.calls[0] == {"method": "Agents.Get", "parameters": {"name": "ops"}}

    def test_leaves_out_parameters_that_are_none(self, scripted: ScriptedDaemon) -> None:
        scripted.answer("Sessions.List", {"sessions": []})
        with Client(scripted.path) as client:
            client.call("Sessions.List", agent=None)
        assert scripted.parameters("Sessions.List") == {}

    def test_raises_the_error_of_the_daemon_and_goes_on(self, scripted: ScriptedDaemon) -> None:
        scripted.fail(
            "Agents.Get",
            "org.lightagent1.AgentNotFound",
            code="agent_not_found",
            message="There is no agent 'x'.",
            field="name",
            suggestion="List them.",
        )
        scripted.answer("Sessions.List", {"sessions": []})
        with Client(scripted.path) as client:
            with pytest.raises(errors.AgentNotFound) as caught:
                client.call("Agents.Get", name="x")
            assert client.call("Sessions.List") == {"sessions": []}
        assert (caught.value.field, caught.value.suggestion) == ("name", "List them.")

    def test_an_unknown_error_is_internal_and_named(self, scripted: ScriptedDaemon) -> None:
        scripted.fail("Agents.List", "org.example.Strange", detail=1)
        with Client(scripted.path) as client, pytest.raises(errors.LightagentError, match=r"org\.example"):
            client.call("Agents.List")

    def test_a_method_that_the_daemon_does_not_know(self, scripted: ScriptedDaemon) -> None:
        with Client(scripted.path) as client, pytest.raises(errors.MethodNotFound):
            client.call("Agents.Fly")

    def test_takes_text_that_is_no_unicode(self, scripted: ScriptedDaemon) -> None:
        scripted.answer("Agents.Get", {})
        with Client(scripted.path) as client:
            client.call("Agents.Get", name="a\udcff😀")
        assert scripted.parameters("Agents.Get") == {"name": "a\ufffd😀"}

    @pytest.mark.parametrize(
        "answer",
        [
            b"{nonsense\0",
            b"\xff\xfe\0",
            b"[]\0",
            b'{"parameters": 1}\0',
            b'{"error": 1}\0',
            b"[" * 100_000 + b"\0",
            b'{"continues": true}\0',
            b"\0",
        ],
    )
    def test_what_is_no_reply_is_malformed(self, scripted: ScriptedDaemon, answer: bytes) -> None:
        scripted.raw("Agents.List", answer)
        with Client(scripted.path) as client, pytest.raises(errors.MalformedMessage):
            client.call("Agents.List")

    @pytest.mark.parametrize("answer", [b"", b'{"parameters": {'])
    def test_an_answer_that_breaks_off_means_unreachable(
        self, scripted: ScriptedDaemon, answer: bytes
    ) -> None:
        scripted.raw("Agents.List", answer)
        with Client(scripted.path) as client, pytest.raises(errors.DaemonUnreachable, match="closed"):
            client.call("Agents.List")

    def test_silence_is_a_timeout_and_ends_the_connection(self, scripted: ScriptedDaemon) -> None:
        scripted.handle("Agents.List", lambda connection, call: None)
        with Client(scripted.path, timeout_s=0.05) as client:
            with pytest.raises(errors.TimedOut):
                client.call("Agents.List")
            with pytest.raises(RuntimeError, match="not connected"):
                client.call("Agents.List")

    def test_an_error_that_is_sent_before_all_was_read_is_still_raised(
        self, scripted: ScriptedDaemon
    ) -> None:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with listener, tempfile.TemporaryDirectory() as folder:
            listener.bind(f"{folder}/s")
            listener.listen()
            with Client(f"{folder}/s") as client:
                peer, _ = listener.accept()
                peer.sendall(b'{"error": "org.lightagent1.ShuttingDown", "parameters": {"message": "m"}}\0')
                peer.close()
                with pytest.raises(errors.ShuttingDown):
                    client.call("Sessions.Prompt", text="x" * (1 << 20))


class TestLimits:
    def test_a_call_of_ten_mebibytes_arrives(self, scripted: ScriptedDaemon) -> None:
        scripted.handle(
            "Manager.Ask", lambda connection, call: connection.reply({"n": len(call["parameters"]["text"])})
        )
        with Client(scripted.path) as client:
            assert client.call("Manager.Ask", text="x" * (10 << 20)) == {"n": 10 << 20}

    def test_a_call_beyond_the_limit_is_not_sent(self, scripted: ScriptedDaemon) -> None:
        scripted.answer("Agents.List", {"agents": []})
        with Client(scripted.path) as client:
            with pytest.raises(errors.MessageTooLarge, match=r"18874\d{3} bytes as JSON"):
                client.call("Manager.Ask", text="\0" * (3 << 20))
            assert client.call("Agents.List") == {"agents": []}
        assert [call["method"] for call in scripted.calls] == ["Agents.List"]

    def test_an_answer_beyond_the_limit_is_not_taken(
        self, scripted: ScriptedDaemon, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(client_module, "MAX_MESSAGE_BYTES", 1000)
        for answer in (b"x" * 1001, b"x" * 1001 + b"\0"):
            scripted.raw("Agents.List", answer)
            with Client(scripted.path) as client, pytest.raises(errors.MessageTooLarge):
                client.call("Agents.List")


class TestStream:
    def test_yields_each_reply_until_the_last(self, scripted: ScriptedDaemon) -> None:
        scripted.answer("Events.Subscribe", {"event": 1}, {"event": 2}, {"event": None})
        scripted.answer("Agents.List", {"agents": []})
        with Client(scripted.path) as client:
            assert list(client.stream("Events.Subscribe")) == [{"event": 1}, {"event": 2}, {"event": None}]
            assert client.call("Agents.List") == {"agents": []}
        assert scripted.calls[0]["more"] is True

    def test_leaving_it_closes_the_connection(self, scripted: ScriptedDaemon) -> None:
        closed = []

        def handler(connection: Connection, call: dict[str, Any]) -> None:
            connection.reply({"event": 1}, continues=True)
            closed.append(connection.sock.recv(1))

        scripted.handle("Events.Subscribe", handler)
        with Client(scripted.path) as client:
            assert next(client.stream("Events.Subscribe")) == {"event": 1}
            with pytest.raises(RuntimeError, match="not connected"):
                client.call("Agents.List")
        scripted.stop()
        assert closed == [b""]

    def test_in_the_middle_of_it_one_can_wait_for_a_time(self, scripted: ScriptedDaemon) -> None:
        going_on = threading.Event()

        def handler(connection: Connection, call: dict[str, Any]) -> None:
            connection.reply({"event": 1}, continues=True)
            going_on.wait(60)
            connection.reply({"event": 2})

        scripted.handle("Events.Subscribe", handler)
        with Client(scripted.path) as client:
            replies = client.stream("Events.Subscribe")
            assert next(replies) == {"event": 1}
            assert not client.has_reply(0.01)
            assert not client.has_reply(0)
            going_on.set()
            assert client.has_reply(60)
            assert next(replies) == {"event": 2}
            assert client.has_reply(0), "nothing is to come, so there is nothing to wait for"

    def test_a_second_call_while_it_runs_is_refused(self, scripted: ScriptedDaemon) -> None:
        scripted.answer("Events.Subscribe", {"event": 1}, {"event": 2})
        with Client(scripted.path) as client:
            stream = client.stream("Events.Subscribe")
            next(stream)
            with pytest.raises(RuntimeError, match="second client"):
                client.call("Agents.List")

    def test_an_error_ends_it(self, scripted: ScriptedDaemon) -> None:
        def handler(connection: Connection, call: dict[str, Any]) -> None:
            connection.reply({"event": 1}, continues=True)
            connection.error("org.lightagent1.ShuttingDown", message="The daemon stops.")

        scripted.handle("Events.Subscribe", handler)
        with Client(scripted.path) as client, pytest.raises(errors.ShuttingDown, match="stops"):
            list(client.stream("Events.Subscribe"))


class TestConnecting:
    @pytest.mark.parametrize("left_over", [False, True])
    def test_nobody_there_says_how_to_start_it(self, tmp_path: Path, left_over: bool) -> None:
        path = tmp_path / "control.sock"
        if left_over:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
                sock.bind(str(path))
        with pytest.raises(errors.DaemonUnreachable, match="not running") as caught, Client(str(path)):
            pass
        assert caught.value.suggestion == "Start it with: lightagentd"

    def test_the_system_daemon_is_started_with_systemctl(self) -> None:
        err = client_module.connect_error(SYSTEM_SOCKET, FileNotFoundError())
        assert err.suggestion.startswith("Start it with: systemctl start lightagentd")

    def test_a_path_that_cannot_be_one(self) -> None:
        with pytest.raises(errors.DaemonUnreachable, match="too long"), Client("/" + "x" * 200):
            pass

    def test_a_full_queue_is_waited_for_and_called_busy(self, full: tuple[str, socket.socket]) -> None:
        path, listener = full
        with pytest.raises(errors.TimedOut, match="busy") as caught, Client(path, timeout_s=0.2):
            pass
        assert "journalctl" in caught.value.suggestion
        making_room = threading.Timer(0.2, lambda: listener.accept()[0].close())
        making_room.start()
        with Client(path, timeout_s=60):
            making_room.join()

    async def test_a_full_queue_is_waited_for_and_called_busy_with_asyncio(
        self, full: tuple[str, socket.socket]
    ) -> None:
        path, listener = full
        with pytest.raises(errors.TimedOut, match="busy"):
            async with AsyncClient(path, timeout_s=0.2):
                pass
        asyncio.get_running_loop().call_later(0.2, lambda: listener.accept()[0].close())
        async with AsyncClient(path, timeout_s=60):
            pass

    def test_a_socket_without_permission_names_its_group(self) -> None:
        """As root a child becomes nobody; an ordinary user just takes the permission away."""
        group = grp.getgrgid(1) if os.geteuid() == 0 else grp.getgrgid(os.getegid())
        with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
            path = f"{folder}/control.sock"
            listener.bind(path)
            listener.listen()
            Path(folder).chmod(0o755)
            if os.geteuid() == 0:
                os.chown(path, 0, group.gr_gid)
            Path(path).chmod(0o660 if os.geteuid() == 0 else 0o060)
            code, suggestion = _connect_unprivileged(path)
        assert code == "permission_denied"
        assert group.gr_name in suggestion


def _connect_unprivileged(path: str) -> tuple[str, str]:
    """What a process without privileges is told when it connects: the code and the suggestion."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        if os.geteuid() == 0:
            os.setgroups([])
            os.setresgid(65534, 65534, 65534)
            os.setresuid(65534, 65534, 65534)
        answer = "connected\n"
        try:
            with Client(path):
                pass
        except errors.LightagentError as err:
            answer = f"{err.code}\n{err.suggestion}"
        os.write(theirs, answer.encode())
        os._exit(0)
    os.close(theirs)
    with os.fdopen(ours) as pipe:
        code, _, suggestion = pipe.read().partition("\n")
    os.waitpid(child, 0)
    return code, suggestion


class TestAsyncClient:
    async def test_calls_and_streams(self, scripted: ScriptedDaemon) -> None:
        scripted.answer("Agents.List", {"agents": []})
        scripted.answer("Events.Subscribe", {"event": 1}, {"event": None})
        async with AsyncClient(scripted.path, timeout_s=10) as client:
            assert await client.call("Agents.List") == {"agents": []}
            found = [reply async for reply in client.stream("Events.Subscribe", from_seq=1)]
            assert await client.call("Agents.List") == {"agents": []}
        assert found == [{"event": 1}, {"event": None}]

    async def test_maps_errors_as_the_blocking_one(self, scripted: ScriptedDaemon) -> None:
        scripted.fail("Agents.Get", "org.lightagent1.AgentNotFound", message="m")
        scripted.raw("Agents.List", b"{nonsense\0")
        async with AsyncClient(scripted.path) as client:
            with pytest.raises(errors.AgentNotFound):
                await client.call("Agents.Get", name="x")
            with pytest.raises(errors.MalformedMessage):
                await client.call("Agents.List")

    async def test_an_answer_that_breaks_off_means_unreachable(self, scripted: ScriptedDaemon) -> None:
        scripted.raw("Agents.List", b'{"para')
        async with AsyncClient(scripted.path) as client:
            with pytest.raises(errors.DaemonUnreachable):
                await client.call("Agents.List")

    async def test_silence_is_a_timeout(self, scripted: ScriptedDaemon) -> None:
        scripted.handle("Agents.List", lambda connection, call: None)
        async with AsyncClient(scripted.path, timeout_s=0.05) as client:
            with pytest.raises(errors.TimedOut):
                await client.call("Agents.List")

    async def test_nobody_there_means_unreachable(self, tmp_path: Path) -> None:
        with pytest.raises(errors.DaemonUnreachable):
            async with AsyncClient(str(tmp_path / "no.sock")):
                pass

    async def test_leaving_a_stream_closes_the_connection(self, scripted: ScriptedDaemon) -> None:
        scripted.handle("Events.Subscribe", lambda connection, call: connection.reply({}, continues=True))
        async with AsyncClient(scripted.path) as client:
            async with contextlib.aclosing(client.stream("Events.Subscribe")) as stream:
                assert await anext(stream) == {}
            with pytest.raises(RuntimeError, match="not connected"):
                await client.call("Agents.List")
