"""The engine of one watch: follows a tree of folders with one inotify instance, and reports changes.

It is synchronous and belongs to one `Watch`, which calls it in a thread, one call at a time. It scans folders
itself where inotify reports nothing:

- A new or moved-in folder is watched first and listed then, so what was made in it before is reported as
  created (`found_by` scan). An event about it that comes later is known already, and not told again.
- After an overflow of the kernel's queue the whole tree is listed and compared with what was known of it:
  what appeared, vanished or changed (by inode, size and time) is reported (`found_by` rescan).
- A root that goes away (deleted, moved, unmounted) is reported, and waited for; when there is a folder of its
  name again, that is watched, and its content is reported as created. The root is looked at every
  ROOT_CHECK_S, because a rename of a folder above it makes no event.

Links are never followed; other file systems are entered only on request. The content of a folder that was
moved out is forgotten without a report for each entry. Folders that cannot be watched are in `not_watched`;
with any of them the watch is not `whole`.
"""

from __future__ import annotations

import errno
import os
import time
from dataclasses import dataclass

from lightagentd.errors import InvalidArgument, LightagentError, NotFound, ToolError
from lightagentd.toolkit.files.search import shown
from lightagentd.toolkit.watching import kernel
from lightagentd.toolkit.watching.changes import Change
from lightagentd.toolkit.watching.folders import (
    Entry,
    Folder,
    differs,
    entries,
    identity_of,
    join,
    open_folder,
    opened,
)
from lightagentd.toolkit.watching.kernel import Inotify, RawEvent
from lightagentd.toolkit.watching.selection import OwnFolders, Selection, Selector
from lightagentd.toolkit.watching.tree import Tree, why

FOLDERS_LIMIT = 8192
"""Folders of one watch: each takes a place of fs.inotify.max_user_watches, which all workers share."""
ENTRIES_LIMIT = 100_000
"""Entries of one watch that are remembered, to compare with after an overflow; about 250 bytes each."""
ROOT_CHECK_S = 2.0
MOVE_WAIT_S = 0.05
"""How long the second half of a rename may take to come: both are queued at once (inotify(7))."""
_ON_THE_WAY_NS = 2_000_000_000
"""What happened within this time may still be in the kernel's queue."""
FIRST_RESCAN_PAUSE_S, LONGEST_RESCAN_PAUSE_S = 1.0, 30.0
"""Between one rescan and the next; doubled as long as the queue goes on to overflow."""


@dataclass(slots=True)
class _MovedFrom:
    """The first half of a rename, which waits for the other one."""

    folder: Folder
    name: str
    path: str
    is_dir: bool
    due: float


class Engine:
    """Begin with `begin`, then call `step` whenever `fd` is readable and at `due`; end with `close`."""

    def __init__(
        self,
        root: str,
        selection: Selection,
        own: OwnFolders,
        *,
        folders_limit: int = FOLDERS_LIMIT,
        entries_limit: int = ENTRIES_LIMIT,
    ) -> None:
        """`root` is the absolute path of a folder, without links. Raises LimitExceeded, ToolError."""
        self.root = root
        self.overflows = 0
        self.rescans = 0
        self.events = 0
        """Events that the kernel gave."""
        self._found: list[Change] = []
        self._moved: dict[int, _MovedFrom] = {}
        self._rescan_at: float | None = None
        self._rescan_pause_s = 0.0
        self._rescanned = 0.0
        self._root_check = 0.0
        self._sure_ns = time.time_ns()
        """Up to here every event was seen."""
        self._inotify = Inotify()
        self.tree = Tree(
            Selector(root, selection, own),
            self._inotify,
            self._found.append,
            folders_limit=folders_limit,
            entries_limit=entries_limit,
        )

    @property
    def fd(self) -> int:
        return self._inotify.fd

    @property
    def whole(self) -> bool:
        """Whether nothing that was asked for is missing."""
        return self.tree.root is not None and not self.tree.not_watched_count and self._rescan_at is None

    @property
    def seen_us(self) -> int:
        """Everything up to this time (microseconds since 1970) has been reported."""
        seen_ns = time.time_ns() if self._rescan_at is None else self._sure_ns
        return min(seen_ns, time.time_ns() - _ON_THE_WAY_NS) // 1000

    @property
    def due(self) -> float:
        """When `step` is to be called at the latest (monotonic seconds)."""
        times = [self._root_check, *(moved.due for moved in self._moved.values())]
        if self._rescan_at is not None:
            times.append(self._rescan_at)
        return min(times)

    def begin(self, *, since_ns: int | None = None) -> list[Change]:
        """Watch the root and what is below it.

        With `since_ns` the watch was there before, and had seen everything up to then: the files that changed
        later are told of, and the root may be missing. Raises NotFound, InvalidArgument, ToolError.
        """
        self._root_check = time.monotonic() + ROOT_CHECK_S
        if since_ns is not None:
            detail = {"since_us": since_ns // 1000, "not_known": "what was deleted or moved away"}
            self._found.append(Change("gap", self.root, is_dir=True, detail=detail))
        try:
            fd = open_folder(self.root)
        except OSError as err:
            if since_ns is None:
                raise _cannot_open(self.root, err) from err
            self._found.append(Change("root_gone", self.root, is_dir=True, detail={"why": why(err)}))
            return self._take()
        with opened(fd):
            self.tree.plant(fd, found_by="" if since_ns is None else "gap", since_ns=since_ns or 0)
        if self.tree.root is None:
            reason = self.tree.not_watched.get(self.root, "the daemon's own folders are never watched")
            raise ToolError(f"{shown(self.root)} cannot be watched: {reason}.")
        return self._take()

    def step(self) -> list[Change]:
        """Work off a part of the queue and what is due; gives what changed."""
        read = self._inotify.read()
        read_ns = time.time_ns()
        for raw in read:
            self._handle(raw)
        self.events += len(read)
        now = time.monotonic()
        self._settle_moves(now)
        if self._rescan_at is not None and now >= self._rescan_at:
            self._rescan()
        elif not read and self._rescan_at is None:
            self._sure_ns = read_ns
        if now >= self._root_check:
            self._check_root()
        return self._take()

    def close(self) -> None:
        self._inotify.close()

    def _take(self) -> list[Change]:
        found = [*self._found]
        self._found.clear()
        return found

    # What the kernel says

    def _handle(self, raw: RawEvent) -> None:
        if raw.mask & kernel.Q_OVERFLOW:
            self._overflowed()
            return
        folder = self.tree.by_wd.get(raw.wd)
        if folder is None:
            return  # of a folder that is watched no more
        is_root = folder is self.tree.root
        if raw.mask & kernel.IGNORED:
            self.tree.detach(folder)
            if is_root:
                self._root_gone("deleted")
        elif raw.name:
            self._handle_entry(folder, raw)
        elif is_root and raw.mask & (kernel.DELETE_SELF | kernel.MOVE_SELF | kernel.UNMOUNT):
            names = {kernel.DELETE_SELF: "deleted", kernel.MOVE_SELF: "moved", kernel.UNMOUNT: "unmounted"}
            self._root_gone(next(name for bit, name in names.items() if raw.mask & bit))

    def _handle_entry(self, folder: Folder, raw: RawEvent) -> None:
        mask, name, is_dir = raw.mask, raw.name, bool(raw.mask & kernel.ISDIR)
        if mask & kernel.CREATE:
            told = self._now_there(folder, name)
            if not told:
                self.tree.change("create", folder, name, is_dir=is_dir)
            if is_dir:
                self.tree.enter(folder, name, found_by="scan")
        elif mask & kernel.DELETE:
            self._vanished(folder, name, "delete", is_dir=is_dir)
        elif mask & kernel.MOVED_FROM:
            path = join(folder.path, name)
            due = time.monotonic() + MOVE_WAIT_S
            self._moved[raw.cookie] = _MovedFrom(folder, name, path, is_dir, due)
        elif mask & kernel.MOVED_TO:
            self._moved_to(folder, name, self._moved.pop(raw.cookie, None), is_dir=is_dir)
        else:
            self._touched(folder, name, mask, is_dir=is_dir)

    def _touched(self, folder: Folder, name: str, mask: int, *, is_dir: bool) -> None:
        kind = next((kind for bit, kind in kernel.KINDS.items() if mask & bit), "")
        if is_dir and kind in ("open", "access", "close_nowrite"):
            return  # looking into folders makes these itself
        if folder.known is not None and name in folder.known:
            folder.known[name] = time.time_ns()
        if is_dir and kind == "attrib":
            self.tree.enter(folder, name, found_by="scan")  # it may be readable now
        self.tree.change(kind, folder, name, is_dir=is_dir)

    def _now_there(self, folder: Folder, name: str) -> bool:
        """Remember an entry; True when it was known, and so was reported already."""
        known = folder.known is not None and name in folder.known
        self.tree.remember(folder, name, time.time_ns())
        return known

    def _vanished(
        self, folder: Folder, name: str, kind: str, *, is_dir: bool, found_by: str = "kernel"
    ) -> None:
        there = self.tree.forget(folder, name)
        if name in folder.below:
            self.tree.detach(folder.below[name])
        if is_dir:
            self.tree.not_missing(join(folder.path, name))
        if there:
            self.tree.change(kind, folder, name, is_dir=is_dir, found_by=found_by)

    def _moved_to(self, folder: Folder, name: str, start: _MovedFrom | None, *, is_dir: bool) -> None:
        if name in folder.below:
            self.tree.detach(folder.below[name])  # it was replaced, or found under its new name already
        self._now_there(folder, name)
        if start is None:
            self.tree.change("moved_in", folder, name, is_dir=is_dir)
        else:
            self.tree.forget(start.folder, start.name)
            self.tree.change("move", folder, name, is_dir=is_dir, moved=start.path)
            moved = start.folder.below.get(start.name)
            if is_dir:
                self.tree.renamed(start.path, join(folder.path, name))
            if moved is not None:
                if self._goes_along(moved, folder, name):
                    return
                self.tree.detach(moved)
        if is_dir:
            self.tree.enter(folder, name, found_by="scan")

    def _goes_along(self, moved: Folder, folder: Folder, name: str) -> bool:
        """Give a renamed folder its new place in the tree, if it is the one that is there now."""
        if self.tree.selector.excluded(folder.path, name):
            return False
        before = moved.parent, moved.name
        assert moved.parent is not None
        del moved.parent.below[moved.name]
        moved.parent, moved.name = folder, name
        folder.below[name] = moved
        if self.tree.stands(moved) or not os.path.lexists(moved.path):
            return True  # or it was renamed again, and the next events say to what
        del folder.below[name]
        moved.parent, moved.name = before
        return False

    def _settle_moves(self, now: float) -> None:
        """What was moved and did not come up elsewhere was moved out."""
        for cookie, start in [*self._moved.items()]:
            if start.due <= now:
                del self._moved[cookie]
                self._vanished(start.folder, start.name, "moved_out", is_dir=start.is_dir)

    # When the kernel could not say

    def _overflowed(self) -> None:
        self.overflows += 1
        now = time.monotonic()
        if now - self._rescanned > 2 * LONGEST_RESCAN_PAUSE_S:
            self._rescan_pause_s = 0.0
        if self._rescan_at is None:
            self._rescan_at = now + self._rescan_pause_s
            longer = max(FIRST_RESCAN_PAUSE_S, 2 * self._rescan_pause_s)
            self._rescan_pause_s = min(longer, LONGEST_RESCAN_PAUSE_S)
        detail = {"where": "kernel", "lost": "unknown", "next": "rescan"}
        self._found.append(Change("overflow", self.root, is_dir=True, detail=detail))

    def _rescan(self) -> None:
        """Compare the whole tree with what was known of it, and tell of each difference."""
        self._rescan_at = None
        self.rescans += 1
        before, by_time = len(self._found), 0
        todo = [self.tree.root] if self.tree.root else []
        while todo and not self.tree.stopping:
            folder = todo.pop()
            by_time += folder.known is None
            self._compare(folder)
            todo += folder.below.values()
        self._rescanned = time.monotonic()
        detail = {"differences": len(self._found) - before, "folders_compared_by_time_only": by_time}
        self._found.append(Change("rescanned", self.root, is_dir=True, detail=detail))

    def _compare(self, folder: Folder) -> None:
        try:
            fd = open_folder(folder.path, below=self.root)
            with opened(fd):
                if identity_of(fd) != folder.identity:
                    return  # the events about it are still to come
                now = dict(entries(fd))
        except OSError as err:
            if err.errno != errno.ENOENT:
                self.tree.missing(folder.path, why(err))
            return
        for name in [name for name in folder.known or () if name not in now]:
            self._vanished_whole(folder, name)
        for name, entry in now.items():
            self._compare_entry(folder, name, entry)

    def _vanished_whole(self, folder: Folder, name: str) -> None:
        """An entry is gone, with all that is known to have been below it."""
        inner = folder.below.get(name)
        for one in inner.walk() if inner is not None else ():
            for entry in one.known or ():
                self.tree.change("delete", one, entry, is_dir=entry in one.below, found_by="rescan")
        self._vanished(folder, name, "delete", is_dir=inner is not None, found_by="rescan")

    def _compare_entry(self, folder: Folder, name: str, now: Entry) -> None:
        known = None if folder.known is None else folder.known.get(name)
        kind = ""
        if folder.known is None:
            kind = "modify" if now.changed_ns > self._sure_ns else ""
        elif known is None:
            kind = "create"
        elif differs(known, now):
            kind = "create" if now.is_dir else "modify"
            if name in folder.below:
                self._vanished_whole(folder, name)
        self.tree.remember(folder, name, now.stamp)
        if kind:
            self.tree.change(kind, folder, name, is_dir=now.is_dir, found_by="rescan")
        if now.is_dir:
            self.tree.enter(folder, name, found_by="rescan")

    # The root

    def _root_gone(self, reason: str) -> None:
        if self.tree.root is None:
            return
        self._moved.clear()
        self.tree.clear()
        self._found.append(
            Change("root_gone", self.root, is_dir=True, detail={"why": reason, "next": "waiting for it"})
        )
        self._root_check = 0.0  # what has its name already is watched at once

    def _check_root(self) -> None:
        self._root_check = time.monotonic() + ROOT_CHECK_S
        try:
            fd = open_folder(self.root)
        except OSError as err:
            self._root_gone(why(err))
            self._root_check = time.monotonic() + ROOT_CHECK_S
            return
        with opened(fd):
            if self.tree.root is not None:
                if identity_of(fd) == self.tree.root.identity:
                    return
                self._root_gone("another folder has its name")
                self._root_check = time.monotonic() + ROOT_CHECK_S
            first = len(self._found)
            self.tree.plant(fd, found_by="scan")
            if self.tree.root is not None:
                self._found.insert(first, Change("root_back", self.root, is_dir=True))


def _cannot_open(root: str, err: OSError) -> LightagentError:
    if err.errno == errno.ENOENT:
        return NotFound(
            f"There is no {shown(root)}.", suggestion="Name a file or folder that is there.", field="path"
        )
    if err.errno == errno.EACCES:
        return ToolError(f"{shown(root)} cannot be watched: the worker may not read it.")
    return InvalidArgument(f"{shown(root)} cannot be watched: {why(err)}.", field="path")
