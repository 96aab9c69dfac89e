"""Reads what a command line names, with the rights of the user who runs lactl.

One cause has one error, whatever the command: NotFound for what does not exist, PermissionDenied for what the
user may not read, InvalidArgument for what is no file.
"""

from __future__ import annotations

import errno
import os
import sys
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

from lightagentd.errors import InvalidArgument, LightagentError, MessageTooLarge, NotFound, PermissionDenied
from lightagentd.limits import MAX_MESSAGE_BYTES

STANDARD_INPUT = "-"


def shown(name: str) -> str:
    """A named file in a sentence."""
    return "Standard input" if name == STANDARD_INPUT else name


def read_file(name: str, *, max_bytes: int = MAX_MESSAGE_BYTES, too_large: str = "") -> bytes:
    """The content of a file, or of standard input for `-`. Raises `unreadable`, and MessageTooLarge
    with the suggestion `too_large`."""
    try:
        if name == STANDARD_INPUT:
            if sys.stdin is None:
                raise InvalidArgument("Standard input is closed.", suggestion="Name a file.", field="file")
            data = read_once(sys.stdin.buffer, max_bytes + 1)
        else:
            with Path(name).open("rb") as file:
                data = file.read(max_bytes + 1)
    except (OSError, ValueError) as err:
        raise unreadable(name, err) from err
    if len(data) > max_bytes:
        raise MessageTooLarge(
            f"{shown(name)} is larger than {max_bytes} bytes.", suggestion=too_large, field="file"
        )
    return data


@lru_cache(maxsize=1)
def read_once(stream: BinaryIO, size: int) -> bytes:
    """What a stream holds: the same for a command that is tried again, with a name made whole."""
    return stream.read(size)


def check_readable(name: object, what: str = "file") -> None:
    """Raises `unreadable` for a file or folder that cannot be opened."""
    folder = os.O_DIRECTORY if what == "folder" else 0
    try:
        os.close(os.open(str(name), os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | folder))
    except (OSError, ValueError) as err:
        raise unreadable(name, err, what) from err


def unreadable(
    name: object, err: OSError | ValueError, what: str = "file", *, field: str = ""
) -> LightagentError:
    """The error for a file or folder that cannot be opened or read."""
    field = field or what
    if not isinstance(err, OSError):  # a NUL byte in the name
        return InvalidArgument(f"{str(name)!r} is not a path.", suggestion="Write another.", field=field)
    if isinstance(err, FileNotFoundError | NotADirectoryError):
        return NotFound(f"There is no {what} {name}.", suggestion="Check the path.", field=field)
    if isinstance(err, PermissionError):
        return PermissionDenied(f"You may not read {name}.", suggestion="Use sudo.", field=field)
    why = "it is a socket or a device without a driver" if err.errno == errno.ENXIO else err.strerror
    return InvalidArgument(f"{name} cannot be read: {why}.", suggestion=f"Name a {what}.", field=field)
