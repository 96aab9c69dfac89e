"""Reads files as text: finds the encoding, pages numbered lines, and compares two contents.

Every byte sequence can be read: what is not UTF-8 is shown as ISO 8859-1, which has a character for each
byte, and what is binary as a hexadecimal dump. Reading a page costs memory for that page alone.
"""

from __future__ import annotations

import codecs
import difflib
import re
from dataclasses import dataclass
from typing import BinaryIO

PROBE_BYTES = 64 * 1024
PAGE_LIMIT_BYTES = 64 * 1024
LINE_LIMIT_CHARS = 2000
SCAN_LIMIT_BYTES = 256 * 1024 * 1024
"""How far into a file a page may begin, and how far lines are counted."""
BINARY = "binary"
HEX_ROW_BYTES = 16
DIFF_LIMIT_LINES = 400
DIFF_INPUT_LINES = 6000
"""difflib takes quadratic time, so a change of more lines than this is counted and not shown."""
_CHUNK_BYTES = 256 * 1024
_BOMS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def encoding_of(probe: bytes, *, whole: bool) -> str:
    """The Python codec for a file that begins with `probe`, or `binary`; `whole`: it is all of it."""
    for mark, name in _BOMS:
        if probe.startswith(mark):
            return name
    if b"\0" in probe:
        return BINARY
    try:
        codecs.getincrementaldecoder("utf-8")().decode(probe, final=whole)
    except UnicodeDecodeError:
        return "iso-8859-1"
    return "utf-8"


def known_encoding(name: str) -> bool:
    """Whether Python has this codec, and it is one for text."""
    try:
        codecs.getincrementaldecoder(name)
        return bool("a".encode(name))  # refuses codecs such as hex, which are not for text
    except (LookupError, ValueError):
        return False


@dataclass(kw_only=True)
class Page:
    """Some lines of a file, and where they are in it."""

    encoding: str
    first: int
    lines: list[str]
    total: int | None = None
    """How many lines the file has; None when counting them would take too long."""
    more: bool = False
    cut_lines: int = 0

    def text(self) -> str:
        if self.encoding == BINARY:
            return "".join(line + "\n" for line in self.lines)
        return "".join(f"{number:>6}\t{line}\n" for number, line in enumerate(self.lines, self.first))


def read_page(file: BinaryIO, *, first: int, limit: int, encoding: str = "") -> Page:
    """Up to `limit` lines from line `first` (from 1) on; in a binary file, rows of 16 bytes."""
    probe = file.read(PROBE_BYTES) or b""  # None where nothing is there to read yet, as in /proc/kmsg
    encoding = encoding or encoding_of(probe, whole=len(probe) < PROBE_BYTES)
    if encoding == BINARY:
        return _hex_page(file, probe, first, limit)
    reader = _Lines(Page(encoding=encoding, first=first, lines=[]), limit)
    decoder = codecs.getincrementaldecoder(encoding)("replace")
    chunk, scanned = probe, 0
    while chunk and scanned < SCAN_LIMIT_BYTES:
        reader.feed(decoder.decode(chunk))
        scanned += len(chunk)
        chunk = file.read(_CHUNK_BYTES) or b""
    reader.feed(decoder.decode(b"", final=True))
    return reader.finish(at_end=not chunk)


class _Lines:
    """Counts lines and keeps those of the page; a line is kept up to its limit only."""

    def __init__(self, page: Page, limit: int) -> None:
        self._page = page
        self._limit = limit
        self._number = 1
        self._begun: str | None = None
        self._size = 0

    def feed(self, text: str) -> None:
        if self._number < self._page.first or self._page.more:
            ends = text.count("\n")
            if self._page.more or self._number + ends < self._page.first:
                self._number += ends
                if text:
                    self._begun = None if text.endswith("\n") else ""
                return
        pieces = text.split("\n")
        for piece in pieces[:-1]:
            self._add(piece)
            self._end()
        if pieces[-1]:
            self._add(pieces[-1])

    def _add(self, piece: str) -> None:
        begun = self._begun or ""
        self._begun = begun + piece[: LINE_LIMIT_CHARS + 1 - len(begun)]

    def _end(self) -> None:
        line = (self._begun or "").removesuffix("\r")
        if self._number >= self._page.first:
            if len(self._page.lines) >= self._limit or self._size >= PAGE_LIMIT_BYTES:
                self._page.more = True
            else:
                if len(line) > LINE_LIMIT_CHARS:
                    line = line[:LINE_LIMIT_CHARS] + "…"
                    self._page.cut_lines += 1
                self._page.lines.append(line)
                self._size += len(line.encode("utf-8", "replace"))
        self._number += 1
        self._begun = None

    def finish(self, *, at_end: bool) -> Page:
        if self._begun is not None:
            self._end()
        if at_end:
            self._page.total = self._number - 1
        else:
            self._page.more = True
        return self._page


def _hex_page(file: BinaryIO, probe: bytes, first: int, limit: int) -> Page:
    limit = min(limit, PAGE_LIMIT_BYTES // 80)
    start = (first - 1) * HEX_ROW_BYTES
    size = limit * HEX_ROW_BYTES
    if start + size < len(probe):
        data = probe[start : start + size + 1]
    else:
        file.seek(start)
        data = file.read(size + 1) or b""
    rows = []
    for at in range(0, min(len(data), size), HEX_ROW_BYTES):
        row = data[at : at + HEX_ROW_BYTES]
        printable = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        rows.append(f"{start + at:08x}  {row.hex(' '):<47}  {printable}")
    return Page(encoding=BINARY, first=first, lines=rows, more=len(data) > size)


def unified_diff(path: str, before: bytes | None, after: bytes | None) -> str:
    """The unified diff of two contents; None stands for no file. Bounded in time and size."""
    old, new = _diff_lines(before), _diff_lines(after)
    if old is None or new is None:
        return f"(binary content: {len(before or b'')} bytes before, {len(after or b'')} bytes after)\n"
    start, end = _common(old, new)
    keep = max(0, start - 3)
    old_part, new_part = old[keep : len(old) - max(0, end - 3)], new[keep : len(new) - max(0, end - 3)]
    if len(old_part) + len(new_part) > DIFF_INPUT_LINES:
        return (
            f"(diff left out: lines {start + 1} to {len(old) - end} became {len(new) - start - end} lines)\n"
        )
    names = (path if before is not None else "/dev/null", path if after is not None else "/dev/null")
    lines = []
    for line in difflib.unified_diff(old_part, new_part, *names):
        shown = _moved(line, keep) if line.startswith("@@ ") else line
        lines.append(shown if shown.endswith("\n") else shown + "\n\\ No newline at end of file\n")
    if len(lines) > DIFF_LIMIT_LINES:
        left = len(lines) - DIFF_LIMIT_LINES
        lines = [*lines[:DIFF_LIMIT_LINES], f"({left} more lines of the diff left out)\n"]
    return "".join(lines) or "(no difference)\n"


def _diff_lines(data: bytes | None) -> list[str] | None:
    if data is None:
        return []
    encoding = encoding_of(data, whole=True)
    if encoding == BINARY:
        return None
    return re.findall(r"[^\n]*\n|[^\n]+", data.decode(encoding, "replace"))


def _common(old: list[str], new: list[str]) -> tuple[int, int]:
    """How many lines are the same at the start, and how many of the others at the end."""
    most = min(len(old), len(new))
    start = 0
    while start < most and old[start] == new[start]:
        start += 1
    end = 0
    while end < most - start and old[-1 - end] == new[-1 - end]:
        end += 1
    return start, end


def _moved(header: str, by: int) -> str:
    """A hunk header whose line numbers count from the start of the file."""

    def add(found: re.Match[str]) -> str:
        return f"{found[1]}{int(found[2]) + by}"

    return re.sub(r"([-+])(\d+)", add, header)
