"""What a worker for change may load or run as root: files that nobody but root and its own user can write."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from lightagentd.errors import PermissionDenied
from lightagentd.host.users import called
from lightagentd.text.reason import reason


def check_trusted(path: Path, what: str, *, owner: int | None = None) -> None:
    """Raises PermissionDenied where others than root and `owner`, else the own user, could write or exchange
    a file, or a folder or something in it. `what` says in the sentence what it is.
    """
    owners = {0, os.geteuid() if owner is None else owner}
    try:
        for one in _written(path):
            info = one.lstat()
            sticky = one in path.parents and info.st_mode & stat.S_ISVTX
            if info.st_uid not in owners:
                raise _refused(what, f"{one} belongs to {called(info.st_uid)}")
            if stat.S_ISLNK(info.st_mode) or (stat.S_IMODE(info.st_mode) & 0o022 and not sticky):
                raise _refused(what, f"others than its owner can write or exchange {one}")
    except OSError as err:
        raise _refused(what, reason(err, at=True)) from err


def _refused(what: str, why: str) -> PermissionDenied:
    return PermissionDenied(
        f"The worker for change does not load {what}: {why}.",
        suggestion="Only what is root's runs there. Put it into a folder below /etc/lightagentd, as root.",
    )


def _written(path: Path) -> Iterator[Path]:
    yield from path.parents
    yield path
    yield from path.rglob("*")
