"""A whole store examined by a process of its own, closed or while it is written."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from lightagentd.errors import StorageError
from lightagentd.events.corruption import whole
from lightagentd.events.corruption.examination import DATA
from lightagentd.events.corruption.pages import Walk
from lightagentd.events.corruption.whole import examine_whole
from tests.events.corruption.damaging import EVENTS, PAGE, make_store, pages_of
from tests.events.stored import note, opened


async def test_a_store_is_examined_while_events_are_stored(tmp_path: Path) -> None:
    folder = tmp_path / "history"
    await make_store(folder)
    async with opened(folder) as history:
        examining = asyncio.create_task(examine_whole(folder, live=True))
        count = 0
        while not examining.done():
            await history.append(note(count), note(count, text="x" * 5000))
            count += 1
        found = examining.result()
        assert (found.problem, found.whole) == ("", True)
        assert EVENTS <= found.seq <= history.head_seq
        with pages_of(folder) as file:
            leaf = Walk(file, file.meta()).trees()["by_topic"].root
        with (folder / DATA).open("r+b") as raw:
            raw.seek((leaf or 0) * PAGE)
            raw.write(bytes(PAGE))
        assert f"page {leaf} " in (await examine_whole(folder, live=True)).problem


async def test_a_closed_store_is_examined_in_a_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole, "SMALL_BYTES", -1)
    folder = tmp_path / "history"
    assert (await examine_whole(folder)).problem == ""
    folder.mkdir()
    assert "is not there" in (await examine_whole(folder, known=True)).problem
    await make_store(folder)
    assert (await examine_whole(folder)).seq == EVENTS
    (folder / DATA).write_bytes(b"no database")
    assert "page 0 is cut off" in (await examine_whole(folder)).problem
    folder.rename(tmp_path / "away")
    folder.symlink_to(tmp_path / "nowhere")
    with pytest.raises(StorageError, match="could not be examined"):
        await examine_whole(folder)
