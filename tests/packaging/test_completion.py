"""Completion, as the shells themselves do it, with the files that a package installs."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

LACTL = """\
#!/bin/sh
case "$*" in
"agents list") printf 'ops\\trunning\\nother\\tstopped\\n' ;;
"approvals list") printf 'apr_1\\twaiting\\n' ;;
"sessions list") printf 'ses_1\\tops\\nses_2\\tops\\n' ;;
*) exit 1 ;;
esac
"""
"""Gives what the daemon would: completion asks it for nothing but names."""
CASES = [
    ("lactl a", {"agents", "approvals", "approve", "answer", "audit"}),
    ("lactl agents s", {"show", "start", "stop"}),
    ("lactl prompt o", {"ops", "other"}),
    ("lactl prompt --una", {"--unattended"}),
    ("lactl --json agents st", {"start", "stop"}),
    ("lactl --socket agents tools ca", {"call"}),
    ("lactl events --agent op", {"ops"}),
    ("lactl events --fo", {"--follow"}),
    ("lactl approve ap", {"apr_1"}),
    ("lactl cancel s", {"ses_1", "ses_2"}),
    ("lactl sessions export ses_1", {"ses_1"}),
    ("lactl prompt --session ses_", {"ses_1", "ses_2"}),
    ("lactl policy che", {"check"}),
    ("lactl undo --li", {"--list"}),
]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    program = tmp_path / "bin/lactl"
    program.parent.mkdir()
    program.write_text(LACTL)
    program.chmod(0o755)
    return {"PATH": f"{program.parent}:{os.environ['PATH']}", "HOME": str(tmp_path), "LANG": "C.UTF-8"}


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
        'COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _lactl; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    assert set(run(["bash", "-euc", script, "bash", *line.split(" ")], environment)) == expected


@pytest.mark.parametrize(("line", "expected"), CASES)
def test_fish_completes(line: str, expected: set[str], generated: Path, environment: dict[str, str]) -> None:
    _need("fish")
    script = f"source {generated}/completions/lactl.fish; complete -C '{line}'"
    found = run(["fish", "--no-config", "-c", script], environment)
    assert {offered.partition("\t")[0] for offered in found} == expected


@pytest.mark.parametrize(
    ("line", "completed"),
    [
        ("lactl agen", "lactl agents "),
        ("lactl agents cr", "lactl agents create "),
        ("lactl prompt oth", "lactl prompt other "),
        ("lactl prompt --una", "lactl prompt --unattended "),
        ("lactl --json agents rest", "lactl --json agents restart "),
        ("lactl events --agent op", "lactl events --agent ops "),
        ("lactl approve ap", "lactl approve apr_1 "),
        ("lactl policy che", "lactl policy check "),
    ],
)
def test_zsh_completes(line: str, completed: str, generated: Path, environment: dict[str, str]) -> None:
    _need("zsh")
    # The line editor needs a terminal; the widget writes the line that Tab has made to a file.
    home = Path(environment["HOME"])
    (home / ".zshrc").write_text(
        f"fpath=({generated}/completions $fpath)\n"
        "autoload -Uz compinit && compinit -u -d $HOME/dump\n"
        "show() { print -r -- $BUFFER > $HOME/line.new; mv $HOME/line.new $HOME/line }\n"
        "zle -N show\nbindkey '^T' show\nPS1='ready'\n"
    )
    terminal, theirs = pty.openpty()
    shell = subprocess.Popen(
        ["setsid", "--ctty", "--wait", "zsh", "-d", "-i"],
        env={**environment, "TERM": "dumb", "ZDOTDIR": str(home)},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    try:
        wait(terminal, lambda seen: b"ready" in seen)
        os.write(terminal, f"{line}\t\x14".encode())
        wait(terminal, lambda _: (home / "line").exists())
        assert (home / "line").read_text().rstrip("\n") == completed
    finally:
        os.close(terminal)
        shell.wait(60)


def wait(terminal: int, condition: Callable[[bytes], bool]) -> None:
    """Read what a terminal shows until the condition holds."""
    seen = b""
    deadline = time.monotonic() + 60
    while not condition(seen):
        assert time.monotonic() < deadline, seen
        if select.select([terminal], [], [], 0.05)[0]:
            seen += os.read(terminal, 4096)
