"""A daemon for all tests of the server, whose agent ops may change things."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from lightagentd.host.paths import Paths
from tests.conftest import DaemonProcess, write


@pytest.fixture(scope="package")
def daemon() -> Iterator[DaemonProcess]:
    """Its folders are open to others: workers of root's daemon run as nobody."""
    with tempfile.TemporaryDirectory() as name:
        base = Path(name)
        base.chmod(0o755)
        paths = Paths(config=base / "etc", state=base / "state", runtime=base / "run")
        write(paths.config / "lightagentd.toml", '[worker]\nchange_agents = ["ops"]\n')
        process = DaemonProcess(paths)
        try:
            process.start()
            yield process
        finally:
            process.close()


@pytest.fixture
def socket(daemon: DaemonProcess) -> str:
    return str(daemon.paths.socket)
