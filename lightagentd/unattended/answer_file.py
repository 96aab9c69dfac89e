"""Writes answers to files that only their owner, who is this process's user, and root can redirect.

Root names the path, and a model's text is written there with the rights of the owner of the prompt. A user
who can write to a folder on the way could put a link there and have the text written into any other file of
the owner. So each folder on the way is opened by its descriptor, without following links. It must belong to
root or to the owner and be writable by nobody else (the mode shows ACLs too, acl(5)). An existing file must
be the owner's own, regular, and have one name.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from lightagentd.host.atomic_file import write_whole
from lightagentd.host.users import called

TOP = Path("/")
"""Where the way to a file begins; what lies above is not looked at."""
_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_MODE = 0o600


class Unsafe(OSError):
    """Another user could redirect the answer. `strerror` names the folder or the file, and the reason."""

    def __init__(self, why: str) -> None:
        super().__init__(errno.EPERM, why)


def check_place(path: Path) -> None:
    """Whether an answer may go to this file. Raises Unsafe, OSError."""
    with _folder_of(path) as folder:
        _existing(path, folder)


def append(path: Path, text: str) -> None:
    """Raises Unsafe, OSError."""
    with _folder_of(path) as folder:
        _existing(path, folder)
        # O_NONBLOCK: a FIFO without a reader must not hold the program.
        fd = os.open(path.name, _FILE | os.O_APPEND | os.O_NONBLOCK, _MODE, dir_fd=folder)
        with open(fd, "wb") as file:  # noqa: PTH123 - a descriptor
            _check_file(path, os.fstat(fd))
            file.write(text.encode())


def replace(path: Path, text: str) -> None:
    """Replace the whole content with the text. Raises Unsafe, OSError."""
    with _folder_of(path) as folder:
        old = _existing(path, folder)
        # Readers of the old file may read the new one.
        mode = _MODE if old is None else stat.S_IMODE(old.st_mode) & 0o666
        write_whole(path, text.encode(), mode=mode, folder=folder)


@contextlib.contextmanager
def _folder_of(path: Path) -> Iterator[int]:
    """A descriptor of the file's folder, reached through safe folders only."""
    way = TOP
    fd = os.open(way, _FOLDER)
    try:
        _check_folder(way, os.fstat(fd))
        for part in path.relative_to(TOP).parts[:-1]:
            way = way / part
            if stat.S_ISLNK(os.stat(part, dir_fd=fd, follow_symlinks=False).st_mode):
                raise Unsafe(f"{way} is a symbolic link, and has to be the folder itself")
            below = os.open(part, _FOLDER, dir_fd=fd)
            os.close(fd)
            fd = below
            _check_folder(way, os.fstat(fd))
        yield fd
    finally:
        os.close(fd)


def _check_folder(path: Path, info: os.stat_result) -> None:
    if info.st_uid not in (0, os.geteuid()):
        raise Unsafe(f"the folder {path} belongs to somebody else, {called(info.st_uid)}")
    if info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise Unsafe(f"others can write to the folder {path}, whose mode is {stat.S_IMODE(info.st_mode):04o}")


def _existing(path: Path, folder: int) -> os.stat_result | None:
    try:
        info = os.stat(path.name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    _check_file(path, info)
    return info


def _check_file(path: Path, info: os.stat_result) -> None:
    if stat.S_ISLNK(info.st_mode):
        raise Unsafe(f"{path} is a symbolic link")
    if not stat.S_ISREG(info.st_mode):
        raise Unsafe(f"{path} is no regular file")
    if info.st_uid != os.geteuid():
        raise Unsafe(f"{path} belongs to somebody else, {called(info.st_uid)}")
    if info.st_nlink != 1:
        raise Unsafe(f"{path} has another name, too: it is a hard link")
