"""`lactl shell`: the code in a real bash, zsh and fish on a terminal, and what it asks the daemon.

In the shells a program `lactl` on PATH says what it was called with, and suggests what shows that it ran.
"""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import select
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lightagentd.cli.main import run as run_lactl
from lightagentd.cli.shell import _output, _suggestion, behind
from lightagentd.cli.shell_code import SHELLS, code
from lightagentd.host.paths import Paths
from tests.agents.scripted import define
from tests.cli.conftest import Lactl
from tests.conftest import DaemonProcess
from tests.scripted_model import ScriptedModel, say

FAILS = """cat '/no such/$(touch pwned)' '`touch pwned`; "touch" pwned' 'b  *'"""
KEY, ENTER = "\x1bi", "\r"
LIMIT_S = 12.0
STUB = """#!/bin/sh
printf '%s\\n' "$@" >call.new
[ "$2" = ask ] || cat >stdin
mv call.new call
printf 'ses_1\\ttouch ran\\n'
"""
STARTUP = {
    "bash": "set -u\nHISTCONTROL=ignoreboth\nPS1='READY> '\nPROMPT_COMMAND='echo mine=$?'\n",
    "zsh": "setopt nounset\nPS1='READY> '\nprecmd() { echo mine=$? }\n",
    "fish": "function fish_prompt\n echo mine=$status\n echo -n 'READY> '\nend\n",
}


class Shell:
    """A shell on a pseudo-terminal, in a folder of its own; `seen` is all that it showed."""

    def __init__(self, argv: list[str], home: Path) -> None:
        self.home, self.seen = home, ""
        self._ours, theirs = pty.openpty()
        env = {
            "PATH": f"{home}/bin:{os.environ['PATH']}",
            "HOME": str(home),
            "ZDOTDIR": str(home),
            "LANG": "C.UTF-8",
            "TERM": "xterm",
        }
        self._process = subprocess.Popen(
            ["setsid", "--ctty", "--wait", *argv],
            env=env,
            cwd=home,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)

    def type(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + LIMIT_S
        while not condition():
            assert time.monotonic() < deadline, self.seen
            if select.select([self._ours], [], [], 0.02)[0]:
                self.seen += os.read(self._ours, 65536).decode(errors="replace")

    def prompts(self, number: int) -> None:
        """Wait for so many lines that were run, the start among them."""
        self.until(lambda: len(re.findall(r"mine=\d+", self.seen)) >= number)

    def called(self) -> list[str]:
        """The arguments of the next call of lactl."""
        call = self.home / "call"
        self.until(call.exists)
        arguments = call.read_text().splitlines()
        call.unlink()
        return arguments

    def close(self) -> None:
        os.close(self._ours)
        self._process.wait(60)


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[[str], Shell]]:
    """Starts a shell that evaluated the code twice."""
    shells: list[Shell] = []

    def start(name: str) -> Shell:
        if shutil.which(name) is None:
            pytest.skip(f"{name} is not installed")
        program = tmp_path / "bin/lactl"
        program.parent.mkdir()
        program.write_text(STUB)
        program.chmod(0o755)
        startup = tmp_path / {"bash": "bashrc", "zsh": ".zshrc", "fish": ".config/fish/config.fish"}[name]
        startup.parent.mkdir(parents=True, exist_ok=True)
        startup.write_text(STARTUP[name] + 2 * code(name, key="alt-i", options="--agent 'it''s'"))
        argv = {
            "bash": ["bash", "--rcfile", str(startup), "-i"],
            "zsh": ["zsh", "-d", "-i"],
            "fish": ["fish", "-i"],
        }
        shells.append(Shell(argv[name], tmp_path))
        return shells[0]

    yield start
    for shell in shells:
        shell.close()


@pytest.mark.parametrize("name", SHELLS)
def test_key_asks_about_the_last_failure_and_fills_the_line(
    name: str, started: Callable[[str], Shell]
) -> None:
    shell = started(name)
    ran = shell.home / "ran"
    shell.prompts(1)
    shell.type(f"{FAILS}{ENTER}")
    shell.prompts(2)
    assert "mine=1" in shell.seen  # the person's own hook goes on, and sees the status
    shell.type(f" false secret{ENTER}")
    shell.prompts(3)
    shell.type(KEY)
    assert shell.called() == [
        *("shell", "explain", "--agent", "its", "--session", "", "--status", "1"),
    ]
    assert (shell.home / "stdin").read_text().rstrip("\n") == FAILS
    shell.until(lambda: "touch" in shell.seen.rpartition("mine=")[2])
    assert not ran.exists()
    shell.type(ENTER)
    shell.until(ran.exists)
    ran.unlink()
    shell.type(f"ask why 'a  b'{ENTER}")
    assert shell.called()[4:] == ["--session", "ses_1", "--", "why", "a  b"]
    shell.until(lambda: "alt-i puts it into the line: touch ran" in shell.seen)
    shell.prompts(5)
    shell.type(KEY)
    shell.type(f"{ENTER}")
    shell.until(ran.exists)
    shell.type(f"nothing-of-that-name{ENTER}")
    shell.prompts(7)
    shell.type(KEY)
    assert shell.called()[-3:] == ["--status", "127", "--capture"]  # nothing ran since
    assert not (shell.home / "pwned").exists()


@pytest.mark.parametrize("name", SHELLS)
def test_suggestion_of_several_lines_does_not_run_either(name: str, started: Callable[[str], Shell]) -> None:
    """lactl suggests none. It would not run, either."""
    shell = started(name)
    (shell.home / "bin/lactl").write_text(STUB.replace("touch ran", "echo x\\ntouch ran\\n\\033[201~\\r"))
    shell.prompts(1)
    shell.type(f"false{ENTER}")
    shell.prompts(2)
    shell.type(KEY)
    shell.called()
    shell.type(KEY)
    shell.called()  # whatever came with the line is read by now
    assert not (shell.home / "ran").exists()


def test_prompt_hook_starts_no_process() -> None:
    hooks = {"bash": "__lactl_prompt", "zsh": "__lactl_precmd", "fish": "__lactl_postexec"}
    for shell, hook in hooks.items():
        text = code(shell, key="alt-i", options="")
        body = re.search(rf"^function {hook}\b.*?^(\}}|end)$", text, re.MULTILINE | re.DOTALL)
        assert body is not None
        assert not re.search(r"\$\((?!\()|`|<\(|[^|]\|[^|]|\blactl ", body[0]), body[0]


def test_init_takes_keys_and_agents(lactl: Lactl) -> None:
    assert '\'"\\C-o": ' in lactl("shell", "init", "bash", "--key", "ctrl-o").out
    assert "--agent 'a b'" in lactl("shell", "init", "fish", "--agent", "a b").out
    for wrong in ("x", "alt-", "alt-\n", "alt-;", "hyper-x", "ctrl-m"):
        assert lactl("shell", "init", "zsh", "--key", wrong).status == 2
    assert lactl("shell", "init", "csh").status == 2


BLOCK = "Try:\n\n```{}\n{}\n```\nThat is all."


@pytest.mark.parametrize(
    ("answer", "suggested", "why"),
    [
        (BLOCK.format("sh", "ls -l"), "ls -l", ""),
        (BLOCK.format("bash", "one") + BLOCK.format("sh", "  two | x  "), "two | x", ""),
        (BLOCK.format("sh", "grüße 'ñ'"), "grüße 'ñ'", ""),
        (BLOCK.format("", "Nov 28 a line of a log"), "", ""),
        (BLOCK.format("json", "{}"), "", ""),
        ("```sh\nnever closed", "", ""),
        (BLOCK.format("sh", "ls\nrm -rf x"), "", "several lines"),
        (BLOCK.format("sh", "ls\x1b[201~; x"), "", "\\x1b"),
        (BLOCK.format("sh", "ls\rrm x"), "", "\\x0d"),
        (BLOCK.format("sh", "ls \u202etxt.exe"), "", "\\u202e"),
        (BLOCK.format("sh", "ls\u200b x"), "", "\\u200b"),
        (BLOCK.format("sh", "ls\u2028rm x"), "", "\\u2028"),
        (BLOCK.format("sh", "ls\tx"), "", "not seen"),
        (BLOCK.format("sh", "x" * 2001), "", "2000"),
        (BLOCK.format("sh", "\u0430pt install x"), "\u0430pt install x", "look like others"),
    ],
)
def test_suggestion_is_one_line_that_is_seen(
    answer: str, suggested: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _suggestion(answer) == suggested
    told = capsys.readouterr().err
    assert (why in told) if why else not told


def test_what_stands_behind_a_command() -> None:
    screen = "$  secret\nSECRET\n$ ls x\nold\n$ ls x\nno such file\nx\n$ "
    assert behind("ls x", screen) == "no such file\nx\n$"
    assert behind("ls y", screen) == ""
    assert behind("for i in 1; do\nfalse; done", "$ for i in 1; do\n> false; done\nout") == "out"


def test_tmux_shows_what_a_command_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("tmux") is None:
        pytest.skip("tmux is not installed")
    socket = tmp_path / "s"
    tmux = ["tmux", "-S", str(socket), "-f", "/dev/null"]
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "LANG": "C.UTF-8", "PS1": "$ "}
    shell = "bash --norc --noprofile"
    subprocess.run([*tmux, "new-session", "-d", shell], env=environment, cwd=tmp_path, check=True)
    try:
        subprocess.run([*tmux, "send-keys", "echo told; ls /no-such", "Enter"], env=environment, check=True)
        monkeypatch.setenv("TMUX", f"{socket},0,0")
        monkeypatch.setenv("TMUX_PANE", "%0")
        deadline = time.monotonic() + LIMIT_S
        while "No such file" not in (found := _output("echo told; ls /no-such")):
            assert time.monotonic() < deadline, found
        assert found.splitlines()[0] == "told"
        monkeypatch.setenv("TMUX_PANE", "%9")
        assert _output("echo told; ls /no-such") == ""
    finally:
        subprocess.run([*tmux, "kill-server"], env=environment, check=True)
        while socket.exists() and subprocess.run([*tmux, "ls"], capture_output=True).returncode == 0:
            time.sleep(0.02)


async def test_shell_asks_the_daemon_in_a_session_of_its_own(paths: Paths) -> None:
    answers = [
        say("It is gone.\n\n", "```sh\nmkdir x\n```\n"),
        say(BLOCK.format("sh", "ls\nrm y")),
        say("Yes."),
    ]
    async with ScriptedModel(answers) as model:
        define(paths, model)
        daemon = DaemonProcess(paths)

        def lactl(*arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[str]:
            return daemon.lactl("shell", arguments[0], "--agent", "test", *arguments[1:], stdin=stdin)

        try:
            await asyncio.to_thread(daemon.start)
            failed = b"curl -u me:hunter2hunter2 https://x\n"
            done = await asyncio.to_thread(lactl, "explain", "--status", "6", stdin=failed)
            assert done.returncode == 0, done.stderr
            session, _, suggested = done.stdout.rstrip("\n").partition("\t")
            assert (suggested, "It is gone." in done.stderr) == ("mkdir x", True)
            prompt = json.dumps(model.requests[0].body["messages"])
            assert "ended with status 6" not in prompt
            assert "end with status 6, in the folder" in prompt
            assert "hunter2" not in prompt
            done = await asyncio.to_thread(lactl, "ask", "--session", session, "and", "now?")
            assert (done.returncode, done.stdout) == (0, f"{session}\t\n")
            assert "it has several lines" in done.stderr
            assert "It is gone." in json.dumps(model.requests[1].body["messages"])
            done = await asyncio.to_thread(lactl, "ask", "--session", "ses_0000", "still", "there?")
            assert done.returncode == 0, done.stderr
            assert done.stdout.startswith("ses_")
            assert not done.stdout.startswith(session)
            done = await asyncio.to_thread(lactl, "explain", "--status", "1", stdin=b" secret\n")
            assert (done.returncode, done.stdout) == (65, "")
            assert len(model.requests) == 3
            listed = await asyncio.to_thread(daemon.lactl, "sessions", "list", "--json")
            assert not [each["id"] for each in json.loads(listed.stdout) if each.get("current")]
        finally:
            await asyncio.to_thread(daemon.close)


def test_ask_without_a_daemon_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LIGHTAGENT_SOCKET", "/nonexistent/socket")
    assert run_lactl(["shell", "ask", "hello"]) == 69
    assert "Nothing answers" in capsys.readouterr().err
