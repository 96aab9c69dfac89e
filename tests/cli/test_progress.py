"""How far long work is: told on a terminal alone, and cleaned up behind it."""

from __future__ import annotations

import io
import os
import pty
import select
import signal

import pytest

from lightagentd.cli import progress


def told(stream: io.TextIOBase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", stream)
    for name in ("_SOON_S", "_EACH_S"):
        monkeypatch.setattr(progress, name, 0.0)
    work = progress.Progress()
    work.tell("event 1\x1b]0;x\x07")
    work.tell("event 2")
    work.close()


def shown(terminal: int, end: bytes) -> bytes:
    """What a terminal shows until `end`: it may come in pieces."""
    seen = b""
    while not seen.endswith(end):
        assert select.select([terminal], [], [], 10)[0], seen
        seen += os.read(terminal, 4096)
    return seen


def test_a_terminal_gets_one_line_that_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as stream:
        told(stream, monkeypatch)
        assert shown(ours, b"2\r\x1b[K") == b"\r\x1b[Kevent 1\r\x1b[Kevent 2\r\x1b[K"
    os.close(ours)


def test_a_pipe_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    told(stream, monkeypatch)
    assert stream.getvalue() == ""


def test_who_waits_for_an_answer_is_told_for_how_long_unless_somebody_else_asks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    for name in ("_SOON_S", "_EACH_S"):
        monkeypatch.setattr(progress, name, 0.0)
    monkeypatch.setattr(progress, "_WAITS_S", 0.01)
    before = signal.getsignal(signal.SIGALRM)
    for shows in (True, False):
        ours, theirs = pty.openpty()
        with os.fdopen(theirs, "w") as stream:
            monkeypatch.setattr("sys.stderr", stream)
            with progress.waiting(lambda: shows):  # noqa: B023 - it is called in this round
                assert select.select([ours], [], [], 10)[0], "a line"
            seen = shown(ours, b"\r\x1b[K")
        assert (b"The daemon works on it, for 0 s" in seen) is shows
        assert seen.endswith(b"\r\x1b[K")
        os.close(ours)
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
