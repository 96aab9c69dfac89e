"""Events in the pages of a damaged file, found by themselves: no tree has to lead to them.

Each record begins with `{"seq":N,` and has a line break after its header, which no data can have. So a record
is found in any page, used or not, whatever its page's head, its entry or the pages above it have become. The
header names the hash of the data, which shows where they end and whether they are whole. A long record begins
a page of its own and goes on in the next ones; when two pages were swapped, the number in the head of one of
them says where the other is.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from lightagentd.events.corruption.pages import PAGE_HEADER, PageFile, Torn
from lightagentd.events.model import Event, decode

_BEGIN = b'{"seq":'
_NODE_BYTES = 16
"""What lies before a record in a leaf: the head of its entry, and its number as the key."""
_HEAD = struct.Struct("=QHHHH")
_MOST_NUMBERED = 1 << 32
_UNKNOWN_PAGES = 256
"""How far a long record is followed when the head of its first page is lost."""
ERASED, WHOLE, DOUBTFUL, HEADER = 4, 3, 2, 1
"""How much of an event there is; of two records with one number the greater counts. Data that were erased
must not come back from an older page. One whose key is another number is doubtful: either was altered."""


class Found(NamedTuple):
    """A record in the file. `place` leads back to it."""

    seq: int
    place: int
    record: bytes
    kind: int


@dataclass(frozen=True)
class Remains:
    """What is left in the pages of one file."""

    file: PageFile
    moved: dict[int, int]
    """The pages that lie in another page's place."""
    most: int
    """No event has a greater number: one that seems to have was altered."""

    @classmethod
    def of(cls, file: PageFile) -> Remains:
        """Looks at each page."""
        moved: dict[int, int] = {}
        count, newest = -(-file.size_bytes // file.page_size), 0
        for page in range(2, count):
            raw = _read(file, page, file.page_size)
            number, _, flags, _, _ = _HEAD.unpack_from(raw)
            if number != page and 2 <= number < count and flags in (1, 2, 4):
                moved[number] = page
                moved.setdefault(page, number)
            for at, seq in _numbers(raw):
                if _key(raw, at) == seq:
                    newest = max(newest, seq)
        return cls(file, moved, newest + count if newest else _MOST_NUMBERED)

    def in_page(self, page: int, low: int, high: int) -> Iterator[Found]:
        """The records with numbers from `low` to `high` that begin in a page. Raises OSError."""
        raw = _read(self.file, page, self.file.page_size)
        for at, seq in _numbers(raw):
            if low <= seq <= min(high, self.most) and (found := self._record(page, at, raw)) is not None:
                yield found

    def at(self, place: int) -> Found:
        """What is at a place. Raises Torn, OSError."""
        page, offset = divmod(place, 1 << 16)
        found = self._record(page, offset, _read(self.file, page, self.file.page_size))
        if found is None:
            raise Torn(f"page {page} has changed")
        return found

    def _record(self, page: int, at: int, raw: bytes) -> Found | None:
        place = page << 16 | at
        if at == PAGE_HEADER:
            best: Found | None = None
            for moved in ({}, self.moved) if self.moved else ({},):
                found = self._long(replace(self, moved=moved), page, place)
                if found is not None and found.kind == WHOLE:
                    return found
                best = best or found
            return best
        size_bytes = _entry_bytes(raw, at)
        found = _parsed(place, raw[at:], size_bytes)
        if found is not None and size_bytes is not None and _key(raw, at) != found.seq:
            return found._replace(kind=min(found.kind, DOUBTFUL))
        return found

    @staticmethod
    def _long(remains: Remains, page: int, place: int) -> Found | None:
        """A record that begins a page, with as many of the next pages as it needs."""
        file = remains.file
        number, _, flags, low, high = _HEAD.unpack(_read(file, page, PAGE_HEADER))
        known = flags == 4 and 0 < low | high << 16 <= file.size_bytes // file.page_size
        most = low | high << 16 if known else _UNKNOWN_PAGES
        first = number if known and remains.moved else page
        found, pages = None, 1
        while True:
            pages = min(pages, most)
            others = (remains.moved.get(first + each, first + each) for each in range(1, pages))
            parts = (_read(file, each, file.page_size) for each in (page, *others))
            found = _parsed(place, b"".join(parts)[PAGE_HEADER:], None)
            if found is None or found.kind == WHOLE or pages == most:
                return found
            pages *= 8


def kind_of(record: bytes, seq: int) -> int:
    """How much of an event a record is; 0 when it is none, or another one."""
    found = _parsed(0, record, len(record))
    return found.kind if found is not None and found.seq == seq else 0


def _read(file: PageFile, page: int, size_bytes: int) -> bytes:
    return os.pread(file.fd, size_bytes, page * file.page_size).ljust(size_bytes, b"\0")


def _numbers(raw: bytes) -> Iterator[tuple[int, int]]:
    """Where records seem to begin in a page, and their numbers."""
    at = raw.find(_BEGIN)
    while at >= 0:
        digits = raw[at + len(_BEGIN) : at + len(_BEGIN) + 11].partition(b",")[0]
        if digits.isdigit() and 0 < int(digits) < _MOST_NUMBERED:
            yield at, int(digits)
        at = raw.find(_BEGIN, at + 1)


def _key(raw: bytes, at: int) -> int:
    """What lies in the place of the key of a record in a leaf."""
    return int.from_bytes(raw[max(0, at - 8) : at], "big")


def _entry_bytes(raw: bytes, at: int) -> int | None:
    """The size of the record at a place of a leaf; None when the head of its entry is lost."""
    if at < PAGE_HEADER + _NODE_BYTES:
        return None
    low, high, flags, key_bytes = struct.unpack_from("=HHHH", raw, at - _NODE_BYTES)
    size_bytes = low | high << 16
    whole = key_bytes == 8 and not flags and at + size_bytes <= len(raw)
    return size_bytes if whole else None


def _parsed(place: int, raw: bytes, size_bytes: int | None) -> Found | None:
    """The record at the beginning of some bytes. Without its size, its data end where their JSON ends."""
    line, broken, rest = raw.partition(b"\n")
    event = _header(line) if broken else None
    if event is None:
        return None
    head = line + b"\n"
    if size_bytes == len(head):
        return Found(event.seq, place, head, ERASED)
    if size_bytes is not None and _fits(event, rest[: size_bytes - len(head)]):
        return Found(event.seq, place, raw[:size_bytes], WHOLE)
    data = _json(rest)
    if _fits(event, data):
        return Found(event.seq, place, head + data, WHOLE)
    return Found(event.seq, place, head + b"?", HEADER)


def _header(line: bytes) -> Event | None:
    try:
        event = decode(line + b"\n")
    except (ValueError, RecursionError):
        return None
    return event if 0 < event.seq < _MOST_NUMBERED else None


def _fits(event: Event, data: bytes) -> bool:
    return bool(data) and hashlib.sha256(data).hexdigest() == event.data_sha256


def _json(raw: bytes) -> bytes:
    """The bytes of the JSON object at the beginning; empty when there is none."""
    text = raw.decode("utf-8", "surrogateescape")
    try:
        _, end = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return b""
    return text[:end].encode("utf-8", "surrogateescape")
