"""Sends entries to journald over its own protocol, https://systemd.io/JOURNAL_NATIVE_PROTOCOL/.

`systemd.journal.send` would do the same, but sd_journal_sendv(3) reports success even without a journald, and
lost entries must be known here. One `JournalSocket` belongs to one thread.
"""

from __future__ import annotations

import array
import errno
import fcntl
import os
import socket
import sys
import termios
import time
from collections.abc import Mapping
from pathlib import Path

from lightagentd.host.systemd import BOOTED

__all__ = ["BOOTED", "SOCKET", "JournalSocket", "encode_entry"]

SOCKET = Path("/run/systemd/journal/socket")
_PAUSE_S = 0.002
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL


class JournalSocket:
    """A socket to journald, which may come and go: the path is resolved for each entry."""

    def __init__(self, path: Path = SOCKET, *, blocking: bool = True) -> None:
        self._path = os.fspath(path)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.setblocking(blocking)

    def send(self, fields: Mapping[str, str]) -> None:
        """Send one entry. While journald's queue is full it blocks, or raises BlockingIOError.

        Raises OSError when journald is absent or refuses, ValueError for text that is not Unicode.
        """
        entry = encode_entry(fields)
        try:
            self._socket.sendto(entry, self._path)
        except OSError as err:
            if err.errno not in (errno.EMSGSIZE, errno.ENOBUFS):
                raise
            self._send_in_memory(entry)

    def wait_read(self, limit_s: float) -> bool:
        """Wait until journald has read what was sent. It looks up the sender's unit then, and finds none of a
        process that has ended.
        """
        deadline = time.monotonic() + limit_s
        while int.from_bytes(fcntl.ioctl(self._socket, termios.TIOCOUTQ, bytes(4)), sys.byteorder):
            if time.monotonic() > deadline:
                return False
            time.sleep(_PAUSE_S)
        return True

    def close(self) -> None:
        self._socket.close()

    def _send_in_memory(self, entry: bytes) -> None:
        """Send an entry too large for a datagram as a sealed file in memory."""
        fd = os.memfd_create("journal-entry", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        with open(fd, "wb", buffering=0) as file:  # noqa: PTH123 - a descriptor
            view = memoryview(entry)
            while view:
                view = view[file.write(view) :]
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))
            self._socket.sendmsg([], [rights], 0, self._path)


def encode_entry(fields: Mapping[str, str]) -> bytes:
    """An entry in the native protocol. Values that hold a newline are preceded by their length."""
    parts = []
    for name, value in fields.items():
        raw = value.encode()
        if b"\n" in raw:
            parts.append(name.encode() + b"\n" + len(raw).to_bytes(8, "little") + raw + b"\n")
        else:
            parts.append(name.encode() + b"=" + raw + b"\n")
    return b"".join(parts)
