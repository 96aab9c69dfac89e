"""A member of the group who keeps the control socket busy does not keep root from the daemon."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY, DaemonProcess

MEMBER = 12_345
HELD = 1500
"""More than the daemon takes of one user, and what its socket's queue holds beyond that."""


@pytest.fixture
def besieged(daemon_process: DaemonProcess, open_folder: Path) -> Iterator[DaemonProcess]:
    daemon_process.paths = replace(daemon_process.paths, runtime=open_folder)
    daemon_process.start()
    argv = [sys.executable, "-m", "tests.siege", str(daemon_process.paths.socket), str(MEMBER), str(HELD)]
    with subprocess.Popen(argv, cwd=REPOSITORY, stdout=subprocess.PIPE) as member:
        assert member.stdout is not None
        try:
            for _ in range(20):
                assert member.stdout.readline()
            yield daemon_process
            assert member.poll() is None
        finally:
            member.kill()
            member.stdout.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_root_looks_and_stops_everything_while_the_socket_is_kept_busy(besieged: DaemonProcess) -> None:
    for _ in range(5):
        looked = besieged.lactl("status")
        assert (looked.returncode, looked.stderr) == (0, "")
    stopped = besieged.lactl("panic")
    assert stopped.returncode == 0
    assert "Everything is stopped" in stopped.stdout
