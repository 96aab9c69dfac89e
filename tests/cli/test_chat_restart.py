"""A chat while the daemon is killed and started again: it goes on, and shows everything exactly once."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.chatting import Chatty, chatty
from tests.cli.terminal import REPOSITORY, without_status


@pytest.fixture
def chats() -> Iterator[Chatty]:
    with chatty() as found:
        yield found


def test_a_chat_goes_on_when_the_daemon_comes_back(chats: Chatty, sandboxed: None) -> None:
    with chats.chat(columns=120) as terminal:
        terminal.until("test>")
        terminal.send("hang\r")
        terminal.until("Half a")
        terminal.send("second one\r")
        terminal.until("· queued: second one")
        chats.daemon.kill()
        terminal.until("The daemon has stopped; waiting for it to come back.")
        terminal.send("too early\r")
        terminal.until("the daemon is not running")
        terminal.until("test (away)> too early")
        chats.daemon.start()
        text = terminal.until("You said: second one")
        assert "The daemon is back." in text
        assert "The daemon stopped in the middle of this turn." in text
        terminal.send("\r")
        terminal.until("You said: too early")
        text = terminal.until(lambda text: without_status(text).endswith("\ntest>"))
        for once in ("> hang", "A whole block.", "Half a", "> second one", "You said: second one"):
            assert text.count(once) == 1, f"{once!r} in:\n{text}"
        assert text.count("You said: too early") == text.count("> too early") == 1, text
        terminal.send("\x04")
        assert terminal.finished() == 0


def test_what_happened_while_nobody_watched_is_shown_once(chats: Chatty, sandboxed: None) -> None:
    with chats.chat() as terminal:
        session = re.findall(r"ses_[0-9a-f]+", terminal.until("test>"))[-1]
        terminal.send("one\r")
        terminal.until("You said: one")
        terminal.until("· 1 step")
        ignored = re.search(r"SigIgn:\s+(\w+)", Path(f"/proc/{terminal.pid}/status").read_text())
        assert ignored is not None
        assert int(ignored[1], 16) & 1 << (signal.SIGPIPE - 1)  # or what it asks a daemon that goes ends it
        os.kill(terminal.pid, signal.SIGSTOP)
        chats.daemon.kill()
        chats.daemon.start()
        chats.open_gate()
        assert chats.lactl("prompt", "test", "--session", session, "run two").returncode == 0
        assert chats.lactl("prompt", "test", "--session", session, "three").returncode == 0
        os.kill(terminal.pid, signal.SIGCONT)
        terminal.until("The daemon is back.")
        text = terminal.until("You said: three")
        terminal.send("four\r")
        text = terminal.until("You said: four")
        for once in (
            "You said: one",
            "> run two",
            "← bash.exec ok",
            "The tool said: ",
            "> three",
            "You said: three",
        ):
            assert text.count(once) == 1, f"{once!r} in:\n{text}"
        assert text.index("> run two") < text.index("→ bash.exec") < text.index("The tool said: ")
        terminal.send("\x04")
        terminal.finished()


def test_a_question_is_still_asked_after_a_restart(chats: Chatty) -> None:
    with chats.chat() as terminal:
        terminal.until("test>")
        terminal.send("which colour\r")
        terminal.until("Answer (1-2):")
        chats.daemon.stop()
        terminal.until("The daemon has stopped")
        chats.daemon.start()
        terminal.until("Still asked: Which colour?")
        terminal.until(lambda text: without_status(text).endswith("Answer (1-2):"))
        terminal.send("2\r")
        text = terminal.until("· 2 steps")
        assert text.count("? Which colour?") == 1
        terminal.send("\x04")
        terminal.finished()


def test_through_tmux(chats: Chatty) -> None:
    if shutil.which("tmux") is None:
        if os.environ.get("CI"):
            pytest.fail("tmux is not installed")
        pytest.skip("tmux is not installed")
    tmux = ["tmux", "-S", str(chats.folder / "tmux"), "-f", "/dev/null"]

    def run(*words: str) -> str:
        return subprocess.run([*tmux, *words], check=True, capture_output=True, text=True, timeout=30).stdout

    def until(wanted: str) -> str:
        for _ in range(600):
            shown = run("capture-pane", "-p", "-S", "-")
            if wanted in shown:
                return shown
            time.sleep(0.05)
        raise AssertionError(f"{wanted!r} is not seen in:\n{shown}")

    lactl = f"{sys.executable} -m lightagentd.cli.main chat test --new; echo status $?; cat"
    environment = [f"-e{name}={value}" for name, value in chats.env.items()]
    run("new-session", "-d", "-x", "60", "-y", "24", "-c", str(REPOSITORY), *environment, lactl)
    try:
        until("test>")
        run("send-keys", "the report", "Enter")
        shown = until("· 1 step")
        assert shown.count("All is well.") == 1
        run("resize-window", "-x", "45", "-y", "12")
        run("send-keys", "which colour", "Enter")
        until("Answer (1-2):")
        run("send-keys", "red", "Enter")
        until("· 2 steps")
        run("send-keys", "C-d")
        until("status 0")
    finally:
        run("kill-server")
