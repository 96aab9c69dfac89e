"""What the service manager and the daemon say to each other, over real sockets."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lightagentd.systemd import listening_socket, notify
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
from lightagentd.systemd import listening_socket
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
