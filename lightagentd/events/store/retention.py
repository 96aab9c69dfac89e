"""Removes the oldest events from the store, and leaves a chain that still verifies.

A pass is one transaction, short enough not to block other writers (`PASS_EVENTS`, `PASS_S`). It removes whole
records of the oldest part of the chain, appends an event `pruned` about that, and moves the anchor, after
which the chain then begins (`Environment.anchor`). Events that are still needed stay in place, before the
anchor, and `pruned` lists them with their hashes: messages of existing sessions, events of unfinished turns,
the data for `lactl undo`, evidence (`evidence_from`), and events that verify other kept events. A `sweep`
removes them when they are not needed any more, with a `pruned` that replaces the one which listed them; the
state `prunings` names the newest for each part.

Events are verified before their removal, so that no tampered event disappears unnoticed.
"""

from __future__ import annotations

import hashlib
import heapq
import json
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby, islice
from typing import Any

from lightagentd.errors import HistoryDamaged
from lightagentd.events.model import FROM_TOOL, Event, NewEvent, decode, dump_json
from lightagentd.events.store import records, rows
from lightagentd.events.store.layout import (
    EVENTS,
    Environment,
    ascending,
    bounded,
    descending,
    field_prefix,
    index_prefix,
    seq_key,
)
from lightagentd.events.types.history import HistoryPruned

PASS_EVENTS = 1000
"""Events that one pass looks at, at the most."""
PASS_S = 0.005
"""After so long a pass ends with what it has."""
NEWEST = 100
"""So many of the newest events are never removed."""
UNDO_DAYS = 30
"""So long the changes of files stay that can be taken back."""
EVIDENCE_BYTES = 64 << 20
"""So much of the newest evidence stays, at the most, however large the history gets."""
EVIDENCE_TOPICS = frozenset(
    f"approval.{kind}" for kind in ("requested", "granted", "denied", "expired", "used", "lapsed")
) | {"policy.rules", "daemon.state"}
"""What people allowed or refused, and the rules and states of that time. Changes are evidence, too."""
NO_EVIDENCE = 1 << 63
_AHEAD_US = 3_600_000_000
"""An event that is further in the future was stored while the clock was wrong."""
_DAY_US = 86_400_000_000
_TRACE = re.compile(rb"trace_[0-9a-f]{16}")
_PRUNED = (HistoryPruned.topic, HistoryPruned.type)
_STATE = "prunings"


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """The events that may be removed: those up to `to_seq`, with `before_us` only older ones, and no evidence
    from `evidence_from` on.
    """

    reason: str
    to_seq: int
    before_us: int = 0
    evidence_from: int = NO_EVIDENCE
    by: int | None = None
    """The uid of who asked for it."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """A pruned part of the chain. `by` is the number of the `pruned` in force for it."""

    first_seq: int
    last_seq: int
    by: int
    others: bool
    """Whether it keeps anything but messages, which may be needed no more without a session's deletion."""


class _Needs:
    """The needed events, as seen by one transaction."""

    def __init__(self, environment: Environment, txn: Any, evidence_from: int) -> None:
        self._environment = environment
        self._txn = txn
        self._evidence_from = evidence_from
        self._undo_us = time.time_ns() // 1000 - UNDO_DAYS * _DAY_US
        self._traces = set(self._unfinished())
        self._key_seq = self._newest_key()

    def _unfinished(self) -> Iterator[str]:
        """The unfinished turns, and those of plans, whose next task may still begin."""
        with self._txn.cursor(self._environment.db["turns"]) as cursor:
            yield from (key.decode() for key in cursor.iternext(values=False))
        with self._txn.cursor(self._environment.db["plans"]) as cursor:
            for value in cursor.iternext(keys=False):
                if b'"completed"' not in value:
                    yield from (trace.decode() for trace in _TRACE.findall(value))

    def _newest_key(self) -> int:
        """The number of the event that names the current signing key."""
        named = descending(self._txn, self._environment.db["by_field"], field_prefix("type", "key"))
        keys = (key for key, topic in named if topic == b"daemon.checkpoint")
        return int.from_bytes(next(keys, b"")[-8:])

    def keeps(self, event: Event) -> bool:
        """Whether an event must stay."""
        topic, data = event.topic, event.data
        if event.seq >= self._evidence_from and _is_evidence(event):
            return True
        if topic == "agent.message" and event.session:
            return self._stored("sessions", event.session) is not None or event.trace_id in self._traces
        if event.trace_id and event.trace_id in self._traces:
            return True
        if topic == "tool.file":
            metadata = (data or {}).get("metadata")
            kept = isinstance(metadata, dict) and metadata.get("previous_kept")
            return bool(kept) and event.time_us > self._undo_us
        if topic == "session.deleted":  # it says why data of the session's events are missing
            return self._has_older(event)
        if (topic, event.type) == _PRUNED:
            return bool(data and data.get("kept")) and self._counts(event)
        return event.seq == self._key_seq

    def _stored(self, state: str, key: str) -> bytes | None:
        found: bytes | None = self._txn.get(key.encode(), db=self._environment.db[state])
        return found

    def _has_older(self, event: Event) -> bool:
        own = ascending(self._txn, self._environment.db["by_session"], index_prefix(event.session))
        return any(key[-8:] < seq_key(event.seq) for key, _ in islice(own, 1))

    def _counts(self, event: Event) -> bool:
        """Whether a `pruned` is the newest about its part of the chain."""
        assert event.data is not None
        found = self._stored(_STATE, _part_key(int(event.data["first_seq"])))
        if found is None:
            return any(
                self._txn.get(seq_key(int(seq)), db=self._environment.db[EVENTS])
                for seq, _ in event.data["kept"]
            )
        return int(json.loads(found)["by"]) <= event.seq


def _is_evidence(event: Event) -> bool:
    if event.topic in EVIDENCE_TOPICS:
        return True
    return event.source != FROM_TOOL and (event.data or {}).get("effect") == "change"


def evidence_from(environment: Environment, *, most_bytes: int = 0, before_us: int = 0) -> int:
    """The number from which on approvals, changes and rules are kept although the history is too large.

    They have a budget of their own, so that nobody has them removed by storing much else, nor much else by
    making many of them: the newest EVIDENCE_BYTES, an eighth of `most_bytes` if that is less, and none
    from before `before_us`. For a thread. Raises StorageError.
    """
    left = min(EVIDENCE_BYTES, most_bytes // 8) if most_bytes else EVIDENCE_BYTES
    db = environment.db
    with environment.reading() as txn:
        oldest = 0
        if before_us:
            with txn.cursor(db["by_time"]) as cursor:
                oldest = (
                    int.from_bytes(cursor.key()[-8:]) if cursor.set_range(seq_key(before_us)) else NO_EVIDENCE
                )
        lists = [descending(txn, db["by_topic"], index_prefix(topic)) for topic in EVIDENCE_TOPICS]
        lists.append(descending(txn, db["by_field"], field_prefix("effect", "change")))
        merged = heapq.merge(*((key[-8:] for key, _ in found) for found in lists), reverse=True)
        for seq, _ in groupby(merged):  # an approval of a change is in two lists
            left -= len(txn.get(seq, db=db[EVENTS]) or b"")
            if left < 0:
                return max(oldest, int.from_bytes(seq) + 1)
        return oldest


def prune(environment: Environment, bounds: Bounds, txn: Any, next_seq: int) -> list[NewEvent]:
    """One pass, in the writer's transaction: the event to append, or none when there is nothing to do.

    Raises HistoryDamaged when an event to be removed has changed; nothing is removed then.
    """
    anchor, anchor_hash = environment.anchor_in(txn)
    needs = _Needs(environment, txn, bounds.evidence_from)
    examined, more = _slice(environment, txn, anchor, anchor_hash, bounds)
    while examined and not more and needs.keeps(examined[-1]):
        examined.pop()  # nothing after it can be removed, so passing it would be useless
    if not examined:
        return []
    kept = []
    for event in examined:
        if needs.keeps(event):  # what others need may have gone just now
            kept.append(event)
        else:
            _remove(environment, txn, event)
    last = examined[-1]
    environment.set_anchor(txn, last.seq, last.hash)
    said = HistoryPruned(
        first_seq=anchor + 1,
        last_seq=last.seq,
        last_hash=last.hash,
        removed=len(examined) - len(kept),
        kept=[(event.seq, event.hash) for event in kept],
        reason=bounds.reason,
        **_asked_by(bounds.by),
    )
    _note(environment, txn, said, next_seq, kept)
    return [said.event()]


def _asked_by(uid: int | None) -> dict[str, int]:
    return {} if uid is None else {"by": uid}


def _remove(environment: Environment, txn: Any, event: Event) -> None:
    rows.relist(environment, txn, event)
    records.remove(environment, txn, event)


def _slice(
    environment: Environment, txn: Any, anchor: int, anchor_hash: str, bounds: Bounds
) -> tuple[list[Event], bool]:
    """Removable events after the anchor, each verified, and whether more may follow."""
    now_us = time.time_ns() // 1000
    end = time.monotonic() + PASS_S
    found: list[Event] = []
    doubtful: list[Event] = []
    expected, prev = anchor + 1, anchor_hash
    with txn.cursor(environment.db[EVENTS]) as cursor:
        rows = bounded(islice(cursor, PASS_EVENTS)) if cursor.set_range(seq_key(expected)) else iter(())
        for key, record in rows:
            event = _checked(record)
            if key != seq_key(expected) or event.seq != expected or event.prev != prev:
                raise _tampered(expected, "it does not follow the event before it")
            if event.seq > bounds.to_seq:
                return found, False
            expected, prev = expected + 1, event.hash
            if bounds.before_us and event.time_us > now_us + _AHEAD_US:
                doubtful.append(event)  # it is removed only together with an older one
                continue
            if bounds.before_us and event.time_us >= bounds.before_us:
                return found, False
            found += [*doubtful, event]
            doubtful = []
            if time.monotonic() > end:
                break
    return found, bool(found)


def _checked(record: bytes, header_hash: str = "") -> Event:
    """The event in a record, if its data match its header, and its header the known hashes.

    Raises HistoryDamaged.
    """
    line, _, data = record.partition(b"\n")
    try:
        event = decode(record)
    except ValueError as err:
        raise HistoryDamaged(
            f"A stored event cannot be read, so that retention stops before it: {err}", suggestion=_VERIFY
        ) from err
    if data and hashlib.sha256(data).hexdigest() != event.data_sha256:
        raise _tampered(event.seq, "its data do not have the hash that its header names")
    if header_hash and hashlib.sha256(line).hexdigest() != header_hash:
        raise _tampered(event.seq, "it is not the one that was kept")
    return event


_VERIFY = "Nothing was removed. Run: lactl audit verify"


def _tampered(seq: int, why: str) -> HistoryDamaged:
    return HistoryDamaged(
        f"The event {seq} was altered, so that retention stops before it: {why}.", suggestion=_VERIFY
    )


def _part_key(first_seq: int) -> str:
    return f"{first_seq:020d}"


def _note(environment: Environment, txn: Any, said: HistoryPruned, by: int, kept: list[Event]) -> None:
    """Store the `pruned` in force for a part of the chain; remove the entry of a part with no kept events."""
    key = _part_key(said.first_seq).encode()
    if kept:
        others = any(event.topic != "agent.message" for event in kept)
        part = {"last_seq": said.last_seq, "by": by, "others": others}
        rows.put(environment, txn, _STATE, key, dump_json(part))
    else:
        rows.delete(environment, txn, _STATE, key)


def parts(state: Mapping[str, Mapping[str, Any]]) -> list[Part]:
    """The parts of the chain with kept events, from the state `prunings`."""
    return [
        Part(
            first_seq=int(key),
            last_seq=int(each["last_seq"]),
            by=int(each["by"]),
            others=bool(each["others"]),
        )
        for key, each in state.items()
    ]


def sweep(
    environment: Environment,
    part: Part,
    evidence_from: int,
    txn: Any,
    next_seq: int,
    *,
    by: int | None = None,
) -> list[NewEvent]:
    """One pass over the kept events of a part: removes those that are not needed any more. Otherwise like
    `prune`.
    """
    needs = _Needs(environment, txn, evidence_from)
    end = time.monotonic() + PASS_S
    kept: list[Event] = []
    removed = 0
    for event in _kept_of(environment, txn, part):
        if time.monotonic() > end or needs.keeps(event):
            kept.append(event)
        else:
            _remove(environment, txn, event)
            removed += 1
    if not removed:
        return []
    said = HistoryPruned(
        first_seq=part.first_seq,
        last_seq=part.last_seq,
        last_hash="",
        removed=removed,
        kept=[(event.seq, event.hash) for event in kept],
        reason="sessions",
        **_asked_by(by),
    )
    _note(environment, txn, said, next_seq, kept)
    return [said.event()]


def session_bytes(environment: Environment, session: str) -> int:
    """The size of a session's records. For a thread. Raises StorageError."""
    with environment.reading() as txn:
        own = ascending(txn, environment.db["by_session"], index_prefix(session))
        return sum(len(txn.get(key[-8:], db=environment.db[EVENTS]) or b"") for key, _ in own)


def needs_sweep(environment: Environment, part: Part, evidence_from: int) -> bool:
    """Whether a `sweep` would remove something. Raises StorageError, HistoryDamaged."""
    with environment.reading() as txn:
        needs = _Needs(environment, txn, evidence_from)
        return not all(needs.keeps(event) for event in _kept_of(environment, txn, part))


def last_deletion(environment: Environment) -> int:
    """The number of the newest event that says that a session was deleted; 0 when there is none."""
    with environment.reading() as txn:
        found = descending(txn, environment.db["by_topic"], index_prefix("session.deleted"))
        return int.from_bytes(next(found, (b"", b""))[0][-8:])


def _kept_of(environment: Environment, txn: Any, part: Part) -> Iterator[Event]:
    """The kept events of a part, each verified. Raises HistoryDamaged."""
    record = txn.get(seq_key(part.by), db=environment.db[EVENTS])
    said = _checked(record) if record is not None else None
    if said is None or (said.topic, said.type) != _PRUNED or said.data is None:
        raise _tampered(part.by, "it should say what retention kept")
    for seq, header_hash in said.data["kept"]:
        record = txn.get(seq_key(int(seq)), db=environment.db[EVENTS])
        if record is None:
            raise _tampered(int(seq), "retention kept it, and it is missing")
        yield _checked(record, str(header_hash))


@dataclass(kw_only=True)
class Forecast:
    """The estimated result of passes: the number of removed events, and the bytes of their records."""

    removed: int = 0
    kept: int = 0
    size_bytes: int = 0
    last_seq: int = 0


def forecast(environment: Environment, bounds: Bounds, *, enough_bytes: int = 0) -> Forecast:
    """Estimate what `prune` would remove until nothing is left to remove, or until that is `enough_bytes`.

    Reads in short transactions; for a thread. Raises StorageError, HistoryDamaged.
    """
    found = Forecast()
    position, prev = environment.anchor()
    while not enough_bytes or found.size_bytes < enough_bytes:
        with environment.reading() as txn:
            needs = _Needs(environment, txn, bounds.evidence_from)
            examined, _ = _slice(environment, txn, position, prev, bounds)
            for event in examined:
                if needs.keeps(event):
                    found.kept += 1
                else:
                    found.removed += 1
                    record = txn.get(seq_key(event.seq), db=environment.db[EVENTS])
                    found.size_bytes += len(record) + _INDEX_BYTES
                    found.last_seq = event.seq
        if not examined:
            break
        position, prev = examined[-1].seq, examined[-1].hash
    return found


_INDEX_BYTES = 500
"""What the entries of an event in the indexes take, about."""
