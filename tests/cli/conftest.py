"""Runs lactl against a scripted daemon: in this process, or as a process between pipes or on a pty."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import pty
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pytest

from lightagentd.cli.main import run
from tests.scripted_daemon import ScriptedDaemon

REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, kw_only=True)
class Finished:
    """How a run of lactl ended and what it printed."""

    status: int
    out: str
    err: str


class Lactl(Protocol):
    """Runs one command line in this process, with standard output that is no terminal."""

    def __call__(self, *arguments: str, stdin: bytes = b"") -> Finished: ...


@pytest.fixture
def scripted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedDaemon]:
    server = ScriptedDaemon(tmp_path / "control.sock")
    monkeypatch.setenv("LIGHTAGENT_SOCKET", str(server.path))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def lactl(monkeypatch: pytest.MonkeyPatch) -> Lactl:
    monkeypatch.delenv("NO_COLOR", raising=False)

    def call(*arguments: str, stdin: bytes = b"") -> Finished:
        out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", errors="replace", newline="") for _ in range(2))
        with monkeypatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
            status = run(arguments)
        texts = []
        for stream in (out, err):
            stream.flush()
            assert isinstance(stream.buffer, io.BytesIO)
            texts.append(stream.buffer.getvalue().decode())
        return Finished(status=status, out=texts[0], err=texts[1])

    return call


def environment(**extra: str) -> dict[str, str]:
    """The environment of a process of its own: the socket, UTF-8, and a zone with an offset."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": "/",
        "LANG": "C.UTF-8",
        "TERM": "xterm",
        "TZ": "Europe/Berlin",
        "LIGHTAGENT_SOCKET": os.environ.get("LIGHTAGENT_SOCKET", ""),
        **extra,
    }


def start(arguments: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start lactl as a process of its own."""
    options.setdefault("env", environment())
    return subprocess.Popen(
        [sys.executable, "-m", "lightagentd.cli.main", *arguments], cwd=REPOSITORY, **options
    )


def finish(arguments: Sequence[str], stdin: bytes = b"", **options: Any) -> Finished:
    """Run lactl as a process of its own, between pipes."""
    pipe = subprocess.PIPE
    with start(arguments, stdin=pipe, stdout=pipe, stderr=pipe, **options) as process:
        out, err = process.communicate(stdin, timeout=60)
    return Finished(status=process.returncode, out=out.decode(), err=err.decode())


def on_terminal(arguments: Sequence[str], *, width: int = 100, **options: Any) -> Finished:
    """Run lactl with a pseudo-terminal as standard output, and standard input empty."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 24, width, 0, 0))
    with start(
        arguments, stdin=subprocess.DEVNULL, stdout=theirs, stderr=subprocess.PIPE, **options
    ) as process:
        os.close(theirs)
        out = bytearray()
        with contextlib.suppress(OSError):  # EIO: nobody has the other side open any more
            while chunk := os.read(ours, 65536):
                out += chunk
        os.close(ours)
        _, err = process.communicate(timeout=60)
    return Finished(status=process.returncode, out=out.decode().replace("\r\n", "\n"), err=err.decode())
