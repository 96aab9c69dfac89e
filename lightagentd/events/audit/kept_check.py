"""Checks the events that retention kept before the anchor: all are there, unchanged, and no others.

Each event `pruned` lists the kept events of its part of the chain; a later one about the same part replaces
it. Some of these events are before the anchor themselves and listed by later ones, so the newest are read
first. The check holds one bit for each event before the anchor.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterator
from itertools import islice

from lightagentd.events.audit.erasure_check import TOPIC as DELETED
from lightagentd.events.audit.erasure_check import ErasureCheck
from lightagentd.events.audit.record_check import BadRecord, decoded, record_of
from lightagentd.events.model import GENESIS, Event
from lightagentd.events.store.layout import BATCH, EVENTS, Environment


class KeptCheck:
    """Receives each `pruned` of the chain, and compares the listed events at the end."""

    def __init__(self, environment: Environment, erasures: ErasureCheck) -> None:
        self._environment = environment
        self._erasures = erasures
        self.anchor = environment.anchor()
        self.heard: list[int] = []
        """The numbers of the events `pruned` in the chain."""
        self._anchors: set[tuple[object, object]] = {(0, GENESIS)}
        """What events say about where the chain begins."""
        self._marks = bytearray()
        self.kept = 0

    def pruned(self, event: Event) -> None:
        """Retention removed events."""
        self.heard.append(event.seq)
        data = event.data or {}
        self.began_behind(data.get("last_seq"), data.get("last_hash"))

    def began_behind(self, seq: object, event_hash: object) -> None:
        """An event says that the chain begins after that one."""
        if isinstance(seq, int) and isinstance(event_hash, str) and event_hash:
            self._anchors.add((seq, event_hash))

    def check(self) -> None:
        """Raises BadRecord."""
        self.anchor = self._environment.anchor()
        if self.anchor not in self._anchors:
            seq = self.anchor[0] + 1
            raise BadRecord(
                seq, f"the history begins with event {seq}, and no event says that those before were removed"
            )
        if self.anchor[0]:
            self.check_listed()
            self._check_unlisted()

    def check_listed(self) -> None:
        """Compare all listed events. Raises BadRecord for the first event that changed."""
        self.kept = 0
        self._marks = bytearray(self.anchor[0] // 8 + 1)
        self._erasures.forget_kept()
        bad: list[BadRecord] = []
        parts: set[int] = set()
        waiting = [-seq for seq in self.heard]
        heapq.heapify(waiting)
        while waiting:
            said = -heapq.heappop(waiting)
            record = record_of(self._environment, said)
            if record is None and said <= self.anchor[0]:
                continue  # removed meanwhile: a later list replaces this one, or nothing of the part is left
            data = decoded(said, record or b"").data or {}
            part = data.get("first_seq")
            if type(part) is not int or part in parts:
                continue  # a later one lists this part
            parts.add(part)
            for seq, wanted in _pairs(data.get("kept")):
                if not 0 < seq <= self.anchor[0]:
                    continue
                try:
                    event = self._compared(seq, wanted)
                except BadRecord as found:
                    bad = [min([found, *bad], key=lambda one: one.seq)]
                    continue
                if (event.topic, event.type) == ("daemon.history", "pruned") and event.data is not None:
                    heapq.heappush(waiting, -seq)
        if bad:
            raise bad[0]

    def _compared(self, seq: int, wanted: str) -> Event:
        """Raises BadRecord."""
        record = record_of(self._environment, seq)
        if record is None:
            raise BadRecord(seq, f"event {seq} is missing: retention had kept it")
        self._marks[seq // 8] |= 1 << seq % 8
        line, _, data = record.partition(b"\n")
        if hashlib.sha256(line).hexdigest() != wanted:
            raise BadRecord(seq, f"event {seq} was altered: it is not the one that retention kept")
        event = decoded(seq, record)
        if data and hashlib.sha256(data).hexdigest() != event.data_sha256:
            raise BadRecord(
                seq, f"event {seq} was altered: its data does not have the hash that its header names"
            )
        if not data:
            self._erasures.kept_without_data(seq, event.session)
        if event.topic == DELETED:
            self._erasures.kept_deletion(event)
        self.kept += 1
        return event

    def _check_unlisted(self) -> None:
        """Raises BadRecord for the first event before the anchor that no list has."""
        key = b"\0"
        while True:
            with (
                self._environment.reading() as txn,
                txn.cursor(self._environment.db[EVENTS]) as cursor,
            ):
                found = cursor.iternext(values=False) if cursor.set_range(key) else iter(())
                keys = list(islice(found, BATCH))
            for key in keys:
                seq = int.from_bytes(key[:8], "big")
                if seq > self.anchor[0]:
                    return
                if len(key) != 8 or not self._marks[seq // 8] & 1 << seq % 8:
                    raise BadRecord(seq, f"a record was inserted as event {seq}, which retention had removed")
            if not keys:
                return
            key = keys[-1] + b"\0"


def _pairs(kept: object) -> Iterator[tuple[int, str]]:
    for pair in kept if isinstance(kept, list) else []:
        if isinstance(pair, list) and len(pair) == 2 and type(pair[0]) is int and isinstance(pair[1], str):
            yield pair[0], pair[1]
