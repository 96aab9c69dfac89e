"""Resolves paths of callers, and turns errors of the kernel into errors that a model can act on."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from lightagentd.errors import InvalidArgument, NotFound, ToolError


def absolute(path: str) -> str:
    """The path, if it is absolute. Raises InvalidArgument."""
    if not path.startswith("/") or "\0" in path:
        raise InvalidArgument(
            f"{path!r} is not an absolute path.", field="path", suggestion="Begin with /; ~ is not expanded."
        )
    return path


def changeable(path: str) -> str:
    """The path, if it may be that of a file that is replaced. Raises InvalidArgument."""
    if absolute(path).startswith(("/proc/", "/sys/")):
        raise InvalidArgument(
            f"{path} is a setting of the kernel, which cannot be replaced atomically.",
            field="path",
            suggestion="Write to it with the tool bash.",
        )
    return path


@contextmanager
def explained(path: str) -> Iterator[None]:
    """Turn what the kernel says about a path into an error that a model can act on."""
    try:
        yield
    except FileNotFoundError as err:
        raise NotFound(f"{path} does not exist.", field="path", suggestion="List its folder.") from err
    except OSError as err:
        if err.errno == 0:
            hint = "List it." if err.strerror == "folder" else "Only regular files can be read."
            raise InvalidArgument(f"{path} is a {err.strerror}.", field="path", suggestion=hint) from err
        hint = "Check its mode and owner, or ask for the call with another effect."
        denied = err.errno in (errno.EACCES, errno.EPERM, errno.EROFS)
        raise ToolError(f"{path}: {err.strerror}.", field="path", suggestion=hint if denied else "") from err
