"""Space: how full the file systems are in bytes and inodes, what deleted files keep, what is large."""

from __future__ import annotations

import heapq
import os
import re
import stat
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import procfs
from checks import PROBLEM, WARNING, CannotSee, Finding, check
from report import clean, human, plural

from areas import mounts
from areas.mounts import Entry

MEMORY_TYPES = frozenset(("tmpfs", "devtmpfs", "ramfs"))
_WITHOUT_BLOCKS = re.compile(
    "proc|sysfs|cgroup2?|devpts|mqueue|debugfs|tracefs|securityfs|pstore|bpf|configfs|fusectl|autofs|nsfs|"
    "binfmt_misc|hugetlbfs|efivarfs|rpc_pipefs|selinuxfs|fuse[.](?:gvfsd-fuse|portal|lxcfs)"
)
FULL_PERCENT, CLOSE_PERCENT = 95, 90
_ENOUGH_BYTES = 50 << 30
"""So much left is no problem, whatever the share."""
MUCH_BYTES = 64 << 20
_ANSWER_S = 1.5
TOP = 10


@dataclass(frozen=True)
class Filesystem:
    """One mounted file system; the percents are as df counts them."""

    entry: Entry
    size: int
    used: int
    available: int
    free: int
    inodes: int
    inodes_free: int

    @property
    def folder(self) -> str:
        return self.entry.folder

    @property
    def in_memory(self) -> bool:
        return self.entry.kind in MEMORY_TYPES

    @property
    def percent(self) -> int:
        usable = self.used + self.available
        return -(-100 * self.used // usable) if usable else 0

    @property
    def inode_percent(self) -> int:
        return -(-100 * (self.inodes - self.inodes_free) // self.inodes) if self.inodes > 0 else 0

    @property
    def worst(self) -> int:
        return max(self.percent, self.inode_percent)

    @property
    def is_tight(self) -> bool:
        if self.entry.kind in mounts.IMAGES or self.entry.read_only:
            return False
        return self.inode_percent >= CLOSE_PERCENT or (
            self.percent >= CLOSE_PERCENT and self.available < _ENOUGH_BYTES
        )

    @property
    def state(self) -> str:
        """`97 % full, 1.2 GiB of 40 GiB left`, or of inodes where these are what is short."""
        if self.inode_percent > self.percent and self.inode_percent >= CLOSE_PERCENT:
            left = f"{self.inodes_free} of {self.inodes} inodes left"
            return (
                f"out of inodes: {self.inode_percent} % used, {left}, though {human(self.available)} are free"
            )
        text = f"{self.percent} % full, {human(self.available)} of {human(self.size)} left"
        reserved = self.free - self.available
        if self.available < self.size // 50 and reserved > self.size // 100:
            text += f" ({human(reserved)} more are reserved for root)"
        return text


def filesystems() -> tuple[list[Filesystem], list[str]]:
    """Those with blocks, one for each device, the fullest first; and sentences on what could not be measured.

    Each is measured where this process sees it: the sandbox of a worker covers some folders.
    """
    own = {entry.number: entry.folder for entry in reversed(mounts.parsed(_own_table()))}
    root = Path("/").stat().st_dev
    own.setdefault(f"{os.major(root)}:{os.minor(root)}", "/")
    by_device: dict[str, Entry] = {}
    for entry in mounts.table():
        known = by_device.get(entry.number)
        if _WITHOUT_BLOCKS.fullmatch(entry.kind) or mounts.within(entry.folder, "/run/credentials"):
            continue
        if known is None or (entry.is_bind, len(entry.folder)) < (known.is_bind, len(known.folder)):
            by_device[entry.number] = entry
    found, notes = [], []
    for entry in by_device.values():
        folder = own.get(entry.number)
        if folder is None:
            if not mounts.within_system(entry.folder):
                notes.append(
                    f"The file system at {entry.folder} ({entry.kind}) cannot be measured from here."
                )
            continue
        info = _measured(entry, folder)
        if info is None:
            notes.append(f"The file system at {entry.folder} ({entry.kind}) did not answer in {_ANSWER_S} s.")
        elif info.f_blocks:
            found.append(_filesystem(entry, info))
    return sorted(found, key=lambda each: (-each.worst, each.folder)), notes


def holding(path: str, found: list[Filesystem]) -> Filesystem | None:
    """The file system of a path."""
    entry = mounts.holding(path, mounts.table())
    for each in found:
        if entry is not None and each.entry.number == entry.number:
            return Filesystem(entry, *list(vars(each).values())[1:])
    return None


@dataclass(frozen=True)
class Held:
    """A deleted file that a process holds open."""

    size: int
    pid: int
    path: str
    identity: str

    @property
    def holder(self) -> str:
        return procfs.who(self.pid)


def deleted_files() -> tuple[list[Held], int]:
    """Each once, the largest first; and how many processes could not be looked into."""
    found: dict[str, Held] = {}
    hidden = 0
    for pid in procfs.pids():
        targets = procfs.descriptors(pid)
        if targets is None:
            hidden += 1
            continue
        sizes = procfs.deleted_sizes(pid)
        for number, target in targets.items():
            if number in sizes:
                size, identity = sizes[number]
                path = clean(target[: -len(" (deleted)")])
                found.setdefault(identity, Held(size, pid, path, identity))
    return sorted(found.values(), key=lambda each: (-each.size, each.path)), hidden


def by_holder(held: list[Held]) -> list[tuple[int, list[Held]]]:
    """The bytes and the files of each process, the most first."""
    groups: dict[int, list[Held]] = {}
    for each in held:
        groups.setdefault(each.pid, []).append(each)
    return sorted(
        ((sum(one.size for one in group), group) for group in groups.values()), key=lambda row: -row[0]
    )


@check("space.full", "file systems without room, in bytes or inodes, also in memory")
def full() -> Iterator[Finding]:
    found, notes = filesystems()
    for each in found:
        if each.is_tight:
            yield Finding(
                full_sentence(each),
                f"what fills {each.folder}",
                severity=PROBLEM if each.worst >= FULL_PERCENT else WARNING,
            )
    if notes:
        raise CannotSee(" ".join(notes))


def full_sentence(each: Filesystem) -> str:
    kind = f" ({each.entry.kind})" if each.in_memory else ""
    return clean(f"{each.folder}{kind} is {each.state}.")


@check("space.deleted", "deleted files that are open and keep much space")
def deleted() -> Iterator[Finding]:
    held, hidden = deleted_files()
    for size, group in by_holder(held):
        if size >= MUCH_BYTES:
            yield Finding(held_sentence(size, group), "which deleted files are still open", severity=WARNING)
    if hidden:
        raise CannotSee(f"What {plural(hidden, 'process')} of other users hold open could not be seen.")


def held_sentence(size: int, group: list[Held]) -> str:
    files = group[0].path if len(group) == 1 else f"{len(group)} files, such as {group[0].path}"
    return f"{group[0].holder} holds {human(size)} in deleted files open: {files}."


@dataclass
class Walk:
    """What lies below a folder, on its file system."""

    sizes: dict[str, int] = field(default_factory=dict)
    """Of each entry directly below it."""
    counts: dict[str, int] = field(default_factory=dict)
    """Inodes of each entry directly below it."""
    files: list[tuple[int, float, str]] = field(default_factory=list)
    """The largest: bytes, when last written, path."""
    recent: dict[str, int] = field(default_factory=dict)
    """Bytes in files written within the last hour, by folder."""
    direct: dict[str, int] = field(default_factory=dict)
    """Bytes of what lies directly in each folder."""
    unreadable: int = 0
    stopped: bool = False

    @property
    def total(self) -> int:
        return sum(self.sizes.values())

    def most(self, path: str) -> tuple[str, int]:
        """Where most of it is: the deepest folder, or the file, that has over half of what is above it."""
        totals: dict[str, int] = {}
        children: dict[str, set[str]] = {}
        for folder, size in self.direct.items():
            at = folder
            while at != path:
                above = at.rpartition("/")[0] or "/"
                totals[at] = totals.get(at, 0) + size
                children.setdefault(above, set()).add(at)
                at = above
        found, size = path, self.total
        while below := children.get(found):
            next_one = max(below, key=lambda each: totals[each])
            if 2 * totals[next_one] <= size:
                break
            found, size = next_one, totals[next_one]
        for file_size, _, file in self.files[:1]:
            if 2 * file_size > size and mounts.within(file, found):
                return file, file_size
        return found, size


def entries_of(folder: str, device: int) -> list[tuple[str, os.stat_result]]:
    """What lies in a folder, by path, without folders of other file systems. Raises OSError.

    Only of folders: on overlayfs files may have another device than the mount (kernel, overlayfs.rst).
    """
    found = []
    for entry in list(os.scandir(folder)):
        try:
            info = entry.stat(follow_symlinks=False)
        except OSError:
            continue
        if info.st_dev == device or not stat.S_ISDIR(info.st_mode):
            found.append((entry.path, info))
    return found


def walk(path: str, time_s: float) -> Walk:
    """Add up a folder, for so many seconds at most."""
    found = Walk()
    ends, now = time.monotonic() + time_s, time.time()
    device = os.lstat(path).st_dev
    seen: set[int] = set()
    stack: list[tuple[str, str]] = [(path, "")]
    while stack and not found.stopped:
        folder, child = stack.pop()
        try:
            entries = entries_of(folder, device)
        except OSError:
            found.unreadable += 1
            continue
        for below, info in entries:
            is_folder = stat.S_ISDIR(info.st_mode)
            if info.st_nlink > 1 and not is_folder and info.st_ino in seen:
                continue
            if info.st_nlink > 1:
                seen.add(info.st_ino)
            top, size = child or below, info.st_blocks * 512
            found.sizes[top] = found.sizes.get(top, 0) + size
            found.direct[folder] = found.direct.get(folder, 0) + size
            found.counts[top] = found.counts.get(top, 0) + 1
            if is_folder:
                stack.append((below, top))
            elif size > 1 << 20:
                heapq.heappush(found.files, (size, info.st_mtime, below))
                if len(found.files) > TOP:
                    heapq.heappop(found.files)
                if now - info.st_mtime < 3600:
                    found.recent[folder] = found.recent.get(folder, 0) + size
        found.stopped = time.monotonic() > ends
    found.files.sort(reverse=True)
    return found


def _filesystem(entry: Entry, info: os.statvfs_result) -> Filesystem:
    unit = info.f_frsize
    return Filesystem(
        entry,
        info.f_blocks * unit,
        (info.f_blocks - info.f_bfree) * unit,
        info.f_bavail * unit,
        info.f_bfree * unit,
        info.f_files,
        info.f_ffree,
    )


def _own_table() -> str:
    try:
        return Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _measured(entry: Entry, folder: str) -> os.statvfs_result | None:
    """A dead server never answers: a child asks first, and a thread, which does not hold up the end."""
    if entry.is_network and not mounts.answers(folder):
        return None
    answers: list[os.statvfs_result] = []

    def ask() -> None:
        try:
            answers.append(os.statvfs(folder))
        except OSError:
            return

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(_ANSWER_S)
    return answers[0] if answers else None
