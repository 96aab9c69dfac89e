"""Binds an approved shell command to the folder that it runs in and to the files that it names.

Approved are words, and others may change what they mean before the answer: replace the folder by a link, or
rewrite a script. So the preview notes the folder's device and inode, and the digest of each named file that
others can write; the call compares them before it runs. A name counts if it stands in the command as it is:
what a shell makes up from variables and patterns is not found.

A file that only grew, such as a log, counts as another one: from its words nobody knows whether a command
just reads it or does what it says (`xargs`, `source`, `>> /etc/cron.d/x`). The refusal says that it grew.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lightagentd.errors import Conflict
from lightagentd.toolkit.files.preview import PARTLY_SEEN, covered
from lightagentd.toolkit.files.search import shown

FILES, FILE_BYTES = 16, 16 << 20
"""More files, and larger ones, are not compared; the preview says so."""
_WORDS, _LINKS = 1000, 40
_LOOK = "Put what others can write into a folder of root's, look at it, and ask again."
_GREW = (
    "It only grew, from {} to {} bytes. Ask again with the same command, and have it answered soon; where the"
    " file never rests, as a log, read it in a call that observes, and leave its name out of the change."
)
_BETWEEN = re.compile(r"[\s;&|()<>`'\"$={},:]+")


def facts(command: str, cwd: str, owner: int) -> tuple[str, dict[str, Any]]:
    """What a person should know of the folder and the files, as lines, and what to compare later, as JSON.

    `owner` is the uid whose files nobody else is taken to write, beside root's.
    """
    lines, files, sizes = [], {}, {}
    folder = _folder(cwd)
    if not folder:
        lines.append(f"The folder {shown(cwd)} cannot be seen from here: what it is then counts.")
    named = _named(command, cwd)
    unseen = [path for path, seen in named.items() if not seen]
    if unseen:
        listed = ", ".join(shown(path) for path in unseen[:FILES])
        lines.append(f"These cannot be seen from here, so their content is not compared: {listed}.")
    found = [path for path, seen in named.items() if seen and others_write(path, {0, owner})]
    for path in found[:FILES]:
        data = _read(path)
        if data is not None:
            files[path], sizes[path] = _digest(data), len(data)
            lines.append(
                f"Others can write {shown(path)}: it runs only with the present content, {files[path]}."
            )
        else:
            lines.append(
                f"Others can write {shown(path)}, and its content is not compared. Look at it first."
            )
    if len(found) > FILES:
        lines.append(f"Others can write {len(found) - FILES} more of its files, which are not compared.")
    return "".join(f"{line}\n" for line in lines), {
        "folder": folder,
        "files": files,
        "sizes": sizes,
    } if folder or files else {}


def check(expected: dict[str, Any], cwd: int) -> None:
    """Raise Conflict when the open folder or a file is not as it was approved."""
    if (folder := expected.get("folder")) and folder != _identity(os.fstat(cwd)):
        raise _changed("The folder", _LOOK)
    for path, digest in expected.get("files", {}).items():
        data, size = _read(path), expected.get("sizes", {}).get(path, 0)
        if data is None or _digest(data) != digest:
            grew = size and data is not None and _digest(data[:size]) == digest
            raise _changed(shown(path), _GREW.format(size, len(data)) if grew and data else _LOOK)


def _changed(what: str, suggestion: str) -> Conflict:
    return Conflict(
        f"{what} is not as it was when the command was approved, so nothing was run.", suggestion=suggestion
    )


def _folder(cwd: str) -> list[int]:
    try:
        return [] if covered(f"{cwd}/.") else _identity(Path(cwd).stat())
    except OSError:
        return []


def _identity(info: os.stat_result) -> list[int]:
    return [info.st_dev, info.st_ino]


def _named(command: str, cwd: str) -> dict[str, bool]:
    """The regular files that are named in a command, and names that may be files but cannot be seen here:
    whether they can.
    """
    try:
        quoted = shlex.split(command, comments=False)
    except ValueError:
        quoted = []
    words = dict.fromkeys([*_BETWEEN.split(command)[:_WORDS], *quoted[:_WORDS]])
    paths = dict.fromkeys(str(Path(cwd, word)) for word in words if word)
    kinds = {path: _is_file(path) for path in paths}
    return {path: kind for path, kind in kinds.items() if kind is not None}


def _is_file(path: str) -> bool | None:
    """Whether a regular file is seen; None where there is certainly none."""
    try:
        return stat.S_ISREG(Path(path).stat().st_mode) or None
    except PermissionError:
        return False
    except OSError:
        return False if path.startswith(PARTLY_SEEN) else None
    except ValueError:
        return None


def others_write(path: str, trusted: set[int]) -> bool:
    """Whether another user could change a file, or put another in its place."""
    try:
        return any(_open_to_others(info, trusted) for info in _on_the_way(path))
    except OSError:
        return True


def _open_to_others(info: os.stat_result, trusted: set[int]) -> bool:
    if info.st_uid not in trusted:
        return True
    if stat.S_ISLNK(info.st_mode) or (stat.S_ISDIR(info.st_mode) and info.st_mode & stat.S_ISVTX):
        return False  # who may write in a sticky folder may replace only what is theirs
    group = info.st_gid != 0 and info.st_mode & stat.S_IWGRP
    return bool(group or info.st_mode & stat.S_IWOTH)


def _on_the_way(path: str) -> Iterator[os.stat_result]:
    """Each folder, link and file that is met when a path is followed. Raises OSError."""
    here, rest, links = Path("/"), [*Path(path).parts[1:]], 0
    yield here.lstat()
    while rest:
        here /= rest.pop(0)
        info = here.lstat()
        yield info
        if stat.S_ISLNK(info.st_mode):
            links += 1
            if links > _LINKS:
                raise OSError("too many links")
            target = here.readlink()
            rest = [*target.parts, *rest]
            here = here.parent
        here = Path(os.path.normpath(here))


def _read(path: str) -> bytes | None:
    """The content of a regular file; None for one that cannot be read or is too large."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            data = file.read(FILE_BYTES + 1) if stat.S_ISREG(os.fstat(fd).st_mode) else None
    except OSError:
        return None
    return data if data is not None and len(data) <= FILE_BYTES else None


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"
