"""Which tests run beside each other, and in what order, where pytest-xdist has several processes run them.

The tests of a file run in one process, one after the other, for they may share what the file sets up. So do
those of tests/e2e, which share booted containers, and those whose commands run as the user of the workers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.scheduler import LoadScopeScheduling

TOGETHER = ("tests/e2e", "tests/agents", "tests/attacks", "tests/skills", "tests/tools", "tests/worker")
"""Folders whose tests do not run beside each other: those of the booted containers, and those whose commands
run as one user, since attacks use up that user's processes.
"""
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
    file = nodeid.partition("::")[0]
    if not file.startswith(TOGETHER):
        return file
    return "tests/e2e" if file.startswith("tests/e2e/") else "tests of workers"


def order(item: pytest.Item) -> int:
    """The rank of a test among all; those of one rank stay in the order in which they were found."""
    folders = (rank for rank, folder in enumerate(LONG) if item.nodeid.startswith(f"{folder}/"))
    return next(folders, len(LONG))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    from xdist.scheduler import LoadScopeScheduling

    class Units(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return unit(nodeid)

    return Units(config, log)
