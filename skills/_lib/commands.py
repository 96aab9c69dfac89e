"""Runs the system's own commands, with a timeout, and explains in a sentence why one has no output."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from report import clean

_BUS_CLIENTS = ("systemctl", "loginctl", "timedatectl", "busctl", "hostnamectl", "networkctl", "resolvectl")
_on_the_bus = threading.Lock()
"""Commands of a worker share few connections to the bus, and one that gets none fails at once."""


_MESSAGE_CHARS = 1000
"""Anybody may log long lines, in which patterns take long to be looked for."""


@dataclass(frozen=True)
class Output:
    """A command's output. `problem` is empty when it ran and ended well, else a sentence."""

    stdout: str = ""
    stderr: str = ""
    problem: str = ""
    status: int = 0


def run(*argv: str, timeout_s: float = 10.0) -> Output:
    """Run a command with no input and the locale C; never raises."""
    program = shutil.which(argv[0])
    if program is None:
        return Output(
            problem=f"The command `{argv[0]}` is not installed or not on the search path.", status=127
        )
    environment = {
        **os.environ,
        "LC_ALL": "C.UTF-8",
        "LANG": "C.UTF-8",
        "SYSTEMD_PAGER": "",
        "SYSTEMD_COLORS": "0",
    }
    try:
        with _on_the_bus if argv[0] in _BUS_CLIENTS else nullcontext():
            done = subprocess.run(
                [program, *argv[1:]],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=timeout_s,
                env=environment,
                check=False,
            )
    except subprocess.TimeoutExpired:
        return Output(problem=f"`{' '.join(argv[:3])}` did not end within {timeout_s:.0f} s.", status=124)
    except OSError as err:
        return Output(problem=f"`{argv[0]}` cannot be run: {err.strerror}.", status=126)
    stdout, stderr = (stream.decode("utf-8", "replace") for stream in (done.stdout, done.stderr))
    problem = ""
    if done.returncode != 0:
        lines = [
            line for line in stderr.splitlines() if line.strip() and not line.startswith(("WARNING", "W:"))
        ]
        reason = clean(lines[0]) if lines else f"exit status {done.returncode}"
        problem = f"`{' '.join(argv[:3])}` failed: {reason.rstrip('.')}."
    return Output(stdout=stdout, stderr=stderr, problem=problem, status=done.returncode)


def systemd_problem() -> str:
    """Empty where systemd runs and answers, else a sentence about the problem."""
    if not Path("/run/systemd/system").exists():
        return "systemd is not running here, or not visible from here (/run/systemd/system does not exist)."
    answer = run("systemctl", "show", "--property=Version", timeout_s=5)
    return answer.problem


def journal(*arguments: str, limit: int = 4000, timeout_s: float = 20.0) -> tuple[list[dict[str, Any]], str]:
    """Entries of the journal, oldest first, and a sentence when it was unreadable or incomplete."""
    answer = run("journalctl", "-o", "json", "--no-pager", "-n", str(limit), *arguments, timeout_s=timeout_s)
    entries = []
    for line in answer.stdout.splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict):
            entries.append(entry)
    if any(each.startswith("SYSLOG_IDENTIFIER=") for each in arguments):
        entries = [entry for entry in entries if is_by_its_program(entry)]
    problem = answer.problem
    if "insufficient permissions" in answer.stderr:
        problem = "The journal cannot be read by this user: that needs the group systemd-journal or adm."
    elif "not seeing messages" in answer.stderr:
        problem = (
            "Only this user's own part of the journal can be read: the rest needs the "
            "group systemd-journal or adm."
        )
    elif "No journal files were found" in answer.stderr:
        problem = "There is no journal on this machine."
    elif not entries and answer.status == 1 and not answer.stderr.strip():
        problem = ""  # nothing matched
    return entries, problem


def is_by_its_program(entry: dict[str, Any]) -> bool:
    """Whether a service, or the program that it names, wrote it: logger(1) writes under any name. sudo and su
    log as the user who started them.
    """
    uid, wrote, name = (str(entry.get(key, "")) for key in ("_UID", "_EXE", "SYSLOG_IDENTIFIER"))
    is_installed = wrote.startswith(("/usr/", "/bin/", "/sbin/"))
    return not uid or int(uid) < 1000 or (is_installed and wrote.rpartition("/")[2] in (name, f"{name}-rs"))


def message(entry: dict[str, Any]) -> str:
    """The begin of the text of a journal entry; bytes that are not UTF-8 come as a list of numbers."""
    value = entry.get("MESSAGE")
    if isinstance(value, list):
        value = bytes(number for number in value if isinstance(number, int)).decode("utf-8", "replace")
    return clean(str(value or "")[:_MESSAGE_CHARS])


def stamp(entry: dict[str, Any]) -> float:
    """Seconds since 1970 of a journal entry."""
    try:
        return int(entry.get("__REALTIME_TIMESTAMP", 0)) / 1e6
    except (TypeError, ValueError):
        return 0.0


def read(path: str, most_chars: int = -1) -> str | None:
    """The text of a file, or its begin, or None where it is missing or may not be read."""
    try:
        with Path(path).open(encoding="utf-8", errors="replace") as file:
            return file.read(most_chars)
    except OSError:
        return None
