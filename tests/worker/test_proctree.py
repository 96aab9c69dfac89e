"""The last resort against processes that hold a descriptor, among others that go meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lightagentd.worker.proctree import kill_holders


def sleeper(**more: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen(["/bin/sleep", "600"], **more)


@pytest.fixture
def going(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[subprocess.Popen[bytes]]]:
    """A process that is gone when its folder is listed, and one that is when its first descriptor is read."""
    processes = [sleeper(), sleeper()]
    ends = {f"/proc/{one.pid}/fd{more}": one for one, more in zip(processes, ("", "/0"), strict=True)}

    def just_before(what: Any) -> Any:
        def look(path: Any) -> Any:
            if (process := ends.get(str(path))) is not None:
                process.kill()
                process.wait()
            return what(path)

        return look

    for name in ("listdir", "scandir", "readlink"):
        monkeypatch.setattr(os, name, just_before(getattr(os, name)))
    yield processes
    for process in processes:
        process.kill()
        process.wait()


def test_who_holds_it_is_killed_and_nobody_else(going: list[subprocess.Popen[bytes]]) -> None:
    read, write = os.pipe()
    other = sleeper()
    holder = sleeper(pass_fds=[write])
    try:
        kill_holders(str(Path(f"/proc/self/fd/{read}").readlink()))
        assert holder.wait(60) == -signal.SIGKILL
        assert other.poll() is None
        assert [one.returncode for one in going] == [-signal.SIGKILL] * 2, "they were not looked at"
    finally:
        for process in (holder, other):
            process.kill()
            process.wait()
        os.close(read)
        os.close(write)
