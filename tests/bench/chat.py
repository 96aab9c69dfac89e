"""How long `lactl chat` takes until one can type, and how fast it shows what a model writes.

On a pseudo-terminal, with an interpreter of its own each time. The chunks come as fast as the model server
sends them, and the clock runs from the prompt until the chat has shown the end of the turn.
"""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
import time

from tests.bench.model_server import CHUNK, model_server
from tests.bench.processes import cpu_s
from tests.bench.rig import daemon_with, show
from tests.conftest import REPOSITORY, DaemonProcess

START_TARGET_MS, CHUNKS_TARGET = 300, 2000
CHUNKS = 20_000
_LIMIT_S = 120.0


def run(rounds: int) -> None:
    started_ms: list[float] = []
    chunks_s: list[float] = []
    cpu_ms: list[float] = []
    with model_server() as server, daemon_with({"bench": server.chunks(CHUNKS)}) as daemon:
        for number in range(rounds + 1):
            began = time.perf_counter()
            with _Chat(daemon) as chat:
                chat.until(b"bench>")
                took_ms = (time.perf_counter() - began) * 1000
                if number:  # the first one compiles
                    started_ms.append(took_ms)
                began, used = time.perf_counter(), cpu_s(chat.pid)
                chat.send(b"go\r")
                chat.until(b"1 step, ")
                chunks_s.append(CHUNKS / (time.perf_counter() - began))
                cpu_ms.append((cpu_s(chat.pid) - used) * 1e6 / CHUNKS)
    show(f"lactl chat, exec to the prompt (target: at most {START_TARGET_MS})", started_ms, "ms")
    show(f"lactl chat shows chunks of {len(CHUNK)} (target: at least {CHUNKS_TARGET})", chunks_s, "chunks/s")
    show("CPU of lactl for each of them", cpu_ms, "µs")


class _Chat:
    """A chat on a terminal of 100 columns."""

    def __init__(self, daemon: DaemonProcess) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 40, 100, 0, 0))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "lightagentd.cli.main", "chat", "bench", "--new"],
            cwd=REPOSITORY,
            env=daemon.env | {"TERM": "xterm-256color", "HOME": "/nonexistent"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)

    def __enter__(self) -> _Chat:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._process.kill()
        self._process.wait(10)
        os.close(self._ours)

    def send(self, keys: bytes) -> None:
        os.write(self._ours, keys)

    def until(self, wanted: bytes) -> None:
        seen, deadline = b"", time.monotonic() + _LIMIT_S
        while wanted not in seen:
            assert time.monotonic() < deadline, seen
            seen = seen[-len(wanted) :] + os.read(self._ours, 1 << 16)

    @property
    def pid(self) -> int:
        return self._process.pid
