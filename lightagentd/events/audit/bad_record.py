"""Where the history is not what it was: what the parts of the verification raise."""

from __future__ import annotations

import hashlib
from typing import Any

from lightagentd.events.model import Event, decode
from lightagentd.events.store.layout import EVENTS, Environment, seq_key


class BadRecord(Exception):
    """The number of the event at which it shows, and a sentence about it without a full stop."""

    def __init__(self, seq: int, reason: str) -> None:
        super().__init__(reason)
        self.seq = seq
        self.reason = reason


def decoded(seq: int, record: bytes) -> Event:
    """The event in a record whose bytes are not trusted. Raises BadRecord."""
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
    """The hash of an event, from its record: that of the header's bytes."""
    return hashlib.sha256(record.partition(b"\n")[0]).hexdigest()


def text_in(data: dict[str, Any], name: str) -> str:
    """A field that is to be text; empty when it is something else."""
    value = data.get(name)
    return value if isinstance(value, str) else ""
