"""The unit files, as text; what systemd makes of them is in tests/e2e."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

UNITS = sorted(path for path in (REPOSITORY / "units").rglob("lightagent*.*") if path.suffix != ".conf")


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_each_names_its_manual(path: Path) -> None:
    lines = path.read_text().splitlines()
    assert [line for line in lines if line.startswith("Documentation=")] == [
        "Documentation=man:lightagentd(8)"
    ]
