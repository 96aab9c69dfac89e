"""Previews a change of a file for approval, and checks later that the preview is still true.

The worker for observe makes a preview. It does not see all files and cannot read all that it sees. The state
that it saw goes with the approval as `expected`; the worker for change compares it with the file before the
change. If it saw nothing, the preview says so, and nothing is expected.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lightagentd.errors import Conflict, NotFound
from lightagentd.tool import Preview
from lightagentd.toolkit.files import change, text
from lightagentd.toolkit.files.change import Present
from lightagentd.toolkit.files.search import shown
from lightagentd.toolkit.files.undo import digest

COVER_BYTES = 1 << 20
"""A file system of at most this size is one of the empty folders with which a sandbox covers others."""
PARTLY_SEEN = ("/run/", "/dev/")
"""A sandbox lets through only a part of these, so that what is not seen there may exist."""
_NULL = os.makedev(1, 3)
"""/dev/null, with which a sandbox covers single files."""

MUST_KEEP = "must_keep"
"""Beside the facts: the change must not be made unless what was there can be kept."""

Diff = Callable[[Present | None], str]
"""The text of a change, of what is there now; raises what the change itself would raise."""


def facts_of(was: Present | None) -> dict[str, Any]:
    """The file state on which a preview is based, as JSON."""
    if was is None:
        return {"kind": "nothing"}
    if was.kind == "large file":
        return {"kind": was.kind, **_identity(was.info)}
    return {"kind": was.kind, "mode": was.mode, "sha256": digest(was.data)}


def check(expected: dict[str, Any], path: str, was: Present | None, made: Sequence[str] = ()) -> None:
    """Raise Conflict when the file, or the folders made for it, differ from the approved preview."""
    expected = {key: value for key, value in expected.items() if key != MUST_KEEP}
    if not expected:
        return
    found = facts_of(was) | ({"folders": [*made]} if made or "folders" in expected else {})
    expected = expected | ({"folders": expected.get("folders", [])} if made else {})
    if was is not None:
        found |= _identity(was.info)
    if any(found.get(key) != value for key, value in expected.items()):
        raise Conflict(
            f"{shown(path)} has changed since it was approved; it is left as it is.",
            suggestion="Read it and ask again.",
        )


def _identity(info: os.stat_result) -> dict[str, Any]:
    return {"inode": info.st_ino, "size_bytes": info.st_size, "mtime_ns": str(info.st_mtime_ns)}


def preview(path: str, diff: Diff, unseen: str) -> Preview:
    """The preview of one change; `unseen` is what can be said of it where the file cannot be read."""
    if covered(path):
        return _blind(path, "is hidden from the effect observe", unseen, {})
    try:
        with change.folder_of(path) as (folder, name):
            try:
                was = change.look(folder, name, path)
            except PermissionError:
                info = os.stat(name, dir_fd=folder, follow_symlinks=False)
                return _blind(path, "may not be read with the effect observe", unseen, _identity(info))
    except PermissionError:
        return _blind(path, "may not be seen with the effect observe", unseen, {})
    except NotFound:
        if not path.startswith(PARTLY_SEEN):
            raise
        return _blind(path, "is hidden from the effect observe", unseen, {})
    if was is None and path.startswith(PARTLY_SEEN):
        return _blind(path, "is hidden from the effect observe, or does not exist", unseen, {})
    return Preview(text=diff(was), expected=facts_of(was))


def _blind(path: str, why: str, unseen: str, expected: dict[str, Any]) -> Preview:
    note = f"{shown(path)} {why}, so its present content is not shown here.\n"
    return Preview(text=note + unseen, expected=expected)


def is_partly_seen(path: str) -> bool:
    """Whether what is not seen there may exist."""
    return path.startswith(PARTLY_SEEN) or covered(path)


def covered(path: str) -> bool:
    """Whether the sandbox covers this path with something else, as far as that is visible."""
    folder = Path(path).parent
    try:
        info = Path(path).lstat()
        if stat.S_ISCHR(info.st_mode) and info.st_rdev == _NULL and path != "/dev/null":
            return True
    except OSError:
        pass
    while True:
        try:
            sizes = os.statvfs(folder)
            return 0 < sizes.f_blocks * sizes.f_frsize <= COVER_BYTES
        except OSError:
            if folder == folder.parent:
                return False
            folder = folder.parent


def new_content(path: str, data: bytes) -> str:
    """A whole content as a diff from a file that is not known."""
    return "It would get this content:\n" + text.unified_diff(path, b"", data)
