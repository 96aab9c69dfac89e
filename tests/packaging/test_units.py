"""The unit files, as text; what systemd makes of them is in tests/e2e."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

UNITS = sorted(path for path in (REPOSITORY / "units").rglob("lightagent*.*") if path.suffix != ".conf")


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_none_names_a_manual_page(path: Path) -> None:
    """`systemd-analyze verify` runs man(1) for each, and fails where that is not installed."""
    assert "man:" not in path.read_text()
