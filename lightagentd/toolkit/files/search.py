"""Finds files by name and lines by regular expression; runs as a child process of its own.

A regular expression can take exponential time on one line, and Python's `re` holds the interpreter's lock
and cannot be interrupted from a thread; a read from a dead network mount cannot be either. So a search is
a process that `lightagentd.host.process.run` kills when its time is up; what it found until then is kept.

It is started as `python -I -S search.py`, so it imports the standard library alone. Standard input is one
request as JSON, standard output one JSON object a line: each match, then a summary with `done`. Symbolic
links are not followed below the root, special files are never opened, and /proc, /sys and /dev are left
out unless the root is inside of them.
"""

from __future__ import annotations

import fnmatch
import itertools
import json
import os
import re
import resource
import stat
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

LINE_LIMIT_BYTES = 64 * 1024
"""A longer line is searched in pieces of this size."""
SHOWN_CHARS = 400
"""How much of a line that matches is given back."""
FOLDER_LIMIT = 200_000
"""How many entries of one folder are looked at."""
OUTPUT_LIMIT_BYTES = 1024 * 1024
MEMORY_LIMIT_BYTES = 1024 * 1024 * 1024
PSEUDO = ("/proc", "/sys", "/dev")

Segment = Callable[[str], object] | None
"""Matches one name; None is `**`, which stands for any number of folders."""


def open_regular(path: str) -> int:
    """Open a regular file for reading and give its descriptor; nothing else is ever opened.

    The file is looked at through O_PATH first (open(2)), because opening a device or a FIFO can block or
    do something. Raises OSError; for what is not a regular file, its errno is 0 and its text is the kind.
    """
    handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        kind = kind_of(os.fstat(handle).st_mode)
        if kind != "file":
            raise OSError(0, kind, path)
        return os.open(f"/proc/self/fd/{handle}", os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    finally:
        os.close(handle)


def kind_of(mode: int) -> str:
    """`file`, `folder`, `link`, `fifo`, `socket`, `block device` or `character device`."""
    kinds = {
        stat.S_IFREG: "file",
        stat.S_IFDIR: "folder",
        stat.S_IFLNK: "link",
        stat.S_IFIFO: "fifo",
        stat.S_IFSOCK: "socket",
        stat.S_IFBLK: "block device",
        stat.S_IFCHR: "character device",
    }
    return kinds.get(stat.S_IFMT(mode), "unknown")


class Search:
    """One request: its bounds and what it has seen so far."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.root: str = request["root"]
        self.limit: int = request["limit"]
        self.deadline = time.monotonic() + request["seconds"]
        self.segments = [_segment(part) for part in request["glob"].split("/") if part]
        self.written = 0
        self.seen: dict[str, Any] = {
            "done": True, "stopped": "", "matches": 0, "files": 0, "binary": 0, "unreadable": 0,
        }  # fmt: skip

    def give(self, **match: object) -> bool:
        """Write one match; False means that no more may follow."""
        if self.seen["matches"] >= self.limit or self.written >= OUTPUT_LIMIT_BYTES:
            self.seen["stopped"] = "limit"
            return False
        line = json.dumps(match) + "\n"
        self.written += len(line)
        self.seen["matches"] += 1
        sys.stdout.write(line)
        sys.stdout.flush()
        return True

    def late(self) -> bool:
        if time.monotonic() < self.deadline:
            return False
        self.seen["stopped"] = "time"
        return True

    def walk(self) -> Iterator[tuple[str, int]]:
        """Path and mode of everything below the root that the glob matches, by name, folder by folder."""
        end = len(self.segments)
        pending = [(self.root, self._closure({0}))]
        while pending and not self.late():
            folder, at = pending.pop()
            below: list[tuple[str, set[int]]] = []
            for name, mode in self._entries(folder):
                if self.late():
                    return
                path = os.path.join(folder, name)  # noqa: PTH118 - str is several times faster here
                reached = self._step(at, name)
                if end in reached:
                    yield path, mode
                if stat.S_ISDIR(mode) and reached - {end} and (path not in PSEUDO):
                    below.append((path, reached))
            pending += reversed(below)

    def _entries(self, folder: str) -> list[tuple[str, int]]:
        found = []
        try:
            with os.scandir(folder) as entries:
                for entry in itertools.islice(entries, FOLDER_LIMIT):
                    try:
                        found.append((entry.name, entry.stat(follow_symlinks=False).st_mode))
                    except OSError:
                        self.seen["unreadable"] += 1
        except OSError:
            self.seen["unreadable"] += 1
        return sorted(found)

    def _closure(self, at: set[int]) -> set[int]:
        for index, segment in enumerate(self.segments):
            if segment is None and index in at:
                at.add(index + 1)
        return at

    def _step(self, at: set[int], name: str) -> set[int]:
        reached = set()
        for index in at:
            if index == len(self.segments):
                continue
            segment = self.segments[index]
            if segment is None:
                reached.add(index)
            elif segment(name):
                reached.add(index + 1)
        return self._closure(reached)

    def glob(self) -> None:
        for path, mode in self.walk():
            if not self.give(path=shown(path), kind=kind_of(mode)):
                return

    def grep(self, expression: re.Pattern[str]) -> None:
        if os.path.isdir(self.root):  # noqa: PTH112 - the child works on str alone
            paths: Iterator[str] = (path for path, mode in self.walk() if stat.S_ISREG(mode))
        else:
            paths = iter([self.root])
        for path in paths:
            try:
                with open(open_regular(path), "rb") as file:
                    going = self._grep_file(expression, path, file)
            except OSError:
                self.seen["unreadable"] += 1
                continue
            if not going:
                return

    def _grep_file(self, expression: re.Pattern[str], path: str, file: BinaryIO) -> bool:
        self.seen["files"] += 1
        number = 1
        first = True
        while raw := file.readline(LINE_LIMIT_BYTES):
            if first and b"\0" in raw:
                self.seen["binary"] += 1
                return True
            first = False
            text = raw.decode("utf-8", "replace").rstrip("\r\n")
            found = expression.search(text)
            if found and not self.give(path=shown(path), line=number, text=_around(text, found.start())):
                return False
            if raw.endswith(b"\n"):
                number += 1
            if self.late():
                return False
        return True


def shown(path: str) -> str:
    """A path as text on one line: bytes that are not UTF-8 and control characters become `\\xNN`."""
    text = os.fsencode(path).decode("utf-8", "backslashreplace")
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def _around(text: str, at: int) -> str:
    start = 0 if at < SHOWN_CHARS else at - SHOWN_CHARS // 4
    cut = text[start : start + SHOWN_CHARS]
    return ("…" if start else "") + cut + ("…" if start + SHOWN_CHARS < len(text) else "")


def _segment(part: str) -> Segment:
    return None if part == "**" else re.compile(fnmatch.translate(part), re.DOTALL).match


def main() -> None:
    """Answer the request on standard input."""
    request = json.load(sys.stdin)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT_BYTES, MEMORY_LIMIT_BYTES))
    search = Search(request)
    if request["mode"] == "glob":
        search.glob()
    else:
        flags = re.IGNORECASE if request["ignore_case"] else 0
        try:
            expression = re.compile(request["pattern"], flags)
        except (re.error, RecursionError, OverflowError) as err:
            sys.stdout.write(json.dumps({"error": str(err)}) + "\n")
            return
        search.grep(expression)
    sys.stdout.write(json.dumps(search.seen) + "\n")


if __name__ == "__main__":
    main()
