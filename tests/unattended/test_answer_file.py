"""Answers go to files that nobody but their owner and root can redirect, and nowhere else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lightagentd.errors import StorageError
from lightagentd.host.users import called
from lightagentd.unattended import answer_file
from lightagentd.unattended.delivery import Delivery, check_file, write_file

from .conftest import needs_root

UNIT = "lightagent-prompt@daily"
ANSWER = Delivery(name="daily", unit=UNIT, agent="ops", text="all is well", session="ses_1")
STRANGER = 54321


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that its owner alone can write to. What is above it, /tmp in the end, is not looked at."""
    monkeypatch.setattr(answer_file, "TOP", tmp_path)
    tmp_path.chmod(0o755)
    folder = tmp_path / "home"
    folder.mkdir(mode=0o755)
    return folder


@pytest.fixture
def profile(home: Path) -> Path:
    """A file of the owner's that no answer may ever be in."""
    path = home / ".profile"
    path.write_text("umask 022\n")
    return path


def refused(path: Path, *, append: bool) -> str:
    """The message with which writing there fails, both before the question and after the answer."""
    with pytest.raises(StorageError) as before:
        check_file(UNIT, path)
    with pytest.raises(StorageError) as after:
        write_file(ANSWER, path, append=append)
    assert before.value.message == after.value.message
    assert "nobody else but root can write" in before.value.suggestion
    assert after.value.suggestion.startswith("It is kept: lactl sessions show ses_1. ")
    return after.value.message


both_ways = pytest.mark.parametrize("append", [True, False])


@both_ways
def test_a_new_file_is_the_owners_alone(append: bool, home: Path) -> None:
    check_file(UNIT, home / "answer.md")
    assert list(home.iterdir()) == []
    write_file(ANSWER, home / "answer.md", append=append)
    assert "all is well\n" in (home / "answer.md").read_text()
    assert (home / "answer.md").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in home.iterdir()] == ["answer.md"]


@both_ways
def test_a_link_in_the_place_of_the_file_is_refused(append: bool, home: Path, profile: Path) -> None:
    (home / "report.txt").symlink_to(profile)
    assert refused(home / "report.txt", append=append).endswith("/report.txt is a symbolic link.")
    (home / "other.txt").hardlink_to(profile)
    assert "/other.txt has another name, too" in refused(home / "other.txt", append=append)
    assert profile.read_text() == "umask 022\n"


@both_ways
def test_a_link_on_the_way_to_the_file_is_refused(append: bool, home: Path, profile: Path) -> None:
    (home / "out").symlink_to(home)
    said = refused(home / "out" / profile.name, append=append)
    assert said.endswith("/out is a symbolic link, and has to be the folder itself.")
    assert "/out is a symbolic link" in refused(home / "out" / "new" / "file", append=append)
    assert profile.read_text() == "umask 022\n"


@both_ways
@pytest.mark.parametrize("mode", [0o775, 0o757, 0o1777])
@pytest.mark.parametrize("below", ["", "private"])
def test_a_folder_that_others_can_write_to_is_refused(
    append: bool, mode: int, below: str, home: Path
) -> None:
    (home / "out" / below).mkdir(parents=True)
    (home / "out").chmod(mode)
    said = refused(home / "out" / below / "report.txt", append=append)
    assert said.endswith(f"others can write to the folder {home}/out, whose mode is {mode:04o}.")
    assert [path for path in home.rglob("*") if path.is_file()] == []


@needs_root
@both_ways
def test_what_belongs_to_somebody_else_is_refused(append: bool, home: Path) -> None:
    (home / "out").mkdir(mode=0o755)
    os.chown(home / "out", STRANGER, STRANGER)
    said = refused(home / "out" / "report.txt", append=append)
    assert said.endswith(f"the folder {home}/out belongs to somebody else, {called(STRANGER)}.")
    (home / "theirs.txt").write_text("theirs\n")
    os.chown(home / "theirs.txt", STRANGER, STRANGER)
    assert f"/theirs.txt belongs to somebody else, {called(STRANGER)}" in refused(
        home / "theirs.txt", append=append
    )
    assert (home / "theirs.txt").read_text() == "theirs\n"


@both_ways
def test_a_fifo_does_not_hold_the_program(append: bool, home: Path) -> None:
    os.mkfifo(home / "fifo")
    assert refused(home / "fifo", append=append).endswith("/fifo is no regular file.")


@pytest.mark.skipif(not Path("/tmp").stat().st_mode & 0o002, reason="others cannot write to this /tmp")
def test_the_folder_for_temporary_files_is_refused() -> None:
    with pytest.raises(StorageError, match=r"others can write to the folder /tmp, whose mode is 1777"):
        check_file(UNIT, Path("/tmp/report.txt"))


def test_what_cannot_be_written_says_where_the_answer_is(home: Path) -> None:
    with pytest.raises(StorageError) as caught:
        write_file(ANSWER, home / "gone" / "answer.md", append=False)
    assert caught.value.message.endswith("/gone/answer.md: No such file or directory.")
    assert "lactl sessions show ses_1" in caught.value.suggestion
    assert "ReadWritePaths= in systemctl edit lightagent-prompt@daily" in caught.value.suggestion
