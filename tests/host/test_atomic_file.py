"""A file is there whole or as it was, with the mode that was asked for, and leaves no draft."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lightagentd.host.atomic_file import whole_file, write_whole


def test_a_file_takes_the_place_of_another_with_its_own_mode(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_whole(path, b"one")
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"one", 0o600)
    write_whole(path, b"two", mode=0o644)
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"two", 0o644)
    assert [one.name for one in tmp_path.iterdir()] == ["file"]


def test_an_error_leaves_what_was_there_and_no_draft(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def write_half() -> None:
        with whole_file(path, draft=tmp_path / "draft") as file:
            file.write(b"half")
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        write_half()
    assert path.read_bytes() == b"old"
    with pytest.raises(FileExistsError):
        write_whole(path, b"new", replace=False)
    assert path.read_bytes() == b"old"
    assert [one.name for one in tmp_path.iterdir()] == ["file"]


def test_what_a_killed_writer_left_is_replaced_and_no_link_followed(tmp_path: Path) -> None:
    path, draft, victim = tmp_path / "file", tmp_path / "draft", tmp_path / "victim"
    victim.write_bytes(b"mine")
    draft.symlink_to(victim)
    path.symlink_to(victim)
    write_whole(path, b"new", draft=draft)
    assert (path.read_bytes(), victim.read_bytes()) == (b"new", b"mine")
    assert not path.is_symlink()


def test_a_folders_descriptor_is_where_it_goes(tmp_path: Path) -> None:
    folder = os.open(tmp_path, os.O_PATH | os.O_DIRECTORY)
    try:
        write_whole(Path("/nowhere/file"), b"new", folder=folder)
    finally:
        os.close(folder)
    assert (tmp_path / "file").read_bytes() == b"new"
    assert [one.name for one in tmp_path.iterdir()] == ["file"]


def test_file_and_folder_are_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    fsync = os.fsync

    def look(fd: int) -> None:
        synced.append(Path(f"/proc/self/fd/{fd}").readlink())
        fsync(fd)

    monkeypatch.setattr(os, "fsync", look)
    write_whole(tmp_path / "file", b"new", draft=tmp_path / "draft")
    assert synced == [tmp_path / "draft", tmp_path]
