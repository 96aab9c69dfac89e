"""The history: its events, its file, and whether it is whole."""

from dataclasses import dataclass
from typing import Any, TypedDict


@dataclass(frozen=True, kw_only=True)
class StoredEvent:
    """One event of the history: the header, `data` (null when it was deleted) and `hash`."""

    seq: int
    time: int
    topic: str
    type: str
    source: str
    agent: str
    session: str
    owner: int | None
    caller: int | None
    request_id: str
    trace_id: str
    correlation_id: str
    data_sha256: str
    prev: str
    data: Any | None
    hash: str


@dataclass(frozen=True, kw_only=True)
class Missed:
    """Events that a subscriber did not get: `count` of those from `first_seq` on. What is from `from_seq` on
    follows; of what is before it only messages of sessions that exist can be left.
    """

    count: int
    first_seq: int
    from_seq: int


class EventItem(TypedDict):
    """A part of the event stream: an event, or what was missed; at the end neither."""

    event: StoredEvent | None
    missed: Missed | None


@dataclass(frozen=True, kw_only=True)
class EventPage:
    """Some events, oldest first, and where to go on; `next_seq` is 0 when there is no more."""

    events: list[StoredEvent]
    next_seq: int


@dataclass(frozen=True, kw_only=True)
class RecordPage:
    """Some events as they are stored, oldest first: `records` has two lines for each, its header and its data
    (empty when it was deleted), and `hash` is SHA-256 of the first. `next_seq` is where to go on: behind the
    last event that was looked at. `head_seq` is the newest event. `missed` is how many events retention
    removed between where the caller went on and what is left.
    """

    records: str
    next_seq: int
    head_seq: int
    missed: int


@dataclass(frozen=True, kw_only=True)
class Pruned:
    """What retention did, or with `dry_run` would do, about: how many events it removed, which sessions it
    deleted, how many bytes of the file that freed, how many are in use, and the number of the event at which
    the chain begins. `compacted`: the file was written anew, too.
    """

    removed: int
    sessions: list[str]
    freed_bytes: int
    live_bytes: int
    first_seq: int
    compacted: bool
    dry_run: bool


@dataclass(frozen=True, kw_only=True)
class Compacted:
    """What writing the history's file anew came to, without the reserve."""

    bytes_before: int
    bytes_after: int


@dataclass(frozen=True, kw_only=True)
class Removal:
    """What was removed from the history, as the event `seq` says: events from `first_seq` to `last_seq` by
    retention, or the data of a session's events with so many `rows` of these `states`. `by` is a uid, or
    null for the daemon itself.
    """

    seq: int
    time_us: int
    by: int | None
    reason: str
    session: str
    first_seq: int
    last_seq: int
    events: int
    rows: int
    states: list[str]


@dataclass(frozen=True, kw_only=True)
class Verification:
    """The result of walking the hash chain; `first_bad_seq` is 0 when all is well. `began` says how the event
    before `first_seq` is known: `start` (there is none), `anchor` (retention removed it), `checkpoint` (it
    is signed) or `word`. `key` is the fingerprint of the newest checkpoint's key, `covered_seq` the last
    event that one with a trusted key covers; `rows` is how many rows of state were compared, `bad_rows` names
    those that were altered, `removed` counts removals, and `removals` has the newest; `notes` are what is
    allowed and worth knowing.
    """

    ok: bool
    events: int
    first_bad_seq: int
    reason: str
    head_seq: int
    head_hash: str
    first_seq: int
    began: str
    kept: int
    erased: int
    checkpoints: int
    key: str
    trusted: bool
    covered_seq: int
    index_entries: int
    rows: int
    bad_rows: list[str]
    removed: int
    removals: list[Removal]
    notes: list[str]
