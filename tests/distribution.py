"""Which tests run beside each other, and in what order, where pytest-xdist has several processes run them.

The tests of a file run in one process, one after the other, for they may share what the file sets up. So do
those of tests/e2e, which share booted containers. What uses up the processes of the workers' user runs while
no other test of workers does.
"""

from __future__ import annotations

import contextlib
import fcntl
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.scheduler import LoadScopeScheduling

TOGETHER = "tests/e2e"
"""The folder whose files are one unit."""
WORKERS = re.compile(
    r"tests/(?:agents|attacks|cli|control|daemon|desktop|faults|kill|secrets|skills|soak|tools|unattended|worker)/"
)
"""The tests that run commands as the workers' user."""
USES_UP = re.compile(r"fork_bomb|\[(?:a fork bomb|a million threads|zombies)\b")
"""Those of them that leave the user no process: commands of others beside them would fail (EAGAIN)."""
LONG = (
    "tests/e2e",
    "tests/attacks",
    "tests/agents",
    "tests/worker",
    "tests/faults",
    "tests/kill",
    "tests/soak",
    "tests/control",
    "tests/cli",
)
"""The folders whose files take longest: they begin first, so that none is left alone at the end."""


def unit(nodeid: str) -> str:
    """What a test belongs to: the tests of one unit run in one process."""
    return TOGETHER if nodeid.startswith(f"{TOGETHER}/") else nodeid.partition("::")[0]


def order(item: pytest.Item) -> int:
    """The rank of a test among all; those of one rank stay in the order in which they were found."""
    folders = (rank for rank, folder in enumerate(LONG) if item.nodeid.startswith(f"{folder}/"))
    return next(folders, len(LONG))


@contextlib.contextmanager
def turn(nodeid: str, shared: Path) -> Iterator[None]:
    """A block in which a test of workers runs beside those of other processes, or without them if it uses up
    too much. All processes share the folder `shared`.
    """
    if not WORKERS.match(nodeid):
        yield
        return
    with (shared / "gate").open("ab") as gate, (shared / "workers").open("ab") as used:
        # Who wants to be alone holds the gate while others end their tests, so that no new ones begin.
        fcntl.flock(gate, fcntl.LOCK_EX)
        fcntl.flock(used, fcntl.LOCK_EX if USES_UP.search(nodeid) else fcntl.LOCK_SH)
        fcntl.flock(gate, fcntl.LOCK_UN)
        yield


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    from xdist.scheduler import LoadScopeScheduling

    class Units(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return unit(nodeid)

    config.option.loadscopereorder = False  # or those with the most tests would begin, not the longest
    return Units(config, log)
