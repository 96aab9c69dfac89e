"""A file that cannot be written is said once, counted, and fails nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightagentd.host.kept_file import KeptFile


def test_failures_are_counted_and_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    file = KeptFile(tmp_path / "gone" / "file.json", "what is kept")
    for _ in range(3):
        file.write(b"x")
    assert file.problem().endswith("cannot be written (3 times): No such file or directory.")
    assert len(caplog.records) == 1
    file.path.parent.mkdir()
    for _ in range(2):
        file.write(b"y")
    assert (file.path.read_bytes(), file.problem()) == (b"y", "")
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    file.path.unlink()
    file.path.parent.rmdir()
    file.write(b"z")
    assert "what is kept" in file.problem()
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO", "WARNING"]
