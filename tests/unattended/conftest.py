"""A socket that plays journald, for the programs that units start."""

from __future__ import annotations

import array
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.scripted_daemon import ScriptedDaemon


class PlayedJournal:
    """Reads entries of the native protocol (https://systemd.io/JOURNAL_NATIVE_PROTOCOL/)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.settimeout(20)

    def entry(self) -> dict[str, str]:
        """The next entry; waits for it."""
        data, ancillary, _, _ = self._socket.recvmsg(1 << 20, socket.CMSG_SPACE(4))
        for _, _, rights in ancillary:
            [fd] = array.array("i", rights)
            with open(fd, "rb") as file:  # noqa: PTH123 - a descriptor
                file.seek(0)
                data = file.read()
        return _decode(data)

    def is_empty(self) -> bool:
        self._socket.setblocking(False)
        try:
            self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        finally:
            self._socket.settimeout(20)
        return False

    def close(self) -> None:
        self._socket.close()


def _decode(data: bytes) -> dict[str, str]:
    found: dict[str, str] = {}
    while data:
        line, _, data = data.partition(b"\n")
        name, sign, value = line.partition(b"=")
        if not sign:
            size = int.from_bytes(data[:8], "little")
            value, data = data[8 : 8 + size], data[9 + size :]
        found[name.decode()] = value.decode()
    return found


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[PlayedJournal]:
    played = PlayedJournal(tmp_path / "journal")
    yield played
    played.close()


@pytest.fixture
def scripted(tmp_path: Path) -> Iterator[ScriptedDaemon]:
    """A daemon whose answers the test writes down."""
    server = ScriptedDaemon(tmp_path / "control.sock")
    server.start()
    yield server
    server.stop()


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="to become another user needs root")
