"""Writes the readable part of a damaged store to a file of JSON lines, as `lactl history export` does.

The trees are walked as far as possible (see `pages`). For the rest, every page of the file is searched for
events that the walk did not reach whole (`remains`). These pages may be outdated, so data of deleted sessions
and events that retention removed are left out. If the data of a record do not match its header anywhere, only
the header is written.

If all events and states were readable, and only an index or a spare page was damaged, the file is a whole
export that can be imported. Otherwise it is a partial export, and its last line says which events are
missing.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from lightagentd.errors import StorageError
from lightagentd.events.backup import portable
from lightagentd.events.corruption.examination import DATA
from lightagentd.events.corruption.pages import PageFile, Torn, Tree, Walk
from lightagentd.events.corruption.remains import DOUBTFUL, WHOLE, Found, Remains, kind_of
from lightagentd.events.model import GENESIS, Event, decode
from lightagentd.events.store.layout import EVENTS, META, SCHEMA_VERSION, STATES
from lightagentd.host.atomic_file import whole_file

_WINDOW = 1_000_000
"""How many events a scan of the whole file looks for at once; each takes 8 bytes."""
_PAUSE_PAGES, _PAUSE_S = 256, 0.002
"""The daemon serves meanwhile, in the same process."""
_DELETED = b'"topic":"session.deleted"'
_PRUNED = b'"topic":"daemon.history","type":"pruned"'
MOST_RANGES, _SHOWN_RANGES = 100, 8
_MOST_EVENTS = 1 << 32
"""No event has a number beyond that."""


class Stopped(Exception):
    """The work was cancelled."""


@dataclass(kw_only=True)
class Salvaged:
    """The result of a salvage. `torn` describes the unusable parts."""

    events: int = 0
    missing: int = 0
    """How many numbers up to the last event should have one, and have none."""
    ranges: list[tuple[int, int]] = field(default_factory=list)
    """The first and the last number of each gap; no more than MOST_RANGES of them."""
    without_data: int = 0
    states: int = 0
    whole: bool = False
    """Whether nothing is missing, so that the file can be imported."""
    torn: list[str] = field(default_factory=list)


class DamagedStore:
    """An open damaged store, with the trees of its better meta page."""

    def __init__(self, fd: int, stop: Callable[[], bool]) -> None:
        self.file = PageFile(fd)
        self.torn_first: list[str] = []
        """What is wrong with the first pages: they may lead to what the store was before its last change."""
        self.torn_events: list[str] = []
        """What was wrong in the newest walk over the events."""
        self.torn_states: list[str] = []
        self._walk: Walk | None = None
        self._trees: dict[str, Tree] = {}
        self._stop = stop
        self._looked = 0
        self._found: Remains | None = None
        metas = self.file.any_meta()
        if len(metas) < 2:
            self.torn_first.append("one of the first pages is not sound")
        for meta in metas:
            self.file.page_size = meta.page_size
            walk = Walk(self.file, meta, tolerant=True)
            trees = walk.trees() if meta.main.root is not None else {}
            if EVENTS in trees and not (walk.torn and len(metas) > 1):
                self._walk, self._trees = walk, trees
                break
            self.torn_first += walk.torn or ["a first page does not lead to the events"]
        else:
            self.torn_first.append("no first page leads to the events")

    @property
    def _remains(self) -> Remains:
        if self._found is None:
            self._found = Remains.of(self.file)
        return self._found

    def events(self, *, newest_first: bool = False) -> Iterator[tuple[int, bytes]]:
        """Number and record of each event in the trees, in order."""
        if self._walk is None:
            return
        walk = Walk(self.file, self._walk.meta, tolerant=True)
        self.torn_events = walk.torn
        for nodes in walk.leaves(self._trees[EVENTS], newest_first=newest_first):
            self._breathe()
            for node in nodes:
                seq = int.from_bytes(node.key, "big")
                if len(node.key) != 8 or not 0 < seq < _MOST_EVENTS:
                    continue
                try:
                    yield seq, self.file.value(node)
                except (Torn, OSError) as err:
                    walk.torn.append(str(err))

    def scanned(self, low: int, high: int) -> Iterator[Found]:
        """Each event between two numbers that any page of the file holds, used or not."""
        for page in range(-(-self.file.size_bytes // self.file.page_size)):
            self._breathe()
            with contextlib.suppress(OSError):
                yield from self._remains.in_page(page, low, high)

    def at(self, place: int) -> Found:
        """What is at a place that `scanned` gave. Raises Torn, OSError."""
        return self._remains.at(place)

    def states(self) -> Iterator[tuple[str, str, object]]:
        """State, key and value of all stored states."""
        self.torn_states = []
        for name in STATES:
            if self._walk is None or name not in self._trees:
                continue
            walk = Walk(self.file, self._walk.meta, tolerant=True)
            for nodes in walk.leaves(self._trees[name]):
                self._breathe()
                for node in nodes:
                    try:
                        yield name, node.key.decode(), json.loads(self.file.value(node))
                    except (Torn, OSError, ValueError, RecursionError) as err:
                        self.torn_states.append(f"{name}: {err}")
            self.torn_states += walk.torn

    def meta_of(self, key: bytes) -> bytes:
        """A value of META; empty when it is unreadable."""
        if self._walk is not None and META in self._trees:
            for nodes in Walk(self.file, self._walk.meta, tolerant=True).leaves(self._trees[META]):
                for node in nodes:
                    if node.key == key and not node.page:
                        return node.value
        return b""

    def _breathe(self) -> None:
        """After each page: raises Stopped, and pauses now and then."""
        self._looked += 1
        if self._stop():
            raise Stopped
        if self._looked % _PAUSE_PAGES == 0:
            time.sleep(_PAUSE_S)


@contextlib.contextmanager
def opened(folder: Path, stop: Callable[[], bool] = lambda: False) -> Iterator[DamagedStore]:
    """The store. A path that is not a regular file is read as an empty one. Raises OSError."""
    path = folder / DATA
    is_file = path.is_file()  # checked before the opening: opening a device may have effects
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK) if is_file else os.memfd_create("nothing")
    try:
        yield DamagedStore(fd, stop)
    finally:
        os.close(fd)


def last_known(folder: Path) -> tuple[int, str]:
    """Number and hash of the newest event found in a damaged store; (0, GENESIS) without one."""
    best = (0, GENESIS)
    with contextlib.suppress(OSError), opened(folder) as store:
        for _, record in store.events(newest_first=True):
            event = _event(record)
            if event is not None and not store.torn_first and not store.torn_events:
                return event.seq, event.hash
            break
        for found in store.scanned(1, _MOST_EVENTS):
            if found.seq > best[0] and (event := _event(found.record)) is not None:
                best = (event.seq, event.hash)
    return best


def is_whole(export: Path) -> bool:
    """Whether a file that `salvage` wrote can be imported."""
    return portable.LAST in _last_line(export)


def missing_in(export: Path) -> str:
    """What a file that `salvage` wrote lacks, as in "3 are missing: 5-6, 9"; empty when that is nothing."""
    said = _last_line(export)
    with contextlib.suppress(TypeError, KeyError, ValueError):
        return missing_sentence(int(said[portable.MISSING]), said["ranges"])
    return ""


def missing_sentence(missing: int, ranges: Sequence[Sequence[int]]) -> str:
    """The same from the number and the gaps. Raises TypeError, ValueError."""
    if not missing:
        return ""
    shown = [f"{low}-{high}" if low != high else f"{low}" for low, high in ranges[:_SHOWN_RANGES]]
    more = ", …" if len(ranges) > len(shown) else ""
    return f"{missing} {'is' if missing == 1 else 'are'} missing: {', '.join(shown)}{more}"


def _last_line(export: Path) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError), export.open("rb") as file:
        file.seek(-min(8192, export.stat().st_size), os.SEEK_END)
        found = json.loads(file.read().rstrip(b"\n").rpartition(b"\n")[2])
        return found if isinstance(found, dict) else {}
    return {}


def salvage(folder: Path, target: Path, stop: Callable[[], bool]) -> Salvaged:
    """Write the readable part of the store in a folder to a new file, which appears when it is complete.

    Raises Stopped, and StorageError when the file cannot be written or nothing is readable.
    """
    draft = target.with_name(f"{target.name}.partial")
    try:
        with whole_file(target, draft=draft) as out, opened(folder, stop) as store:
            return _Export(store, out).write()
    except OSError as err:
        raise StorageError(
            f"What can be read of the history in {folder} could not be written to {target}: {err.strerror}.",
            suggestion="Make room and restart the daemon, which then tries it again.",
        ) from err


class _Export:
    """One salvage."""

    def __init__(self, store: DamagedStore, out: BinaryIO) -> None:
        self._store = store
        self._out = out
        self._done = Salvaged()
        self._kept: dict[int, tuple[int, set[int]]] = {}
        """What retention kept of the part of the chain that begins with a number, and which event says so."""
        self._deleted: dict[str, int] = {}
        """Sessions whose data nobody may see again, up to the event with a number."""
        self._there = bytearray()
        """A bit for each number of which the walk has the whole event."""
        self._anchor, self._anchor_hash = 0, GENESIS
        self._anchor_seen = (0, GENESIS)
        """The anchor as the newest event of retention names it."""
        self._searches = False
        """Whether the walk may have missed events, so that all pages are searched."""
        self._last = 0
        self._count = 0
        self._newest = b""
        self._head = (0, GENESIS)

    def write(self) -> Salvaged:
        self._survey()
        stored = self._store.meta_of(b"schema_version")
        version = int(stored) if stored.isdigit() else SCHEMA_VERSION
        anchor = (self._anchor, self._anchor_hash)
        whole, count = not self._done.torn, self._count
        newest = _event(self._newest)
        time_us = newest.time_us if newest is not None else 0
        events = count if whole else None
        self._out.write(portable.first_line(version, anchor, whole=whole, events=events, time_us=time_us))
        self._events()
        for name, key, value in self._store.states():
            self._out.write(portable.state_line(name, key, value))
            self._done.states += 1
        if whole and not self._done.torn:
            self._out.write(portable.last_line(self._done.events, self._done.states, self._head))
            self._done.whole = True
        else:
            self._out.write(portable.missing_line(self._done.missing, self._done.ranges))
        return self._done

    def _survey(self) -> None:
        """Look at all without writing."""
        for seq, record in self._store.events():
            self._see(seq, record)
            self._count += 1
            if kind_of(record, seq) >= WHOLE:
                self._note(seq)
            else:
                self._done.torn.append(f"the record of event {seq} is not whole")
        for _ in self._store.states():
            pass
        store = self._store
        self._searches = bool(store.torn_first or store.torn_events or self._done.torn)
        self._done.torn += [*store.torn_first, *store.torn_events, *store.torn_states]
        if self._searches:
            for found in self._store.scanned(1, _MOST_EVENTS):
                self._see(found.seq, found.record)
        self._anchor, self._anchor_hash = _anchor(self._store.meta_of(b"anchor"), self._anchor_seen)

    def _events(self) -> None:
        walked = (each for each in self._store.events() if self._has(each[0]))
        if not self._searches:
            for each in walked:
                self._event(*each)
            return
        ahead = next(walked, None)
        low = min([self._anchor + 1, *(min(kept) for _, kept in self._kept.values() if kept)])
        low = min(low, ahead[0]) if ahead is not None else low
        while low <= self._last:
            high = min(low + _WINDOW - 1, self._last)
            found = self._found(low, high)
            for seq in range(low, high + 1):
                if self._has(seq):
                    while ahead is not None and ahead[0] <= seq:
                        self._event(*ahead)
                        ahead = next(walked, None)
                elif (place := found[seq - low]) and self._may_be(one := self._store.at(place - 1)):
                    self._event(seq, one.record, scanned=True)
                elif self._is_wanted(seq):
                    self._miss(seq)
            low = high + 1

    def _may_be(self, found: Found) -> bool:
        """False for a doubtful record that does not follow the event before it."""
        event, (last, last_hash) = _event(found.record), self._head
        return found.kind != DOUBTFUL or event is None or last != found.seq - 1 or event.prev == last_hash

    def _is_wanted(self, seq: int) -> bool:
        """Whether the chain has the event, or retention kept it."""
        return seq > self._anchor or any(seq in kept for _, kept in self._kept.values())

    def _miss(self, seq: int) -> None:
        self._done.missing += 1
        ranges = self._done.ranges
        if ranges and ranges[-1][1] == seq - 1:
            ranges[-1] = (ranges[-1][0], seq)
        elif len(ranges) < MOST_RANGES:
            ranges.append((seq, seq))

    def _found(self, low: int, high: int) -> array[int]:
        """The places of records that the walk did not reach, counted from 1; 0 for those not found. Of two
        records with one number the one counts that has more (`remains`).
        """
        found, kinds = array("Q", bytes(8 * (high - low + 1))), bytearray(high - low + 1)
        if all(self._has(seq) for seq in range(low, high + 1)):
            return found
        for seq, place, _, kind in self._store.scanned(low, high):
            at = seq - low
            if kind > kinds[at] and not self._has(seq) and self._is_wanted(seq):
                found[at], kinds[at] = place + 1, kind
        return found

    def _event(self, seq: int, record: bytes, *, scanned: bool = False) -> None:
        event = _event(record)
        if event is None or event.seq != seq:
            self._done.torn.append(f"the record of event {seq} is no event")
            self._done.missing += 1
            return
        data = record.partition(b"\n")[2]
        value = portable.event_fields(event, data)
        hidden = scanned and seq < self._deleted.get(event.session, 0)
        if data and (hidden or hashlib.sha256(data).hexdigest() != event.data_sha256):
            self._done.torn.append(f"the data of event {seq} are not those that its header names")
            value = {**event.to_dict(), "data": None}
        self._done.without_data += value["data"] is None
        self._done.events += 1
        self._head = (seq, event.hash)
        self._out.write(portable.line(value))

    def _see(self, seq: int, record: bytes) -> None:
        if seq > self._last:
            self._last, self._newest = seq, record
        line = record.partition(b"\n")[0]
        if _DELETED in line and (event := _event(record)) is not None:
            self._deleted[event.session] = seq
        elif _PRUNED in line and (event := _event(record)) is not None and event.data is not None:
            with contextlib.suppress(TypeError, KeyError, ValueError):
                self._see_pruned(seq, event.data)

    def _see_pruned(self, seq: int, said: Mapping[str, Any]) -> None:
        """What retention said. Raises TypeError, KeyError, ValueError."""
        first, kept = int(said["first_seq"]), {int(each) for each, _ in said["kept"]}
        if seq > self._kept.get(first, (0, kept))[0]:
            self._kept[first] = (seq, kept)
        if said["last_hash"] and int(said["last_seq"]) > self._anchor_seen[0]:
            self._anchor_seen = (int(said["last_seq"]), str(said["last_hash"]))

    def _note(self, seq: int) -> None:
        at = seq >> 3
        if at >= len(self._there):
            self._there.extend(bytes(at + 1 - len(self._there) + 4096))
        self._there[at] |= 1 << (seq & 7)

    def _has(self, seq: int) -> bool:
        return seq >> 3 < len(self._there) and bool(self._there[seq >> 3] & 1 << (seq & 7))


def _event(record: bytes) -> Event | None:
    """The event; only its header when its data are unreadable."""
    for part in (record, record.partition(b"\n")[0] + b"\n"):
        with contextlib.suppress(ValueError, RecursionError):
            return decode(part)
    return None


def _anchor(stored: bytes, seen: tuple[int, str]) -> tuple[int, str]:
    with contextlib.suppress(ValueError, TypeError, OverflowError):
        seq, anchor_hash = json.loads(stored or b"null")
        if 0 <= int(seq) < _MOST_EVENTS:
            return int(seq), str(anchor_hash)
    return seen
