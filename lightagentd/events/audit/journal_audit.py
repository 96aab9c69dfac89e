"""Compares the history with the journal, event for event, by `LIGHTAGENT_SEQ` and `LIGHTAGENT_HASH`.

The journal belongs to journald: write access to the daemon's files does not change entries there. Fields that
begin with an underscore are set by journald (systemd.journal-fields(7)). An entry is the daemon's when
`_SYSTEMD_UNIT` is its unit and `_UID` its user. Any other entry with the fields of an event is listed as
forged.

Entries come from journalctl(1) as lines of JSON, in batches. The comparison holds one bit for each event of
the history. Events that the journal lacks are classified: rotated away, reported by the daemon as not sent
(`journald`), on their way, and unexplained.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, BinaryIO

from lightagentd.events.audit.record_check import hash_of, record_of
from lightagentd.events.audit.witnesses import RECORD_FIELDS, Disagreement, Witnesses
from lightagentd.events.journal.signed_record import RECORD
from lightagentd.events.model import decode
from lightagentd.events.store.layout import EVENTS, Environment, seq_key
from lightagentd.signed.public_keys import PublicKey

UNIT = "lightagentd.service"
FIELDS = (
    *("SEQ", "HASH", "TOPIC", "TYPE", "AGENT", "SESSION", "CALLER_UID", "REQUEST_ID", "TRACE_ID"),
    *("TOOL", "ACTION", "EFFECT", "DECISION", "DURATION_MS", "RESULT", "DIGEST", "ARGS", "CONTENT"),
    *("MISSING_FROM", "MISSING_TO", "MISSING_COUNT"),
    *("CHECKPOINT_SEQ", "CHECKPOINT_HASH", "CHECKPOINT_KEY", "CHECKPOINT_SIGNATURE", "CHECKPOINT_ROWS"),
    *RECORD_FIELDS,
)
"""What the daemon's entries have, each with `LIGHTAGENT_` before it (`journal_entry`)."""
TRUSTED_FIELDS = ("_SYSTEMD_UNIT", "_UID", "_PID", "_EXE", "_COMM")
_OURS = b'"LIGHTAGENT_'
_CLAIMS = ("SEQ", "HASH", "TOPIC", "TYPE", "MISSING_FROM", "CHECKPOINT_SEQ", "CHECKPOINT_HASH")
"""Fields that only entries about events have."""
_SIBLINGS = re.compile(r"lightagent-(prompt|triage)@[^/]*\.service")
"""Units that name an agent and a session in entries of their own, which are about no event."""
_DIGITS = re.compile("[0-9]{1,18}")
_BATCH = 256
_LINE_BYTES = 1 << 20
_MOST_FORGED = 100
_MOST_RUNS = 10_000
_ON_ITS_WAY_US = 30_000_000
"""So new an event may not have reached the journal yet."""
_NOT_FULL = re.compile(rb"[^\xff]")


@dataclass(kw_only=True)
class Run:
    """Consecutive events that differ between history and journal, or that one of the two lacks."""

    first_seq: int
    last_seq: int
    time_us: int
    """When the journal got the first of them; 0 when it did not."""
    why: str
    """`different` or `missing` in the history. Of what the journal lacks: `gap` (the daemon said so), `ended`
    (it ended before it had sent them), `waiting` (they are on their way) or `unknown`."""


@dataclass(kw_only=True)
class JournalAudit:
    """The result of the comparison. `runs` are events that the journal has and the history lacks or has with
    other content; empty when all is well.
    """

    entries: int = 0
    """Entries of the daemon about events."""
    matched: int = 0
    first_seq: int = 0
    last_seq: int = 0
    removed: int = 0
    """Entries about events that retention removed."""
    former: int = 0
    """Entries about events of a history that was set aside, as an event says."""
    rotated: int = 0
    """Events that are older than the journal's oldest entry."""
    runs: list[Run] = field(default_factory=list)
    lacking: list[Run] = field(default_factory=list)
    forged: int = 0
    forged_entries: list[dict[str, Any]] = field(default_factory=list)
    """The first of them: unit, uid, pid, exe, time_us, and what they say of seq, topic and type."""
    records: int = 0
    """Records of the approver and of workers for change."""
    older: int = 0
    """Those of them that are older than the keys of who wrote them, so that journald alone says who did."""
    disagreements: list[Disagreement] = field(default_factory=list)
    """The first calls about which these and the history do not agree."""
    unused: list[str] = field(default_factory=list)
    """Calls that the approver approved and that no worker began."""

    @property
    def disagrees(self) -> list[Disagreement]:
        """Those that somebody forged or hid; a foreign record alone can be anybody's."""
        return [one for one in self.disagreements if one.kind != "foreign"]


def compare(
    environment: Environment,
    lines: BinaryIO,
    *,
    uid: int,
    since_seq: int = 0,
    since_us: int = 0,
    keys: Mapping[str, Sequence[PublicKey]] | None = None,
    progress: Callable[[int], None] | None = None,
) -> JournalAudit:
    """Compare the journal's entries with the history, except entries about events before `since_seq`, and
    entries from before `since_us`. `uid` is the daemon's user, `keys` are those of the approver and of
    workers by unit. Raises StorageError, HistoryDamaged.
    """
    comparison = _Comparison(environment, uid, since_seq, since_us, keys or {})
    found = _entries(lines)
    while batch := list(islice(found, _BATCH)):
        comparison.take(batch)
        if progress is not None:
            progress(comparison.found.entries)
    return comparison.finish()


def _entries(lines: BinaryIO) -> Iterator[dict[str, Any]]:
    """The entries with a field of ours."""
    while line := lines.readline(_LINE_BYTES):
        if not line.endswith(b"\n"):
            while (rest := lines.readline(_LINE_BYTES)) and not rest.endswith(b"\n"):
                pass
        if _OURS in line:
            try:
                entry = json.loads(line)
            except (ValueError, RecursionError):
                continue  # too long to be one of the daemon's
            if isinstance(entry, dict):
                yield entry


class _Comparison:
    """One comparison. `found` collects the results."""

    def __init__(
        self,
        environment: Environment,
        uid: int,
        since_seq: int,
        since_us: int,
        keys: Mapping[str, Sequence[PublicKey]],
    ) -> None:
        self._witnesses = Witnesses(keys)
        self.found = JournalAudit()
        self._environment = environment
        self._uid = str(uid)
        self._since_seq = since_seq
        self._since_us = since_us
        self._anchor = environment.anchor()
        self._head = environment.newest_seq()
        self._seen = bytearray()
        """A bit for each event from `_base` on that the journal has."""
        self._base = max(self._anchor[0] + 1, since_seq)
        self._gaps: list[tuple[int, int]] = []

    def take(self, entries: list[dict[str, Any]]) -> None:
        """Look some entries up, in one transaction."""
        with self._environment.reading() as txn:
            db = self._environment.db[EVENTS]
            for entry in entries:
                time_us = _number(entry, "__REALTIME_TIMESTAMP")
                if time_us < self._since_us:
                    continue
                if RECORD in entry:
                    self._witnesses.take(entry, time_us)
                    continue
                if entry.get("_SYSTEMD_UNIT") != UNIT or entry.get("_UID") != self._uid:
                    self._take_foreign(entry, time_us)
                    continue
                for seq_name, hash_name in (("SEQ", "HASH"), ("CHECKPOINT_SEQ", "CHECKPOINT_HASH")):
                    seq = _number(entry, f"LIGHTAGENT_{seq_name}")
                    if seq > 0 and seq >= self._since_seq:
                        own = seq_name == "SEQ"
                        record = txn.get(seq_key(seq), db=db)
                        self._look_up(seq, entry.get(f"LIGHTAGENT_{hash_name}"), record, time_us, own=own)
                        if own and record is not None:
                            self._explain(entry, record)
                first, last = (_number(entry, f"LIGHTAGENT_MISSING_{name}") for name in ("FROM", "TO"))
                if 0 < first <= last:
                    self._gaps.append((first, last))

    def _look_up(self, seq: int, wanted: object, record: bytes | None, time_us: int, *, own: bool) -> None:
        """`own` when the entry is the event itself, and not one about it."""
        found = self.found
        if own:
            found.entries += 1
            found.first_seq = min(found.first_seq or seq, seq)
            found.last_seq = max(found.last_seq, seq)
        if seq == self._anchor[0] and record is None:
            there = self._anchor[1]
        elif record is None:
            there = ""
        else:
            there = hash_of(record)
        if there and there == wanted:
            if own:
                found.matched += 1
                self._mark(seq)
        elif not there and seq < self._anchor[0]:
            found.removed += own
        else:
            self._differs(seq, time_us, "different" if there else "missing")

    def _mark(self, seq: int) -> None:
        place = seq - self._base
        if place < 0:
            return
        if place // 8 >= len(self._seen):
            self._seen.extend(bytes(place // 8 - len(self._seen) + 1024))
        self._seen[place // 8] |= 1 << place % 8

    def _differs(self, seq: int, time_us: int, why: str) -> None:
        runs = self.found.runs
        if runs and runs[-1].why == why and runs[-1].first_seq <= seq <= runs[-1].last_seq + 1:
            runs[-1].last_seq = max(runs[-1].last_seq, seq)
        elif len(runs) < _MOST_RUNS:
            runs.append(Run(first_seq=seq, last_seq=seq, time_us=time_us, why=why))

    def _explain(self, entry: dict[str, Any], record: bytes) -> None:
        """An event that reports a replaced history explains older entries in the journal."""
        if entry.get("LIGHTAGENT_TOPIC") != "daemon.history":
            return
        if entry.get("LIGHTAGENT_TYPE") not in ("installed", "set_aside"):
            return
        if hash_of(record) != entry.get("LIGHTAGENT_HASH"):
            return
        data = decode(record).data or {}
        kept_seq = data.get("seq" if entry["LIGHTAGENT_TYPE"] == "installed" else "last_seq")
        if type(kept_seq) is not int:
            return
        left = []
        for run in self.found.runs:
            if run.last_seq > kept_seq:
                self.found.former += run.last_seq - max(run.first_seq, kept_seq + 1) + 1
                run.last_seq = kept_seq
            if run.first_seq <= run.last_seq:
                left.append(run)
        self.found.runs = left

    def _take_foreign(self, entry: dict[str, Any], time_us: int) -> None:
        unit = entry.get("_SYSTEMD_UNIT")
        claims = any(f"LIGHTAGENT_{name}" in entry for name in _CLAIMS)
        if not claims and isinstance(unit, str) and _SIBLINGS.fullmatch(unit):
            return
        self.found.forged += 1
        if len(self.found.forged_entries) < _MOST_FORGED:
            self.found.forged_entries.append(
                {
                    "time_us": time_us,
                    "unit": _shown(unit),
                    "uid": _shown(entry.get("_UID")),
                    "pid": _shown(entry.get("_PID")),
                    "exe": _shown(entry.get("_EXE") or entry.get("_COMM")),
                    "seq": _shown(entry.get("LIGHTAGENT_SEQ")),
                    "topic": _shown(entry.get("LIGHTAGENT_TOPIC")),
                    "type": _shown(entry.get("LIGHTAGENT_TYPE")),
                }
            )

    def finish(self) -> JournalAudit:
        """The results, with the events that the journal lacks."""
        found = self.found
        found.runs.sort(key=lambda run: run.first_seq)
        if not found.matched:
            return found  # the records may be about another daemon
        self._witnesses.finish(self._environment)
        found.records, found.unused = self._witnesses.records, self._witnesses.unused
        found.older = self._witnesses.older
        found.disagreements = self._witnesses.found
        first = self._first_seen()
        found.rotated = first - self._base
        for lacked_first, lacked_last in self._unseen(first):
            for run in self._told_apart(lacked_first, lacked_last):
                if len(found.lacking) < _MOST_RUNS:
                    found.lacking.append(run)
        return found

    def _first_seen(self) -> int:
        for place, byte in enumerate(self._seen):
            if byte:
                return self._base + place * 8 + (byte & -byte).bit_length() - 1
        return self._head + 1

    def _unseen(self, first: int) -> Iterator[tuple[int, int]]:
        """First and last of each run of events that the journal lacks, from an event on."""
        end = self._head - self._base + 1
        if end > 0:
            self._seen.extend(bytes(max(0, end // 8 + 1 - len(self._seen))))
        begun = -1
        place = first - self._base
        while place < end:
            byte = self._seen[place // 8]
            if byte == 0xFF and place % 8 == 0:
                if begun >= 0:
                    yield self._base + begun, self._base + place - 1
                    begun = -1
                found = _NOT_FULL.search(self._seen, place // 8)
                place = min(end, found.start() * 8 if found else end)
                continue
            seen = byte >> place % 8 & 1
            if seen and begun >= 0:
                yield self._base + begun, self._base + place - 1
                begun = -1
            elif not seen and begun < 0:
                begun = place
            place += 1
        if begun >= 0:
            yield self._base + begun, self._head

    def _told_apart(self, first: int, last: int) -> Iterator[Run]:
        """The runs within one that the journal lacks, each with its reason."""
        for low, high in sorted(self._gaps):
            if low <= last and high >= first:
                if low > first:
                    yield Run(first_seq=first, last_seq=low - 1, time_us=0, why=self._why(low - 1))
                yield Run(first_seq=max(first, low), last_seq=min(last, high), time_us=0, why="gap")
                first = high + 1
        if first <= last:
            yield Run(first_seq=first, last_seq=last, time_us=0, why=self._why(last))

    def _why(self, last: int) -> str:
        """Why the journal lacks the run of events that ends with this one."""
        record, after = record_of(self._environment, last), record_of(self._environment, last + 1)
        if last == self._head and record is not None:
            age_us = time.time_ns() // 1000 - decode(record).time_us
            return "waiting" if age_us < _ON_ITS_WAY_US else "ended"
        if after is not None:
            event = decode(after)
            if event.topic in ("daemon.checkpoint", "daemon.history") or event.type == "starting":
                return "ended"
        return "unknown"


def _number(entry: dict[str, Any], name: str) -> int:
    value = entry.get(name)
    return int(value) if isinstance(value, str) and _DIGITS.fullmatch(value) else 0


def _shown(value: object) -> str:
    """A field of an untrusted entry as text of bounded length."""
    return "" if value is None else str(value)[:200]
