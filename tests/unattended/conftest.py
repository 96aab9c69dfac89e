"""A socket that plays journald, for the programs that units start."""

from __future__ import annotations

import array
import os
import queue
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.scripted_daemon import ScriptedDaemon


class PlayedJournal:
    """Reads entries at once, as journald: https://systemd.io/JOURNAL_NATIVE_PROTOCOL/."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._entries: queue.SimpleQueue[dict[str, str]] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def entry(self) -> dict[str, str]:
        """The next entry; waits for it."""
        return self._entries.get(timeout=20)

    def is_empty(self) -> bool:
        self._send(b"NEXT=this\n")
        return self.entry() == {"NEXT": "this"}

    def close(self) -> None:
        self._send(b"")
        self._reader.join()
        self._socket.close()

    def _send(self, data: bytes) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto(data, str(self.path))

    def _read(self) -> None:
        while True:
            data, ancillary, _, _ = self._socket.recvmsg(1 << 20, socket.CMSG_SPACE(4))
            if not data and not ancillary:
                return
            for _, _, rights in ancillary:
                [fd] = array.array("i", rights)
                with open(fd, "rb") as file:  # noqa: PTH123 - a descriptor
                    file.seek(0)
                    data = file.read()
            self._entries.put(_decode(data))


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
