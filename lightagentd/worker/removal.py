"""Removes everything that a command left in a folder, with any nesting, names and modes.

A command can put folders into folders until no path is short enough and no recursion deep enough to reach the
last one. So nothing here descends: a nested folder is moved up to the top, and removed there later. One
descriptor is open at a time, and the time grows with the number of entries. Nobody else may change the folder
meanwhile: its users have ended.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
from pathlib import Path

_ALL_OF_IT = 0o700


def remove(path: Path) -> None:
    """Remove a file, a symbolic link itself, or a folder with its content. Missing entries are ignored.

    Raises OSError when something cannot be removed, such as files on another file system.
    """
    try:
        info = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(info.st_mode):
        path.unlink(missing_ok=True)
        return
    path.chmod(_ALL_OF_IT)
    top = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        _empty(top)
    finally:
        os.close(top)
    path.rmdir()


def _empty(top: int) -> None:
    """Remove everything in the folder whose descriptor is `top`."""
    numbers = itertools.count()
    waiting = _take_files(top, top, numbers)
    while waiting:
        name = waiting.pop()
        folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=top)
        try:
            waiting += _take_files(folder, top, numbers)
        finally:
            os.close(folder)
        os.rmdir(name, dir_fd=top)


def _take_files(folder: int, top: int, numbers: itertools.count[int]) -> list[str]:
    """Remove the files of a folder, and move its folders to the top; gives their names there, made usable."""
    names = os.listdir(folder)
    found = []
    for name in names:
        if not stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            os.unlink(name, dir_fd=folder)
            continue
        os.chmod(name, _ALL_OF_IT, dir_fd=folder)  # moving a folder writes its `..`
        if folder != top:
            name = _moved(name, folder, top, numbers)
        found.append(name)
    return found


def _moved(name: str, folder: int, top: int, numbers: itertools.count[int]) -> str:
    """Move a folder to the top under a free name; gives that name."""
    while True:
        new = f"removed-{next(numbers)}"
        with contextlib.suppress(FileNotFoundError):
            os.stat(new, dir_fd=top, follow_symlinks=False)
            continue
        os.rename(name, new, src_dir_fd=folder, dst_dir_fd=top)
        return new
