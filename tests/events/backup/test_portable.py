"""Exports as lines of JSON, and stores made of them again: the same bytes, and every wrong line is named."""

from __future__ import annotations

import contextlib
import hashlib
import io
import itertools
import json
import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightagentd.cli.output import dump
from lightagentd.errors import Conflict, HistoryDamaged, ImportInvalid, NotFound
from lightagentd.events.audit.verification import verify
from lightagentd.events.backup import export_lines, importing
from lightagentd.events.backup.importing import install_export
from lightagentd.events.backup.portable import export, line
from lightagentd.events.backup.stored import result_as_owner, run_as_owner
from lightagentd.events.model import GENESIS, HEADER, dump_json
from lightagentd.events.queries import StoredHistory
from lightagentd.events.store.layout import SCHEMA_VERSION
from tests.events.backup.test_backup import records
from tests.events.backup.test_stored import STRANGER, as_root, owned
from tests.events.made import make
from tests.events.stored import alter

Lines = list[bytes]


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stopped daemon's state folder, that no test changes."""
    folder = tmp_path_factory.mktemp("portable") / "state"
    make(folder)
    return folder


@pytest.fixture(scope="module")
def whole(state: Path, tmp_path_factory: pytest.TempPathFactory) -> Lines:
    """The lines of its export."""
    return exported(state, tmp_path_factory.mktemp("export") / "export")


@pytest.fixture
def elsewhere(open_folder: Path) -> Path:
    """An empty state folder."""
    folder = open_folder / "elsewhere"
    folder.mkdir(mode=0o700)
    return folder


def exported(
    state: Path, path: Path, wanted: dict[str, Any] | None = None, with_state: bool | None = None
) -> Lines:
    lines = run_as_owner(state, export, str(state / "history"), wanted or {}, with_state)
    path.write_bytes(b"".join(piece for piece in lines if isinstance(piece, bytes)))
    return path.read_bytes().splitlines(keepends=True)


def imported(state: Path, data: bytes, *, force: bool = False) -> dict[str, Any]:
    path = state.parent / "to-import"
    path.write_bytes(data)
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        found: dict[str, Any] = result_as_owner(
            state, install_export, str(state), fd, "the file", 1000, force, pass_fds=[fd]
        )
    finally:
        os.close(fd)
    return found


def refused(state: Path, lines: Lines, *, number: int = 0, reason: str = "") -> str:
    with pytest.raises(ImportInvalid) as caught:
        imported(state, b"".join(lines))
    assert not (state / "history").exists()
    assert not (state / "history.installing").exists()
    if number:
        assert f"line {number} " in caught.value.message
    assert reason in caught.value.message
    return caught.value.message


def test_events_are_lines_as_lactl_prints_them(state: Path, whole: Lines) -> None:
    stored = StoredHistory(state / "history")
    try:
        shown = [dump(event.to_dict()) for event in stored.queries.range(limit=1000)]
    finally:
        stored.close()
    lines = [one.decode().removesuffix("\n") for one in whole[1 : len(shown) + 1]]
    differing = [at for at, (one, other) in enumerate(zip(lines, shown, strict=True)) if one != other]
    assert [set(json.loads(lines[at])) - set(json.loads(shown[at])) for at in differing] == [{"data_text"}]


def test_the_first_line_says_what_it_is_and_the_last_that_it_is_whole(state: Path, whole: Lines) -> None:
    first, last = json.loads(whole[0]), json.loads(whole[-1])
    assert (first["lightagentd_export"], first["whole"]) == (1, True)
    assert first["anchor"][0] == 10
    assert first["events"] == last["events"] == sum(b'"seq"' in one for one in whole)
    assert last["states"] == sum(one.startswith(b'{"state"') for one in whole) > 10
    assert last["head"] == [
        json.loads(whole[last["events"]])["seq"],
        json.loads(whole[last["events"]])["hash"],
    ]


def test_export_and_import_and_export_again_are_the_same_bytes(
    state: Path, whole: Lines, elsewhere: Path, tmp_path: Path
) -> None:
    found = imported(elsewhere, b"".join(whole))
    assert found["verified"]
    assert exported(elsewhere, tmp_path / "again") == whole
    one, other = records(elsewhere / "history"), records(state / "history")
    assert {b"anchor", b"schema_version"} <= one["meta"].keys()
    for name in other.keys() - {"meta"}:
        assert one[name] == other[name], name


def test_deleted_data_stay_deleted_and_kept_events_stay_kept(whole: Lines, elsewhere: Path) -> None:
    imported(elsewhere, b"".join(whole))
    stored = StoredHistory(elsewhere / "history")
    try:
        events = stored.queries.range(limit=1000)
        assert [event.seq for event in events if event.seq <= 10]
        assert all(
            event.data is None
            for event in events
            if event.session == "ses_b" and event.topic != "session.deleted"
        )
        assert verify(stored.environment).ok
    finally:
        stored.close()


def test_a_part_has_the_events_that_fit_and_is_no_history(
    state: Path, elsewhere: Path, tmp_path: Path
) -> None:
    lines = exported(state, tmp_path / "part", {"session": "ses_a", "topic": "agent"})
    events = [json.loads(one) for one in lines[1:-1]]
    assert events
    assert {(event["session"], event["topic"]) for event in events} == {("ses_a", "agent.message")}
    assert json.loads(lines[0])["whole"] is False
    refused(elsewhere, lines, number=1, reason="export of a part")


def test_state_is_left_out_and_put_in_as_wanted(state: Path, tmp_path: Path) -> None:
    without = exported(state, tmp_path / "a", {}, False)
    assert not any(one.startswith(b'{"state"') for one in without)
    assert json.loads(without[0])["whole"] is False
    some = exported(state, tmp_path / "b", {"session": "ses_a"}, True)
    assert any(one.startswith(b'{"state"') for one in some)


def test_a_damaged_event_ends_the_export(tmp_path: Path) -> None:
    history = make(tmp_path / "state")
    alter(history, 30, lambda *_: b"no event")
    with pytest.raises(HistoryDamaged):
        exported(history.parent, tmp_path / "export")


def change(number: int, **fields: Any) -> Callable[[Lines], Lines]:
    def changed(lines: Lines) -> Lines:
        value = {**json.loads(lines[number - 1]), **fields}
        value = {name: one for name, one in value.items() if one is not ...}
        return [*lines[: number - 1], line(value), *lines[number:]]

    return changed


def replaced(number: int, text: bytes) -> Callable[[Lines], Lines]:
    return lambda lines: [*lines[: number - 1], text + b"\n", *lines[number:]]


def last_state(text: bytes) -> Callable[[Lines], Lines]:
    return lambda lines: [*lines[:-2], text + b"\n", lines[-1]]


def swapped(lines: Lines) -> Lines:
    return [*lines[:20], lines[21], lines[20], *lines[22:]]


WRONG: dict[str, tuple[Callable[[Lines], Lines], int, str]] = {
    "empty": (lambda _: [], 1, "empty"),
    "no first line": (lambda lines: lines[1:], 1, "does not begin an export"),
    "another format": (change(1, lightagentd_export=2), 1, "does not begin an export"),
    "newer schema": (change(1, schema_version=99), 1, "newer than this program"),
    "schema of text": (change(1, schema_version="2"), 1, "schema_version"),
    "anchor of text": (change(1, anchor="10"), 1, "anchor"),
    "anchor before the first": (change(1, anchor=[0, "1" * 64]), 1, "anchor"),
    "another anchor": (change(1, anchor=[9, "1" * 64]), 0, "line"),
    "unknown key of the first line": (change(1, more=1), 1, "'more'"),
    "missing": (lambda lines: [*lines[:20], *lines[21:]], 21, "is missing before it"),
    "twice": (lambda lines: [*lines[:20], lines[19], *lines[20:]], 21, "stands there already"),
    "swapped": (swapped, 21, "is missing before it"),
    "cut off": (lambda lines: lines[:-1], 0, "was cut off"),
    "cut in a line": (lambda lines: [*lines[:20], lines[20][:50]], 21, "cut off"),
    "no JSON": (replaced(21, b"{"), 21, "no JSON"),
    "no object": (replaced(21, b"[1]"), 21, "no JSON object"),
    "blank": (replaced(21, b""), 21, "no JSON"),
    "no UTF-8": (replaced(21, b'{"seq": "\xff"}'), 21, "not UTF-8"),
    "deep": (replaced(21, b"[" * 100_000), 21, "nested"),
    "less deep": (replaced(21, b'{"a": ' + b"[" * 300 + b"]" * 300 + b"}"), 21, "nested"),
    "NaN": (replaced(21, b'{"seq": NaN}'), 21, "NaN"),
    "infinite": (replaced(21, b'{"seq": 1e999}'), 21, "too large"),
    "huge": (replaced(21, b'{"seq": ' + b"9" * 5000 + b"}"), 21, "no JSON"),
    "key twice": (replaced(21, b'{"seq": 1, "seq": 2}'), 21, "twice"),
    "unknown key": (change(21, more=1), 21, "'more'"),
    "key that is missing": (change(21, owner=...), 21, "'owner'"),
    "seq of text": (change(21, seq="20"), 21, "seq"),
    "seq of truth": (change(21, seq=True), 21, "seq"),
    "large seq": (change(21, seq=1 << 64), 21, "seq"),
    "owner of text": (change(21, owner="root"), 21, "owner"),
    "time of text": (change(21, time="now"), 21, "time"),
    "another time": (change(21, time=1), 21, "header"),
    "another topic": (change(21, topic="tool.web"), 21, "header"),
    "no topic": (change(21, topic="Tool!"), 21, "topic"),
    "other data": (change(21, data={"a": 1}), 21, "data"),
    "list as data": (change(21, data=[]), 21, "data"),
    "text of other data": (change(21, data_text='{"a":1}'), 21, "data_text"),
    "another hash": (change(21, hash="0" * 64), 21, "header"),
    "short hash": (change(21, prev="00"), 21, "prev"),
    "another prev": (change(21, prev="1" * 64), 21, "does not follow"),
    "lone surrogate": (change(21, agent="\ud800"), 21, "header"),
    "unknown state": (last_state(b'{"state": "nothing", "key": "a", "value": {}}'), 0, "unknown state"),
    "state without value": (last_state(b'{"state": "sessions", "key": "a"}'), 0, "'value'"),
    "state that is no object": (last_state(b'{"state": "sessions", "key": "a", "value": 1}'), 0, "no object"),
    "state without what it must have": (
        lambda lines: [
            *itertools.takewhile(lambda one: not one.startswith(b'{"state": "mail"'), lines),
            b'{"state": "prunings", "key": "zz", "value": {}}\n',
            lines[-1],
        ],
        0,
        "no entry of prunings",
    ),
    "state without key": (last_state(b'{"state": "sessions", "key": "", "value": {}}'), 0, "key of 0"),
    "state with a long key": (
        last_state(json.dumps({"state": "sessions", "key": "a" * 512, "value": {}}).encode()),
        0,
        "key of 512",
    ),
    "state twice": (lambda lines: [*lines[:-1], lines[-2], lines[-1]], 0, "twice"),
    "event behind state": (lambda lines: [*lines[:-1], lines[20], lines[-1]], 0, "stands behind"),
    "more behind the last": (lambda lines: [*lines, lines[20]], 0, "follows the last line"),
    "another count": (lambda lines: change(len(lines), events=1)(lines), 0, "the export says 1"),
    "another head": (lambda lines: change(len(lines), head=[1, "0" * 64])(lines), 0, "another head"),
    "a state less": (lambda lines: [*lines[:-2], lines[-1]], 0, "the export says"),
}


@pytest.mark.parametrize(("edit", "number", "reason"), WRONG.values(), ids=WRONG.keys())
def test_the_first_wrong_line_is_named(
    whole: Lines, elsewhere: Path, edit: Callable[[Lines], Lines], number: int, reason: str
) -> None:
    refused(elsewhere, edit(list(whole)), number=number, reason=reason)


def test_a_line_that_is_too_long_is_not_read(
    whole: Lines, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export_lines, "MAX_LINE_BYTES", 1 << 20)
    refused(elsewhere, [whole[0], b"x" * (3 << 20)], number=2, reason="longer than 1 MiB")


def test_a_kept_event_that_retention_does_not_list_is_found(whole: Lines, elsewhere: Path) -> None:
    kept = json.loads(whole[1])
    assert kept["seq"] <= 10
    header = {name: kept[name] for name in HEADER}
    header["agent"] = "other"
    kept = {**header, "data": kept["data"], "hash": hashlib.sha256(dump_json(header)).hexdigest()}
    with pytest.raises(HistoryDamaged, match="does not verify as a whole"):
        imported(elsewhere, b"".join([whole[0], line(kept), *whole[2:]]))
    assert not (elsewhere / "history").exists()


def test_what_was_cut_off_is_taken_when_that_is_forced(whole: Lines, elsewhere: Path) -> None:
    found = imported(elsewhere, b"".join(whole[:-3])[:-10], force=True)
    said = json.loads(whole[-1])
    assert (found["events"], found["states"]) == (said["events"], said["states"] - 3)
    assert "of state" in found["problem"] or "the row" in found["problem"]


def test_the_export_of_an_older_program_is_taken(elsewhere: Path) -> None:
    """Headers of schema version 1 have no caller; a salvage of a damaged store has no last line."""
    header: dict[str, Any] = {name: "" for name in HEADER if name != "caller"}
    data = {"n": 1}
    header |= {"seq": 1, "time": 5, "topic": "daemon.state", "type": "ready", "owner": None, "prev": GENESIS}
    header["data_sha256"] = hashlib.sha256(dump_json(data)).hexdigest()
    event = {**header, "caller": None, "data": data, "hash": hashlib.sha256(dump_json(header)).hexdigest()}
    first = {"lightagentd_export": 1, "schema_version": 1, "anchor": [0, GENESIS], "events": None, "time": 5}
    refused(elsewhere, [line(first), line(event)], reason="cut off")
    assert imported(elsewhere, line(first) + line(event), force=True)["verified"]


def test_an_empty_history_goes_there_and_back(elsewhere: Path, tmp_path: Path) -> None:
    first = {
        "lightagentd_export": 1,
        "schema_version": SCHEMA_VERSION,
        "whole": True,
        "anchor": [0, GENESIS],
        "events": 0,
        "time": 0,
    }
    last = {"lightagentd_export_end": 1, "events": 0, "states": 0, "head": [0, GENESIS]}
    lines = [line(first), line(last)]
    imported(elsewhere, b"".join(lines))
    assert exported(elsewhere, tmp_path / "again") == lines


def test_memory_stays_small_however_long_the_export_is(elsewhere: Path, tmp_path: Path) -> None:
    path = tmp_path / "large"
    _write_large(path, 4000, "t" * 40_000)
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def measured() -> Any:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        yield from install_export(str(elsewhere), fd, "the file", 0, False)
        yield {"kib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before}

    try:
        found = result_as_owner(elsewhere, measured, pass_fds=[fd])
    finally:
        os.close(fd)
    anonymous_kib = (
        found["kib"] - (elsewhere / "history" / "data.mdb").stat().st_size / 1024
    )  # which is mapped
    assert anonymous_kib < 80_000 < path.stat().st_size / 1024


def _write_large(path: Path, count: int, text: str) -> None:
    prev = GENESIS
    data = {"text": text}
    data_sha256 = hashlib.sha256(dump_json(data)).hexdigest()
    with path.open("wb") as file:
        first = {
            "lightagentd_export": 1,
            "schema_version": 2,
            "anchor": [0, GENESIS],
            "events": count,
            "time": 1,
        }
        file.write(line(first))
        for seq in range(1, count + 1):
            header = dict.fromkeys(HEADER, "") | {
                "seq": seq,
                "time": seq,
                "owner": None,
                "caller": None,
            }
            header |= {"topic": "tool.bash", "data_sha256": data_sha256, "prev": prev}
            prev = hashlib.sha256(dump_json(header)).hexdigest()
            file.write(line({**header, "data": data, "hash": prev}))
        file.write(line({"lightagentd_export_end": 1, "events": count, "states": 0, "head": [count, prev]}))


def test_with_a_daemon_nothing_is_imported(whole: Lines, elsewhere: Path) -> None:
    from lightagentd.host import state_lock

    fd = state_lock.hold(elsewhere)
    try:
        with pytest.raises(Conflict, match="is running"):
            imported(elsewhere, b"".join(whole))
    finally:
        os.close(fd)


@as_root
def test_what_is_imported_belongs_to_the_owner(whole: Lines, elsewhere: Path) -> None:
    imported(owned(elsewhere), b"".join(whole))
    assert {path.stat().st_uid for path in [elsewhere, *elsewhere.rglob("*")]} == {STRANGER}
    assert (elsewhere / "history").stat().st_mode & 0o777 == 0o700
    assert (elsewhere / "history" / "data.mdb").stat().st_mode & 0o777 == 0o600


def test_without_a_store_there_is_nothing_to_export(elsewhere: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        exported(elsewhere, tmp_path / "export")


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_whatever_is_in_a_line_there_is_an_error_or_a_history(
    whole: Lines, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    lines = list(whole[:30])
    at = data.draw(st.integers(0, len(lines) - 1))
    one = bytearray(lines[at])
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(one) - 1))
        one[place : place + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=6))
    lines[at] = bytes(one)
    folder = tmp_path_factory.mktemp("fuzz")
    taken = importing._Import(io.BytesIO(b"".join(lines)), "the file", cut_allowed=True)
    with contextlib.suppress(ImportInvalid):  # whose message names a line; anything else would be a defect
        taken.store_in(folder)
