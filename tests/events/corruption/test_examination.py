"""What an examination finds in files of every kind, and that it changes none of them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from lightagentd.errors import StorageError
from lightagentd.events.corruption import examination as damage
from lightagentd.events.corruption.examination import DATA, LOCK, examine
from lightagentd.events.corruption.pages import Walk
from lightagentd.events.model import GENESIS
from lightagentd.events.store.layout import EVENTS as EVENTS_TREE
from tests.events.corruption.damaging import (
    EVENTS,
    PAGE,
    damaged,
    make_store,
    pages_of,
    put,
    use_with_lmdb,
)
from tests.events.stored import alter, note, opened


@pytest.fixture(scope="module")
def store() -> dict[str, bytes]:
    """The used part of a sound store's file, once it was made."""
    return {}


@pytest.fixture
async def data(store: dict[str, bytes], tmp_path: Path) -> bytes:
    if not store:
        store["data"] = await make_store(tmp_path / "made")
    return store["data"]


async def test_a_sound_store_has_no_problem_and_its_newest_event_is_known(tmp_path: Path) -> None:
    async with opened(tmp_path / "history") as history:
        assert examine(tmp_path / "none", seconds=None) == damage.Examined(whole=True)
        stored = await history.append(*(note(number, text="x" * 2000) for number in range(50)))
    for seconds in (None, 60.0):
        found = examine(tmp_path / "history", seconds=seconds, known=True)
        assert found == damage.Examined(seq=50, hash=stored[-1].hash, whole=True)
    hurried = examine(tmp_path / "history", seconds=0.0)
    assert (hurried.problem, hurried.seq, hurried.whole) == ("", 50, False)


async def test_a_store_that_was_never_written_to_is_none(tmp_path: Path) -> None:
    async with opened(tmp_path / "made"):
        pass
    assert examine(tmp_path / "made", seconds=None) == damage.Examined(whole=True)
    (tmp_path / "empty").mkdir()
    assert examine(tmp_path / "empty", seconds=None).problem == ""
    (tmp_path / "empty" / LOCK).touch()
    assert examine(tmp_path / "empty", seconds=None).problem == ""
    (tmp_path / "empty" / DATA).touch()
    assert examine(tmp_path / "empty", seconds=None).problem == ""


def test_what_is_gone_of_a_store_that_was_there_is_damage(tmp_path: Path) -> None:
    folder = put(tmp_path / "history", b"")
    assert "cut off" in examine(folder, seconds=None, known=True).problem
    (folder / DATA).unlink()
    assert examine(folder, seconds=None, known=True).problem == "data.mdb is not there"


def test_a_truncated_file_is_damage_whatever_its_size(tmp_path: Path, data: bytes) -> None:
    steps = [0, 1, 15, 16, 100, PAGE - 1, PAGE, PAGE + 1, 2 * PAGE, 2 * PAGE + 1, len(data) - 1]
    sizes = [*steps, *range(3 * PAGE, len(data), len(data) // 20)]
    for size in sizes:
        folder = put(tmp_path / "history", data[:size])
        assert examine(folder, seconds=0.0, known=True).problem, size
        assert (folder / DATA).read_bytes() == data[:size]


@pytest.mark.parametrize("pages", [(0,), (1,), (0, 1)])
def test_a_first_page_that_was_overwritten_is_damage(
    tmp_path: Path, data: bytes, pages: tuple[int, ...]
) -> None:
    changed = bytearray(data)
    for page in pages:
        changed[page * PAGE : (page + 1) * PAGE] = os.urandom(PAGE)
    folder = put(tmp_path / "history", bytes(changed))
    assert "first of a database" in examine(folder, seconds=0.0).problem
    assert (folder / DATA).read_bytes() == bytes(changed)


def test_what_an_examination_lets_pass_does_not_crash_lmdb(tmp_path: Path, data: bytes) -> None:
    passed = 0
    for seed in range(200):
        changed = damaged(data, seed)
        folder = put(tmp_path / "history", changed)
        found = examine(folder, seconds=None, known=True)
        assert (folder / DATA).read_bytes() == changed
        if not found.problem:
            passed += 1
            if passed <= 12:  # each is a process
                assert use_with_lmdb(folder, EVENTS) == "", seed
    assert 20 < passed < 180


def test_a_page_that_is_free_and_in_use_is_found(tmp_path: Path, data: bytes) -> None:
    """LMDB would write over it."""
    folder = put(tmp_path / "history", data)
    with pages_of(folder) as file:
        meta = file.meta()
        walk = Walk(file, meta)
        root = walk.trees()[EVENTS_TREE].root
        assert root is not None
        lists = [node for nodes in walk.leaves(meta.free) for node in nodes]
        assert lists
        raw = file.value(lists[-1])
    at = data.rindex(raw)
    count = int.from_bytes(raw[:8], "little")
    pages = sorted({*(int.from_bytes(raw[8 * n : 8 * n + 8], "little") for n in range(1, count + 1))})
    pages[0] = root if root < (pages[1] if count > 1 else 1 << 62) else pages[0]
    if pages[0] != root:
        pages[-1] = root
    forged = count.to_bytes(8, "little") + b"".join(n.to_bytes(8, "little") for n in sorted(pages)[::-1])
    put(folder, data[:at] + forged + data[at + len(forged) :])
    assert "in two places" in examine(folder, seconds=None).problem


async def test_a_newest_event_that_cannot_be_read_is_damage(tmp_path: Path) -> None:
    folder = tmp_path / "history"
    async with opened(folder) as history:
        await history.append(note(1), note(2))
    alter(folder, 1, lambda line, data: b"nonsense\n" + data)
    assert examine(folder, seconds=60.0).problem == ""  # its verification says so
    assert "the event at 1 cannot be read" in examine(folder, seconds=None).problem
    alter(folder, 2, lambda line, data: line[:-5] + b"\n" + data)
    assert "its newest event cannot be read" in examine(folder, seconds=0.0).problem


def _directory(path: Path) -> None:
    path.mkdir()


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _link_to_nothing(path: Path) -> None:
    path.symlink_to("/nonexistent")


def _link_to_itself(path: Path) -> None:
    path.symlink_to(path)


def _device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _text(path: Path) -> None:
    path.write_text("this is no database\n" * 1000)


@pytest.mark.parametrize("plant", [_directory, _fifo, _link_to_nothing, _link_to_itself, _device, _text])
def test_what_is_no_file_of_lmdb_is_damage(tmp_path: Path, plant: Callable[[Path], None]) -> None:
    (tmp_path / "history").mkdir()
    plant(tmp_path / "history" / DATA)
    assert examine(tmp_path / "history", seconds=None).problem
    plant(tmp_path / "instead")
    if plant is not _link_to_nothing and plant is not _directory and plant is not _link_to_itself:
        assert examine(tmp_path / "instead", seconds=None).problem == f"{tmp_path / 'instead'} is no folder"


def test_a_folder_that_may_not_be_read_is_no_damage(tmp_path: Path, data: bytes) -> None:
    folder = put(tmp_path / "history", data)
    folder.chmod(0)
    was = os.geteuid()
    os.seteuid(was or 65534)  # root may read everything
    try:
        with pytest.raises(StorageError) as caught:
            examine(folder, seconds=None)
    finally:
        os.seteuid(was)
        folder.chmod(0o700)
    assert "chown" in caught.value.suggestion


def test_a_link_to_a_folder_that_is_not_there_is_no_damage(tmp_path: Path) -> None:
    (tmp_path / "history").symlink_to(tmp_path / "not-mounted")
    with pytest.raises(StorageError, match="cannot be read"):
        examine(tmp_path / "history", seconds=None)


def test_a_store_is_set_aside_as_it_is_beside_others(tmp_path: Path) -> None:
    notes = []
    for number in range(3):
        put(tmp_path / "history", b"%d" % number)
        notes.append(damage.set_aside(tmp_path / "history", "it is damaged", number, GENESIS))
        assert damage.pending_note(tmp_path / "history") == notes[-1]
    paths = [Path(each.path) for each in notes]
    assert len(set(paths)) == 3
    assert [(path / DATA).read_bytes() for path in paths] == [b"0", b"1", b"2"]
    assert set(damage.left_aside(tmp_path / "history")) == set(paths)
    damage.forget_note(tmp_path / "history")
    assert damage.pending_note(tmp_path / "history") is None


def test_a_note_of_a_store_that_was_not_moved_counts_for_nothing(tmp_path: Path) -> None:
    put(tmp_path / "history", b"x")
    Path(damage.set_aside(tmp_path / "history", "it is damaged", 7, GENESIS).path).rename(
        tmp_path / "history"
    )
    assert damage.pending_note(tmp_path / "history") is None
    damage.note_file(tmp_path / "history").write_text("[]")
    assert damage.pending_note(tmp_path / "history") is None


@pytest.mark.parametrize("plant", [_directory, _fifo, _link_to_nothing, _text])
def test_a_lock_file_that_is_none_is_moved_away(tmp_path: Path, plant: Callable[[Path], None]) -> None:
    plant(tmp_path / LOCK)
    damage.clear_lock(tmp_path)
    assert not os.path.lexists(tmp_path / LOCK)
    assert len(list(tmp_path.iterdir())) == 1


async def test_a_sound_lock_file_stays(tmp_path: Path) -> None:
    async with opened(tmp_path / "history"):
        pass
    before = (tmp_path / "history" / LOCK).stat().st_ino
    damage.clear_lock(tmp_path / "history")
    assert (tmp_path / "history" / LOCK).stat().st_ino == before
