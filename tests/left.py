"""What a test has left behind: tasks, child processes and open descriptors.

Each test is looked at twice, so this takes system calls alone, a fifth of a millisecond in all.
"""

# ruff: noqa: PTH115, PTH123, PTH208 - with objects for the paths it takes several times as long

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from typing import Any

GOING_S = 20.0
"""How long what a test has ended may take to be gone, on a loaded machine; only what stays takes so long."""


def _tasks() -> list[asyncio.Task[Any]]:
    try:
        own = asyncio.current_task()
    except RuntimeError:
        return []  # no loop runs
    return [task for task in asyncio.all_tasks() if task is not own and not task.done()]


def children() -> set[str]:
    """The pids of this process's children, zombies included, without those that `keep` was told of."""
    found: set[str] = set()
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError), open(f"/proc/self/task/{thread}/children") as listing:
            found.update(listing.read().split())
    return found - _kept_children


def descriptors() -> dict[str, str]:
    """What each open descriptor of this process is."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the one that lists the folder
            found[name] = os.readlink(f"/proc/self/fd/{name}")
    return found


_kept_children: set[str] = set()
_kept_descriptors: set[str] = set()


def keep(child: int, descriptor: int, *, kept: bool = True) -> None:
    """Do not take these for left over: all tests share them, until they are not kept any more."""
    for those, one in ((_kept_children, child), (_kept_descriptors, descriptor)):
        (those.add if kept else those.discard)(str(one))


class Left:
    """The child processes, descriptors and tasks that are there now and were not when this was made."""

    def __init__(self) -> None:
        self._children = children()
        self._descriptors = descriptors().keys()
        self._deadline = 0.0
        self._found: list[str] = []

    def wait(self) -> bool:
        """Look, and say whether to look again a little later."""
        self._deadline = self._deadline or time.monotonic() + GOING_S
        opened = descriptors()
        left = {
            "tasks are left": _tasks(),
            "child processes are left": children() - self._children,
            "descriptors are left open": {
                fd: opened[fd] for fd in opened.keys() - self._descriptors - _kept_descriptors
            },
        }
        self._found = [f"{what}: {those}" for what, those in left.items() if those]
        return bool(self._found) and time.monotonic() < self._deadline

    def check(self) -> None:
        assert not self._found, "\n".join(self._found)
