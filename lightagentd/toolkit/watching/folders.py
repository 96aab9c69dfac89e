"""The folders of a watch as a tree; opens and lists folders without following links."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

Stamp = tuple[int, int, int]
"""Inode, size and time of the last modification (nanoseconds) of an entry."""
Known = Stamp | int
"""What is known of an entry: its stamp, or the time (nanoseconds) of the last event about it."""

CLOCK_SLACK_NS = 20_000_000
"""Times in inodes come from the kernel's coarse clock and may be some milliseconds behind (time(7))."""

OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


@dataclass(slots=True, eq=False)
class Folder:
    """One watched folder. Its path is that of its parent with its name, so a rename moves all below it."""

    name: str
    """The whole path, for the root."""
    parent: Folder | None
    wd: int
    identity: tuple[int, int]
    """Device and inode."""
    below: dict[str, Folder] = field(default_factory=dict)
    known: dict[str, Known] | None = field(default_factory=dict)
    """The entries; None where there are too many to keep."""

    @property
    def path(self) -> str:
        names = []
        folder: Folder | None = self
        while folder is not None:
            names.append(folder.name)
            folder = folder.parent
        return join(*reversed(names))

    def walk(self) -> Iterator[Folder]:
        """This folder and those below it, parents first."""
        todo = [self]
        while todo:
            folder = todo.pop()
            yield folder
            todo += folder.below.values()


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a listed folder."""

    stamp: Stamp
    changed_ns: int
    """The time of the last change of the inode (ctime), which no program can set."""
    is_dir: bool


def join(folder: str, *names: str) -> str:
    """The path of an entry; `pathlib` would do the same at ten times the cost for each event."""
    return "/".join((folder.rstrip("/"), *names)) or "/"


def open_folder(path: str, *, below: str = "") -> int:
    """Open a folder; no link is followed in the part of the path that is below `below`. Raises OSError."""
    start = below or path
    fd = os.open(start, OPEN_FOLDER)
    for name in os.path.relpath(path, start).split("/") if path != start else ():
        try:
            inner = os.open(name, OPEN_FOLDER, dir_fd=fd)
        finally:
            os.close(fd)
        fd = inner
    return fd


@contextmanager
def opened(fd: int) -> Iterator[None]:
    """Close a descriptor at the end of the block."""
    try:
        yield
    finally:
        os.close(fd)


def identity_of(fd: int) -> tuple[int, int]:
    info = os.fstat(fd)
    return info.st_dev, info.st_ino


def entries(fd: int) -> Iterator[tuple[str, Entry]]:
    """What a folder holds; what goes away meanwhile is left out. Raises OSError."""
    with os.scandir(fd) as found:
        for entry in found:
            try:
                info = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            yield entry.name, entry_of(info)


def entry_of(info: os.stat_result) -> Entry:
    return Entry(
        stamp=(info.st_ino, info.st_size, info.st_mtime_ns),
        changed_ns=info.st_ctime_ns,
        is_dir=stat.S_ISDIR(info.st_mode),
    )


def differs(known: Known, now: Entry) -> bool:
    """Whether an entry changed since it was known; in doubt it did."""
    if now.is_dir:  # its size and times say what its entries say already
        return not isinstance(known, int) and known[0] != now.stamp[0]
    if isinstance(known, int):
        return now.changed_ns > known - CLOCK_SLACK_NS
    return known != now.stamp
