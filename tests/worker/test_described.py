"""What is kept of the tools' descriptions, and when it is not."""

from __future__ import annotations

import os
from pathlib import Path

from lightagentd.worker import described


def tool(folder: Path, text: str = "x = 1\n") -> Path:
    path = folder / "one.py"
    path.write_text(text)
    return path


def test_a_description_is_kept_while_the_files_stay_as_they_are(tmp_path: Path) -> None:
    path = tool(tmp_path)
    key = described.key_of("bwrap", [tmp_path])
    tools = [{"name": "one", "problem": ""}]
    assert described.known(key) is None
    described.keep(key, tools)
    assert described.known(described.key_of("bwrap", [tmp_path])) == tools
    assert described.known(described.key_of("none", [tmp_path])) is None
    os.utime(path, (1, 1))
    assert described.known(described.key_of("bwrap", [tmp_path])) is None


def test_a_new_file_and_another_folder_are_described_anew(tmp_path: Path) -> None:
    tool(tmp_path)
    (tmp_path / "etc").mkdir()
    described.keep(described.key_of("bwrap", [tmp_path]), [{"problem": ""}])
    tool(tmp_path / "etc")
    assert described.known(described.key_of("bwrap", [tmp_path / "etc", tmp_path])) is None
    (tmp_path / "two.py").write_text("")
    assert described.known(described.key_of("bwrap", [tmp_path])) is None


def test_the_file_behind_a_link_counts(tmp_path: Path) -> None:
    target = tool(tmp_path)
    folder = tmp_path / "tools"
    folder.mkdir()
    (folder / "one.py").symlink_to(target)
    before = described.key_of("bwrap", [folder])
    tool(tmp_path, "x = 2222\n")
    assert described.key_of("bwrap", [folder]) != before
    target.unlink()
    assert described.key_of("bwrap", [folder]) is None


def test_a_description_with_a_problem_is_not_kept(tmp_path: Path) -> None:
    tool(tmp_path)
    key = described.key_of("bwrap", [tmp_path])
    described.keep(key, [{"problem": ""}, {"problem": "ImportError: no such module"}])
    assert described.known(key) is None
    described.keep(None, [{"problem": ""}])
    assert described.known(None) is None
