"""The sockets that the daemon's Varlink plane listens on: one for everybody, systemd's or one of our own, and
a private one for root and the daemon's own user, whose queue nobody else can fill.

The caller of `listen` owns them.
"""

from __future__ import annotations

import contextlib
import grp
import os
import resource
import socket
from pathlib import Path

from lightagentd.errors import Conflict
from lightagentd.host.paths import Paths
from lightagentd.host.systemd import listening_socket

_OWN_DESCRIPTORS = 256
"""Descriptors that are kept free for workers, models, files and the history."""


def listen(paths: Paths, group: str) -> list[socket.socket]:
    """The socket for a group, and the private one. Raises Conflict when the first is taken."""
    listener = _for_group(paths.socket, group)
    try:
        _clear_way(paths.private_socket)
        return [listener, _bound(paths.private_socket)]
    except BaseException:
        listener.close()
        raise


def _for_group(path: Path, group: str) -> socket.socket:
    """The socket that systemd passed, or a new one. Raises Conflict."""
    passed = listening_socket()
    if passed is not None:
        return passed
    probe = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        probe.connect(os.fspath(path))
    except OSError:
        _clear_way(path)
    else:
        raise Conflict(
            f"Another daemon serves {path} already.", suggestion="Stop it first, or use other folders."
        )
    finally:
        probe.close()
    listener = _bound(path)
    with contextlib.suppress(KeyError, PermissionError):
        gid = grp.getgrnam(group).gr_gid
        if path.stat().st_gid != gid:  # the unit's filter has no chown(2), and it need not
            os.chown(path, -1, gid)
        path.chmod(0o660)
    return listener


def _bound(path: Path) -> socket.socket:
    """A listening socket with the mode 0600."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    old = os.umask(0o177)
    try:
        listener.bind(os.fspath(path))
        listener.listen()  # callers wait while the daemon starts, and a second daemon finds the socket taken
    except OSError:
        listener.close()
        raise
    finally:
        os.umask(old)
    return listener


def _clear_way(path: Path) -> None:
    """Remove a stale file at the socket's path, if nothing is lost. Raises Conflict."""
    try:
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        else:
            path.unlink(missing_ok=True)
    except OSError as err:
        raise Conflict(
            f"{path}, where the control socket is to be, cannot be removed: {err.strerror}.",
            suggestion=f"Look at it, and then: rm -r {path}",
        ) from err


def room_for_connections() -> int:
    """The number of connections within the limit on open files, after the daemon's own needs."""
    return max(16, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _OWN_DESCRIPTORS)
