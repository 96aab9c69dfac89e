"""Keeps the names in a person's closed folders from others, for workers that may enter every folder.

A folder that a person owns and others may not list tells its size to everybody, and the names in it to that
person and root alone. The folders of services, such as that of a database, tell the names of their folders:
who looks for what fills a disk needs them.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from lightagentd.errors import Refused

_PEOPLE = range(1000, 65534)
"""login.defs(5), UID_MIN and what is above it, without `nobody`."""


def closed_to(owner: int, info: os.stat_result) -> bool:
    """Whether the names in a folder are hidden from somebody (a uid)."""
    if owner in (0, info.st_uid) or info.st_uid not in _PEOPLE or not stat.S_ISDIR(info.st_mode):
        return False
    return info.st_mode & 0o005 != 0o005


def closed_above(owner: int, path: str) -> str:
    """The first folder on the way to a path, links followed, that is closed to somebody; empty for none."""
    for folder in reversed(Path(os.path.realpath(path)).parents):
        try:
            if closed_to(owner, folder.stat()):
                return str(folder)
        except OSError:
            return ""
    return ""


def refuse_below(owner: int, path: str) -> None:
    """Raises Refused for a path in a closed folder, whether there is such a file or not."""
    if folder := closed_above(owner, path):
        raise Refused(
            f"The names in {folder} are closed to you.",
            field="path",
            suggestion=f"Ask for the size of {folder}, or have its owner ask.",
        )
