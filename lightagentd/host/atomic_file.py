"""Writes a file whole or not at all: under another name, synced, renamed, and the folder synced.

After a crash or a power cut the name stands for the old content or for the new one, never for a part. No link
is followed. Only writers with other needs do not use it: `cli/whole_file` locks its file, `policy/panic` must
write on a full disk, and `toolkit/files/change` keeps the attributes of a user's file.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from lightagentd.host.renaming import rename_new, sync_folder

MODE = 0o600


@contextlib.contextmanager
def whole_file(
    path: Path,
    *,
    mode: int = MODE,
    replace: bool = True,
    draft: Path | None = None,
    folder: int | None = None,
) -> Iterator[BinaryIO]:
    """A file to write; it gets its name when the block ends without an error. Raises OSError.

    Without `replace`, FileExistsError is raised where there is something. `draft` is the file's name until
    then, for a caller that is its only writer: what a killed one left there is replaced. With `folder`, a
    descriptor, the last part of `path` is the name in that folder, and the rest is not looked at.
    """
    if draft is not None:
        draft.unlink(missing_ok=True)
        name = os.fspath(draft)
    else:
        name = f".{path.name}.{secrets.token_hex(8)}"
        name = name if folder is not None else os.fspath(path.with_name(name))
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(name, flags, MODE, dir_fd=folder)
    try:
        with os.fdopen(fd, "wb") as file:
            yield file
            file.flush()
            if mode != MODE:
                os.fchmod(fd, mode)
            os.fsync(fd)
        if folder is not None:
            os.rename(name, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        elif replace:
            Path(name).replace(path)
        else:
            rename_new(Path(name), path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=folder)
        raise
    with contextlib.suppress(PermissionError):  # a folder that may not be read cannot be synced
        sync_folder(path.parent if folder is None else folder)


def write_whole(
    path: Path,
    content: bytes,
    *,
    mode: int = MODE,
    replace: bool = True,
    draft: Path | None = None,
    folder: int | None = None,
) -> None:
    """Write a whole file as `whole_file` does. Raises OSError."""
    with whole_file(path, mode=mode, replace=replace, draft=draft, folder=folder) as file:
        file.write(content)
