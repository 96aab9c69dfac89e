"""The last resort against processes that hold a descriptor, among others that come and go meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from lightagentd.worker.proctree import kill_holders

CHURN = "while :; do /bin/true; done"


@pytest.fixture
def churn() -> Iterator[None]:
    """Processes that begin and end all the time."""
    running = [subprocess.Popen(["/bin/sh", "-c", CHURN]) for _ in range(3)]
    yield
    for one in running:
        one.kill()
        one.wait()


def test_who_holds_it_is_killed_and_nobody_else(churn: None) -> None:
    read, write = os.pipe()
    other = subprocess.Popen(["/bin/sleep", "600"])
    try:
        link = str(Path(f"/proc/self/fd/{read}").readlink())
        holder = subprocess.Popen(["/bin/sleep", "600"], pass_fds=[write])
        for _ in range(500):  # one look in 250 met a process that went just then
            kill_holders(link)
        assert holder.wait(60) == -signal.SIGKILL
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()
        os.close(read)
        os.close(write)
