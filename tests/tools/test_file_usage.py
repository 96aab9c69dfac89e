"""file.usage: the sizes of folder trees, on real trees."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from pydantic import ValidationError

from lightagentd.errors import InvalidArgument, NotFound
from lightagentd.tool import Place
from lightagentd.toolkit.files import usage

from .conftest import Call, Load, is_root

pytestmark = pytest.mark.usefixtures("nothing_left")
MIB = 1 << 20


def fill(path: Path, size_bytes: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(os.urandom(size_bytes))


def walked(path: Path, *, depth: int = 1, seconds: float = 20.0, entry_limit: int = 10_000) -> usage.Usage:
    return usage.Walk(str(path), owner=0, depth=depth, seconds=seconds, entry_limit=entry_limit).measure()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    fill(tmp_path / "big/deep/a", 3 * MIB)
    fill(tmp_path / "big/b", MIB)
    fill(tmp_path / "small/c", 4096)
    fill(tmp_path / "top", 4096)
    return tmp_path


async def test_the_largest_folders_come_first_and_the_total_is_that_of_du(call: Call, tree: Path) -> None:
    result = await call("file", "usage", path=str(tree))
    folders = result.metadata["folders"]
    assert [Path(row["path"]).name for row in folders] == ["big", "small"]
    assert folders[0]["files"] == 2
    said = subprocess.run(["du", "-s", "-B1", tree], capture_output=True, text=True, check=True)
    assert result.metadata["size_bytes"] == int(said.stdout.split()[0])
    assert result.metadata["files"] == 4
    assert result.metadata["complete"] is True
    first, second, *_ = result.output.splitlines()
    assert first.split()[:3] == ["4.0", "MiB", str(tree)]
    assert second.split()[:3] == ["4.0", "MiB", f"{tree}/big"]


async def test_the_depth_says_how_many_levels_are_shown(call: Call, tree: Path) -> None:
    shallow = await call("file", "usage", path=str(tree), depth=1)
    deep = await call("file", "usage", path=str(tree), depth=2)
    assert f"{tree}/big/deep" not in shallow.output
    assert f"{tree}/big/deep" in deep.output
    assert shallow.metadata["size_bytes"] == deep.metadata["size_bytes"]


async def test_only_the_largest_are_shown_and_the_rest_is_counted(call: Call, tmp_path: Path) -> None:
    for number in range(5):
        fill(tmp_path / f"d{number}/f", 4096 * (number + 1))
    result = await call("file", "usage", path=str(tmp_path), top=2)
    assert [Path(row["path"]).name for row in result.metadata["folders"]] == ["d4", "d3"]
    assert "3 smaller folders are not shown." in result.output


async def test_no_file_is_ever_named(call: Call, tree: Path) -> None:
    fill(tree / "big/letter-to-the-bank.txt", 5 * MIB)
    result = await call("file", "usage", path=str(tree), depth=5)
    assert "letter" not in result.output + str(result.metadata)


async def test_a_file_with_two_names_counts_once(call: Call, tmp_path: Path) -> None:
    fill(tmp_path / "one/f", MIB)
    (tmp_path / "two").mkdir()
    os.link(tmp_path / "one/f", tmp_path / "two/g")
    result = await call("file", "usage", path=str(tmp_path))
    assert result.metadata["files"] == 1
    assert MIB <= result.metadata["size_bytes"] < 2 * MIB


async def test_links_are_not_followed(call: Call, tree: Path, tmp_path: Path) -> None:
    (tree / "small/link").symlink_to("/usr")
    (tree / "small/loop").symlink_to(tree)
    before = walked(tree).total.size_bytes
    assert before < 6 * MIB
    result = await call("file", "usage", path=f"{tree}/small")
    assert result.metadata["size_bytes"] < MIB


@pytest.mark.parametrize("what", ["file", "link", "absent", "fifo"])
async def test_what_is_no_folder_is_answered_like_what_is_not_there(
    call: Call, tmp_path: Path, what: str
) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to("/usr")
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(NotFound) as caught:
        await call("file", "usage", path=f"{tmp_path}/{what}")
    assert caught.value.message == f"There is no folder {tmp_path}/{what}."


@pytest.mark.parametrize("path", ["etc", "-x", "~", "", "/etc\0"])
async def test_only_an_absolute_path_will_do(call: Call, path: str) -> None:
    with pytest.raises(InvalidArgument, match="not an absolute path"):
        await call("file", "usage", path=path)


async def test_other_file_systems_are_left_out_and_named(call: Call) -> None:
    result = await call("file", "usage", path="/dev")
    assert "/dev/pts" in result.metadata["other_file_systems"]
    assert "other file systems are left out" in result.output


def test_a_walk_that_is_cut_says_that_it_is_not_the_whole(tree: Path) -> None:
    for found, why in ((walked(tree, entry_limit=2), "entries"), (walked(tree, seconds=0), "time")):
        text, data = usage.report(found, 10)
        assert data["stopped"] == why
        assert data["complete"] is False
        assert "the sizes are too small" in text


def test_a_deep_tree_ends_at_a_level_and_says_so(tmp_path: Path) -> None:
    here = os.open(tmp_path, os.O_DIRECTORY)
    for _ in range(usage.LEVEL_LIMIT + 5):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_DIRECTORY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    try:
        found = walked(tmp_path)
    finally:
        shutil.rmtree(tmp_path / "d")
    assert found.too_deep == 1
    assert "lie deeper" in usage.report(found, 5)[0]


@pytest.mark.skipif(is_root(), reason="root enters every folder")
async def test_a_closed_folder_is_said_to_be_left_out(call: Call, tree: Path) -> None:
    (tree / "small").chmod(0)
    try:
        result = await call("file", "usage", path=str(tree))
    finally:
        (tree / "small").chmod(0o700)
    assert result.metadata["not_entered"] == 1
    assert f"1 folders could not be entered: {tree}/small." in result.output


async def test_names_that_are_not_utf8_or_control_a_terminal_are_escaped(call: Call, tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"\xff\x1b[2J\n")).mkdir()
    result = await call("file", "usage", path=str(tmp_path))
    assert "\\xff\\x1b[2J\\n" in result.output


def test_mounts_that_can_hang_are_not_even_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path / "net/f", MIB)
    monkeypatch.setattr(usage, "hanging_mounts", lambda: {f"{tmp_path.resolve()}/net"})
    found = walked(tmp_path)
    assert found.mounts == [f"{tmp_path}/net"]
    assert found.total.size_bytes < MIB


@pytest.mark.parametrize("wrong", [{"depth": 0}, {"depth": 6}, {"top": 0}, {"top": 201}])
async def test_depth_and_number_are_bounded(call: Call, wrong: dict[str, int]) -> None:
    with pytest.raises(ValidationError):
        await call("file", "usage", path="/", **wrong)


def test_it_runs_where_every_folder_can_be_entered(load: Load) -> None:
    assert load("file").actions["usage"].place is Place.INSPECT
