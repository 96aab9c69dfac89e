"""What the service manager and the daemon say to each other, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lightagentd.host.systemd import (
    STATUS_MAX,
    extending,
    feeding_watchdog,
    keep_status,
    listening_socket,
    notify,
    notify_stopping,
    status_line,
    watchdog_timeout_s,
)
from tests.conftest import REPOSITORY

# systemd passes its sockets from descriptor 3 on and says for which process they are; the program does to
# itself what systemd does between fork and exec.
PASSED = """
import os, sys
os.environ["LISTEN_FDS"] = sys.argv[2]
os.environ["LISTEN_PID"] = str(os.getpid()) if sys.argv[3] == "me" else sys.argv[3]
fd = int(sys.argv[1])
if fd != 3:
    os.dup2(fd, 3)
    os.close(fd)
from lightagentd.errors import ConfigError
from lightagentd.host.systemd import listening_socket
try:
    found = listening_socket()
except ConfigError as err:
    print(err, err.suggestion)
    raise SystemExit(78)
if found is None:
    print("none", os.get_inheritable(3) is not None)
    raise SystemExit(0)
left = [name for name in os.environ if name.startswith("LISTEN_")]
again = listening_socket()
print(found.fileno(), found.family.name, os.get_inheritable(3), left, again, flush=True)
connection, _ = found.accept()
connection.sendall(b"served")
connection.close()
found.close()
"""


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """The service manager's end of the notification socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as found:
        found.bind(str(tmp_path / "notify"))
        found.settimeout(20)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        yield found


def test_assignments_arrive_as_the_lines_of_one_datagram(manager: socket.socket) -> None:
    assert notify("READY=1", "STATUS=serving 2 agents, ä")
    assert manager.recv(4096) == "READY=1\nSTATUS=serving 2 agents, ä".encode()
    assert notify("STOPPING=1")
    assert manager.recv(4096) == b"STOPPING=1"


def test_an_abstract_socket_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("")  # the kernel chooses a name, see unix(7)
        manager.settimeout(20)
        name = manager.getsockname()
        assert isinstance(name, bytes)
        monkeypatch.setenv("NOTIFY_SOCKET", "@" + name[1:].decode())
        assert notify("READY=1")
        assert manager.recv(4096) == b"READY=1"


@pytest.mark.parametrize("address", ["", "/nothing/listens/here"])
def test_without_a_service_manager_nothing_is_told_and_nothing_fails(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    assert not notify("READY=1")


@contextlib.contextmanager
def run_passed(listener: socket.socket, count: str, pid: str) -> Iterator[subprocess.Popen[str]]:
    """Run PASSED with a socket; killed where a failed test leaves it running."""
    with subprocess.Popen(
        [sys.executable, "-c", PASSED, str(listener.fileno()), count, pid],
        cwd=REPOSITORY,
        pass_fds=[listener.fileno()],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
            process.wait(20)
        finally:
            process.kill()


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as found:
        found.bind(str(tmp_path / "control.sock"))
        found.listen()
        yield found


def test_the_passed_socket_is_served_once_and_not_inherited(listener: socket.socket) -> None:
    with run_passed(listener, "1", "me") as process, socket.socket(socket.AF_UNIX) as client:
        client.settimeout(20)
        client.connect(listener.getsockname())
        assert client.recv(100) == b"served"
        assert process.stdout is not None
        assert process.stdout.read() == "3 AF_UNIX False [] None\n"
    assert process.returncode == 0


@pytest.mark.parametrize(("count", "pid"), [("1", "1"), ("0", "me"), ("", "me"), ("x", "me")])
def test_a_socket_for_another_process_or_none_is_not_taken(
    listener: socket.socket, count: str, pid: str
) -> None:
    with run_passed(listener, count, pid) as process:
        assert process.communicate(timeout=20)[0].startswith("none")
    assert process.returncode == 0


def test_several_sockets_are_refused_with_what_to_do(listener: socket.socket) -> None:
    with run_passed(listener, "2", "me") as process:
        said = process.communicate(timeout=20)[0]
    assert process.returncode == 78
    assert "2 sockets" in said
    assert "ListenStream" in said


def test_a_process_that_systemd_did_not_start_has_no_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LISTEN_FDS", raising=False)
    monkeypatch.setenv("LISTEN_PID", str(os.getpid()))
    assert listening_socket() is None


# The watchdog, longer times, and the status line


@pytest.mark.parametrize(
    ("usec", "pid", "timeout_s"),
    [
        ("5000000", "me", 5.0),
        ("5000000", "", 5.0),
        ("5000000", "1", None),
        ("0", "me", None),
        ("x", "me", None),
    ],
)
def test_watchdog_is_for_the_process_that_it_names(
    usec: str, pid: str, timeout_s: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", usec)
    monkeypatch.delenv("WATCHDOG_PID", raising=False)
    if pid:
        monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()) if pid == "me" else pid)
    assert watchdog_timeout_s() == timeout_s


async def received(manager: socket.socket) -> str:
    manager.setblocking(False)
    return (await asyncio.get_running_loop().sock_recv(manager, 4096)).decode()


async def test_the_loop_feeds_the_watchdog_while_the_body_runs(
    manager: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "20000")
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
    async with feeding_watchdog():
        for _ in range(3):
            assert await received(manager) == "WATCHDOG=1"


async def test_a_loop_that_hangs_feeds_nothing(
    manager: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "20000")
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
    async with feeding_watchdog():
        await received(manager)
        manager.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                manager.recv(4096)
        manager.settimeout(0.2)  # ten of its periods, in which this loop does nothing else
        with pytest.raises(TimeoutError):
            manager.recv(4096)


async def test_without_a_watchdog_nothing_is_fed(
    manager: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WATCHDOG_USEC", raising=False)
    async with feeding_watchdog():
        await asyncio.sleep(0)
    notify("READY=1")
    assert await received(manager) == "READY=1"


async def test_a_long_start_asks_for_more_time_until_it_is_done(manager: socket.socket) -> None:
    async with extending():
        assert await received(manager) == "EXTEND_TIMEOUT_USEC=30000000"
    notify("READY=1")
    assert await received(manager) == "READY=1"


async def test_a_start_is_not_extended_for_ever(
    manager: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lightagentd.host.systemd.EXTENSION_LIMIT_S", 0.0)
    before = asyncio.all_tasks()
    async with extending():
        assert await received(manager) == "EXTEND_TIMEOUT_USEC=30000000"
        while asyncio.all_tasks() - before:
            await asyncio.sleep(0)
        notify("READY=1")
        assert await received(manager) == "READY=1"


def test_a_stop_asks_for_as_long_as_turns_may_drain(manager: socket.socket) -> None:
    notify_stopping(600.0)
    assert manager.recv(4096).decode().split("\n") == [
        "STOPPING=1",
        "STATUS=waiting for running turns",
        "EXTEND_TIMEOUT_USEC=630000000",
    ]


def test_status_line_tells_the_first_problem_and_how_many_there_are() -> None:
    assert status_line(1, []) == "serving 1 agent"
    assert status_line(2, ["The bus\nis gone."]) == "serving 2 agents; The bus is gone."
    assert status_line(2, [], stopped=True).startswith("stopped by an administrator")
    assert status_line(0, ["A.", "B.", "C."]) == "serving 0 agents; A. (and 2 more: lactl status)"
    long = status_line(2, ["x" * 1000, "y"])
    assert len(long) <= STATUS_MAX
    assert long.endswith("x… (and 1 more: lactl status)")


async def test_status_is_told_when_it_changes_and_only_then(manager: socket.socket) -> None:
    said = ["serving 1 agent"]
    asked = asyncio.Event()

    def line() -> str:
        asked.set()
        return said[-1]

    task = asyncio.create_task(keep_status(line, period_s=0.01))
    try:
        assert await received(manager) == "STATUS=serving 1 agent"
        for _ in range(3):
            asked.clear()
            await asked.wait()
        said.append("serving 2 agents")
        assert await received(manager) == "STATUS=serving 2 agents"
    finally:
        task.cancel()
        await asyncio.wait([task])


_DAEMON_THAT_HANGS = """
import asyncio, sys, time
from pathlib import Path
from lightagentd.daemon import serving as daemon
serve = daemon.serve

def hang_here():
    print("hangs", file=sys.stderr, flush=True)
    time.sleep(600)

async def hanging(paths):
    asyncio.get_running_loop().call_later(0.2, hang_here)
    await serve(paths)

daemon.serve = hanging
sys.argv[1:] = [f"--{kind}-dir={sys.argv[1]}/{kind}" for kind in ("config", "state", "runtime")]
daemon.main()
"""


def test_sigabrt_writes_where_the_loop_hangs(tmp_path: Path) -> None:
    """The signal that systemd sends when its watchdog has waited long enough."""
    with subprocess.Popen(
        [sys.executable, "-c", _DAEMON_THAT_HANGS, str(tmp_path)],
        cwd=REPOSITORY,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        resource.prlimit(process.pid, resource.RLIMIT_CORE, (0, 0))
        try:
            assert process.stderr is not None
            assert "hangs\n" in iter(process.stderr.readline, "")
            process.send_signal(signal.SIGABRT)
            said = process.stderr.read()
            process.wait(60)
        finally:
            process.kill()
    assert process.returncode == -signal.SIGABRT
    assert "Fatal Python error: Aborted" in said
    assert "in hang_here" in said
