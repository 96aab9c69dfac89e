"""How often something may happen, over all processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lightagentd.errors import LightagentError, LimitExceeded
from lightagentd.unattended.allowance import Allowance
from tests.conftest import REPOSITORY


def allowance(path: Path, *, each: int = 1, all_together: int = 3) -> Allowance:
    return Allowance(path / "taken", each=each, all_together=all_together, period_s=600)


def test_each_name_has_its_own_times_and_a_new_period_begins_anew(tmp_path: Path) -> None:
    kept = allowance(tmp_path)
    kept.take("a.service", 1000)
    with pytest.raises(LimitExceeded, match=r"a\.service had its diagnosis in the last 10 minutes"):
        kept.take("a.service", 1599)
    kept.take("b.service", 1599)
    kept.take("a.service", 1601)


def test_all_names_together_have_a_limit_too(tmp_path: Path) -> None:
    kept = allowance(tmp_path)
    for number in range(3):
        kept.take(f"{number}.service", 1000)
    with pytest.raises(LimitExceeded, match="3 diagnoses of all units"):
        kept.take("3.service", 1000)
    kept.take("3.service", 1601)


def test_what_was_refused_does_not_count(tmp_path: Path) -> None:
    kept = allowance(tmp_path)
    kept.take("a.service", 1000)
    for now_s in range(1001, 1500):
        with pytest.raises(LimitExceeded):
            kept.take("a.service", now_s)
    kept.take("b.service", 1500)
    kept.take("a.service", 1601)


@pytest.mark.parametrize(
    "content", [b"", b"nonsense", b"{}", b"[1]", b'[["a.service"]]', b"\xff", b"[[1, 1e999]]"]
)
def test_a_file_that_cannot_be_understood_counts_as_empty(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "taken").write_bytes(content)
    kept = allowance(tmp_path)
    kept.take("a.service", 1000)
    with pytest.raises(LimitExceeded):
        kept.take("a.service", 1001)


def test_a_clock_that_began_anew_forgets_what_lies_ahead(tmp_path: Path) -> None:
    kept = allowance(tmp_path)
    kept.take("a.service", 1000)
    kept.take("a.service", 10)


def test_without_its_folder_nothing_is_allowed(tmp_path: Path) -> None:
    with pytest.raises(LightagentError, match="keeps count"):
        allowance(tmp_path / "missing").take("a.service")


def test_a_symbolic_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "taken").symlink_to(tmp_path / "precious")
    with pytest.raises(LightagentError, match="keeps count"):
        allowance(tmp_path).take("a.service")
    assert (tmp_path / "precious").read_text() == "precious"


_TAKE = """
import sys
from pathlib import Path
from lightagentd.errors import LimitExceeded
from lightagentd.unattended.allowance import Allowance
kept = Allowance(Path(sys.argv[1]), each=1, all_together=5, period_s=600)
sys.stdin.read()
try:
    kept.take(sys.argv[2])
except LimitExceeded:
    sys.exit(3)
"""


def test_processes_that_ask_at_once_get_no_more_than_one(tmp_path: Path) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _TAKE, str(tmp_path / "taken"), f"{number}.service"],
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
        )
        for number in range(8)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.close()
    statuses = [process.wait(60) for process in processes]
    assert sorted(statuses) == [0] * 5 + [3] * 3
