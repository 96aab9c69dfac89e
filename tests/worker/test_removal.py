"""What a command left is removed, however it is nested."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import pytest

from lightagentd.worker.removal import remove


def nest(folder: Path, depth: int) -> None:
    """Folders in folders, in a process of its own, whose working folder is the last one."""
    code = f"import os\nfor _ in range({depth}):\n    os.mkdir('d'); os.chdir('d')\nopen('file', 'w').close()"
    subprocess.run(["python3", "-c", code], cwd=folder, check=True)


def test_folders_nested_beyond_every_path_and_recursion() -> None:
    made = Path(tempfile.mkdtemp(dir="/dev/shm"))
    nest(made, 20_000)
    remove(made)
    assert not made.exists()


def test_many_branches_and_names_that_are_used_already(tmp_path: Path) -> None:
    made = tmp_path / "made"
    for number in range(50):
        (made / f"removed-{number}" / "inner" / f"removed-{number}" / "x").mkdir(parents=True)
        (made / f"removed-{number}" / "inner" / "file").touch()
    (made / "removed-3" / "removed-4").mkdir()
    remove(made)
    assert list(tmp_path.iterdir()) == []


def test_closed_folders(tmp_path: Path) -> None:
    inner = tmp_path / "made" / "a" / "b"
    inner.mkdir(parents=True)
    (inner / "file").touch()
    for folder in (inner, inner.parent, tmp_path / "made"):
        folder.chmod(0)
    remove(tmp_path / "made")
    assert list(tmp_path.iterdir()) == []


def test_a_link_goes_and_what_it_names_stays(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    (kept / "inner").mkdir(parents=True)
    (kept / "file").write_text("x")
    made = tmp_path / "made"
    made.mkdir()
    (made / "to-folder").symlink_to(kept)
    (made / "to-file").symlink_to(kept / "file")
    (made / "to-nothing").symlink_to("/nowhere")
    os.mkfifo(made / "fifo")
    remove(made)
    (tmp_path / "link").symlink_to(kept)
    remove(tmp_path / "link")
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert (kept / "file").read_text() == "x"


def test_names_that_are_no_text(tmp_path: Path) -> None:
    made = os.fsencode(tmp_path / "made")
    Path(os.fsdecode(made + b"/\xff\n\x1b/-rf")).mkdir(parents=True)
    remove(tmp_path / "made")
    assert list(tmp_path.iterdir()) == []


def test_what_is_not_there_and_what_is_a_file(tmp_path: Path) -> None:
    remove(tmp_path / "nothing")
    (tmp_path / "file").touch()
    remove(tmp_path / "file")
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_removed_is_an_error() -> None:
    with pytest.raises(OSError):
        remove(Path("/proc/self/task"))
