"""Changed records: the error of all checks, and the close examination of one record."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from lightagentd.events.model import Event, decode
from lightagentd.events.store.layout import EVENTS, Environment, seq_key


class BadRecord(Exception):
    """The number of the bad event, and a sentence about it without a full stop."""

    def __init__(self, seq: int, reason: str) -> None:
        super().__init__(reason)
        self.seq = seq
        self.reason = reason


def decoded(seq: int, record: bytes) -> Event:
    """The event in a record with untrusted bytes. Raises BadRecord."""
    try:
        return decode(record)
    except ValueError as err:
        raise BadRecord(seq, f"the record at {seq} is not an event: {err}") from err


def record_of(environment: Environment, seq: int) -> bytes | None:
    """The stored bytes of an event."""
    with environment.reading() as txn:
        found: bytes | None = txn.get(seq_key(seq), db=environment.db[EVENTS])
    return found


def hash_of(record: bytes) -> str:
    """The hash of an event, computed from the header's bytes in its record."""
    return hashlib.sha256(record.partition(b"\n")[0]).hexdigest()


def hash_at(environment: Environment, seq: int) -> str:
    """The hash of an event by its number, also of the anchor; empty for an event that is not there."""
    anchor_seq, anchor_hash = environment.anchor()
    if seq == anchor_seq:
        return anchor_hash
    record = record_of(environment, seq)
    return "" if record is None else hash_of(record)


def text_in(data: dict[str, Any], name: str) -> str:
    """A field that must be text; empty when it has another type."""
    value = data.get(name)
    return value if isinstance(value, str) else ""


def checked(
    environment: Environment,
    key: bytes,
    line: bytes,
    data: bytes,
    seq: int,
    links: tuple[str, str],
    first: int,
) -> dict[str, Any]:
    """The header of the record with number `seq`. `links` are the hashes of the two records before it. Raises
    BadRecord.
    """
    if key != seq_key(seq):
        if len(key) != 8 or key < seq_key(seq):
            raise BadRecord(
                seq, f"a record with the foreign key {key[:20].hex()} was inserted before event {seq}"
            )
        raise BadRecord(seq, f"event {seq} is missing: the next stored one is {int.from_bytes(key, 'big')}")
    header = header_of(line, seq)
    if header["seq"] != seq or type(header["seq"]) is not int:
        if seq > first and header["seq"] == seq - 1 and header["prev"] == links[1]:
            raise BadRecord(
                seq - 1, f"a record was inserted as event {seq - 1}: that event now lies at {seq}"
            )
        raise BadRecord(seq, f"the record at {seq} says that it is event {str(header['seq'])[:40]}")
    if header["prev"] != links[0]:
        if seq == first or _next_names(environment, seq) not in (None, hashlib.sha256(line).hexdigest()):
            raise BadRecord(seq, f"event {seq} was altered: it does not follow the event before it")
        raise BadRecord(seq - 1, f"event {seq - 1} was altered or replaced: event {seq} does not follow it")
    if data and hashlib.sha256(data).hexdigest() != header["data_sha256"]:
        raise BadRecord(
            seq, f"event {seq} was altered: its data does not have the hash that its header names"
        )
    return header


def header_of(line: bytes, seq: int) -> dict[str, Any]:
    """The header in a record's first line. Raises BadRecord."""
    try:
        header = json.loads(line)
        if {"seq", "prev", "data_sha256"} <= header.keys():
            return dict(header)
    except (ValueError, AttributeError, TypeError, RecursionError) as err:
        raise BadRecord(seq, f"the record at {seq} is not an event: {err}") from err
    raise BadRecord(seq, f"the record at {seq} is not an event: its header is not complete")


def _next_names(environment: Environment, seq: int) -> str | None:
    """The previous hash that the record after number `seq` names, if there is such a record."""
    record = record_of(environment, seq + 1)
    if record is None:
        return None
    try:
        return str(header_of(record.partition(b"\n")[0], seq + 1)["prev"])
    except BadRecord:
        return None
