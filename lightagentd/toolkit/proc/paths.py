"""Tells the paths that links of /proc show of others' processes, without names of a person's closed folders.

Made for one answer. A path is looked up where its process sees it: another mount namespace, such as that of a
container, has other folders of the same name, and this worker does not see all of the machine's.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from lightagentd.toolkit.files.closed import closed_to
from lightagentd.toolkit.files.usage import hanging_mounts
from lightagentd.toolkit.proc.procfs import text_of

DELETED = " (deleted)"
FIRST_PERSON, _NOBODY = 1000, 65534


class Paths:
    """Paths as `owner` (a uid) may know them. Each folder is looked at once."""

    def __init__(self, owner: int) -> None:
        self._owner = owner
        self._known: dict[tuple[str, bool, str], str] = {}
        self._hanging: dict[str, set[str]] = {}

    def of(self, pid: int, uid: int) -> Callable[[str], str]:
        """Tells a path of the process `pid`, which runs as `uid`: escaped, and whole or with `...`."""
        if self._owner in (0, uid):
            return lambda path: text_of(os.fsencode(path))
        place, first = (_namespace(each) for each in (pid, 1))
        seen_by = 1 if place == first else pid
        is_anothers = uid >= FIRST_PERSON and uid != _NOBODY
        return partial(self._told, f"/proc/{seen_by}", place, is_anothers)

    def _told(self, process: str, place: str, is_anothers: bool, path: str) -> str:
        folder, _, _ = path.rpartition("/")
        if path.startswith("/"):
            key = (place, is_anothers, folder)
            if key not in self._known:
                self._known[key] = self._closed(process, place, is_anothers, folder)
            if closed := self._known[key]:
                path = f"{closed.rstrip('/')}/..." + (DELETED if path.endswith(DELETED) else "")
        return text_of(os.fsencode(path))

    def _closed(self, process: str, place: str, is_anothers: bool, folder: str) -> str:
        """The first folder on the way down that is closed, may not answer, or is above what is hidden."""
        if place not in self._hanging:
            self._hanging[place] = hanging_mounts(Path(process, "mountinfo")) - {"/"}
        above = "/"
        for below in (*reversed(Path(folder or "/").parents), Path(folder or "/")):
            if str(below) in self._hanging[place]:
                return str(below)
            try:
                info = os.stat(f"{process}/root{below}", follow_symlinks=False)  # noqa: PTH116 - not resolved
            except OSError:
                return above if is_anothers else ""
            above = str(below)
            if closed_to(self._owner, info):
                return above
        return ""


def _namespace(pid: int) -> str:
    try:
        return str(Path(f"/proc/{pid}/ns/mnt").readlink())
    except OSError:
        return ""
