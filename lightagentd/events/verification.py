"""The verification of the chain: which stored record is the first that is not what it was.

Each record's header names the hash of the header before it and of its own data (see `model`). A record
is read as bytes, so that the hashes are those of what lies on disk. What is not found here: records cut
off at the end, a chain that was written anew from some record to its end, and data that was removed, which
is allowed. The first two show when the head's hash is compared with one that was kept elsewhere.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from itertools import islice
from typing import Any

from lightagentd.events.layout import BATCH, EVENTS, Environment, bounded, seq_key
from lightagentd.events.model import GENESIS


@dataclass(frozen=True, kw_only=True)
class Verification:
    """What `verify` found: `ok`, or the first record that is not what it was."""

    ok: bool
    events: int
    first_bad_seq: int = 0
    reason: str = ""
    head_hash: str = GENESIS


class _BadRecord(Exception):
    """Where the chain breaks."""

    def __init__(self, seq: int, reason: str) -> None:
        super().__init__(reason)
        self.seq = seq
        self.reason = reason


def verify(environment: Environment) -> Verification:
    """Walk the whole chain and name the first record that was altered, dropped, swapped or inserted.

    Events that are appended meanwhile are verified too. Raises StorageError when the store cannot be read.
    """
    links = [GENESIS, GENESIS]  # the hash that the next record must name, and before it the one before that
    count = 0
    key = b"\0"  # sorts before every other key
    while True:
        with environment.reading() as txn, txn.cursor(environment.db[EVENTS]) as cursor:
            rows = list(bounded(islice(cursor, BATCH))) if cursor.set_range(key) else []
        for found, record in rows:
            try:
                line = _check(environment, found, record, count + 1, links)
            except _BadRecord as bad:
                return Verification(
                    ok=False, events=count, first_bad_seq=bad.seq, reason=bad.reason, head_hash=links[0]
                )
            links = [hashlib.sha256(line).hexdigest(), links[0]]
            count += 1
        if not rows:
            return Verification(ok=True, events=count, head_hash=links[0])
        key = rows[-1][0] + b"\0"


def _check(environment: Environment, key: bytes, record: bytes, seq: int, links: list[str]) -> bytes:
    """The header's bytes of the record that must be number `seq`. Raises _BadRecord."""
    if key != seq_key(seq):
        if len(key) != 8 or key < seq_key(seq):
            raise _BadRecord(
                seq, f"a record with the foreign key {key.hex()} was inserted before event {seq}"
            )
        raise _BadRecord(seq, f"event {seq} is missing: the next stored one is {int.from_bytes(key, 'big')}")
    line, _, data = record.partition(b"\n")
    header = _header(line, seq)
    if header["seq"] != seq:
        if seq > 1 and header["seq"] == seq - 1 and header["prev"] == links[1]:
            raise _BadRecord(
                seq - 1, f"a record was inserted as event {seq - 1}: that event now lies at {seq}"
            )
        raise _BadRecord(seq, f"the record at {seq} says that it is event {header['seq']}")
    if header["prev"] != links[0]:
        if seq == 1 or _next_names(environment, seq) not in (None, hashlib.sha256(line).hexdigest()):
            raise _BadRecord(seq, f"event {seq} was altered: it does not follow the event before it")
        raise _BadRecord(seq - 1, f"event {seq - 1} was altered or replaced: event {seq} does not follow it")
    if data and hashlib.sha256(data).hexdigest() != header["data_sha256"]:
        raise _BadRecord(
            seq, f"event {seq} was altered: its data does not have the hash that its header names"
        )
    return line


def _header(line: bytes, seq: int) -> dict[str, Any]:
    try:
        header = json.loads(line)
        if {"seq", "prev", "data_sha256"} <= header.keys():
            return dict(header)
    except (ValueError, AttributeError, RecursionError) as err:
        raise _BadRecord(seq, f"the record at {seq} is not an event: {err}") from err
    raise _BadRecord(seq, f"the record at {seq} is not an event: its header is not complete")


def _next_names(environment: Environment, seq: int) -> str | None:
    """The hash that the record after number `seq` names as the one before it, if there is such a record."""
    with environment.reading() as txn:
        record = txn.get(seq_key(seq + 1), db=environment.db[EVENTS])
    if record is None:
        return None
    try:
        return str(_header(record.partition(b"\n")[0], seq + 1)["prev"])
    except _BadRecord:
        return None


def verify_tail(environment: Environment, count: int) -> Verification:
    """As `verify`, but of the newest `count` events alone; the record before them is taken at its word.

    Raises StorageError.
    """
    with environment.reading() as txn, txn.cursor(environment.db[EVENTS]) as cursor:
        newest = int.from_bytes(cursor.key(), "big") if cursor.last() else 0
        first = max(1, newest - count + 1)
        before = txn.get(seq_key(first - 1), db=environment.db[EVENTS]) if first > 1 else None
        rows = list(islice(cursor, count)) if cursor.set_range(seq_key(first)) else []
    links = [GENESIS, GENESIS]
    if before is not None:
        links[0] = hashlib.sha256(before.partition(b"\n")[0]).hexdigest()
    for number, (key, record) in enumerate(rows):
        try:
            line = _check(environment, key, record, first + number, links)
        except _BadRecord as bad:
            return Verification(
                ok=False, events=number, first_bad_seq=bad.seq, reason=bad.reason, head_hash=links[0]
            )
        links = [hashlib.sha256(line).hexdigest(), links[0]]
    return Verification(ok=True, events=len(rows), head_hash=links[0])
