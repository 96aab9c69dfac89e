"""The verification of the chain: each kind of tampering is found, at the right number."""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lightagentd.events.audit import verification
from lightagentd.events.audit.verification import Verification, verify
from lightagentd.events.model import GENESIS
from lightagentd.events.queries import StoredHistory
from lightagentd.events.store import layout
from lightagentd.events.store.layout import seq_key
from tests.events.stored import alter, note, opened, raw_events

COUNT = 12


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed history of 12 events, that no test changes."""
    folder = tmp_path_factory.mktemp("original") / "history"

    async def make() -> None:
        async with opened(folder) as history:
            await history.append(*(note(number, text="some text") for number in range(1, COUNT + 1)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "RESERVE_BYTES", 0)
        asyncio.run(make())
    return folder


@pytest.fixture
def folder(tmp_path: Path, original: Path) -> Path:
    """A closed history of 12 events."""
    return Path(shutil.copytree(original, tmp_path / "history"))


def verified(folder: Path) -> Verification:
    stored = StoredHistory(folder)
    try:
        return verify(stored.environment)
    finally:
        stored.close()


def rewritten(line: bytes, **changes: Any) -> bytes:
    """A header with some fields changed, written as the daemon writes it."""
    return json.dumps({**json.loads(line), **changes}, separators=(",", ":")).encode()


async def test_an_intact_chain_verifies_and_names_its_head(folder: Path) -> None:
    async with opened(folder) as history:
        last = history.queries.last()
        assert last is not None
        found = verify(history.environment)
        assert (found.ok, found.events, found.head_seq, found.head_hash) == (True, COUNT, COUNT, last.hash)
        assert (found.first_seq, found.began, found.checkpoints, found.notes) == (1, "start", 0, ())


async def test_an_empty_history_verifies(tmp_path: Path) -> None:
    async with opened(tmp_path / "history") as history:
        found = verify(history.environment)
        assert (found.ok, found.events, found.head_seq, found.head_hash) == (True, 0, 0, GENESIS)


@pytest.mark.parametrize("seq", range(1, COUNT + 1))
def test_a_flipped_bit_in_data_is_found_at_its_event(folder: Path, seq: int) -> None:
    alter(folder, seq, lambda line, data: line + b"\n" + data.replace(b"some", b"sole"))
    found = verified(folder)
    assert (found.ok, found.first_bad_seq, found.events) == (False, seq, seq - 1)
    assert f"event {seq} was altered: its data" in found.reason


@pytest.mark.parametrize("seq", range(1, COUNT))
@pytest.mark.parametrize("name", ["time", "type", "owner", "seq", "data_sha256", "prev", "trace_id"])
def test_a_changed_header_field_is_found_at_its_event(folder: Path, seq: int, name: str) -> None:
    value: Any = {"time": 1, "seq": 999, "owner": 0}.get(name, "0" * 63 + "1")
    alter(folder, seq, lambda line, data: rewritten(line, **{name: value}) + b"\n" + data)
    found = verified(folder)
    assert (found.ok, found.first_bad_seq) == (False, seq), found.reason


def test_every_flipped_bit_of_a_record_is_found_at_its_event(folder: Path) -> None:
    with raw_events(folder) as txn:
        record: bytes = txn.get(seq_key(6))
    for place in range(len(record)):
        flipped = bytearray(record)
        flipped[place] ^= 1 << place % 8
        with raw_events(folder) as txn:
            txn.put(seq_key(6), bytes(flipped))
        found = verified(folder)
        assert (found.ok, found.first_bad_seq) == (False, 6), (place, bytes(flipped), found.reason)


def test_a_last_event_that_no_longer_follows_is_blamed_on_the_one_before_or_itself(folder: Path) -> None:
    # With nothing after it there is no telling which of the two was changed: the first is named.
    alter(folder, COUNT, lambda line, data: rewritten(line, prev="0" * 64) + b"\n" + data)
    assert verified(folder).first_bad_seq == COUNT - 1


@pytest.mark.parametrize("seq", range(1, COUNT))
def test_a_dropped_record_is_found(folder: Path, seq: int) -> None:
    with raw_events(folder) as txn:
        assert txn.delete(seq_key(seq))
    found = verified(folder)
    assert (found.ok, found.first_bad_seq) == (False, seq)
    assert found.reason == f"event {seq} is missing: the next stored one is {seq + 1}"


@pytest.mark.parametrize("seq", range(1, COUNT))
def test_a_dropped_record_is_found_when_the_others_move_up(folder: Path, seq: int) -> None:
    with raw_events(folder) as txn:
        for number in range(seq, COUNT):
            txn.put(seq_key(number), txn.get(seq_key(number + 1)))
        txn.delete(seq_key(COUNT))
    found = verified(folder)
    assert (found.ok, found.first_bad_seq) == (False, seq)
    assert found.reason == f"the record at {seq} says that it is event {seq + 1}"


@pytest.mark.parametrize(("one", "other"), [(1, 2), (5, 6), (3, 11), (11, 12)])
def test_swapped_records_are_found(folder: Path, one: int, other: int) -> None:
    with raw_events(folder) as txn:
        first, second = txn.get(seq_key(one)), txn.get(seq_key(other))
        txn.put(seq_key(one), second)
        txn.put(seq_key(other), first)
    found = verified(folder)
    assert (found.ok, found.first_bad_seq) == (False, one)


@pytest.mark.parametrize("seq", range(2, COUNT))
def test_an_inserted_record_is_found_when_the_others_move_down(folder: Path, seq: int) -> None:
    with raw_events(folder) as txn:
        forged = txn.get(seq_key(seq)).replace(b'"message"', b'"forged!"')
        for number in range(COUNT, seq - 1, -1):
            txn.put(seq_key(number + 1), txn.get(seq_key(number)))
        txn.put(seq_key(seq), forged)
    found = verified(folder)
    assert (found.ok, found.first_bad_seq) == (False, seq)
    assert "inserted" in found.reason


@pytest.mark.parametrize("seq", range(1, COUNT))
def test_a_forged_record_with_right_hashes_is_found(folder: Path, seq: int) -> None:
    forged = b'{"n":0}'

    def forge(line: bytes, data: bytes) -> bytes:
        return rewritten(line, data_sha256=hashlib.sha256(forged).hexdigest()) + b"\n" + forged

    alter(folder, seq, forge)
    found = verified(folder)
    assert (found.ok, found.first_bad_seq) == (False, seq)
    assert "altered or replaced" in found.reason


@pytest.mark.parametrize(
    ("key", "before"),
    [(b"\0", 1), (seq_key(0), 1), (seq_key(5) + b"\0", 6), (b"\xff", COUNT + 1), (b"zzzzzzzzz", COUNT + 1)],
)
@pytest.mark.parametrize("batch", [256, 5, 1])
def test_a_record_under_a_foreign_key_is_found(
    folder: Path, key: bytes, before: int, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verification, "BATCH", batch)
    with raw_events(folder) as txn:
        txn.put(key, txn.get(seq_key(5)))
    found = verified(folder)
    assert (found.ok, found.first_bad_seq) == (False, before)
    assert "foreign key" in found.reason


@pytest.mark.parametrize("junk", [b"", b"\n", b"{}", b"[1]\n{}", b"null", b"\xff\xff\n{}", b"[" * 100_000])
def test_a_record_that_is_no_event_is_found(folder: Path, junk: bytes) -> None:
    alter(folder, 4, lambda line, data: junk)
    found = verified(folder)
    assert (found.ok, found.first_bad_seq) == (False, 4)
    assert "not an event" in found.reason


def cut(record: bytes) -> bytes:
    return record[: len(record) // 2]


def cut_by_one(record: bytes) -> bytes:
    return record[:-1]


@pytest.mark.parametrize("shorten", [cut, cut_by_one])
def test_a_truncated_record_is_found(folder: Path, shorten: Callable[[bytes], bytes]) -> None:
    alter(folder, 4, lambda line, data: shorten(line + b"\n" + data))
    assert verified(folder).first_bad_seq == 4


async def test_tampering_is_found_across_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(tmp_path / "history") as history:
        await history.append(*(note(number) for number in range(700)))
        assert verify(history.environment).events == 700
    for seq in (700, 513, 512, 257, 256, 255):
        alter(tmp_path / "history", seq, lambda line, data: line + b"\n" + b'{"n":-1}')
        assert verified(tmp_path / "history").first_bad_seq == seq
    monkeypatch.setattr(layout, "BATCH_BYTES", 1)
    assert verified(tmp_path / "history").first_bad_seq == 255
