"""A member of the group who keeps the control socket busy does not keep root from the daemon."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY, DaemonProcess

MEMBER = 12_345
HELD = 1500
"""More than the daemon takes of one user, and what its socket's queue holds beyond that."""

SENT, FIT = 60, 20
"""Messages of 8 MiB, and how many of them the daemon's own user may have half sent."""


@pytest.fixture
def besieged(daemon_process: DaemonProcess, open_folder: Path) -> Iterator[DaemonProcess]:
    daemon_process.paths = replace(daemon_process.paths, runtime=open_folder)
    daemon_process.start()
    argv = [sys.executable, "-m", "tests.siege", str(daemon_process.paths.socket), str(MEMBER), str(HELD)]
    with subprocess.Popen(argv, cwd=REPOSITORY, stdout=subprocess.PIPE) as member:
        assert member.stdout is not None
        try:
            for _ in range(20):
                assert member.stdout.readline()
            yield daemon_process
            assert member.poll() is None
        finally:
            member.kill()
            member.stdout.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_root_looks_and_stops_everything_while_the_socket_is_kept_busy(besieged: DaemonProcess) -> None:
    for _ in range(5):
        looked = besieged.lactl("status")
        assert (looked.returncode, looked.stderr) == (0, "")
    stopped = besieged.lactl("panic")
    assert stopped.returncode == 0
    assert "Everything is stopped" in stopped.stdout


def test_memory_of_half_sent_messages_comes_back(daemon_process: DaemonProcess) -> None:
    daemon_process.start()
    before_mib = resident_mib(daemon_process)
    half = b'{"a":"' + b"x" * (8 << 20)
    for _ in range(2):  # glibc learns from the first ones that it keeps such buffers
        with contextlib.ExitStack() as stack, ThreadPoolExecutor(SENT) as pool:
            held = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(SENT)]
            for sock in held:
                sock.connect(str(daemon_process.paths.socket))
            sending = [pool.submit(send, sock, half) for sock in held]
            until(partial(enough_are_sent, sending), "the daemon takes none of what is sent")
            for sock in held:
                sock.shutdown(socket.SHUT_RDWR)
        until(lambda: daemon_process.lactl("status").returncode == 0, "the daemon does not answer")
    most_mib = before_mib + 2 * FIT
    until(lambda: resident_mib(daemon_process) < most_mib, f"the daemon keeps more than {most_mib} MiB")


def enough_are_sent(sending: Sequence[Future[None]]) -> bool:
    return sum(one.done() for one in sending) > FIT // 2


def send(sock: socket.socket, data: bytes) -> None:
    with contextlib.suppress(OSError):  # refused, or shut down here
        sock.sendall(data, socket.MSG_NOSIGNAL)


def resident_mib(daemon: DaemonProcess) -> int:
    pages = int(Path(f"/proc/{daemon.pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize() >> 20


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)
