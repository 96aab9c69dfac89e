"""Tampering with a store that daemons wrote: each kind is found, and named with the right number.

The store has three runs of a daemon with checkpoints, a deleted session, and an older backup of it. Each
test changes a copy behind the daemon's back, as whoever can who has the file and not the key.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import lmdb
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from lightagentd.errors import HistoryDamaged
from lightagentd.events.audit import verification
from lightagentd.events.audit.checkpoints import Checkpoints, KeptHead
from lightagentd.events.audit.signing import public_keys, signing_key
from lightagentd.events.audit.store_audit import audit_store
from lightagentd.events.audit.verification import Terms, Verification
from lightagentd.events.audit.verification import verify as verify_store
from lightagentd.events.context import within
from lightagentd.events.history import Change, History
from lightagentd.events.model import NewEvent, decode
from lightagentd.events.store import layout
from lightagentd.events.store.layout import INDEXES, Environment, index_prefix, seq_key
from lightagentd.events.store.retention import NO_EVIDENCE, Bounds, parts, prune, sweep
from lightagentd.events.types.daemon import DaemonStarting
from tests.events.stored import alter, note, opened, raw_events

SESSION = "ses_0123456789abcdef"


async def run_of_daemon(state: Path, *, prompts: int, delete: bool = False) -> None:
    """What a run of the daemon stores, as far as the verification hears of it."""
    history = History(state / "history", on_commit=lambda events: checkpoints.committed(events))
    checkpoints = Checkpoints(
        history, signing_key(state / "audit"), state / "audit", every_events=5, every_s=60
    )
    await history.start()
    try:
        await checkpoints.start()
        await history.append(DaemonStarting(message="lightagentd").event())
        for number in range(prompts):
            with within(session=SESSION, agent="ops", owner=0):
                await history.append(note(number, text=f"some text {number}"))
            await history.append(note(number, topic="agent.prompt", text="of no session"))
        await checkpoints.sign()
        if delete:
            with within(session=SESSION, agent="ops", owner=0):
                tombstone = NewEvent(topic="session.deleted", type="deleted", data={"by": 0})
            await history.erase(SESSION, tombstone)
        await history.append(NewEvent(topic="daemon.state", type="stopped", data={}))
        await checkpoints.close()
    finally:
        await history.close()


@dataclass(frozen=True)
class Store:
    """A state folder with a history, its key, and what it was earlier."""

    state: Path
    backup: Path

    @property
    def history(self) -> Path:
        return self.state / "history"

    def copied(self, to: Path) -> Store:
        return Store(Path(shutil.copytree(self.state, to / "state")), self.backup)

    def audit(self, **terms: Any) -> dict[str, Any]:
        """What `lactl audit verify` finds, without the journal."""
        wanted = Terms(**{"keys": {}, "expected": {}, **terms})
        found = list(audit_store(str(self.state), wanted, None))[-1]
        return dict(found["chain"])

    def verify(self, **terms: Any) -> Verification:
        """With the daemon's own key, and without what it keeps beside the history."""
        keys = public_keys([self.state / "audit" / "public.pem"])
        environment = Environment(self.history, read_only=True)
        try:
            return verify_store(environment, Terms(**{"keys": keys, **terms}))
        finally:
            environment.close()

    def records(self) -> list[tuple[bytes, bytes]]:
        with raw_events(self.history) as txn:
            return list(txn.cursor())

    def find(self, topic: str, kind: str) -> list[int]:
        """The numbers of the events of a kind."""
        headers = [json.loads(record.partition(b"\n")[0]) for _, record in self.records()]
        return [one["seq"] for one in headers if (one["topic"], one["type"]) == (topic, kind)]

    @property
    def head(self) -> int:
        return len(self.records())


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Store:
    state = tmp_path_factory.mktemp("original") / "state"
    state.mkdir()
    backup = state.parent / "backup"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "RESERVE_BYTES", 0)
        asyncio.run(run_of_daemon(state, prompts=8))
        shutil.copytree(state / "history", backup)
        asyncio.run(run_of_daemon(state, prompts=6, delete=True))
        asyncio.run(run_of_daemon(state, prompts=4))
    return Store(state, backup)


@pytest.fixture
def store(original: Store, tmp_path: Path) -> Store:
    return original.copied(tmp_path)


@contextlib.contextmanager
def raw(folder: Path, database: str) -> Iterator[Any]:
    """A write transaction on one database of the store, past the daemon."""
    environment = lmdb.open(str(folder), max_dbs=40, sync=False)
    try:
        with environment.begin(write=True) as txn:
            yield txn if database == "" else _Raw(txn, environment.open_db(database.encode(), txn=txn))
    finally:
        environment.close()


class _Raw:
    def __init__(self, txn: Any, db: Any) -> None:
        self._txn, self._db = txn, db

    def put(self, key: bytes, value: bytes) -> None:
        assert self._txn.put(key, value, db=self._db)

    def get(self, key: bytes) -> bytes:
        found: bytes = self._txn.get(key, db=self._db)
        return found

    def delete(self, key: bytes) -> None:
        assert self._txn.delete(key, db=self._db)

    def all(self) -> list[bytes]:
        return list(self._txn.cursor(self._db).iternext(values=False))


def rewrite_from(
    store: Store, seq: int, change: Callable[[dict[str, Any], dict[str, Any] | None], bool]
) -> int:
    """Write the chain anew from an event on, with right hashes and indexes, as whoever has the file and not
    the key would: `change` may alter header and data, and says whether the event stays. Gives the new head.
    """
    rows = store.records()
    prev = hashlib.sha256(rows[seq - 2][1].partition(b"\n")[0]).hexdigest() if seq > 1 else "0" * 64
    number = seq
    with raw_events(store.history) as txn:
        for key, record in rows[seq - 1 :]:
            txn.delete(key)
            line, _, data = record.partition(b"\n")
            header, body = json.loads(line), json.loads(data) if data else None
            if not change(header, body):
                continue
            header["seq"], header["prev"] = number, prev
            data = json.dumps(body, separators=(",", ":")).encode() if body is not None else b""
            if data:
                header["data_sha256"] = hashlib.sha256(data).hexdigest()
            line = json.dumps(header, separators=(",", ":")).encode()
            txn.put(seq_key(number), line + b"\n" + data)
            prev, number = hashlib.sha256(line).hexdigest(), number + 1
    make_indexes(store)
    return number - 1


def make_indexes(store: Store) -> None:
    """As the attacker would, who wants queries to find what he wrote."""
    environment = lmdb.open(str(store.history), max_dbs=40, sync=False)
    try:
        events = environment.open_db(b"events")
        indexes = {name: environment.open_db(name.encode()) for name in INDEXES}
        with environment.begin(write=True) as txn:
            for database in indexes.values():
                txn.drop(database, delete=False)
            for _, record in txn.cursor(events):
                event = decode(record)
                for name, key in layout.index_keys(event):
                    txn.put(key, event.topic.encode(), db=indexes[name])
    finally:
        environment.close()


def assert_found(found: Verification | dict[str, Any], seq: int, *words: str) -> None:
    said = found if isinstance(found, dict) else vars(found)
    assert not said["ok"], said
    assert said["first_bad_seq"] == seq, said
    for word in words:
        assert word in said["reason"], said["reason"]


def test_the_untouched_store_is_intact_and_says_who_signed_what(store: Store) -> None:
    found = store.audit(indexes=True)
    assert found["ok"], found
    assert found["events"] == found["head_seq"] == store.head
    assert found["erased"] == 14
    assert (found["trusted"], found["covered_seq"]) == (True, store.head - 1)
    assert found["checkpoints"] == len(store.find("daemon.checkpoint", "signed")) >= 9
    assert found["notes"] == ()


@pytest.mark.parametrize("part", ["header", "data"])
def test_a_flipped_byte_is_found_in_every_event(store: Store, part: str) -> None:
    for seq, (key, record) in enumerate(store.records(), 1):
        line, _, data = record.partition(b"\n")
        place = len(line) // 2 if part == "header" else len(line) + 1 + len(data) // 2
        if part == "data" and not data:
            continue
        flipped = bytearray(record)
        flipped[place] ^= 4
        with raw_events(store.history) as txn:
            txn.put(key, bytes(flipped))
        assert_found(store.audit(), seq)
        with raw_events(store.history) as txn:
            txn.put(key, record)


def test_a_flipped_byte_of_a_key_is_found(store: Store) -> None:
    for seq in (1, 7, store.head):
        with raw_events(store.history) as txn:
            record = txn.pop(seq_key(seq))
            txn.put(seq_key(seq ^ 1 << 40), record)
        assert_found(store.audit(), seq, "missing")
        with raw_events(store.history) as txn:
            txn.delete(seq_key(seq ^ 1 << 40))
            txn.put(seq_key(seq), record)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_flipped_byte_of_any_record_is_found(
    original: Store, tmp_path: Path, data: st.DataObject
) -> None:
    if not (tmp_path / "state").exists():
        original.copied(tmp_path)
    store = Store(tmp_path / "state", original.backup)
    records = store.records()
    seq = data.draw(st.integers(1, len(records)))
    record = records[seq - 1][1]
    place = data.draw(st.integers(0, len(record) - 1))
    link = record.index(b'"prev":"') + 8
    assume(seq < len(records) or not link <= place < link + 64)  # the next test
    flipped = bytearray(record)
    flipped[place] ^= data.draw(st.integers(1, 255))
    with raw_events(store.history) as txn:
        txn.put(seq_key(seq), bytes(flipped))
    try:
        assert_found(store.audit(), seq)
    finally:  # the next example needs it as it was
        with raw_events(store.history) as txn:
            txn.put(seq_key(seq), record)


def test_a_changed_link_of_the_newest_event_is_found_there(store: Store) -> None:
    """Nothing follows it, so the event before may as well be the altered one, and that is named."""
    key = seq_key(store.head)
    with raw_events(store.history) as txn:
        record = txn.get(key)
    link = record.index(b'"prev":"') + 8
    for place in range(link, link + 64, 7):
        flipped = bytearray(record)
        flipped[place] ^= 3
        with raw_events(store.history) as txn:
            txn.put(key, bytes(flipped))
        assert_found(store.audit(), store.head - 1, f"event {store.head} does not follow it")
    with raw_events(store.history) as txn:
        txn.put(key, record)


def test_a_dropped_event_is_found(store: Store) -> None:
    for seq in range(1, store.head + 1):
        with raw_events(store.history) as txn:
            record = txn.pop(seq_key(seq))
        assert_found(store.audit(), seq)
        with raw_events(store.history) as txn:
            txn.put(seq_key(seq), record)


def test_swapped_events_are_found(store: Store) -> None:
    with raw_events(store.history) as txn:
        one, other = txn.get(seq_key(6)), txn.get(seq_key(9))
        txn.put(seq_key(6), other)
        txn.put(seq_key(9), one)
    assert_found(store.audit(), 6, "says that it is event 9")


def test_an_inserted_and_a_doubled_event_are_found(store: Store) -> None:
    head = store.head
    with raw_events(store.history) as txn:
        txn.put(seq_key(head + 1), txn.get(seq_key(head)))
    assert_found(store.audit(), head, f"that event now lies at {head + 1}")
    with raw_events(store.history) as txn:
        for number in range(head, 5, -1):
            txn.put(seq_key(number + 1), txn.get(seq_key(number)))
        txn.put(seq_key(6), txn.get(seq_key(5)))
    assert_found(store.audit(), 5, "that event now lies at 6")


@pytest.mark.parametrize("count", [1, 2, 7])
def test_a_cut_end_is_found_by_what_the_daemon_keeps(store: Store, count: int) -> None:
    head = store.head
    with raw_events(store.history) as txn:
        for seq in range(head - count + 1, head + 1):
            txn.delete(seq_key(seq))
    make_indexes(store)
    assert_found(store.audit(), head - count + 1, "cut off", f"ends with event {head - count}")


def test_a_cut_end_is_found_by_a_hash_that_was_kept_elsewhere(store: Store) -> None:
    head = store.head
    record = store.records()[-1][1]
    known = {head: hashlib.sha256(record.partition(b"\n")[0]).hexdigest()}
    assert store.verify(expected=known).ok
    with raw_events(store.history) as txn:
        txn.delete(seq_key(head))
    make_indexes(store)
    (store.state / "audit" / "head.json").unlink()
    assert_found(store.audit(expected=known), head, "cut off")


def test_without_the_kept_head_it_is_said_that_the_end_is_not_known(store: Store) -> None:
    (store.state / "audit" / "head.json").unlink()
    found = store.audit()
    assert found["ok"]
    assert any("head.json" in note and "is not there" in note for note in found["notes"])


def test_a_cut_beginning_is_found(store: Store) -> None:
    with raw_events(store.history) as txn:
        for seq in range(1, 5):
            txn.delete(seq_key(seq))
    assert_found(store.audit(), 1, "missing")


def test_a_cut_beginning_with_a_forged_anchor_is_found(store: Store) -> None:
    record = store.records()[3][1]
    with raw_events(store.history) as txn:
        for seq in range(1, 5):
            txn.delete(seq_key(seq))
    anchor = [4, hashlib.sha256(record.partition(b"\n")[0]).hexdigest()]
    with raw(store.history, "meta") as meta:
        meta.put(b"anchor", json.dumps(anchor).encode())
    make_indexes(store)
    assert_found(store.audit(), 5, "no event says that those before were removed")


@pytest.mark.parametrize("anchor", [b'[-5,""]', b'[1208925819614629174706176,""]', b'[1e400,""]', b"[]"])
def test_an_anchor_that_names_no_event_is_damage(store: Store, anchor: bytes) -> None:
    with raw(store.history, "meta") as meta:
        meta.put(b"anchor", anchor)
    with pytest.raises(HistoryDamaged, match="anchor"):
        store.audit()


def test_an_older_backup_in_its_place_is_found_before_and_after_the_next_start(store: Store) -> None:
    shutil.rmtree(store.history)
    shutil.copytree(store.backup, store.history)
    head = store.head
    signed = KeptHead.read(store.state / "audit" / "head.json")
    assert signed is not None
    assert_found(store.audit(), head + 1, "cut off", f"an event {signed.seq}")
    asyncio.run(run_of_daemon(store.state, prompts=2))
    [broken] = store.find("daemon.checkpoint", "broken")
    assert broken == head + 2  # after the key
    assert_found(store.audit(), broken, "not the one that was signed last", f"ends at event {head}")


@pytest.mark.parametrize("seq", [4, 12, 25, 40])
def test_a_chain_written_anew_with_the_old_checkpoints_is_found(store: Store, seq: int) -> None:
    changed = []

    def change(header: dict[str, Any], data: dict[str, Any] | None) -> bool:
        if data and "text" in data:
            data["text"] = "nothing happened"
            changed.append(header["seq"])
        return True

    rewrite_from(store, seq, change)
    found = store.verify()
    assert not found.ok
    assert found.first_bad_seq >= changed[0]
    assert "written anew" in found.reason
    covered = [json.loads(record.partition(b"\n")[2])["seq"] for record in signed_records(store)]
    assert found.first_bad_seq == min(one for one in covered if one >= changed[0])


def signed_records(store: Store) -> list[bytes]:
    numbers = store.find("daemon.checkpoint", "signed")
    return [record for seq, (_, record) in enumerate(store.records(), 1) if seq in numbers]


def test_a_chain_written_anew_without_checkpoints_is_found_at_the_next_start_in_it(store: Store) -> None:
    rewrite_from(store, 4, lambda header, _: header["topic"] != "daemon.checkpoint")
    starts = [seq for seq in store.find("daemon.state", "starting") if seq > 4]
    assert_found(store.verify(), starts[0], "signed nothing")


def test_a_start_whose_checkpoint_was_left_out_is_found(store: Store) -> None:
    second = store.find("daemon.checkpoint", "key")[1]
    rewrite_from(store, second, lambda header, _: header["type"] != "signed")
    assert_found(store.verify(), second, "signed nothing of what it found")


def test_an_end_written_anew_without_a_start_is_found_by_what_the_daemon_keeps(store: Store) -> None:
    last = store.find("daemon.state", "starting")[-1]
    head = rewrite_from(store, last + 3, lambda header, _: header["topic"] != "daemon.checkpoint")
    assert store.verify().ok  # nothing in it says so
    assert_found(store.audit(), head + 1, "cut off")


def test_a_chain_signed_by_another_key_is_found(store: Store, tmp_path: Path) -> None:
    (tmp_path / "evil").mkdir()
    evil = signing_key(tmp_path / "evil")
    hashes: dict[int, str] = {}
    second = store.find("daemon.checkpoint", "key")[1]

    def change(header: dict[str, Any], data: dict[str, Any] | None) -> bool:
        if header["topic"] == "daemon.checkpoint" and data is not None:
            data["fingerprint"] = evil.fingerprint
            if header["type"] == "key":
                data["public_key"] = evil.public_text
        return True

    def sign() -> None:
        for key, record in store.records()[second - 1 :]:
            line, _, data = record.partition(b"\n")
            header, seq = json.loads(line), int.from_bytes(key, "big")
            if (header["topic"], header["type"]) == ("daemon.checkpoint", "signed"):
                body = json.loads(data)
                body["hash"] = hashes[body["seq"]]
                body["signature"] = evil.sign(body["seq"], body["hash"])
                data = json.dumps(body, separators=(",", ":")).encode()
                header["data_sha256"] = hashlib.sha256(data).hexdigest()
            header["prev"] = hashes[seq - 1]
            line = json.dumps(header, separators=(",", ":")).encode()
            hashes[seq] = hashlib.sha256(line).hexdigest()
            with raw_events(store.history) as txn:
                txn.put(key, line + b"\n" + data)

    rewrite_from(store, second, change)
    for key, record in store.records():
        hashes[int.from_bytes(key, "big")] = hashlib.sha256(record.partition(b"\n")[0]).hexdigest()
    sign()
    assert_found(store.verify(), second, "a key that is not trusted", evil.fingerprint[:16])
    assert store.verify(keys=None).ok  # without a key that is trusted nothing is wrong with it
    # The attacker's key lies beside the history, and an older copy of the right one elsewhere.
    keys = public_keys([store.state / "audit" / "public.pem"])
    shutil.copy(tmp_path / "evil" / "public.pem", store.state / "audit" / "public.pem")
    assert_found(store.audit(keys=keys), second)


def test_a_forged_checkpoint_is_found(store: Store) -> None:
    signed = store.find("daemon.checkpoint", "signed")[3]

    def change(header: dict[str, Any], data: dict[str, Any] | None) -> bool:
        if header["seq"] == signed and data is not None:
            data["signature"] = data["signature"][:-6] + "AAAA=="
        return int(header["seq"]) <= signed

    rewrite_from(store, signed, change)
    assert_found(store.verify(), signed, "was forged", "signature is wrong")


def test_data_that_was_taken_away_without_a_deletion_is_found(store: Store) -> None:
    seqs = [seq for seq in store.find("agent.message", "message") if seq > 50]
    for seq in (4, seqs[0]):
        record = store.records()[seq - 1][1]
        alter(store.history, seq, lambda line, data: line + b"\n")
        assert_found(store.audit(), seq, "its data is missing")
        with raw_events(store.history) as txn:
            txn.put(seq_key(seq), record)


def test_data_of_a_deleted_session_that_is_missing_after_the_deletion_is_found(store: Store) -> None:
    deleted = store.find("session.deleted", "deleted")[0]
    later = [seq for seq in store.find("agent.message", "message") if seq > deleted]
    alter(store.history, later[1], lambda line, data: line + b"\n")
    assert_found(store.audit(), later[1], "was not deleted after it")


def test_a_deletion_without_its_data_is_found(store: Store) -> None:
    deleted = store.find("session.deleted", "deleted")[0]
    alter(store.history, deleted, lambda line, data: line + b"\n")
    assert_found(store.audit(), deleted, "its data is missing")


def test_data_that_came_back_after_the_deletion_is_found(store: Store) -> None:
    message = store.find("agent.message", "message")[0]
    with raw_events(store.backup) as txn:
        record = txn.get(seq_key(message))
    with raw_events(store.history) as txn:
        txn.put(seq_key(message), record)
    deleted = store.find("session.deleted", "deleted")[0]
    assert_found(store.audit(), deleted, "took the data of 14 events", "only 13 have none")


def test_data_that_is_missing_beyond_what_the_deletion_says_is_found(store: Store) -> None:
    taken = 0

    def change(header: dict[str, Any], data: dict[str, Any] | None) -> bool:
        nonlocal taken
        if header["topic"] == "agent.prompt" and not taken and data is not None:
            header["session"], taken = SESSION, header["seq"]
        return bool(header["topic"] != "daemon.checkpoint")

    rewrite_from(store, 1, change)
    assert store.verify(keys=None).ok
    other = next(seq for seq in store.find("agent.prompt", "message"))
    alter(store.history, other, lambda line, data: line + b"\n")
    found = store.verify(keys=None)
    assert not found.ok
    assert "took the data of 14 events away, and 15 have none" in found.reason


def test_an_index_entry_that_was_taken_away_is_found(store: Store) -> None:
    with raw(store.history, "by_session") as index:
        key = next(key for key in index.all() if key.startswith(index_prefix(SESSION)))
        index.delete(key)
    seq = int.from_bytes(key[-8:], "big")
    assert store.audit()["ok"]
    assert_found(store.audit(indexes=True), seq, "missing in the index by_session")


def test_an_event_that_was_hidden_from_queries_by_time_is_found_without_looking_at_each(store: Store) -> None:
    with raw(store.history, "by_time") as index:
        key = index.all()[10]
        index.delete(key)
    assert_found(store.audit(), int.from_bytes(key[-8:], "big"), "missing in the index by_time")


def test_an_entry_of_an_index_that_no_event_has_is_found(store: Store) -> None:
    with raw(store.history, "by_agent") as index:
        index.put(index_prefix("ops") + seq_key(2), b"daemon.state")
    assert store.audit()["ok"]
    assert_found(store.audit(indexes=True), 2, "an entry for event 2")


def test_a_part_is_verified_from_the_checkpoint_before_it(store: Store) -> None:
    signed = store.find("daemon.checkpoint", "signed")
    seq = signed[4] + 2
    found = store.audit(since_seq=seq)
    assert (found["ok"], found["began"]) == (True, "checkpoint")
    assert found["first_seq"] == json.loads(signed_records(store)[4].partition(b"\n")[2])["seq"] + 1
    assert found["head_seq"] == store.head
    alter(store.history, 3, lambda line, data: line + b"\n" + b"{}")
    assert store.audit(since_seq=seq)["ok"]
    alter(store.history, seq, lambda line, data: line + b"\n" + b"{}")
    assert_found(store.audit(since_seq=seq), seq)


def test_a_part_before_the_first_checkpoint_begins_with_the_record_before_at_its_word(store: Store) -> None:
    found = store.audit(since_seq=3)
    assert (found["ok"], found["began"], found["first_seq"]) == (True, "word", 3)


def test_a_part_since_a_time(store: Store) -> None:
    time_us = json.loads(store.records()[29][1].partition(b"\n")[0])["time"]
    found = store.audit(since_us=time_us)
    assert found["ok"]
    assert 20 < found["first_seq"] <= 30


def test_a_key_that_signed_nothing_of_it_is_said(store: Store, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    signing_key(tmp_path / "other")
    found = store.audit(keys=public_keys([tmp_path / "other" / "public.pem"]))
    assert not found["ok"]
    assert "a key that is not trusted" in found["reason"]


def test_a_new_key_is_told_and_vouches_for_what_was_before(store: Store) -> None:
    (store.state / "audit" / "key.pem").unlink()
    head = store.head
    asyncio.run(run_of_daemon(store.state, prompts=1))
    found = store.audit()
    assert found["ok"], found
    assert any(f"from event {head + 1} on another key signs" in note for note in found["notes"])


async def test_what_retention_kept_is_compared_with_what_it_said(store: Store) -> None:
    with within(session="ses_00000000000000aa", agent="ops", owner=0):
        message = note(1, text="it stays")
    state = Change(state="sessions", key="ses_00000000000000aa", value={"id": "ses_00000000000000aa"})
    async with opened(store.history) as history:
        [kept] = await history.append(message, changes=[state])
        for number in range(150):
            await history.append(note(number, topic="agent.prompt"))
        bounds = Bounds(reason="size", to_seq=kept.seq + 10)
        await history.appending(partial(prune, history.environment, bounds))
        while history.environment.anchor()[0] < bounds.to_seq:
            await history.appending(partial(prune, history.environment, bounds))
    anchor = kept.seq + 10
    found = store.audit(indexes=True)
    assert found["ok"], found
    assert (found["began"], found["first_seq"]) == ("anchor", anchor + 1)
    assert found["kept"] >= 1
    folder, record = store.history, store.records()
    assert seq_key(kept.seq) in dict(record)
    alter(folder, kept.seq, lambda line, data: line + b"\n" + data.replace(b"stays", b"lies!"))
    assert_found(store.audit(), kept.seq, "its data does not have the hash")
    alter(folder, kept.seq, lambda line, data: line.replace(b"ops", b"oops") + b"\n" + data)
    assert_found(store.audit(), kept.seq, "not the one that retention kept")
    alter(folder, kept.seq, lambda line, data: line.replace(b"oops", b"ops") + b"\n")
    assert_found(store.audit(), kept.seq, "its data is missing")
    with raw_events(folder) as txn:
        txn.delete(seq_key(kept.seq))
    assert_found(store.audit(), kept.seq, f"event {kept.seq} is missing")
    with raw_events(folder) as txn:
        txn.put(seq_key(kept.seq), dict(record)[seq_key(kept.seq)])
        txn.put(seq_key(kept.seq - 1), dict(record)[seq_key(kept.seq)])
    make_indexes(store)
    assert_found(store.audit(), kept.seq - 1, "retention had removed")
    with raw_events(folder) as txn:
        txn.delete(seq_key(kept.seq - 1))
    make_indexes(store)
    assert store.audit()["ok"]
    with raw(folder, "meta") as meta:
        meta.put(b"anchor", json.dumps([anchor + 1, "0" * 64]).encode())
    assert not store.audit()["ok"]


async def test_a_history_that_changes_while_it_is_verified_is_intact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verification, "BATCH", 16)
    sessions: list[str] = []
    done = asyncio.Event()
    async with opened(tmp_path / "history") as history:

        async def write() -> None:
            for number in range(120):
                with within(session=f"ses_{number:016x}", agent="ops", owner=0):
                    sessions.append(f"ses_{number:016x}")
                    value = {"id": sessions[-1], "session": sessions[-1]}
                    state = Change(state="sessions", key=sessions[-1], value=value)
                    await history.append(*(note(one) for one in range(10)), changes=[state])
                await history.append(*(note(one, topic="agent.prompt") for one in range(10)))
                if number % 3 == 2:
                    await delete(sessions.pop(number % len(sessions)))
                bounds = Bounds(reason="size", to_seq=history.head_seq - 300)
                await history.appending(partial(prune, history.environment, bounds))
                for part in parts(history.queries.state("prunings")):
                    await history.appending(partial(sweep, history.environment, part, NO_EVIDENCE))
            done.set()

        async def delete(session: str) -> None:
            with within(session=session, agent="ops", owner=0):
                tombstone = NewEvent(topic="session.deleted", type="deleted", data={"by": 0})
            state = Change(state="sessions", key=session, value=None)
            await history.erase(session, tombstone, changes=[state])

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(write())
            for number in itertools.count():
                terms = Terms(expected=dict([history.head]), indexes=number % 3 == 0)
                found = await asyncio.to_thread(verify_store, history.environment, terms)
                assert found.ok, found
                if done.is_set():
                    break
        assert history.environment.anchor()[0] > 100
        assert found.kept > 0
        assert verify_store(history.environment, Terms(indexes=True)).ok
