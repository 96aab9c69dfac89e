"""The mark of the emergency stop: it counts by its name, and nothing that a disk does keeps it from being."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from lightagentd.errors import Panicked, StorageError
from lightagentd.policy.panic import MARK_BYTES, Panic


def loaded(folder: Path) -> Panic:
    panic = Panic(folder)
    panic.load()
    return panic


async def test_nothing_is_stopped_at_first_and_a_file_lies_ready(tmp_path: Path) -> None:
    panic = loaded(tmp_path)
    panic.check()
    assert not panic.on
    (ready,) = tmp_path.iterdir()
    assert (ready.stat().st_size, stat.S_IMODE(ready.stat().st_mode)) == (MARK_BYTES, 0o600)


async def test_a_stop_is_there_again_after_a_restart_with_who_when_and_why(tmp_path: Path) -> None:
    panic = loaded(tmp_path)
    stop = panic.begin(1000, "it deletes\n\x1b[31mfiles ")
    await panic.store(10)
    again = loaded(tmp_path)
    assert again.stop == stop
    assert (stop.by, stop.reason) == (1000, "it deletes \x1b[31mfiles")
    with pytest.raises(Panicked, match="it deletes"):
        again.check()


async def test_the_first_stop_stays_when_another_is_asked_for(tmp_path: Path) -> None:
    panic = loaded(tmp_path)
    first = panic.begin(1, "one")
    await panic.store(10)
    assert panic.begin(2, "two") == first
    await panic.store(10)
    assert panic.asked == 2
    assert loaded(tmp_path).stop == first


async def test_an_ended_stop_is_gone_for_good_and_can_come_again(tmp_path: Path) -> None:
    panic = loaded(tmp_path)
    for reason in ("one", "two"):
        panic.begin(0, reason)
        await panic.store(10)
        panic.end()
        panic.check()
        assert not loaded(tmp_path).on
    assert [path.name for path in tmp_path.iterdir()] == ["panic.ready"]


@pytest.mark.parametrize("text", ["", "nonsense", "[]", '{"since_us": "x"}', "{" * 4096, "null"])
async def test_a_mark_counts_whatever_it_holds(tmp_path: Path, text: str) -> None:
    (tmp_path / "panic").write_text(text)
    panic = loaded(tmp_path)
    with pytest.raises(Panicked):
        panic.check()
    assert panic.stop is not None
    assert panic.stop.by is None
    panic.end()
    assert not loaded(tmp_path).on


async def test_a_mark_that_cannot_be_read_counts_too(tmp_path: Path) -> None:
    (tmp_path / "panic").mkdir()
    assert loaded(tmp_path).on


async def test_the_mark_takes_no_new_space_on_the_disk(tmp_path: Path) -> None:
    panic = loaded(tmp_path)
    ready = (tmp_path / "panic.ready").stat()
    panic.begin(0, "x" * 100_000)
    await panic.store(10)
    mark = (tmp_path / "panic").stat()
    assert (mark.st_ino, mark.st_blocks, mark.st_size) == (ready.st_ino, ready.st_blocks, ready.st_size)
    assert loaded(tmp_path).on


async def test_without_the_file_that_lay_ready_a_mark_is_made(tmp_path: Path) -> None:
    panic = loaded(tmp_path)
    (tmp_path / "panic.ready").unlink()
    panic.begin(0, "why")
    await panic.store(10)
    assert loaded(tmp_path).stop == panic.stop


async def test_a_stop_without_a_mark_stops_all_the_same_and_says_so(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    panic = loaded(folder)
    (folder / "panic.ready").unlink()
    folder.rmdir()  # also for root nothing can be written now
    panic.begin(0, "")
    await panic.store(10)
    assert panic.on
    assert not panic.marked


async def test_a_disk_that_hangs_delays_no_longer_than_said(tmp_path: Path) -> None:
    panic = loaded(tmp_path)
    (tmp_path / "panic.ready").unlink()
    os.mkfifo(tmp_path / "panic.ready")  # opening it hangs until somebody reads
    panic.begin(0, "why")
    written = await panic.store(0.01)
    assert not written.is_set()
    assert panic.on
    fd = os.open(tmp_path / "panic.ready", os.O_RDONLY | os.O_NONBLOCK)
    assert written.wait(20)
    os.close(fd)
    assert panic.marked


async def test_a_mark_that_cannot_be_removed_goes_on_stopping(tmp_path: Path) -> None:
    (tmp_path / "panic").mkdir()
    panic = loaded(tmp_path)
    with pytest.raises(StorageError, match="cannot be removed"):
        panic.end()
    assert panic.on


def test_without_a_folder_nothing_is_kept_and_nothing_is_stopped() -> None:
    panic = Panic()
    panic.load()
    panic.check()
    assert panic.marked
