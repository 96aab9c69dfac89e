"""Which pages a walk asks for, before it comes to their events."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lightagentd.events.audit import read_ahead
from lightagentd.events.audit.read_ahead import ReadAhead
from lightagentd.events.corruption.pages import PageFile, Walk
from lightagentd.events.store.layout import EVENTS, seq_key
from tests.events.stored import note, opened

EVENTS_STORED, WANTED_PAGES = 3000, 64


async def test_each_page_from_the_beginning_on_is_asked_for_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path / "history") as history:
        await history.append(*(note(number, text="some text " * 30) for number in range(EVENTS_STORED)))
        file = history.environment.data_file
        asked: list[int] = []
        monkeypatch.setattr(
            os, "posix_fadvise", lambda _, at, size, __: asked.extend(range(at // 4096, (at + size) // 4096))
        )
        monkeypatch.setattr(read_ahead, "_PAGES", WANTED_PAGES)
        with file.open("rb") as opened_file:
            pages = PageFile(opened_file.fileno())
            walk = Walk(pages, pages.meta())
            tree = walk.trees()[EVENTS]
            place = {node.key: at for at, nodes in enumerate(walk.leaves(tree)) for node in nodes}
            leaves = [page for page, _ in walk.leaf_pages(tree, b"\0")]
        assert len(leaves) == max(place.values()) + 1 > 2 * WANTED_PAGES
        for first in (1, EVENTS_STORED // 3, EVENTS_STORED):
            asked.clear()
            with ReadAhead(file, seq_key(first)) as ahead:
                for seq in range(first, EVENTS_STORED + 1):
                    ahead.reach(seq_key(seq))
                    assert leaves[place[seq_key(seq)]] in asked, (first, seq)
            assert (
                len(asked) < len(leaves[place[seq_key(first)] :]) * 2
            )  # each is asked for once, with some beside


def test_a_file_that_is_none_of_a_store_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "torn").write_bytes(bytes(9000))
    for name in ("torn", "missing"):
        with ReadAhead(tmp_path / name, b"\0") as ahead:
            ahead.reach(b"\0")
            ahead.reach(seq_key(5))
