"""The comparison of the history with the journal: what agrees, what does not, and who is believed."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from lightagentd.events.audit import journal_audit
from lightagentd.events.audit.journal_audit import JournalAudit, Run, compare
from lightagentd.events.journal.entry import gap_fields, journal_fields
from lightagentd.events.model import Event, NewEvent
from lightagentd.events.queries import StoredHistory
from lightagentd.events.store.layout import Environment, seq_key
from tests.events.stored import note, opened, raw_events

UID = 977
COUNT = 40
Entry = dict[str, Any]
OLD_US = 1_700_000_000_000_000


def sent(fields: dict[str, str], *, unit: str = "lightagentd.service", uid: int = UID, at: int = 0) -> Entry:
    """An entry as journalctl(1) prints it."""
    return {
        "__REALTIME_TIMESTAMP": str(OLD_US + at),
        "_SYSTEMD_UNIT": unit,
        "_UID": str(uid),
        "_PID": "123",
        "_EXE": "/usr/bin/python3.13",
        **fields,
    }


def entries_of(events: list[Event]) -> list[Entry]:
    return [sent(journal_fields(event), at=event.seq) for event in events]


def lines_of(entries: list[Entry]) -> io.BytesIO:
    return io.BytesIO(b"".join(json.dumps(entry).encode() + b"\n" for entry in entries))


@pytest.fixture
async def folder(tmp_path: Path) -> Path:
    """A closed history of 40 old events."""
    async with opened(tmp_path / "history") as history:
        for number in range(1, COUNT + 1):
            event = note(number)
            await history.append(
                NewEvent(topic=event.topic, type=event.type, data=event.data, time_us=OLD_US + number)
            )
    return tmp_path / "history"


def events_in(folder: Path) -> list[Event]:
    stored = StoredHistory(folder)
    try:
        return stored.queries.range(1, 10_000)
    finally:
        stored.close()


def audit(folder: Path, entries: list[Entry] | io.BytesIO, **options: Any) -> JournalAudit:
    environment = Environment(folder, read_only=True)
    try:
        lines = lines_of(entries) if isinstance(entries, list) else entries
        return compare(environment, lines, uid=UID, **options)
    finally:
        environment.close()


def shown(runs: list[Run]) -> list[tuple[int, int, str]]:
    return [(run.first_seq, run.last_seq, run.why) for run in runs]


def test_equal_ones_agree_event_for_event(folder: Path) -> None:
    found = audit(folder, entries_of(events_in(folder)))
    assert (found.entries, found.matched, found.first_seq, found.last_seq) == (COUNT, COUNT, 1, COUNT)
    assert (found.runs, found.lacking, found.forged, found.rotated) == ([], [], 0, 0)


def test_the_order_of_entries_and_doubles_do_not_matter(folder: Path) -> None:
    entries = entries_of(events_in(folder))
    found = audit(folder, [*reversed(entries), *entries[3:9]])
    assert (found.runs, found.lacking, found.matched) == ([], [], COUNT + 6)


@pytest.mark.parametrize("bits", [1, 7, 8, 9, 64])
def test_what_the_journal_lacks_is_told_by_its_rows(folder: Path, bits: int) -> None:
    gone = {seq for seq in range(2, COUNT) if seq // bits % 2}
    entries = [one for one in entries_of(events_in(folder)) if int(one["LIGHTAGENT_SEQ"]) not in gone]
    found = audit(folder, entries)
    lacking = {seq for run in found.lacking for seq in range(run.first_seq, run.last_seq + 1)}
    assert lacking == gone
    assert {run.why for run in found.lacking} <= {"unknown"}
    assert not found.runs


def test_events_before_the_journals_oldest_entry_were_rotated_away(folder: Path) -> None:
    found = audit(folder, entries_of(events_in(folder))[25:])
    assert (found.rotated, found.lacking, found.first_seq) == (25, [], 26)


def test_a_gap_that_the_daemon_told_is_known(folder: Path) -> None:
    entries = entries_of(events_in(folder))
    told = sent(gap_fields(11, 15, 5))
    found = audit(folder, [*entries[:9], *entries[16:20], told, *entries[20:]])
    assert shown(found.lacking) == [(10, 10, "unknown"), (11, 15, "gap"), (16, 16, "unknown")]
    forged = sent(gap_fields(1, COUNT, COUNT), unit="evil.service")
    found = audit(folder, [*entries[:9], forged, *entries[16:]])
    assert shown(found.lacking) == [(10, 16, "unknown")]


def test_the_newest_events_wait_or_were_never_sent(folder: Path) -> None:
    entries = entries_of(events_in(folder))
    found = audit(folder, entries[:-3])
    assert shown(found.lacking) == [(COUNT - 2, COUNT, "ended")]


async def test_new_events_may_be_on_their_way(folder: Path) -> None:
    entries = entries_of(events_in(folder))
    async with opened(folder) as history:
        await history.append(note(1), note(2))
    assert shown(audit(folder, entries).lacking) == [(COUNT + 1, COUNT + 2, "waiting")]


async def test_what_was_not_sent_before_a_start_is_told(folder: Path) -> None:
    async with opened(folder) as history:
        await history.append(NewEvent(topic="daemon.checkpoint", type="key", data={}), note(1))
    entries = entries_of(events_in(folder))
    found = audit(folder, [*entries[: COUNT - 4], *entries[COUNT:]])
    assert shown(found.lacking) == [(COUNT - 3, COUNT, "ended")]


@pytest.mark.parametrize("batch", [256, 7, 1])
def test_another_hash_and_an_event_that_is_gone_are_found(
    folder: Path, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_audit, "_BATCH", batch)
    entries = entries_of(events_in(folder))
    with raw_events(folder) as txn:
        for seq in (38, 39, 40):
            txn.delete(seq_key(seq))
        for seq in (17, 18):
            txn.put(seq_key(seq), txn.get(seq_key(seq)).replace(b'"daemon"', b'"demon!"'))
    found = audit(folder, entries)
    assert shown(found.runs) == [(17, 18, "different"), (38, 40, "missing")]
    assert found.runs[0].time_us == OLD_US + 17
    assert found.matched == COUNT - 5


def test_a_checkpoint_in_the_journal_speaks_for_the_event_that_it_covers(folder: Path) -> None:
    events = events_in(folder)
    said = {"LIGHTAGENT_CHECKPOINT_SEQ": "12", "LIGHTAGENT_CHECKPOINT_HASH": "0" * 64}
    entry = sent({**journal_fields(events[20]), **said})
    assert shown(audit(folder, [entry]).runs) == [(12, 12, "different")]
    entry["LIGHTAGENT_CHECKPOINT_HASH"] = events[11].hash
    assert not audit(folder, [entry]).runs


@pytest.mark.parametrize(
    ("unit", "uid"),
    [
        ("evil.service", UID),
        ("lightagentd.service", 1000),
        ("lightagent-observe@ops.service", UID),
        ("user@1000.service", 1000),
        ("", 0),
    ],
)
def test_entries_of_others_are_listed_and_not_believed(folder: Path, unit: str, uid: int) -> None:
    events = events_in(folder)
    forged = journal_fields(events[4]) | {"LIGHTAGENT_HASH": "0" * 64, "LIGHTAGENT_SEQ": "99"}
    found = audit(folder, [*entries_of(events), sent(forged, unit=unit, uid=uid, at=7)])
    assert (found.runs, found.matched, found.forged) == ([], COUNT, 1)
    assert found.forged_entries == [
        {
            "time_us": OLD_US + 7,
            "unit": unit,
            "uid": str(uid),
            "pid": "123",
            "exe": "/usr/bin/python3.13",
            "seq": "99",
            "topic": "agent.message",
            "type": "message",
        }
    ]


def test_our_other_units_speak_of_agents_and_of_no_event(folder: Path) -> None:
    fields = {"LIGHTAGENT_AGENT": "ops", "LIGHTAGENT_SESSION": "ses_1"}
    unit = "lightagent-triage@nginx.service"
    assert audit(folder, [sent(fields, unit=unit, uid=0)]).forged == 0
    assert audit(folder, [sent({**fields, "LIGHTAGENT_SEQ": "1"}, unit=unit, uid=0)]).forged == 1
    assert audit(folder, [sent(fields, unit="evil.service")]).forged == 1


def test_many_forged_entries_are_counted_and_some_of_them_listed(folder: Path) -> None:
    found = audit(folder, [sent({"LIGHTAGENT_SEQ": str(seq)}, unit="x.service") for seq in range(1000)])
    assert (found.forged, len(found.forged_entries)) == (1000, 100)


@pytest.mark.parametrize(
    "fields",
    [
        {"LIGHTAGENT_SEQ": ["1", "2"], "LIGHTAGENT_HASH": None},
        {"LIGHTAGENT_SEQ": "-1"},
        {"LIGHTAGENT_SEQ": "\u0661"},
        {"LIGHTAGENT_SEQ": None, "LIGHTAGENT_MISSING_FROM": "9", "LIGHTAGENT_MISSING_TO": "3"},
        {"LIGHTAGENT_MISSING_FROM": "x", "LIGHTAGENT_MISSING_TO": [1]},
        {"LIGHTAGENT_TOPIC": [1, 2, 3], "LIGHTAGENT_SEQ": 4},
    ],
)
def test_odd_entries_break_nothing(folder: Path, fields: dict[str, Any]) -> None:
    events = events_in(folder)
    found = audit(folder, [*entries_of(events), sent(fields), sent(fields, unit="evil.service")])
    assert (found.runs, found.lacking, found.matched, found.forged) == ([], [], COUNT, 1)


def test_a_number_beyond_all_keys_is_one_that_the_history_lacks(folder: Path) -> None:
    found = audit(folder, [sent({"LIGHTAGENT_SEQ": str(1 << 70), "LIGHTAGENT_HASH": "x"})])
    assert shown(found.runs) == []
    assert found.entries == 0


def test_lines_that_are_no_entries_and_endless_ones_break_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_audit, "_LINE_BYTES", 2000)
    good = lines_of(entries_of(events_in(folder))).getvalue()
    junk = b'{"LIGHTAGENT_SEQ":\n[1,"LIGHTAGENT_"]\n"LIGHTAGENT_"\n\xff"LIGHTAGENT_\n'
    long = b'{"LIGHTAGENT_SEQ":"1","x":"' + b"x" * 5000 + b'"}\n'
    found = audit(folder, io.BytesIO(junk + long + good + b'{"LIGHTAGENT_SEQ":"1"'))
    assert (found.runs, found.matched, found.forged) == ([], COUNT, 0)


@pytest.mark.parametrize("how", ["installed", "set_aside"])
async def test_entries_of_a_history_that_was_replaced_are_explained_by_the_event_about_it(
    folder: Path, how: str
) -> None:
    former = events_in(folder)
    with raw_events(folder) as txn:
        for seq in range(31, COUNT + 1):
            txn.delete(seq_key(seq))
    names = {"installed": ("seq", "hash"), "set_aside": ("last_seq", "last_hash")}[how]
    data = dict(zip(names, (30, former[29].hash), strict=True))
    async with opened(folder) as history:
        await history.append(NewEvent(topic="daemon.history", type=how, data=data))
        for number in range(20):
            await history.append(note(number))
    events = events_in(folder)
    found = audit(folder, [*entries_of(former), *entries_of(events[30:])])
    assert (found.runs, found.former) == ([], 10)
    # An entry that comes after it is not explained.
    other = sent({**journal_fields(events[40]), "LIGHTAGENT_HASH": "0" * 64})
    found = audit(folder, [*entries_of(former), *entries_of(events[30:]), other])
    assert shown(found.runs) == [(41, 41, "different")]
    # An entry about such an event that is not the history's own explains nothing.
    alike = {**entries_of(events[30:31])[0], "LIGHTAGENT_HASH": "0" * 64}
    assert shown(audit(folder, [*entries_of(former), alike]).runs) == [(31, 40, "different")]
    # Without that event nothing explains them.
    found = audit(folder, entries_of(former))
    assert shown(found.runs) == [(31, 40, "different")]


def test_a_part_is_compared_from_an_event_or_a_time_on(folder: Path) -> None:
    entries = entries_of(events_in(folder))
    entries[3]["LIGHTAGENT_HASH"] = "0" * 64
    assert shown(audit(folder, entries).runs) == [(4, 4, "different")]
    found = audit(folder, entries, since_seq=10)
    assert (found.runs, found.matched, found.rotated) == ([], COUNT - 9, 0)
    assert not audit(folder, entries, since_us=OLD_US + 5).runs


async def test_events_that_retention_removed_are_no_difference(folder: Path) -> None:
    events = events_in(folder)
    async with opened(folder) as history:
        environment = history.environment
        with environment.env.begin(write=True) as txn:
            environment.set_anchor(txn, 20, events[19].hash)
            for seq in range(1, 21):
                txn.delete(seq_key(seq), db=environment.db["events"])
    found = audit(folder, entries_of(events))
    assert (found.runs, found.lacking, found.removed, found.matched) == ([], [], 19, 21)
    altered = entries_of(events)
    altered[19]["LIGHTAGENT_HASH"] = "0" * 64
    assert shown(audit(folder, altered).runs) == [(20, 20, "different")]


async def test_a_long_history_is_compared(tmp_path: Path) -> None:
    async with opened(tmp_path / "history") as history:
        for _ in range(20):
            await history.append(*(note(number) for number in range(500)))
    entries = entries_of(events_in(tmp_path / "history"))
    del entries[7000:7003]
    found = audit(tmp_path / "history", entries)
    assert (found.runs, found.matched) == ([], 9997)
    assert [(run.first_seq, run.last_seq) for run in found.lacking] == [(7001, 7003)]
