"""Kills a process and its descendants from outside, when nothing inside does it in time.

This is the last resort of an emergency stop: `keeper` and `leftovers` do the same from inside, in one pass.
The processes are stopped first, repeatedly until none still runs, so that none can fork while they are
listed. Then all are killed.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

_ROUNDS = 50
"""How often it is looked after new processes before the killing begins all the same."""


def kill_tree(root: int) -> set[int]:
    """Kill a process and its descendants. A process that may not be signalled, or is gone, is skipped.

    Gives them all; each ends when the kernel comes to it.
    """
    stopped: set[int] = set()
    for _ in range(_ROUNDS):
        running = tree(root) - stopped
        if not running:
            break
        for pid in running:
            _signal(pid, signal.SIGSTOP)
        stopped |= running
    killed = stopped | tree(root)
    for pid in killed:
        _signal(pid, signal.SIGKILL)
    return killed


def tree(root: int) -> set[int]:
    """A process and its current descendants (proc_pid_task(5), `children`)."""
    found: set[int] = set()
    waiting = [root]
    while waiting:
        pid = waiting.pop()
        if pid in found:
            continue
        found.add(pid)
        with contextlib.suppress(OSError):
            for listing in Path(f"/proc/{pid}/task").glob("*/children"):
                with contextlib.suppress(OSError):
                    waiting += [int(child) for child in listing.read_text().split()]
    return found


def kill_holders(link: str) -> None:
    """Kill the processes that have a descriptor of this name (proc_pid_fd(5)), except the caller."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it is gone, or somebody else's
            if int(process.name) != os.getpid() and _holds(process / "fd", link):
                _signal(int(process.name), signal.SIGKILL)


def _holds(descriptors: Path, link: str) -> bool:
    """Whether one of these descriptors has this name. Raises OSError when their process is gone."""
    for fd in descriptors.iterdir():
        with contextlib.suppress(OSError):  # it was closed
            if str(fd.readlink()) == link:
                return True
    return False


def stopped(pid: int) -> bool:
    """Whether a process is stopped (SIGSTOP), and so answers nobody."""
    return _state(pid) in ("T", "t")


def runs(pid: int) -> bool:
    """Whether there is such a process that has not ended; a zombie has."""
    return _state(pid) not in ("", "Z", "X")


def _state(pid: int) -> str:
    """The letter of proc_pid_stat(5), or nothing for a process that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def _signal(pid: int, signum: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signum)
