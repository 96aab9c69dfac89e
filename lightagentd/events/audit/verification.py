"""Verifies the chain: finds the first stored record that changed, and each row of state that did.

Each record's header names the hash of the header before it and of its own data (see `model`). The hashes are
those of the bytes on disk. The walk begins after the anchor, or at a later checkpoint if the caller wants
that; events that retention kept before the anchor are compared too (`kept_check`). Records in the daemon's
own format are compared as bytes, without parsing JSON. Any other record is examined, to say what is wrong.

A missing end, and a chain rewritten up to its end, are detected by the signed checkpoints, by the `expected`
hashes that a caller kept elsewhere, and by the journal (`journal_audit`). Changes of events after the newest
signature and the newest kept hash cannot be detected.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from lightagentd.errors import HistoryDamaged, InvalidArgument
from lightagentd.events.audit.checkpoint_check import TOPIC as CHECKPOINT
from lightagentd.events.audit.checkpoint_check import CheckpointCheck
from lightagentd.events.audit.erasure_check import TOPIC as DELETED
from lightagentd.events.audit.erasure_check import ErasureCheck
from lightagentd.events.audit.index_check import IndexCheck
from lightagentd.events.audit.kept_check import KeptCheck
from lightagentd.events.audit.read_ahead import ReadAhead
from lightagentd.events.audit.record_check import BadRecord, checked, decoded, hash_at, hash_of, record_of
from lightagentd.events.audit.removals import Removal, Removals
from lightagentd.events.audit.row_check import RowsFound, compare
from lightagentd.events.audit.signing import short
from lightagentd.events.model import FROM_TOOL, GENESIS, Event
from lightagentd.events.store.layout import BATCH, EVENTS, Environment, bounded, seq_key
from lightagentd.host.users import called

_TAIL = -len('"data_sha256":"","prev":""}') - 2 * len(GENESIS)
"""Where a header's last two fields begin, from its end."""
_TIME_DIGITS, _TOPIC = 16, b',"topic":"'
_HEARD = (b"daemon.", b"session.deleted")
"""The topics of events about the history itself. A topic that is not where it should be is heard, too."""
_MOST_NOTES = 20
_MOST_BAD_ROWS = 100
_TRIES = 3
_KNOWN = re.compile("([0-9]{1,18}):([0-9a-f]{64})")


@dataclass(frozen=True, kw_only=True)
class Verification:
    """The result of `verify`: `ok`, or the first bad record."""

    ok: bool
    events: int
    """How many events were verified."""
    first_bad_seq: int = 0
    reason: str = ""
    head_hash: str = GENESIS
    head_seq: int = 0
    """The number of the newest event, or of the last one before the first bad one."""
    first_seq: int = 0
    """Where the walk began."""
    began: str = "start"
    """How the event before the first one is known: `start` (there is none), `anchor` (retention removed it),
    `checkpoint` (it is signed), or `word` (it was taken at its word)."""
    kept: int = 0
    """How many events from before the anchor were verified, too."""
    erased: int = 0
    """How many events have no data any more, as the deletions of their sessions say."""
    checkpoints: int = 0
    """How many checkpoints have a good signature."""
    key: str = ""
    """The fingerprint of the key of the newest one."""
    trusted: bool = False
    """That key is one that the caller trusts."""
    covered_seq: int = 0
    """The last event that such a checkpoint covers."""
    index_entries: int = 0
    """How many entries of indexes were looked at, where the caller wanted that."""
    rows: int = 0
    """How many rows of state were compared; 0 where no checkpoint covers any."""
    bad_rows: tuple[str, ...] = ()
    """The first of those that were altered, each as a sentence without a full stop."""
    removed: int = 0
    """How many removals by retention and by deletions of sessions the history tells of."""
    removals: tuple[Removal, ...] = ()
    """The newest of them."""
    notes: tuple[str, ...] = ()
    """What is allowed and worth knowing, such as a new key or a backup that was put in place."""

    @property
    def problem(self) -> str:
        """What is wrong, and at which event."""
        return f"event {self.first_bad_seq}: {self.reason}" if self.first_bad_seq else self.reason


@dataclass(frozen=True, kw_only=True)
class Terms:
    """Options of `verify`."""

    keys: Mapping[str, bytes] | None = None
    """Public keys that are trusted, by fingerprint; None for whichever the history names."""
    expected: Mapping[int, str] | None = None
    """Hashes of events by number, that were kept elsewhere."""
    since_seq: int = 0
    since_us: int = 0
    """Begin at this event, or at the first one that is not older: at the newest checkpoint before it."""
    indexes: bool = False
    """Whether every entry of every index is looked at."""
    progress: Callable[[int], None] | None = None
    """Called with the number of an event now and then."""


def known_event(text: str) -> tuple[int, str]:
    """Number and hash of an event, from `SEQ:HASH`. Raises InvalidArgument."""
    found = _KNOWN.fullmatch(text)
    if found is None:
        raise InvalidArgument(
            f"{text[:100]!r} is no event's number and hash.",
            suggestion="Both are in what lactl audit verify prints as the head: 512:9f86d0…, with 64 digits.",
            field="expect",
        )
    return int(found[1]), found[2]


def verify(environment: Environment, terms: Terms | None = None) -> Verification:
    """Walk the chain and name the first record that was altered, dropped, swapped, inserted or cut off.

    Events that are appended meanwhile are verified too, and retention may go on. Raises StorageError when the
    store cannot be read.
    """
    walk = _Walk(environment, terms or Terms())
    try:
        walk.run()
        walk.finish()
    except BadRecord as bad:
        others = [one for one in (walk.kept_bad(), walk.unexpected) if one is not None]
        bad = min([bad, *others], key=lambda one: one.seq)
        found = replace(walk.found(), ok=False, first_bad_seq=bad.seq, reason=bad.reason)
    else:
        found = walk.found()
    try:
        return _with_rows(found, compare(environment))
    except HistoryDamaged as err:
        return (
            found
            if not found.ok
            else replace(found, ok=False, first_bad_seq=found.head_seq, reason=err.message.rstrip("."))
        )


def _with_rows(found: Verification, of_rows: RowsFound) -> Verification:
    """The result for the chain, combined with that for the rows of state."""
    notes = list(found.notes)
    if of_rows.unsigned:
        notes.append(
            f"{of_rows.unsigned} rows of state changed after the newest checkpoint and are not signed"
        )
    found = replace(found, rows=of_rows.count, notes=tuple(notes))
    if of_rows.ok:
        return found
    bad = [one.sentence for one in of_rows.bad] or [
        f"the rows of state are not those that event {of_rows.covered_seq} covers: one is missing, and "
        "retention removed the list with it"
    ]
    if len(bad) > _MOST_BAD_ROWS:
        bad[_MOST_BAD_ROWS:] = [f"{len(bad) - _MOST_BAD_ROWS} more rows were altered"]
    found = replace(found, bad_rows=tuple(bad))
    if not found.ok:
        return found
    seq = min((one.seq for one in of_rows.bad), default=of_rows.covered_seq)
    return replace(found, ok=False, first_bad_seq=seq, reason=bad[0])


def verify_tail(environment: Environment, count: int) -> Verification:
    """Like `verify`, for the newest `count` events alone; the record before them is trusted. Raises
    StorageError.
    """
    newest = environment.newest_seq()
    walk = _Walk(environment, Terms(), tail=max(1, newest - count + 1))
    try:
        walk.run(newest)
        walk.erasures.settle(whole=False)
    except BadRecord as bad:
        return replace(walk.found(), ok=False, first_bad_seq=bad.seq, reason=bad.reason)
    return walk.found()


class _Walk:
    """One pass over the records. `seq` and `prev` are number and hash of the last good one."""

    def __init__(self, environment: Environment, terms: Terms, *, tail: int = 0) -> None:
        """With `tail` the walk begins there, and ignores older records."""
        self.environment = environment
        self.terms = terms
        self.checkpoints = CheckpointCheck(environment, terms.keys)
        self.erasures = ErasureCheck(environment.newest_seq())
        self.kept = KeptCheck(environment, self.erasures)
        self.removals = Removals()
        self.notes: list[str] = []
        self._gone: list[int] = []
        """Expected events that retention removed."""
        self.unexpected: BadRecord | None = None
        """The first event that does not have the hash that is expected of it."""
        self.first, self.prev, self.began = self._beginning(tail)
        self.checkpoints.learn(self.first)
        self.seq = self.first - 1
        self._before = b""
        """The hash before `prev`."""
        self._expected = sorted((terms.expected or {}).items(), reverse=True)
        self._indexes = IndexCheck(environment) if terms.indexes else None

    def _beginning(self, tail: int) -> tuple[int, bytes, str]:
        """The first event of the walk, the previous hash that it must name, and the source of that hash."""
        anchor_seq, anchor_hash = self.environment.anchor()
        since = tail or max(self.terms.since_seq, _first_since(self.environment, self.terms.since_us))
        if since <= anchor_seq + 1:
            return anchor_seq + 1, anchor_hash.encode(), "anchor" if anchor_seq else "start"
        checkpoint = None if tail else self.checkpoints.signed_before(since)
        if checkpoint is not None and checkpoint[0] > anchor_seq:
            return checkpoint[0] + 1, checkpoint[1].encode(), "checkpoint"
        record = record_of(self.environment, since - 1)
        return since, hash_of(record or b"").encode(), "word"

    def found(self) -> Verification:
        checkpoints = self.checkpoints
        return Verification(
            ok=True,
            events=max(0, self.seq - self.first + 1),
            head_seq=self.seq,
            head_hash=self.prev.decode(),
            first_seq=self.first,
            began=self.began,
            kept=self.kept.kept,
            erased=self.erasures.erased,
            checkpoints=checkpoints.good,
            key=checkpoints.newest_key,
            trusted=checkpoints.trusted and self.terms.keys is not None,
            covered_seq=checkpoints.covered_seq,
            index_entries=self._indexes.entries if self._indexes else 0,
            removed=self.removals.count,
            removals=self.removals.newest,
            notes=tuple([*_of_keys(checkpoints.keys_seen), *self.notes, *self._of_gone()][:_MOST_NOTES]),
        )

    def _of_gone(self) -> Iterator[str]:
        for seq in self._gone:
            removal = self.removals.of_event(seq)
            how = f", {removal.sentence}" if removal is not None else ""
            yield f"event {seq} was removed by retention and cannot be compared{how}"

    def run(self, last: int | None = None) -> None:
        """Walk to the end, or to an event. Raises BadRecord."""
        while True:
            try:
                self._run(last)
            except BadRecord:
                anchor_seq, anchor_hash = self.environment.anchor()
                if anchor_seq <= self.seq:
                    raise
                # Retention removed the next records: the chain continues after the new anchor.
                self.seq, self.prev, self._before = anchor_seq, anchor_hash.encode(), b""
            else:
                return

    def finish(self) -> None:
        """The checks that are possible only at the end. Raises BadRecord."""
        before: BadRecord | None = None
        while True:
            try:
                self._finish()
                break
            except BadRecord as bad:
                # An event stored with the removal explains it: read that too.
                self.run()
                if before is not None and (before.seq, before.reason) == (bad.seq, bad.reason):
                    raise
                before = bad
        if self.unexpected is not None:
            raise self.unexpected
        if self._expected:
            raise BadRecord(self.seq + 1, _cut_off(self.seq, self._expected[0][0]))

    def _finish(self) -> None:
        if self.began in ("start", "anchor"):
            self.kept.check()
        self.erasures.settle(whole=self.began == "start" and not self.environment.anchor()[0])
        self.checkpoints.finish()
        if self._indexes is not None:
            self._indexes.finish()

    def kept_bad(self) -> BadRecord | None:
        """The first bad event before the anchor, when the chain itself is broken. The walk cannot read the
        explanation of a removal then, so an event counts as bad only when two reads agree.
        """
        before = 0
        for _ in range(_TRIES):
            try:
                self.kept.check_listed()
            except BadRecord as bad:
                if bad.seq == before:
                    return bad
                before = bad.seq
            else:
                break
        return None

    def _run(self, last: int | None) -> None:
        self._check_expected_before()
        # Foreign keys that sort before the first one, too, where the walk begins at the beginning.
        key = seq_key(self.seq + 1) if self.seq else b"\0"
        with ReadAhead(self.environment.data_file, key) as ahead:
            self._walk(key, last, ahead)

    def _walk(self, key: bytes, last: int | None, ahead: ReadAhead) -> None:
        while last is None or self.seq < last:
            ahead.reach(key)
            with (
                self.environment.reading() as txn,
                txn.cursor(self.environment.db[EVENTS]) as cursor,
            ):
                rows = list(bounded(islice(cursor, BATCH))) if cursor.set_range(key) else []
                if self._indexes is not None:
                    self._indexes.look_for(txn, rows)
                differ = not rows and last is None and self._times_differ(txn)
            if differ:
                IndexCheck(self.environment).find_first()
            if not rows:
                return
            self._check(rows if last is None else rows[: last - self.seq])
            key = rows[-1][0] + b"\0"
            if self.terms.progress is not None:
                self.terms.progress(self.seq)

    def _check(self, rows: list[tuple[bytes, bytes]]) -> None:
        """Raises BadRecord."""
        sha256, seq, prev, before = hashlib.sha256, self.seq, self.prev, self._before
        expected = self._expected[-1][0] if self._expected else -1
        for key, record in rows:
            line, _, data = record.partition(b"\n")
            start = b'{"seq":%d,"time":' % (seq + 1)
            tail = b'"data_sha256":"%s","prev":"%s"}' % (sha256(data).hexdigest().encode(), prev)
            # As the daemon writes it; whatever differs is looked at closely.
            if key != (seq + 1).to_bytes(8, "big") or not line.startswith(start) or line[_TAIL:] != tail:
                self.seq, self.prev, self._before = seq, prev, before
                self._look_closely(key, line, data)
            seq += 1
            before, prev = prev, sha256(line).hexdigest().encode()
            topic = len(start) + _TIME_DIGITS
            if not line.startswith(_TOPIC, topic) or line.startswith(_HEARD, topic + len(_TOPIC)):
                self.seq, self.prev, self._before = seq, prev, before
                self._hear(decoded(seq, record))
            if seq == expected:
                self._compare_expected(prev)
                expected = self._expected[-1][0] if self._expected else -1
        self.seq, self.prev, self._before = seq, prev, before

    def _look_closely(self, key: bytes, line: bytes, data: bytes) -> None:
        """Raises BadRecord, unless the record is erased, or good but in another format than the daemon's."""
        seq, links = self.seq + 1, (self.prev.decode(), self._before.decode())
        header = checked(self.environment, key, line, data, seq, links, self.first)
        if not data:
            self.erasures.without_data(seq, str(header.get("session", "")))

    def _hear(self, event: Event) -> None:
        """Process an event that describes the history itself. Raises BadRecord."""
        if event.source == FROM_TOOL:
            return
        if event.topic == DELETED:
            self.erasures.deletion(event)
            self.removals.deletion(event)
        elif event.data is None:
            return  # no deletion read so far explains it
        elif event.topic == CHECKPOINT:
            self.checkpoints.hear(event, self._before.decode())
        elif (event.topic, event.type) == ("daemon.state", "starting"):
            self.checkpoints.start(event)
        elif event.topic == "daemon.history":
            self._hear_of_history(event, event.data)

    def _hear_of_history(self, event: Event, data: dict[str, Any]) -> None:
        if event.type == "pruned":
            self.kept.pruned(event)
            self.removals.pruned(event)
        elif event.type == "set_aside":
            self.kept.began_behind(data.get("last_seq"), data.get("last_hash"))
            self.notes.append(
                f"at event {event.seq} a damaged history was set aside ({data.get('path', '?')}); this one "
                f"went on after event {data.get('last_seq', '?')}"
            )
        elif event.type == "installed":
            self.kept.began_behind(data.get("seq"), data.get("hash"))
            by = called(data["by"]) if isinstance(data.get("by"), int) else "?"
            self.notes.append(
                f"before event {event.seq} {by} put another history in place "
                f"({data.get('how', '?')}), which ended with event {data.get('seq', '?')}"
            )

    def _compare_expected(self, found: bytes) -> None:
        seq, wanted = self._expected.pop()
        if found.decode() != wanted and self.unexpected is None:
            # An error within the history itself is more precise, and may be earlier.
            why = f"event {seq} is not the one that was there: its hash was {wanted}"
            self.unexpected = BadRecord(seq, why)

    def _check_expected_before(self) -> None:
        """Compare the expected hashes of events before the next one, as far as these events exist."""
        while self._expected and self._expected[-1][0] <= self.seq:
            seq = self._expected[-1][0]
            found = hash_at(self.environment, seq)
            if found or seq > self.environment.anchor()[0]:
                self._compare_expected(found.encode())
            else:
                self._expected.pop()
                self._gone.append(seq)

    def _times_differ(self, txn: Any) -> bool:
        """Each event has one entry in `by_time`: comparing the counts finds missing and extra entries."""
        db = self.environment.db
        if "by_time" not in db:
            return False
        return bool(txn.stat(db[EVENTS])["entries"] != txn.stat(db["by_time"])["entries"])


def _first_since(environment: Environment, since_us: int) -> int:
    """The number of the first event that is not older, by its recorded time; 0 without a limit."""
    if not since_us or "by_time" not in environment.db:
        return 0
    with environment.reading() as txn, txn.cursor(environment.db["by_time"]) as cursor:
        if cursor.set_range(seq_key(since_us)) or cursor.last():
            return int.from_bytes(cursor.key()[-8:], "big")
        return 0


def _of_keys(seen: list[tuple[int, str]]) -> list[str]:
    return [f"from event {seq} on another key signs: {short(key)}" for seq, key in seen[1:]]


def _cut_off(last: int, known: int) -> str:
    return f"the end was cut off: the history ends with event {last}, and there was an event {known}"
