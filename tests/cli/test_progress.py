"""How far long work is: told on a terminal alone, and cleaned up behind it."""

from __future__ import annotations

import io
import os
import pty

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


def test_a_terminal_gets_one_line_that_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as stream:
        told(stream, monkeypatch)
        assert os.read(ours, 4096) == b"\r\x1b[Kevent 1\r\x1b[Kevent 2\r\x1b[K"
    os.close(ours)


def test_a_pipe_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    told(stream, monkeypatch)
    assert stream.getvalue() == ""
