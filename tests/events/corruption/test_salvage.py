"""What can be read of damaged stores, and what must not come back."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from lightagentd.errors import StorageError
from lightagentd.events.backup.portable import MISSING
from lightagentd.events.corruption.examination import DATA, examine
from lightagentd.events.corruption.pages import LEAF, Torn, Walk
from lightagentd.events.corruption.salvage import Salvaged, Stopped, is_whole, last_known, missing_in, salvage
from lightagentd.events.history import Change
from lightagentd.events.model import GENESIS, within
from lightagentd.events.store.layout import EVENTS as EVENTS_TREE
from lightagentd.events.types.session import SessionDeleted
from tests.events.corruption.damaging import (
    EVENTS,
    PAGE,
    SESSIONS,
    damaged,
    make_store,
    pages_of,
    put,
)
from tests.events.made import fill
from tests.events.stored import note, opened


def salvaged(folder: Path) -> tuple[Salvaged, list[dict[str, Any]]]:
    """What a salvage came to, and the events that it wrote."""
    target = folder.with_suffix(".jsonl")
    target.unlink(missing_ok=True)
    done = salvage(folder, target, lambda: False)
    lines = [json.loads(line) for line in target.read_bytes().splitlines()]
    assert lines[0]["lightagentd_export"] == 1
    events = [line for line in lines if "seq" in line]
    assert done.events == len(events)
    assert [event["seq"] for event in events] == sorted({event["seq"] for event in events})
    first, last = lines[0]["anchor"][0] + 1, max([0, *(event["seq"] for event in events)])
    gone = sorted({*range(first, last)} - {event["seq"] for event in events})
    assert (done.missing, [n for low, high in done.ranges for n in range(low, high + 1)]) == (len(gone), gone)
    if not done.whole:
        assert lines[-1] == {MISSING: done.missing, "ranges": [list(each) for each in done.ranges]}
    assert done.states == sum("state" in line for line in lines)
    assert done.whole is is_whole(target) is ("lightagentd_export_end" in lines[-1])
    return done, events


def spoil(folder: Path, *pages: int) -> None:
    with (folder / DATA).open("r+b") as file:
        for page in pages:
            file.seek(page * PAGE)
            file.write(os.urandom(PAGE))


def pages_of_events(folder: Path) -> tuple[int, list[int]]:
    """The root of the events, and the leaves below it, the oldest events first."""
    with pages_of(folder) as file:
        meta = file.meta()
        tree = Walk(file, meta).trees()[EVENTS_TREE]
        assert tree.root is not None
        level = [tree.root]
        for _ in range(tree.depth - 1):
            level = [
                child for page in level for child, _ in file.children(page, file.page(page), meta.last_page)
            ]
        for page in level:
            file.nodes(page, file.page(page), LEAF)
        return tree.root, level


@pytest.fixture
async def folder(tmp_path: Path) -> Path:
    await make_store(tmp_path / "history")
    return tmp_path / "history"


def test_where_an_index_is_damaged_everything_is_read(folder: Path) -> None:
    with pages_of(folder) as file:
        root = Walk(file, file.meta()).trees()["by_time"].root
    assert root is not None
    spoil(folder, root)
    assert f"page {root} " in examine(folder, seconds=60.0).problem
    done, events = salvaged(folder)
    assert done == Salvaged(events=EVENTS, states=2 * SESSIONS, whole=True)
    assert last_known(folder) == (EVENTS, events[-1]["hash"])


def test_what_the_tree_does_not_lead_to_is_found_all_the_same(folder: Path) -> None:
    root, leaves = pages_of_events(folder)
    spoil(folder, root)
    done, events = salvaged(folder)
    assert (done.events, done.missing, done.states, done.whole) == (EVENTS, 0, 2 * SESSIONS, False)
    assert last_known(folder) == (EVENTS, events[-1]["hash"])
    spoil(folder, leaves[3])
    done, events = salvaged(folder)
    assert 0 < done.missing < 30
    assert done.events + done.missing == EVENTS


@pytest.mark.parametrize("page", [0, 1])
def test_without_one_of_the_first_pages_the_newest_events_are_found(folder: Path, page: int) -> None:
    """The one that is left may be that of the state before the last change."""
    spoil(folder, page)
    done, events = salvaged(folder)
    assert (done.events, done.missing, done.whole) == (EVENTS, 0, False)
    assert last_known(folder) == (EVENTS, events[-1]["hash"])


def test_without_both_first_pages_the_events_are_found(folder: Path) -> None:
    spoil(folder, 0, 1)
    done, events = salvaged(folder)
    assert (done.events, done.missing, done.states) == (EVENTS, 0, 0)
    assert all(event["data"] is not None for event in events)
    assert last_known(folder) == (EVENTS, events[-1]["hash"])


def test_a_page_with_events_that_is_lost_is_a_gap(folder: Path) -> None:
    _, leaves = pages_of_events(folder)
    spoil(folder, leaves[0], leaves[-1])
    done, events = salvaged(folder)
    assert done.missing > 0
    assert not done.whole
    assert events[0]["seq"] > 1
    assert events[-1]["seq"] == EVENTS, "the last ones are long, and have pages of their own"
    assert last_known(folder)[0] == EVENTS
    assert done.ranges[0] == (1, events[0]["seq"] - 1)
    said = missing_in(folder.with_suffix(".jsonl"))
    assert said.startswith(f"{done.missing} are missing: 1-{events[0]['seq'] - 1}")


def test_a_list_of_databases_that_is_damaged_leaves_no_event_out_in_silence(folder: Path) -> None:
    """The other first page leads to the state before the last change, in which nothing is damaged."""
    with pages_of(folder) as file:
        main = file.meta().main
        assert main.root is not None
        root, depth = main.root, main.depth
    assert depth == 1
    with (folder / DATA).open("r+b") as opened_file:
        opened_file.seek(root * PAGE + 12)
        opened_file.write(b"\xff\xff")  # where its entries end
    done, _ = salvaged(folder)
    assert (done.events, done.missing, done.whole) == (EVENTS, 0, False)


def test_an_entry_that_is_damaged_takes_no_other_of_its_page_with_it(folder: Path) -> None:
    _, leaves = pages_of_events(folder)
    with pages_of(folder) as file:
        places = file.nodes(leaves[2], file.page(leaves[2]), LEAF)
    with (folder / DATA).open("r+b") as opened_file:
        opened_file.seek(leaves[2] * PAGE + places[1])
        opened_file.write(b"\xff" * 8)  # the head of the second entry
    done, _ = salvaged(folder)
    assert (done.events, done.missing, done.whole) == (EVENTS, 0, False)


def test_long_records_are_found_without_the_page_that_names_them(folder: Path) -> None:
    """A page of entries that each name a page of their own may have a hundred of them."""
    _, leaves = pages_of_events(folder)
    with pages_of(folder) as file:
        entries = {leaf: file.leaf(leaf, file.page(leaf)) for leaf in leaves}
    most = max(leaves, key=lambda leaf: sum(node.page > 0 for node in entries[leaf]))
    starts = [node.page for node in entries[most] if node.page]
    short = len(entries[most]) - len(starts)
    assert len(starts) > 5
    spoil(folder, most)
    done, _ = salvaged(folder)
    assert done.missing <= short
    assert done.without_data == 0
    data = bytearray((folder / DATA).read_bytes())
    for one, other in ((starts[0], starts[1]), (starts[2] + 1, starts[3])):  # a start and a rest of another
        first, second = (slice(page * PAGE, (page + 1) * PAGE) for page in (one, other))
        data[first], data[second] = data[second], data[first]
    (folder / DATA).write_bytes(data)
    done, events = salvaged(folder)
    assert done.missing <= short
    assert all(event["data"] is not None for event in events)


def test_a_number_that_was_altered_makes_no_gap(folder: Path) -> None:
    raw = (folder / DATA).read_bytes()
    at = raw.index(b'{"seq":21,')
    raw = raw[: at + 7] + b"91" + raw[at + 9 :]
    at = raw.index(b'{"seq":8,')
    (folder / DATA).write_bytes(raw[: at + 7] + b"7" + raw[at + 8 :])
    root, _ = pages_of_events(folder)
    spoil(folder, root)
    done, _ = salvaged(folder)
    assert done.events + done.missing == EVENTS
    assert done.missing <= 2


async def test_what_retention_kept_is_found_and_what_it_removed_is_not_missed(tmp_path: Path) -> None:
    await fill(tmp_path / "history")
    async with opened(tmp_path / "history") as history:
        first = history.queries.range(1, 1)[0].seq
        last, anchor = history.head_seq, history.environment.anchor()[0]
        kept = history.queries.count(1, anchor)
    assert 0 < kept < anchor
    with pages_of(tmp_path / "history") as file:
        trees = Walk(file, file.meta()).trees()
    spoil(tmp_path / "history", *(trees[name].root or 0 for name in (EVENTS_TREE, "meta")))
    target = tmp_path / "out.jsonl"
    done = salvage(tmp_path / "history", target, lambda: False)
    seqs = [found["seq"] for line in target.read_bytes().splitlines() if "seq" in (found := json.loads(line))]
    assert json.loads(target.read_bytes().splitlines()[0])["anchor"][0] in (0, anchor)
    assert done.events + done.missing == kept + last - anchor
    assert not done.missing or seqs[0] >= first


def test_pages_that_were_swapped_still_give_their_events(folder: Path) -> None:
    _, leaves = pages_of_events(folder)
    data = bytearray((folder / DATA).read_bytes())
    one, other = (slice(page * PAGE, (page + 1) * PAGE) for page in (leaves[1], leaves[5]))
    data[one], data[other] = data[other], data[one]
    (folder / DATA).write_bytes(data)
    done, events = salvaged(folder)
    assert (done.events, done.missing) == (EVENTS, 0)
    assert all(event["data"] is not None for event in events)


def test_data_that_were_changed_are_left_out(folder: Path) -> None:
    raw = (folder / DATA).read_bytes()
    at = raw.index(b'{"n":7,')
    (folder / DATA).write_bytes(raw[: at + 5] + b"8" + raw[at + 6 :])
    spoil(folder, 0)
    done, events = salvaged(folder)
    assert (done.events, done.without_data, done.whole) == (EVENTS, 1, False)
    assert [event["seq"] for event in events if event["data"] is None] == [8]


async def test_the_data_of_a_deleted_session_do_not_come_back(tmp_path: Path) -> None:
    folder = tmp_path / "history"
    async with opened(folder) as history:
        for number in range(60):
            with within(session="ses_secret" if number % 2 else "ses_open"):
                await history.append(note(number, text="CANARY" * 300 if number % 2 else "x" * 1800))
        with within(session="ses_secret"):
            await history.erase("ses_secret", SessionDeleted(by=1).event())
    assert b"CANARY" in (folder / DATA).read_bytes(), "a page that is free holds it still"
    root, leaves = pages_of_events(folder)
    for pages in ((), (root,), (0, 1), (root, leaves[1])):
        spoil(folder, *pages)
        done, events = salvaged(folder)
        assert "CANARY" not in json.dumps(events)
        assert done.events + done.missing == 61
        assert sum(event["session"] == "ses_open" and event["data"] is not None for event in events) > 15


def test_every_kind_of_damage_gives_a_file(tmp_path: Path, folder: Path) -> None:
    with pages_of(folder) as file:
        used_bytes = (file.meta().last_page + 1) * PAGE
    data = (folder / DATA).read_bytes()[:used_bytes]
    found = 0
    for seed in range(42):
        spoiled = put(tmp_path / "spoiled", damaged(data, seed))
        found += salvaged(spoiled)[0].events
        assert last_known(spoiled)[0] <= EVENTS
    assert found > 42 * EVENTS * 0.8
    for size in range(0, len(data), len(data) // 10):
        done, _ = salvaged(put(tmp_path / "cut", data[:size]))
        assert done.events <= EVENTS


def test_of_what_is_no_file_nothing_is_read(tmp_path: Path) -> None:
    (tmp_path / "history").mkdir()
    os.mkfifo(tmp_path / "history" / DATA)
    (tmp_path / "file").write_text("text")
    for folder in (tmp_path / "history", tmp_path / "file", tmp_path / "none"):
        done, events = salvaged(folder)
        assert (events, done.whole) == ([], False)
        assert last_known(folder) == (0, GENESIS)


def test_a_salvage_can_be_stopped_and_leaves_nothing(folder: Path) -> None:
    with pytest.raises(Stopped):
        salvage(folder, folder.with_suffix(".jsonl"), lambda: True)
    assert sorted(path.name for path in folder.parent.iterdir()) == ["history"]
    with pytest.raises(StorageError, match="could not be written"):
        salvage(folder, folder.parent / "nowhere" / "file.jsonl", lambda: False)


def test_a_walk_that_is_not_tolerant_says_what_is_torn(folder: Path) -> None:
    root, _ = pages_of_events(folder)
    spoil(folder, root)
    with pages_of(folder) as file:
        walk = Walk(file, file.meta())
        with pytest.raises(Torn, match=f"page {root} "):
            list(walk.leaves(walk.trees()[EVENTS_TREE]))


async def test_an_anchor_and_what_it_left_are_in_the_file(tmp_path: Path) -> None:
    folder = tmp_path / "history"
    async with opened(folder) as history:
        with history.environment.env.begin(write=True) as txn:
            history.environment.set_anchor(txn, 7, "a" * 64)
        gone = Change(state="sessions", key="ses_1", value={"n": 1})
        await history.append(note(1), changes=[gone])
    target = tmp_path / "out.jsonl"
    assert salvage(folder, target, lambda: False).whole
    assert json.loads(target.read_bytes().splitlines()[0])["anchor"] == [7, "a" * 64]
