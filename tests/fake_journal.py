"""Writes a journal file that libsystemd reads, so that tests of the journal need no journald and no root.

The format is that of https://systemd.io/JOURNAL_FILE_FORMAT/, without compression, seals or keyed hashes.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

DATA, FIELD, ENTRY, DATA_HASH_TABLE, FIELD_HASH_TABLE, ENTRY_ARRAY = range(1, 7)
HEADER_BYTES = 240
BUCKETS = 64
MACHINE, BOOT, FILE = b"m" * 16, b"b" * 16, b"f" * 16


def jenkins_hash64(data: bytes) -> int:
    """Bob Jenkins' lookup3 (hashlittle2), which the journal uses for its hash tables."""
    mask = 0xFFFFFFFF

    def rot(value: int, by: int) -> int:
        return (value << by | value >> (32 - by)) & mask

    x: int
    y: int
    z: int
    a = b = c = (0xDEADBEEF + len(data)) & mask
    rest = data
    while len(rest) > 12:
        x, y, z = struct.unpack_from("<3I", rest)
        a, b, c = (a + x) & mask, (b + y) & mask, (c + z) & mask
        for by in (4, 6, 8, 16, 19, 4):
            a = (a - c) & mask ^ rot(c, by)
            c = (c + b) & mask
            a, b, c = b, c, a  # the next round has the names moved on by one; after six they are back
        rest = rest[12:]
    if not rest:
        return c << 32 | b
    x, y, z = struct.unpack("<3I", rest.ljust(12, b"\0"))
    a, b, c = (a + x) & mask, (b + y) & mask, (c + z) & mask
    c = ((c ^ b) - rot(b, 14)) & mask
    a = ((a ^ c) - rot(c, 11)) & mask
    b = ((b ^ a) - rot(a, 25)) & mask
    c = ((c ^ b) - rot(b, 16)) & mask
    a = ((a ^ c) - rot(c, 4)) & mask
    b = ((b ^ a) - rot(a, 14)) & mask
    c = ((c ^ b) - rot(b, 24)) & mask
    return c << 32 | b


@dataclass
class _Chained:
    """A data or field object: where it is, its hash, and the entries that have it."""

    payload: bytes
    kind: int
    offset: int = 0
    entries: list[int] = field(default_factory=list)
    head: int = 0
    """For a field: its first data object."""
    next_hash: int = 0
    next_in_field: int = 0
    array: int = 0


def write_journal(path: Path, entries: list[tuple[int, dict[str, str | bytes]]]) -> None:
    """A file of entries `(time in UTC microseconds, fields)`, which must be in order of time."""
    _Writer().write(path, entries)


class _Writer:
    def __init__(self) -> None:
        self.at = HEADER_BYTES
        self.objects: list[tuple[int, bytes]] = []

    def place(self, size: int) -> int:
        offset = self.at
        self.at = (offset + size + 7) // 8 * 8
        return offset

    def write(self, path: Path, entries: list[tuple[int, dict[str, str | bytes]]]) -> None:
        tables = {kind: self.place(16 + 16 * BUCKETS) for kind in (DATA_HASH_TABLE, FIELD_HASH_TABLE)}
        data: dict[bytes, _Chained] = {}
        fields: dict[bytes, _Chained] = {}
        rows = []
        for time_us, values in entries:
            items = [self._datum(key, value, data, fields) for key, value in values.items()]
            offset = self.place(64 + 16 * len(items))
            for item in items:
                item.entries.append(offset)
            rows.append((offset, time_us, items))
        self._emit_entries(rows)
        for datum in data.values():
            if len(datum.entries) > 1:
                datum.array = self._array(datum.entries[1:])
        array = self._array([offset for offset, _, _ in rows])
        self._emit_table(tables[DATA_HASH_TABLE], DATA_HASH_TABLE, list(data.values()))
        self._emit_table(tables[FIELD_HASH_TABLE], FIELD_HASH_TABLE, list(fields.values()))
        for datum in data.values():
            numbers = (jenkins_hash64(datum.payload), datum.next_hash, datum.next_in_field)
            body = (
                struct.pack("<6Q", *numbers, datum.entries[0], datum.array, len(datum.entries))
                + datum.payload
            )
            self._emit(datum.offset, DATA, body)
        for name in fields.values():
            body = struct.pack("<3Q", jenkins_hash64(name.payload), name.next_hash, name.head) + name.payload
            self._emit(name.offset, FIELD, body)
        content = bytearray(self.at - HEADER_BYTES)
        for offset, blob in self.objects:
            content[offset - HEADER_BYTES : offset - HEADER_BYTES + len(blob)] = blob
        times = (entries[0][0], entries[-1][0], len(entries)) if entries else (0, 0, 0)
        last = max((offset for offset, _ in self.objects), default=0)
        head = struct.pack("<8sIIB7x16s16s16s16s", b"LPKSHHRH", 0, 0, 0, FILE, MACHINE, BOOT, FILE)
        table = (tables[DATA_HASH_TABLE] + 16, 16 * BUCKETS, tables[FIELD_HASH_TABLE] + 16, 16 * BUCKETS)
        counts = (last, len(self.objects), len(entries), len(entries), min(1, len(entries)), array)
        arrays = sum(blob[0] == ENTRY_ARRAY for _, blob in self.objects)
        tail = struct.pack(
            "<19Q", HEADER_BYTES, len(content), *table, *counts, *times, len(data), len(fields), 0, arrays
        )
        path.write_bytes(head + tail + content)

    def _datum(
        self, key: str, value: str | bytes, data: dict[bytes, _Chained], fields: dict[bytes, _Chained]
    ) -> _Chained:
        name = key.encode()
        payload = name + b"=" + (value if isinstance(value, bytes) else value.encode())
        if payload in data:
            return data[payload]
        made = data[payload] = _Chained(payload, DATA, self.place(64 + len(payload)))
        if name not in fields:
            fields[name] = _Chained(name, FIELD, self.place(40 + len(name)))
        made.next_in_field, fields[name].head = fields[name].head, made.offset
        return made

    def _emit_entries(self, rows: list[tuple[int, int, list[_Chained]]]) -> None:
        for number, (offset, time_us, items) in enumerate(rows, 1):
            combined = 0
            for item in items:
                combined ^= jenkins_hash64(item.payload)
            body = struct.pack("<3Q16sQ", number, time_us, number, BOOT, combined)
            for item in sorted(items, key=lambda item: item.offset):
                body += struct.pack("<2Q", item.offset, jenkins_hash64(item.payload))
            self._emit(offset, ENTRY, body)

    def _emit_table(self, offset: int, kind: int, members: list[_Chained]) -> None:
        buckets: dict[int, list[_Chained]] = {}
        for member in members:
            buckets.setdefault(jenkins_hash64(member.payload) % BUCKETS, []).append(member)
        body = b""
        for number in range(BUCKETS):
            chain = buckets.get(number, [])
            for one, other in pairwise(chain):
                one.next_hash = other.offset
            body += struct.pack("<2Q", chain[0].offset, chain[-1].offset) if chain else bytes(16)
        self._emit(offset, kind, body)

    def _array(self, offsets: list[int]) -> int:
        if not offsets:
            return 0
        offset = self.place(24 + 8 * len(offsets))
        self._emit(offset, ENTRY_ARRAY, struct.pack(f"<{1 + len(offsets)}Q", 0, *offsets))
        return offset

    def _emit(self, offset: int, kind: int, body: bytes) -> None:
        self.objects.append((offset, struct.pack("<B7xQ", kind, 16 + len(body)) + body))
