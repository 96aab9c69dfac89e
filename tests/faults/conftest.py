"""The stage of these tests: a daemon with the shim in it, an agent that may change things, and its model."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.shim import can_build
from tests.kill.stage import Stage


@pytest.fixture
def base() -> Iterator[Path]:
    """A folder that a worker, which runs as another user, can reach."""
    folder = Path(tempfile.mkdtemp(prefix="la-faults-"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def stage(base: Path) -> Iterator[Stage]:
    """Started already."""
    if not can_build():
        pytest.skip("there is no cc to build the shim with")
    with Stage(base) as made:
        made.daemon.start()
        yield made
