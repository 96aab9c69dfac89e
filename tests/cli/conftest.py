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
import tempfile
import termios
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pytest

from lightagentd.cli.main import run
from tests.prepared import LACTL, REPOSITORY, prepared
from tests.prepared import run as run_program
from tests.scripted_daemon import ScriptedDaemon


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


def finish(arguments: Sequence[str], stdin: bytes = b"", env: Mapping[str, str] | None = None) -> Finished:
    """Run lactl as a process of its own, between pipes."""
    done = run_program(LACTL, arguments, env=env or environment(), stdin=stdin)
    return Finished(status=done.returncode, out=done.stdout.decode(), err=done.stderr.decode())


def on_terminal(
    arguments: Sequence[str], *, width: int = 100, env: Mapping[str, str] | None = None
) -> Finished:
    """Run lactl with a pseudo-terminal as standard output, and standard input empty."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 24, width, 0, 0))
    with Path(os.devnull).open() as nothing, tempfile.TemporaryFile() as err:
        streams = (nothing.fileno(), theirs, err.fileno())
        process = prepared().fork(LACTL, arguments, env or environment(), REPOSITORY, streams)
        os.close(theirs)
        out = bytearray()
        with contextlib.suppress(OSError):  # EIO: nobody has the other side open any more
            while chunk := os.read(ours, 65536):
                out += chunk
        os.close(ours)
        status = process.wait(60)
        err.seek(0)
        return Finished(status=status, out=out.decode().replace("\r\n", "\n"), err=err.read().decode())
