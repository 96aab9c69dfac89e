"""Measures the space that folders take, like du(1), for a process that may enter every folder.

Only folders are opened, relative to their parent and never through a symbolic link; of a file only lstat(2)
is used. It returns names of folders but not of files: a user who may not list a folder learns which folder
fills the disk, but not which files are in it. A path that is not a folder gets the same answer as a missing
one, so that nobody can test for names of files. Of what is in a person's closed folder, nobody else learns
even the names of folders (`closed`).

A walk stays on one file system, counts a file with several hard links once, and ends at a limit of time or
entries; skipped entries are counted. Mounts of kinds that can hang are never accessed.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import time
from dataclasses import dataclass, field
from pathlib import Path

from lightagentd.errors import NotFound, Refused
from lightagentd.toolkit.files.closed import closed_to, refuse_below
from lightagentd.toolkit.files.preview import COVER_BYTES
from lightagentd.toolkit.files.search import shown

ENTRY_LIMIT = 1_000_000
"""How many entries are looked at; a hard limit for memory, too, since inodes are remembered."""
LEVEL_LIMIT = 200
"""How deep the walk goes: each level holds a descriptor."""
NAMED_LIMIT = 10
"""How many of the folders that were left out are named."""
BLOCK_BYTES = 512
"""The unit of st_blocks (stat(2))."""
_HANGING = re.compile(r"nfs|cifs|smb3|fuse|9p|ceph|afs|autofs|glusterfs|ncpfs|virtiofs")
_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


@dataclass(kw_only=True)
class Folder:
    """The sum of one folder and everything below it."""

    path: str
    level: int
    size_bytes: int = 0
    files: int = 0


@dataclass(kw_only=True)
class Usage:
    """What a walk found. `stopped` is `time` or `entries` where it is not the whole."""

    total: Folder
    folders: list[Folder] = field(default_factory=list)
    """Those down to the depth that was asked for, without the root."""
    entries: int = 0
    stopped: str = ""
    closed: list[str] = field(default_factory=list)
    closed_count: int = 0
    """Folders that could not be entered."""
    mounts: list[str] = field(default_factory=list)
    mounts_count: int = 0
    """Folders that are other file systems."""
    too_deep: int = 0


@dataclass(kw_only=True)
class _Level:
    """A folder that is being walked: its descriptor, its sum and what is left to enter."""

    handle: int
    sum: Folder
    below: list[str] = field(default_factory=list)
    closed: bool = False
    """Whether names in it are not told (`closed`)."""


class Walk:
    """One walk; `measure` does it, in a thread of its own."""

    def __init__(
        self, path: str, *, owner: int, depth: int, seconds: float, entry_limit: int = ENTRY_LIMIT
    ) -> None:
        """`owner` is the uid of who asks."""
        self._path = path.rstrip("/") or "/"
        self._owner = owner
        self._depth = depth
        self._deadline = time.monotonic() + seconds
        self._entry_limit = entry_limit
        self._device = -1
        self._folders_seen: set[int] = set()
        self._files_seen: set[tuple[int, int]] = set()
        self._avoided: set[str] = set()
        self._found = Usage(total=Folder(path=self._path, level=0))

    def measure(self) -> Usage:
        """Walk the tree. Raises NotFound for what is no folder, Refused for a hidden one, and OSError."""
        levels: list[_Level] = []
        try:
            refuse_below(self._owner, self._path)
            levels.append(_Level(handle=self._open_root(), sum=self._found.total))
            levels[0].closed = closed_to(self._owner, os.fstat(levels[0].handle))
            self._avoided = self._mounts_to_avoid(levels[0].handle)
            self._read(levels[0])
            while levels and not self._late():
                level = levels[-1]
                if level.below:
                    self._enter(levels, level.below.pop())
                else:
                    self._leave(levels)
            while levels:
                self._leave(levels)
        finally:
            for level in levels:
                os.close(level.handle)
        return self._found

    def _open_root(self) -> int:
        try:
            handle = os.open(self._path, _OPEN_FOLDER)
        except PermissionError:
            raise
        except OSError as err:
            raise NotFound(
                f"There is no folder {shown(self._path)}.",
                field="path",
                suggestion="Files and symbolic links have no tree; name a folder.",
            ) from err
        info = os.fstat(handle)
        sizes = os.fstatvfs(handle)
        if 0 < sizes.f_blocks * sizes.f_frsize <= COVER_BYTES:
            os.close(handle)
            raise Refused(
                f"{shown(self._path)} is hidden from this worker, so its size cannot be told.",
                field="path",
                suggestion="Ask for `df` of it.",
            )
        self._device = info.st_dev
        self._folders_seen.add(info.st_ino)
        self._found.total.size_bytes += info.st_blocks * BLOCK_BYTES
        return handle

    def _mounts_to_avoid(self, root: int) -> set[str]:
        """Mount points below the root, by the names that the walk gives them, which links may lead to."""
        real = str(Path(f"/proc/self/fd/{root}").readlink()).rstrip("/")
        return {
            self._path.rstrip("/") + mount.removeprefix(real)
            for mount in hanging_mounts()
            if mount.startswith(f"{real}/")
        }

    def _read(self, level: _Level) -> None:
        """Add up the files of a folder, and note the folders in it."""
        unseen = False
        with os.scandir(level.handle) as entries:
            for entry in entries:
                self._found.entries += 1
                if self._late():
                    break
                path = f"{level.sum.path.rstrip('/')}/{entry.name}"
                if path in self._avoided:
                    self._leave_out_mount(level, path)
                    continue
                try:
                    info = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue  # removed meanwhile
                except OSError:
                    unseen = True  # a folder that may be read and not searched
                    continue
                if stat.S_ISDIR(info.st_mode):
                    level.below.append(entry.name)
                elif self._is_new(info):
                    level.sum.files += 1
                    level.sum.size_bytes += info.st_blocks * BLOCK_BYTES
        if unseen:
            self._leave_out_closed(level, level.sum.path)

    def _is_new(self, info: os.stat_result) -> bool:
        if info.st_nlink < 2:
            return True
        key = info.st_dev, info.st_ino
        if key in self._files_seen:
            return False
        self._files_seen.add(key)
        return True

    def _enter(self, levels: list[_Level], name: str) -> None:
        above = levels[-1]
        path = f"{above.sum.path.rstrip('/')}/{name}"
        if len(levels) >= LEVEL_LIMIT:
            self._found.too_deep += 1
            return
        handle = -1
        try:
            info = os.stat(name, dir_fd=above.handle, follow_symlinks=False)
            if info.st_dev != self._device:
                self._leave_out_mount(above, path)
                return
            handle = os.open(name, _OPEN_FOLDER, dir_fd=above.handle)
            info = os.fstat(handle)
            if info.st_dev != self._device or info.st_ino in self._folders_seen:
                os.close(handle)
                return  # mounted meanwhile, or the same folder bound to a second place
            self._folders_seen.add(info.st_ino)
            folder = Folder(path=path, level=above.sum.level + 1, size_bytes=info.st_blocks * BLOCK_BYTES)
            closed = above.closed or closed_to(self._owner, info)
            levels.append(_Level(handle=handle, sum=folder, closed=closed))
            self._read(levels[-1])
        except FileNotFoundError:
            return  # removed meanwhile
        except OSError:
            if handle < 0:
                self._leave_out_closed(above, path)

    def _leave(self, levels: list[_Level]) -> None:
        done = levels.pop()
        os.close(done.handle)
        if not levels:
            return
        levels[-1].sum.size_bytes += done.sum.size_bytes
        levels[-1].sum.files += done.sum.files
        if done.sum.level <= self._depth and not levels[-1].closed:
            self._found.folders.append(done.sum)

    def _leave_out_closed(self, level: _Level, path: str) -> None:
        self._found.closed_count += 1
        if len(self._found.closed) < NAMED_LIMIT and not level.closed:
            self._found.closed.append(path)

    def _leave_out_mount(self, level: _Level, path: str) -> None:
        self._found.mounts_count += 1
        if len(self._found.mounts) < NAMED_LIMIT and not level.closed:
            self._found.mounts.append(path)

    def _late(self) -> bool:
        if not self._found.stopped:
            if self._found.entries > self._entry_limit:
                self._found.stopped = "entries"
            elif time.monotonic() > self._deadline:
                self._found.stopped = "time"
        return bool(self._found.stopped)


def hanging_mounts(table: Path = Path("/proc/self/mountinfo")) -> set[str]:
    """The mount points that can block whoever looks at them, of network and user-space file systems."""
    found = set()
    with contextlib.suppress(OSError):
        for line in table.read_bytes().splitlines():
            fields, _, tail = line.partition(b" - ")
            if _HANGING.match(tail.split(b" ")[0].decode("ascii", "replace")):
                raw = re.sub(rb"\\([0-7]{3})", lambda code: bytes([int(code[1], 8)]), fields.split(b" ")[4])
                found.add(os.fsdecode(raw))
    return found


def report(found: Usage, top: int) -> tuple[str, dict[str, object]]:
    """The text and the data of a walk: the largest folders first, and what the sums leave out."""
    least = "at least " if found.stopped else ""
    total = found.total
    rows = sorted(found.folders, key=lambda folder: (-folder.size_bytes, folder.path))
    lines = [f"{size(total.size_bytes):>9}  {shown(total.path)}  ({least}{total.files} files, all below it)"]
    lines += [f"{size(row.size_bytes):>9}  {shown(row.path)}  ({row.files} files)" for row in rows[:top]]
    if len(rows) > top:
        lines.append(f"{len(rows) - top} smaller folders are not shown.")
    if found.stopped:
        why = "the time was up" if found.stopped == "time" else "too many entries were found"
        lines.append(f"Stopped because {why}: the sizes are too small. Name a folder further down.")
    if found.closed_count:
        lines.append(f"{found.closed_count} folders could not be entered: {_named(found.closed)}.")
    if found.mounts_count:
        lines.append(f"{found.mounts_count} other file systems are left out: {_named(found.mounts)}.")
    if found.too_deep:
        lines.append(f"{found.too_deep} folders lie deeper than {LEVEL_LIMIT} levels and are left out.")
    return "\n".join(lines) + "\n", {
        "path": shown(total.path),
        "size_bytes": total.size_bytes,
        "files": total.files,
        "folders": [
            {"path": shown(row.path), "size_bytes": row.size_bytes, "files": row.files} for row in rows[:top]
        ],
        "complete": not (found.stopped or found.closed_count or found.too_deep),
        "stopped": found.stopped,
        "not_entered": found.closed_count,
        "other_file_systems": [shown(path) for path in found.mounts],
    }


def _named(paths: list[str]) -> str:
    more = ", ..." if len(paths) == NAMED_LIMIT else ""
    return ", ".join(map(shown, paths)) + more


def size(size_bytes: float) -> str:
    """Binary units, as du -h."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size_bytes < 1024:
            return f"{size_bytes:.0f} {unit}" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:.1f} TiB"
