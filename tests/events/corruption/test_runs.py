"""How the last run ended, as a file says it."""

from __future__ import annotations

from pathlib import Path

import pytest

from lightagentd.events.corruption.runs import Run, Runs

HASH = "a" * 64


def test_a_run_is_marked_until_it_stops(tmp_path: Path) -> None:
    path = tmp_path / "last-run.json"
    runs = Runs(path)
    assert runs.begin() == Run(stopped=False)  # nothing is known
    runs.known(8, HASH)
    assert Runs(path).begin() == Run(stopped=False, seq=8, hash=HASH)
    runs.stop(9, HASH)
    assert Runs(path).begin() == Run(stopped=True, seq=9, hash=HASH)
    assert Runs(path).begin() == Run(stopped=False, seq=9, hash=HASH)
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_mark_that_cannot_be_written_is_a_file_that_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "last-run.json"
    runs = Runs(path)
    runs.stop(9, HASH)
    (tmp_path / "last-run.new").mkdir()  # in the way, as a full disk is
    assert Runs(path).begin() == Run(stopped=True, seq=9, hash=HASH)
    assert Runs(path).begin() == Run(stopped=False)


def test_a_run_that_opened_nothing_does_not_count(tmp_path: Path) -> None:
    runs = Runs(tmp_path / "last-run.json")
    runs.begin()
    runs.stop(3, HASH)
    for _ in range(3):
        runs = Runs(tmp_path / "last-run.json")
        assert runs.begin() == Run(stopped=True, seq=3, hash=HASH)
        runs.forget()


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "null",
        '{"stopped": true}',
        '{"stopped": true, "seq": -1, "hash": "x"}',
        f'{{"stopped": true, "seq": 1e999, "hash": "{HASH}"}}',
        "[" * 100_000,
    ],
)
def test_what_is_no_such_file_is_as_a_crash(tmp_path: Path, content: str) -> None:
    path = tmp_path / "last-run.json"
    path.write_text(content)
    assert Runs(path).begin() == Run(stopped=False)


def test_a_folder_that_cannot_be_written_is_in_nobodys_way(tmp_path: Path) -> None:
    runs = Runs(tmp_path / "nowhere" / "last-run.json")
    assert runs.begin() == Run(stopped=False)
    runs.stop(1, HASH)
    assert "which keeps how the last run ended, cannot be written (2 times)" in runs.problem()
