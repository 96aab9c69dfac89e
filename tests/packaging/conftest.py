"""What packaging/generate.py makes of this checkout, once for all tests of this folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY


def generate(out: Path) -> Path:
    """Run the program as a package's build does."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "SOURCE_DATE_EPOCH": "1760000000"}
    command = [sys.executable, str(REPOSITORY / "packaging/generate.py"), str(out)]
    subprocess.run(command, env=environment, cwd="/", check=True, timeout=120)
    return out


@pytest.fixture(scope="session")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with `man` and `completions`."""
    return generate(tmp_path_factory.mktemp("generated"))
