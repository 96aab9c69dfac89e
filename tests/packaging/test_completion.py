"""Completion, as the shells themselves do it, with the files that a package installs."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.scripted_daemon import ScriptedDaemon

CASES = [
    ("lactl a", {"acp", "agents", "approvals", "approve", "answer", "audit"}),
    ("lactl agents s", {"set", "show", "start", "stop"}),
    ("lactl prompt o", {"ops", "other"}),
    ("lactl prompt --una", {"--unattended"}),
    ("lactl --json agents st", {"start", "stop"}),
    ("lactl --socket agents tools ca", {"call"}),
    ("lactl events --agent op", {"ops"}),
    ("lactl events --effect ch", {"change"}),
    ("lactl events --fo", {"--follow"}),
    ("lactl approve ap", {"apr_1"}),
    ("lactl cancel s", {"ses_1", "ses_2"}),
    ("lactl sessions export ses_1", {"ses_1"}),
    ("lactl prompt --session ses_", {"ses_1", "ses_2"}),
    ("lactl policy che", {"check"}),
    ("lactl change narrow ops s", {"services"}),
    ("lactl undo --li", {"--list"}),
]
FILES = [
    ("lactl prompt ops --attach fi", "lactl prompt ops --attach file.toml "),
    ("lactl --socket fi", "lactl --socket file.toml "),
    ("lactl history --state-dir fo", "lactl history --state-dir folder/"),
    ("lactl agents create new --api-key-file fi", "lactl agents create new --api-key-file file.toml "),
    ("lactl plan set ses_1 fi", "lactl plan set ses_1 file.toml "),
    ("lactl policy check fi", "lactl policy check file.toml "),
    ("lactl config check --folder fo", "lactl config check --folder folder/"),
    ("lactl sessions import fi", "lactl sessions import file.toml "),
]
"""What a line with the beginning of a file's or folder's name becomes."""


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    """That of a shell with lactl, and a daemon that lactl asks for names."""
    program = tmp_path / "bin/lactl"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m lightagentd.cli.main "$@"\n')
    program.chmod(0o755)
    (tmp_path / "file.toml").touch()
    (tmp_path / "folder").mkdir()
    daemon = ScriptedDaemon(tmp_path / "control.sock")
    daemon.answer("Agents.List", {"agents": [{"name": "ops"}, {"name": "other"}]})
    daemon.answer("Approvals.List", {"approvals": [{"id": "apr_1"}]})
    daemon.answer("Sessions.List", {"sessions": [{"id": "ses_1"}, {"id": "ses_2"}]})
    daemon.start()
    yield {
        "PATH": f"{program.parent}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "LANG": "C.UTF-8",
        "PYTHONPATH": str(REPOSITORY),
        "LIGHTAGENT_SOCKET": str(daemon.path),
    }
    daemon.stop()


def run(command: list[str], environment: dict[str, str]) -> list[str]:
    done = subprocess.run(
        command, env=environment, cwd=environment["HOME"], capture_output=True, text=True, timeout=60
    )
    assert (done.stderr, done.returncode) == ("", 0)
    return done.stdout.splitlines()


def _need(shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")


@pytest.mark.parametrize(("line", "expected"), CASES)
def test_bash_completes(line: str, expected: set[str], generated: Path, environment: dict[str, str]) -> None:
    script = (
        f"source {generated}/completions/lactl.bash; complete -p lactl >/dev/null || exit 9; "
        'COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _lactl_completion lactl; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    assert set(run(["bash", "-euc", script, "bash", *line.split(" ")], environment)) == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        *CASES,
        ("lactl events --agent=op", {"--agent=ops"}),
        ("lactl history --state-dir=fo", {"--state-dir=folder/"}),
        *((line, {completed.split()[-1]}) for line, completed in FILES),
    ],
)
def test_fish_completes(line: str, expected: set[str], generated: Path, environment: dict[str, str]) -> None:
    _need("fish")
    script = f"source {generated}/completions/lactl.fish; complete -C '{line}'"
    found = run(["fish", "--no-config", "-c", script], environment)
    assert {offered.partition("\t")[0] for offered in found} == expected


LINES = [
    ("lactl agen", "lactl agents "),
    ("lactl agents cr", "lactl agents create "),
    ("lactl prompt oth", "lactl prompt other "),
    ("lactl prompt --una", "lactl prompt --unattended "),
    ("lactl --json agents rest", "lactl --json agents restart "),
    ("lactl events --agent op", "lactl events --agent ops "),
    ("lactl approve ap", "lactl approve apr_1 "),
    ("lactl policy che", "lactl policy check "),
    *FILES,
]
"""What Tab makes of a line."""


@pytest.mark.parametrize(("line", "completed"), LINES)
def test_zsh_completes(line: str, completed: str, generated: Path, environment: dict[str, str]) -> None:
    _need("zsh")
    home = Path(environment["HOME"])
    (home / ".zshrc").write_text(
        f"fpath=({generated}/completions $fpath)\n"
        f"autoload -Uz compinit && compinit -u -d {generated}-zsh-dump\n"
        "show() { print -r -- $BUFFER > $HOME/line.new; mv $HOME/line.new $HOME/line }\n"
        "zle -N show\nbindkey '^T' show\nPS1='ready'\n"
    )
    assert after_tab(["zsh", "-d", "-i"], line, {**environment, "ZDOTDIR": str(home)}) == completed


@pytest.mark.parametrize(("line", "completed"), LINES)
def test_bash_completes_a_line(
    line: str, completed: str, generated: Path, environment: dict[str, str]
) -> None:
    startup = Path(environment["HOME"]) / "bashrc"
    startup.write_text(
        f"source {generated}/completions/lactl.bash\n"
        'show() { printf "%s\\n" "$READLINE_LINE" > $HOME/line.new; mv $HOME/line.new $HOME/line; }\n'
        "bind -x '\"\\C-t\": show'\nPS1=ready\n"
    )
    assert after_tab(["bash", "--rcfile", str(startup), "-i"], line, environment) == completed


def after_tab(shell: list[str], line: str, environment: dict[str, str]) -> str:
    """What Tab makes of a line. A shell edits it on a terminal only, and writes it to a file at ^T."""
    home = Path(environment["HOME"])
    terminal, theirs = pty.openpty()
    running = subprocess.Popen(
        ["setsid", "--ctty", "--wait", *shell],
        env={**environment, "TERM": "dumb"},
        cwd=home,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    try:
        wait(terminal, lambda seen: b"ready" in seen)
        os.write(terminal, f"{line}\t\x14".encode())
        wait(terminal, lambda _: (home / "line").exists())
        return (home / "line").read_text().rstrip("\n")
    finally:
        os.close(terminal)
        running.wait(60)


def wait(terminal: int, condition: Callable[[bytes], bool]) -> None:
    """Read what a terminal shows until the condition holds."""
    seen = b""
    deadline = time.monotonic() + 60
    while not condition(seen):
        assert time.monotonic() < deadline, seen
        if select.select([terminal], [], [], 0.05)[0]:
            seen += os.read(terminal, 4096)
