"""Selects the changes that a watch reports: by kind and by glob, and never what the daemon itself writes."""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lightagentd.toolkit.watching import kernel
from lightagentd.toolkit.watching.folders import join

OWN_FOLDERS = "LIGHTAGENT_OWN_FOLDERS"
"""The environment variable with the daemon's state and runtime folders, separated by colons."""
_SYSTEM_FOLDERS = "/var/lib/lightagentd:/run/lightagentd"
"""Those of the system daemon, for a worker that systemd started."""
_TEMPORARY = frozenset({"/tmp", "/var/tmp"})  # noqa: S108 - nothing is made there
_SCRATCH = re.compile(r"lightagent-(?:call_[0-9a-f]{16}|preview-\d+)-\w{8}")
"""The folders that a worker makes for a call, where it has no folder of its own for them."""

_JOURNAL = re.compile(r"/(?:var|run)/log/journal/.*\.journal~?")
_GROWTH = frozenset({"modify", "close_write", "attrib"})


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The requested changes of a watch. `only` is the name of the one watched entry of the root."""

    kinds: frozenset[str]
    include: Sequence[str] = ()
    exclude: Sequence[str] = ()
    recursive: bool = False
    other_filesystems: bool = False
    only: str = ""

    @property
    def mask(self) -> int:
        """What the kernel is asked for."""
        wanted = kernel.STRUCTURE
        for bit, kind in kernel.KINDS.items():
            if kind in self.kinds:
                wanted |= bit
        return wanted


class Globs:
    """Globs that are matched with the path below the root, and without a slash with the name alone."""

    def __init__(self, globs: Sequence[str]) -> None:
        self._names = _either([glob for glob in globs if "/" not in glob])
        self._paths = _either([glob.lstrip("/") for glob in globs if "/" in glob])

    def match(self, relative: str) -> bool:
        return self._names(relative.rpartition("/")[2]) or self._paths(relative)


def _either(globs: Sequence[str]) -> Callable[[str], bool]:
    if not globs:
        return lambda _: False
    pattern = re.compile("|".join(fnmatch.translate(glob) for glob in globs))
    return lambda text: pattern.match(text) is not None


class OwnFolders:
    """The folders that are never watched: each event about them would cause another event."""

    def __init__(self, folders: Sequence[str]) -> None:
        self._paths: set[str] = set()
        self._identities: set[tuple[int, int]] = set()
        for folder in folders:
            self._paths |= {folder.rstrip("/"), os.path.realpath(folder)}
            try:
                info = Path(folder).stat()
            except OSError:
                continue  # not there, or hidden from this worker
            self._identities.add((info.st_dev, info.st_ino))

    @staticmethod
    def from_environment() -> OwnFolders:
        return OwnFolders([name for name in os.environ.get(OWN_FOLDERS, _SYSTEM_FOLDERS).split(":") if name])

    def holds(self, folder: str, name: str) -> bool:
        """Whether an entry of a folder is one of them; what is below one is never looked at."""
        if name.startswith("lightagent-") and folder in _TEMPORARY and _SCRATCH.fullmatch(name):
            return True
        return join(folder, name) in self._paths

    def is_below(self, path: str) -> bool:
        """Whether a path is one of them or lies below one."""
        return any(path == own or path.startswith(own + "/") for own in self._paths)

    def is_one(self, identity: tuple[int, int]) -> bool:
        """Whether a folder is one of them under another name, such as a bind mount."""
        return identity in self._identities


class Selector:
    """Filters events and picks the folders to descend into."""

    def __init__(self, root: str, selection: Selection, own: OwnFolders) -> None:
        self.root, self.selection, self.own = root, selection, own
        self._below = len(root.rstrip("/")) + 1
        self._include, self._exclude = Globs(selection.include), Globs(selection.exclude)

    def excluded(self, above: str, name: str) -> bool:
        """Whether a folder is never descended into."""
        return self.own.holds(above, name) or self._exclude.match(join(above, name)[self._below :])

    def wants(
        self, kind: str, above: str, name: str, *, is_dir: bool, found_by: str = "kernel", moved: str = ""
    ) -> bool:
        """Whether a change of the entry `name` of the folder `above` is told; `moved` is its path before."""
        kinds = self.selection.kinds
        asked = ("move" if kind in ("moved_in", "moved_out") else kind) in kinds
        if not asked and not (found_by == "rescan" and not _TRACES[kind].isdisjoint(kinds)):
            return False
        before = os.path.split(moved)
        return self._selects(above, name, is_dir=is_dir) or bool(
            moved and self._selects(*before, is_dir=is_dir)
        )

    def _selects(self, above: str, name: str, *, is_dir: bool) -> bool:
        if self.selection.only and (name != self.selection.only or above != self.root):
            return False
        if self.excluded(above, name):
            return False
        return is_dir or not self.selection.include or self._include.match(join(above, name)[self._below :])


_TRACES = {
    "create": {"move", "close_write", "modify"},
    "delete": {"move"},
    "modify": {"close_write", "attrib", "move"},
}
"""What a rescan finds may be the trace of other events, that were asked for and lost."""


def is_growth(kinds: Sequence[str]) -> bool:
    """Whether these kinds say no more than that a file that was there was written to."""
    return _GROWTH.issuperset(kinds)


def is_journal(path: str) -> bool:
    """Whether a path is a file of journald's, which grows with each event that the daemon records."""
    return _JOURNAL.fullmatch(path) is not None
