"""Who is at the other end of a connection that another process accepted and passed on.

The process that passes it is not trusted, so each answer is the kernel's (unix(7)), and it must be a
connection that was accepted on one certain socket: an accepted socket is bound to the file of its listener,
and nobody can bind another socket to that file. The other end of a connection is bound to none, or to another
one, and would say of itself what its listener is: root, for those of systemd's. A socket that listens says so
too. The name alone proves nothing: in a namespace of mounts of its own any process can bind any name.
"""

from __future__ import annotations

import os
import select
import socket
import stat
from pathlib import Path

from lightagentd.host.peer import Peer
from lightagentd.host.unix_diag import bound_file, file_of


class NotAClient(Exception):
    """Says why, as the end of a sentence."""


def client_of(fd: int, path: Path, *, trusted: frozenset[int] = frozenset({0})) -> Peer:
    """The client whose connection to the socket at `path` this is, in a folder of one of the `trusted` users.

    The descriptor is closed. Whoever calls closes the peer's process. Raises NotAClient.
    """
    try:
        sock = socket.socket(fileno=fd)
    except OSError as err:
        os.close(fd)
        raise NotAClient("it is no socket") from err
    with sock:
        try:
            _check(sock, path, trusted)
            peer = Peer.of(sock, keep=True)
        except OSError as err:
            raise NotAClient(f"it cannot be looked at ({err.strerror})") from err
    if peer.process is None or peer.process.has_ended():
        if peer.process is not None:
            peer.process.close()
        raise NotAClient("the client has ended")
    return peer


def _check(sock: socket.socket, path: Path, trusted: frozenset[int]) -> None:
    """Raises NotAClient, OSError."""
    if sock.getsockopt(socket.SOL_SOCKET, socket.SO_DOMAIN) != socket.AF_UNIX:
        raise NotAClient("it is no Unix socket")
    if sock.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE) != socket.SOCK_STREAM:
        raise NotAClient("it is no stream socket")
    if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        raise NotAClient("it listens itself")
    _check_folder(path, trusted)
    if sock.getsockname() != os.fspath(path) or bound_file(sock) != file_of(path):
        raise NotAClient(f"it was not accepted on {path}")
    if _hung_up(sock):
        raise NotAClient("the client has hung up")


def _check_folder(path: Path, trusted: frozenset[int]) -> None:
    """Raises NotAClient where somebody else could bind the name; OSError."""
    if not stat.S_ISSOCK(path.lstat().st_mode):
        raise NotAClient(f"{path} is no socket")
    for folder in path.parents:
        found = folder.stat()
        others = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not found.st_mode & stat.S_ISVTX
        if found.st_uid not in trusted or others:
            raise NotAClient(f"{folder} is not root's alone")


def _hung_up(sock: socket.socket) -> bool:
    poller = select.poll()
    poller.register(sock, 0)
    return any(event & (select.POLLHUP | select.POLLERR | select.POLLNVAL) for _, event in poller.poll(0))
