"""Identifies the peer of a Unix socket with data from the kernel: user, groups and process.

A `Peer` belongs to its connection. The process is never named by its number alone, since the number of a
process that has ended is given to another one: `PeerProcess` gives a pidfd of exactly the process that
connected (pidfd_open(2)).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import select
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass, field

_SO_PEERGROUPS, _SO_PEERPIDFD = 59, 77
"""Not in Python's socket module; since Linux 4.13 and 6.5."""
_GROUPS_BYTES = 1 << 10
"""The most that Python asks the kernel for: room for 256 groups."""


class PeerProcess:
    """The process that connected. Its connection calls `close` at its end."""

    def __init__(self, sock: socket.socket, pid: int, *, keep: bool = False) -> None:
        """With `keep` it outlives its socket."""
        self._sock = sock
        self._kept = -1
        self.gone = asyncio.Event()
        """Set once the peer has hung up: nobody waits for an answer any more."""
        try:
            pidfd = sock.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
            if keep:
                self._kept = pidfd
            else:
                os.close(pidfd)
        except OSError as err:
            if err.errno == errno.ENOPROTOOPT:  # an older kernel: the earlier it is opened, the better
                with contextlib.suppress(OSError):
                    self._kept = os.pidfd_open(pid)

    def has_ended(self) -> bool:
        """Whether one that was to be kept has ended, or could not be found any more."""
        if self._kept < 0:
            return True
        poller = select.poll()
        poller.register(self._kept, select.POLLIN)
        return bool(poller.poll(0))

    def open_pidfd(self) -> int:
        """A descriptor that the caller closes. Raises OSError when the process or the connection is gone."""
        if self.gone.is_set():
            raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
        if self._kept >= 0:
            return os.dup(self._kept)
        # The kernel keeps which process connected, so this is that one however late it is asked.
        return self._sock.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)

    def close(self) -> None:
        self.gone.set()
        if self._kept >= 0:
            os.close(self._kept)
            self._kept = -1


class Passed:
    """The last descriptor that a peer sent (unix(7), SCM_RIGHTS), where any is `wanted`, and the process that
    it then speaks for. Its connection calls `close` at its end.
    """

    def __init__(self) -> None:
        self.wanted = False
        self.process: PeerProcess | None = None
        self.count_for: Callable[[int], None] = lambda _: None
        """Count the connection for the user that it speaks for. Raises LimitExceeded."""
        self._fd = -1

    def receive(self, sock: socket.socket, size_bytes: int) -> bytes:
        """What `sock.recv` gives; the kernel closes the descriptors that nobody wants. Raises OSError."""
        if not self.wanted:
            return sock.recv(size_bytes)
        data, fds, _, _ = socket.recv_fds(sock, size_bytes, 1, socket.MSG_CMSG_CLOEXEC)
        for fd in fds:
            self._drop()
            self._fd = fd
        return data

    def take(self) -> int:
        """The descriptor, which the caller closes; -1 when there is none."""
        fd, self._fd = self._fd, -1
        return fd

    def close(self) -> None:
        """Want no more."""
        self.wanted = False
        self._drop()
        if self.process is not None:
            self.process.close()

    def _drop(self) -> None:
        if (fd := self.take()) >= 0:
            os.close(fd)


@dataclass(frozen=True, kw_only=True)
class Peer:
    """The other end of a connection, as the kernel knew it when it connected (unix(7), SO_PEERCRED)."""

    uid: int
    gid: int
    pid: int
    groups: frozenset[int] = frozenset()
    process: PeerProcess | None = field(default=None, compare=False, repr=False)
    passed: Passed = field(default_factory=Passed, compare=False, repr=False)

    @staticmethod
    def of(sock: socket.socket, *, keep: bool = False) -> Peer:
        """With `keep` its process outlives the socket. Raises OSError."""
        size = struct.calcsize("3i")
        pid, uid, gid = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
        try:
            raw = sock.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _GROUPS_BYTES)
        except OSError:  # ERANGE: it is in more groups than that, and counts as being in its own alone
            raw = b""
        groups = frozenset(struct.unpack(f"{len(raw) // 4}I", raw))
        return Peer(uid=uid, gid=gid, pid=pid, groups=groups, process=PeerProcess(sock, pid, keep=keep))
