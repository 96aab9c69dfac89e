"""Tracks the folders of one tree: the watched ones, their entries, and those that cannot be watched.

A `Tree` belongs to an engine, which tells it what the kernel said. It opens each folder without following
links below the root, watches it, and lists it only then, so that nothing is made unseen in between.
"""

from __future__ import annotations

import errno
from collections.abc import Callable

from lightagentd.text.reason import reason
from lightagentd.toolkit.watching.changes import Change
from lightagentd.toolkit.watching.folders import (
    Folder,
    Known,
    entries,
    identity_of,
    join,
    open_folder,
    opened,
)
from lightagentd.toolkit.watching.kernel import Inotify
from lightagentd.toolkit.watching.selection import Selector

NOT_WATCHED_LISTED = 100


class Tree:
    """`root` is None while there is no folder of the root's name. `tell` is called with each change found."""

    def __init__(
        self,
        selector: Selector,
        inotify: Inotify,
        tell: Callable[[Change], None],
        *,
        folders_limit: int,
        entries_limit: int,
    ) -> None:
        self.selector = selector
        self.root: Folder | None = None
        self.by_wd: dict[int, Folder] = {}
        self.not_watched: dict[str, str] = {}
        """Folders that should be watched and are not, with the reason; the first NOT_WATCHED_LISTED."""
        self.not_watched_count = 0
        self.left_out: set[str] = set()
        """Folders that are left out as they should be: other file systems, the daemon's own."""
        self.stopping = False
        """Set from another thread: long work ends at the next opportunity."""
        self._inotify = inotify
        self._tell = tell
        self._folders_limit = folders_limit
        self._entries_left = entries_limit

    @property
    def path(self) -> str:
        return self.selector.root

    def change(
        self, kind: str, folder: Folder, name: str, *, is_dir: bool, found_by: str = "kernel", moved: str = ""
    ) -> None:
        """Tell of a change of an entry, if it was asked for."""
        above = folder.path
        if self.selector.wants(kind, above, name, is_dir=is_dir, found_by=found_by, moved=moved):
            self._tell(Change(kind, join(above, name), is_dir, moved, found_by))

    # What is watched

    def plant(self, fd: int, *, found_by: str, since_ns: int = 0) -> None:
        """Watch the root, which is open, and what is below it; see `enter`."""
        self.root = self._watch(fd, None, self.path)
        if self.root is None:
            return
        for above, name in self._list(self.root, fd, found_by=found_by, since_ns=since_ns):
            self.enter(above, name, found_by=found_by, since_ns=since_ns)

    def enter(self, folder: Folder, name: str, *, found_by: str, since_ns: int = 0) -> None:
        """Watch a folder below a watched one and all below it, then tell of what they hold.

        Without `found_by` nothing is told; with `gap` the files that changed since `since_ns`.
        """
        if not self.selector.selection.recursive:
            return
        todo = [(folder, name)]
        while todo and not self.stopping:
            above, inner = todo.pop()
            path = join(above.path, inner)
            if inner in above.below or self.selector.excluded(above.path, inner):
                if self.selector.own.holds(above.path, inner):
                    self.left_out.add(path)
                continue
            try:
                fd = open_folder(path, below=self.path)
            except OSError as err:
                if err.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):  # gone, or something else now
                    self.missing(path, why(err))
                continue
            with opened(fd):
                made = self._watch(fd, above, inner)
                if made is not None:
                    todo += self._list(made, fd, found_by=found_by, since_ns=since_ns)

    def _watch(self, fd: int, parent: Folder | None, name: str) -> Folder | None:
        """Watch an open folder, if it is to be watched and can be."""
        identity = identity_of(fd)
        path = join(parent.path, name) if parent else name
        elsewhere = parent is not None and identity[0] != parent.identity[0]
        if self.selector.own.is_one(identity) or (
            elsewhere and not self.selector.selection.other_filesystems
        ):
            self.left_out.add(path)
            return None
        if len(self.by_wd) >= self._folders_limit:
            self.missing(path, f"a watch has at most {self._folders_limit} folders")
            return None
        try:
            wd = self._inotify.add(fd, self.selector.selection.mask)
        except OSError as err:
            self.missing(path, why(err))
            return None
        other = self.by_wd.get(wd)
        if other is not None:
            if self.stands(other):
                self.left_out.add(path)  # the same folder in two places, such as a bind mount
                return None
            self._uproot(other)  # it was renamed, and the events about that are still to come
        folder = Folder(name=name, parent=parent, wd=wd, identity=identity)
        self.by_wd[wd] = folder
        if parent is not None:
            parent.below[name] = folder
        self.not_missing(path)
        return folder

    def _list(self, folder: Folder, fd: int, *, found_by: str, since_ns: int) -> list[tuple[Folder, str]]:
        """Remember what a folder holds and tell of it; gives the folders to go into."""
        inner: list[tuple[Folder, str]] = []
        try:
            for name, entry in entries(fd):
                if self.stopping:
                    break
                self.remember(folder, name, entry.stamp)
                if found_by == "gap":
                    if entry.changed_ns > since_ns and not entry.is_dir:
                        self._tell_gap(folder, name)
                elif found_by:
                    self.change("create", folder, name, is_dir=entry.is_dir, found_by=found_by)
                if entry.is_dir:
                    inner.append((folder, name))
        except OSError as err:
            self.missing(folder.path, why(err))
        return inner

    def _tell_gap(self, folder: Folder, name: str) -> None:
        """A file changed, nobody knows how: the first fitting kind that was asked for stands for it."""
        kinds = self.selector.selection.kinds
        for kind in ("modify", "close_write", "create", "move", "attrib"):
            if kind in kinds:
                self.change(kind, folder, name, is_dir=False, found_by="gap")
                return

    def stands(self, folder: Folder) -> bool:
        """Whether a folder is where it is believed to be."""
        try:
            fd = open_folder(folder.path, below=self.path)
        except OSError:
            return False
        with opened(fd):
            return identity_of(fd) == folder.identity

    def detach(self, folder: Folder) -> None:
        """Watch a folder and all below it no more."""
        for one in [*folder.walk()]:
            if self.by_wd.get(one.wd) is one:
                del self.by_wd[one.wd]
                self._inotify.remove(one.wd)
            self._drop(one)
        if folder.parent is not None and folder.parent.below.get(folder.name) is folder:
            del folder.parent.below[folder.name]

    def _uproot(self, folder: Folder) -> None:
        """Take a folder out of the tree whose watch goes on under another name."""
        self.by_wd.pop(folder.wd)
        self.detach(folder)

    # What is known

    def remember(self, folder: Folder, name: str, known: Known) -> None:
        if folder.known is None:
            return
        if name not in folder.known:
            if self._entries_left <= 0:
                self._drop(folder)
                folder.known = None
                return
            self._entries_left -= 1
        folder.known[name] = known

    def forget(self, folder: Folder, name: str) -> bool:
        """Take an entry away; False when it was known not to be there."""
        if folder.known is None:
            return True
        if folder.known.pop(name, None) is None:
            return False
        self._entries_left += 1
        return True

    def _drop(self, folder: Folder) -> None:
        if folder.known is not None:
            self._entries_left += len(folder.known)
            folder.known = {}

    # What is missing

    def missing(self, path: str, reason: str) -> None:
        """Take note of a folder that is not watched, and tell of it."""
        if path in self.not_watched:
            return
        self.not_watched_count += 1
        if len(self.not_watched) < NOT_WATCHED_LISTED:
            self.not_watched[path] = reason
            self._tell(Change("not_watched", path, is_dir=True, detail={"why": reason}))

    def not_missing(self, path: str) -> None:
        """Nothing is missing any more at this path and below it."""
        for one in [one for one in self.not_watched if one == path or one.startswith(path + "/")]:
            del self.not_watched[one]
            self.not_watched_count -= 1

    def renamed(self, before: str, now: str) -> None:
        """What is missing below a folder is missing under its new name."""
        self.not_watched = {
            now + one.removeprefix(before) if one == before or one.startswith(before + "/") else one: reason
            for one, reason in self.not_watched.items()
        }

    def clear(self) -> None:
        """Watch nothing, and miss nothing."""
        root, self.root = self.root, None
        if root is not None:
            self.detach(root)
        self.not_watched.clear()
        self.not_watched_count = 0


def why(err: OSError) -> str:
    """The reason why a folder is not watched, as a phrase."""
    if err.errno == errno.ENOSPC:
        return "fs.inotify.max_user_watches is reached"
    return reason(err).lower()
