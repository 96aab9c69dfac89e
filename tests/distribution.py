"""Which tests run beside each other, and in what order, where pytest-xdist has several processes run them.

The tests of a file run in one process, one after the other, for they may share what the file sets up. So do
the files of tests/e2e that share a booted container. What uses up the processes of a user runs while no other
test needs some: `pytest_runtest_protocol`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import sys
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from _pytest.assertion import rewrite

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.scheduler import LoadScopeScheduling

TOGETHER = "tests/e2e"
"""The folder whose files share booted containers."""
OWN_MACHINES = ("answers", "audit", "daemon_attacks", "package_contents", "package_life")
"""Tests of the booted containers that have one of their own, and so run beside those that share one."""
SECOND_FROM = "p"
"""Of those that share one, the files from this letter on share another: all in one process would end last."""
OF_WORKERS = {"in containers": re.compile("tests/e2e/"), "here": re.compile("tests/(?!e2e/)")}
"""The tests that may need processes of the workers' users, by where these are."""
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
    if not file.startswith(f"{TOGETHER}/"):
        return file
    name = file.removeprefix(f"{TOGETHER}/test_").removesuffix(".py")
    if name in OWN_MACHINES:
        return f"{TOGETHER}, own machines"
    return f"{TOGETHER}, {'first' if name < SECOND_FROM else 'second'} machine"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Run what is marked `uses_up_processes` alone among the tests that need processes of the same users."""
    where = [name for name, tests in OF_WORKERS.items() if tests.match(item.nodeid)]
    if "PYTEST_XDIST_WORKER" not in os.environ or not where:
        return (yield)
    folder = Path(item.config.getoption("basetemp")).parent  # of all processes
    alone = item.get_closest_marker("uses_up_processes") is not None
    with _held(folder / where[0], fcntl.LOCK_EX if alone else fcntl.LOCK_SH):
        return (yield)


@contextlib.contextmanager
def _held(path: Path, kind: int) -> Iterator[None]:
    """Hold a lock. Who waits for it has the next turn, or what others share would never be free."""
    with path.open("w") as held, path.with_suffix(".turn").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        fcntl.flock(held, kind)
        fcntl.flock(turn, fcntl.LOCK_UN)
        try:
            yield
        finally:
            fcntl.flock(held, fcntl.LOCK_UN)  # also for a child that a test has forked


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config) -> None:
    """Rewrite the assertions of the files that were never loaded, with all processors: the processes that run
    tests start at once, and each would do it for every file, a third of a minute.
    """
    if sys.dont_write_bytecode:
        return
    files = sorted(file for named in config.args for file in _test_files(Path(named.partition("::")[0])))
    new = [file for file in files if not _rewritten(file).exists()]
    shares = [new[start :: os.cpu_count()] for start in range(os.cpu_count() or 1)]
    for pid in [_begin_to_rewrite(share, config) for share in shares if share]:
        os.waitpid(pid, 0)


def _test_files(named: Path) -> Iterator[Path]:
    files = named.rglob("*.py") if named.is_dir() else [named]
    return (file for file in files if file.name.startswith("test_") or file.name == "conftest.py")


def _rewritten(file: Path) -> Path:
    return rewrite.get_cache_dir(file) / f"{file.stem}{rewrite.PYC_TAIL}"


def _begin_to_rewrite(files: Sequence[Path], config: pytest.Config) -> int:
    """Rewrite in a child, and give its pid. What it fails to do, and why, shows when the file is loaded."""
    if pid := os.fork():
        return pid
    try:
        for file in files:
            rewrite.try_makedirs(rewrite.get_cache_dir(file))
            found, code = rewrite._rewrite_test(file.absolute(), config)
            rewrite._write_pyc(config.stash[rewrite.assertstate_key], code, found, _rewritten(file))
    finally:
        os._exit(0)


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

    config.option.loadscopereorder = False  # or those with the most tests would begin, not the longest
    return Units(config, log)
