"""The approver's own records in the journal: each signed, and none lost while the journal is away."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from lightagentd.approver import records as module
from lightagentd.approver.records import Records
from lightagentd.approver.request import Request
from lightagentd.events.journal import signed_record
from lightagentd.events.journal.journal_socket import JournalSocket
from tests.approver.stage import CALL, SAID
from tests.approver.test_requests import KEY, PUBLIC

ASKED = Request(id="apr_1", statement=CALL, said=SAID, created_us=1, expires_us=2)
GRANTED = replace(ASKED, state="granted", by=0, grant={"grant": "{}", "signature": ""})


def taken(sock: socket.socket) -> dict[str, str]:
    """The fields of the next entry."""
    return dict(line.split("=", 1) for line in sock.recv(1 << 16).decode().splitlines())


async def test_what_was_asked_and_answered_is_signed_without_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "AGAIN_S", 0.01)
    records = Records(KEY, JournalSocket(tmp_path / "journal", blocking=False))
    assert not records.problem
    records.write(ASKED)  # nobody is there
    assert "1 records wait" in records.problem
    records.write(replace(ASKED, state="lapsed"))
    records.write(GRANTED)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as journal:
        journal.settimeout(5)
        journal.bind(str(tmp_path / "journal"))
        await asyncio.sleep(0.1)
        entries = [taken(journal) for _ in range(2)]
    assert not records.problem
    asked, granted = (signed_record.verified(one, PUBLIC) for one in entries)
    assert asked is not None
    assert granted is not None
    assert (asked["kind"], granted["kind"], granted["by"]) == ("asked", "granted", 0)
    for one in (asked, granted):
        assert (one["digest"], one["agent"], one["call_id"]) == (CALL.digest, "ops", "call_1")
    assert "nginx" not in str(entries)
    assert entries[1]["MESSAGE"] == "granted by root: apr_1"
    assert signed_record.verified({**entries[0], signed_record.RECORD: "{}"}, PUBLIC) is None
    records.close()


async def test_what_cannot_wait_any_longer_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_WAITING", 3)
    monkeypatch.setattr(module, "AGAIN_S", 0.01)
    records = Records(KEY, JournalSocket(tmp_path / "journal", blocking=False))
    for _ in range(5):
        records.write(ASKED)
    await asyncio.sleep(0.05)
    assert (records.lost, "2 are lost" in records.problem) == (2, True)
    records.close()
