"""The socket to journald, with a receiver that reads when the test says so."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from lightagentd.events.journal.journal_socket import JournalSocket


@pytest.mark.parametrize("size", [10, 1_000_000])
def test_what_was_sent_is_waited_for_until_it_is_read(tmp_path: Path, size: int) -> None:
    """The longer one goes as a file in memory."""
    journald = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    sender = JournalSocket(tmp_path / "socket")
    with journald:
        journald.bind(str(tmp_path / "socket"))
        assert sender.wait_read(0)
        for _ in range(2):
            sender.send({"MESSAGE": "x" * size})
            assert not sender.wait_read(0.05)
            _, files, _, _ = socket.recv_fds(journald, 100, 1)
            for file in files:
                os.close(file)
            assert sender.wait_read(0)
    sender.close()
