"""What becomes of the changes of a watch: records, the buffer that is polled, and the batches for the bus."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise

import pytest

from lightagentd.toolkit.watching import outbox as box
from lightagentd.toolkit.watching.changes import Buffer, Change, Pending, Record
from lightagentd.toolkit.watching.outbox import Outbox


def coalesced(*changes: tuple[str, str]) -> list[tuple[str, list[str], int]]:
    pending = Pending()
    pending.add(Change(kind, path) for kind, path in changes)
    return [(record.path, record.kinds, record.count) for record in pending.take()]


def record(path: str = "/a/file", kinds: Sequence[str] = ("modify",)) -> Record:
    return Record(path=path, is_dir=False, kinds=[*kinds], found_by="kernel", time_us=1)


class TestPending:
    def test_writes_to_one_file_become_one_record_with_their_count(self) -> None:
        assert coalesced(*[("modify", "/f")] * 40) == [("/f", ["modify"], 40)]

    def test_a_file_that_is_made_and_written_is_one_record(self) -> None:
        kinds = ["create", "modify", "modify", "close_write", "modify", "close_write"]
        assert coalesced(*[(kind, "/f") for kind in kinds]) == [
            ("/f", ["create", "modify", "close_write"], 6)
        ]

    def test_what_comes_and_goes_is_not_left_out(self) -> None:
        assert coalesced(("create", "/f"), ("delete", "/f")) == [("/f", ["create", "delete"], 2)]

    def test_the_order_of_deletion_and_creation_is_kept(self) -> None:
        kinds = ["modify", "delete", "create", "modify"]
        assert coalesced(*[(kind, "/f") for kind in kinds]) == [("/f", kinds, 4)]

    def test_the_list_of_kinds_is_bounded_and_its_end_is_true(self) -> None:
        [(_, kinds, count)] = coalesced(*[("create", "/f"), ("delete", "/f")] * 500)
        assert len(kinds) <= 12
        assert kinds[-1] == "delete"
        assert count == 1000

    def test_files_stay_in_their_order_and_markers_apart(self) -> None:
        found = coalesced(("create", "/b"), ("overflow", "/"), ("create", "/a"), ("overflow", "/"))
        assert [path for path, _, _ in found] == ["/b", "/", "/a", "/"]

    def test_there_is_nothing_to_do_without_changes(self) -> None:
        pending = Pending()
        pending.add([])
        assert not pending.due
        pending.add([Change("create", "/f")])
        assert pending.due
        assert len(pending.take()) == 1
        assert not pending.due


class TestRecord:
    def test_names_that_are_not_text_are_escaped_and_kept_as_bytes(self) -> None:
        odd = record("/tmp/caf\udce9\n\x1b[31m")
        assert odd.to_dict()["path"] == "/tmp/caf\\xe9\\n\\x1b[31m"
        assert bytes.fromhex(odd.to_dict()["path_hex"]) == b"/tmp/caf\xe9\n\x1b[31m"
        assert "\n" not in odd.line()
        assert "\x1b" not in odd.line()
        json.dumps(odd.to_dict()).encode()

    def test_a_plain_name_is_only_itself(self) -> None:
        assert record().to_dict() == {"events": ["modify"], "path": "/a/file", "time_us": 1}


class TestBuffer:
    def test_pages_follow_each_other_without_a_gap(self) -> None:
        buffer = Buffer(run="r1", size=100)
        buffer.add(record(f"/{number}") for number in range(10))
        seen, cursor = [], ""
        while True:
            after, other_run = buffer.position(cursor)
            page = buffer.page(after, 3, other_run=other_run)
            seen += [one.path for one in page.records]
            cursor = page.cursor
            if not page.more:
                break
        assert seen == [f"/{number}" for number in range(10)]

    def test_without_a_cursor_a_poll_goes_on_after_the_last(self) -> None:
        buffer = Buffer(run="r1", size=100)
        buffer.add(record(f"/{number}") for number in range(4))
        assert [one.path for one in buffer.page(buffer.position("")[0], 3, other_run=False).records] == [
            "/0",
            "/1",
            "/2",
        ]
        assert [one.path for one in buffer.page(buffer.position("")[0], 3, other_run=False).records] == ["/3"]
        assert buffer.page(buffer.position("r1-2")[0], 9, other_run=False).records[0].path == "/2"

    def test_what_falls_out_is_counted_and_told(self) -> None:
        buffer = Buffer(run="r1", size=5)
        assert buffer.add(record(f"/{number}") for number in range(5)) == 0
        assert buffer.add(record(f"/{number}") for number in range(5, 8)) == 3
        page = buffer.page(0, 10, other_run=False)
        assert page.lost == 3
        assert [one.path for one in page.records] == ["/3", "/4", "/5", "/6", "/7"]
        assert buffer.dropped == 3
        assert buffer.page(buffer.position("")[0], 10, other_run=False).lost == 0

    def test_what_was_read_may_fall_out_without_a_word(self) -> None:
        buffer = Buffer(run="r1", size=5)
        buffer.add(record() for _ in range(5))
        buffer.page(0, 5, other_run=False)
        assert buffer.add(record() for _ in range(5)) == 0
        assert buffer.page(5, 10, other_run=False).lost == 0

    def test_long_names_make_short_pages_and_none_is_lost(self) -> None:
        buffer = Buffer(run="r1", size=5000)
        names = [f"/{number:04}" + "\udcff" * 4000 for number in range(300)]
        buffer.add(record(name) for name in names)
        seen: list[str] = []
        while len(seen) < 300:
            page = buffer.page(buffer.position("")[0], 500, other_run=False)
            assert len(json.dumps([one.to_dict() for one in page.records])) < 1 << 20
            assert page.records
            seen += [one.path for one in page.records]
        assert seen == names

    def test_a_cursor_of_an_earlier_run_is_noticed(self) -> None:
        buffer = Buffer(run="r2", size=5)
        buffer.add([record()])
        assert buffer.position("r1-900") == (0, True)
        assert buffer.position("r2-900") == (1, False)

    @pytest.mark.parametrize("cursor", ["x", "1", "-1", "r2-", "r2--1", "r2-\u0661", "../r-1", "r2-1e3"])
    def test_what_is_not_a_cursor_is_refused(self, cursor: str) -> None:
        with pytest.raises(ValueError, match="not a cursor"):
            Buffer(run="r2", size=5).position(cursor)


class TestOutbox:
    def test_the_first_change_goes_out_at_once_and_the_next_after_a_pause(self) -> None:
        outbox = Outbox(100.0)
        assert not outbox.due
        outbox.add([record("/a", ["create"])], 100.0)
        assert outbox.due == 100.0
        assert [one["path"] for one in outbox.take(100.0)["changes"]] == ["/a"]
        assert not outbox.due
        outbox.add([record("/b", ["create"])], 100.2)
        assert outbox.due == 101.0

    def test_a_storm_becomes_few_events_that_count_everything(self) -> None:
        outbox, now, events = Outbox(0.0), 0.0, []
        for number in range(600):
            now = number / 10
            outbox.add((record(f"/{number}/{one}", ["create"]) for one in range(100)), now)
            if (outbox.due or 0.0) <= now:
                events.append(outbox.take(now))
        events.append(outbox.take(now))
        told = sum(len(event["changes"]) + event.get("summary", {}).get("changes", 0) for event in events)
        assert told == 60_000
        assert len(events) <= 12
        assert all(len(event["changes"]) <= box.BATCH for event in events)
        assert sum(len(event["changes"]) for event in events) <= box.DETAILS + 60 * box.DETAILS_PER_S
        assert all(
            len(event.get("summary", {}).get("folders", ())) <= box.FOLDERS_COUNTED + 1 for event in events
        )

    def test_a_file_that_only_grows_is_told_ever_more_seldom(self) -> None:
        """The circle of a log that grows by each event about it must die down."""
        outbox, now, times = Outbox(0.0), 0.0, []
        while now < 3600:
            outbox.add([record("/var/log/syslog", ["modify"])], now)  # because the event before was logged
            assert outbox.due is not None
            now = max(now, outbox.due)
            outbox.take(now)
            times.append(now)
        pauses = [later - earlier for earlier, later in pairwise(times)]
        assert pauses[:3] == sorted(pauses[:3])
        assert pauses[-1] == box.LONGEST_PAUSE_S
        assert len(times) < 80

    def test_other_news_are_not_held_back_by_a_growing_file(self) -> None:
        outbox, now = Outbox(0.0), 0.0
        for _ in range(10):
            outbox.add([record("/log", ["modify"])], now)
            now = max(now, outbox.due or now)
            outbox.take(now)
        outbox.add([record("/log", ["modify"])], now)
        assert (outbox.due or 0) > now + 10
        outbox.add([record("/new", ["create"])], now)
        assert outbox.due == now + box.PAUSE_S

    def test_the_journals_own_growth_is_not_sent_but_its_rotation_is(self) -> None:
        outbox = Outbox(0.0)
        journal = "/var/log/journal/0123/system.journal"
        outbox.add([record(journal, ["modify"]), record(journal, ["attrib", "modify"])], 0.0)
        assert outbox.due is None
        outbox.add([record(journal, ["delete"])], 0.0)
        assert len(outbox.take(0.0)["changes"]) == 1

    def test_long_names_make_small_events(self) -> None:
        outbox = Outbox(0.0)
        outbox.add((record(f"/{number}" + "\udcff" * 4000, ["create"]) for number in range(300)), 0.0)
        data = outbox.take(0.0)
        assert len(json.dumps(data)) < 1 << 20
        assert len(data["changes"]) + data["summary"]["changes"] == 300

    def test_markers_are_never_left_to_a_summary(self) -> None:
        outbox = Outbox(0.0)
        outbox.add((record(f"/{one}", ["create"]) for one in range(5000)), 0.0)
        outbox.add([record("/", ["rescanned"])], 0.0)
        data = outbox.take(0.0)
        assert data["changes"][-1]["events"] == ["rescanned"]
        assert data["summary"]["changes"] == 5000 - box.BATCH
