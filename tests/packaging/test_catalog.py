"""The journal's catalog explains each kind of entry that the code can write, and no other."""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import pytest

from lightagentd.events.journal.entry import GAP
from lightagentd.events.model import message_id
from lightagentd.events.types.event_type import ANY
from lightagentd.events.types.registry import all_types
from lightagentd.unattended import journal
from tests.conftest import REPOSITORY

CATALOG = REPOSITORY / "packaging/journal/lightagentd.catalog"
HEADERS = ["Subject", "Defined-By", "Documentation"]


@functools.cache
def written() -> set[tuple[str, ...]]:
    """Every topic and type that the journal can get an entry of, but for what tools emit as they like.

    What is written for unattended prompts is no event.
    """
    unattended = {tuple(f"unattended.{kind}".rsplit(".", 1)) for kind in get_args(journal.Kind)}
    return {GAP, *unattended, *(kind for kind in all_types() if kind[1] != ANY)}


@dataclass(frozen=True)
class Entry:
    topic: str
    type: str
    message_id: str
    headers: list[tuple[str, str]]
    text: str


def entries() -> list[Entry]:
    found = []
    for block in re.split(r"^# (?=[a-z_.*]+/[a-z_]+$)", CATALOG.read_text(), flags=re.MULTILINE)[1:]:
        head, _, text = block.partition("\n\n")
        kind, identity, *headers = head.splitlines()
        topic, _, event_type = kind.partition("/")
        pairs = [(name, value) for name, _, value in (line.partition(": ") for line in headers)]
        found.append(Entry(topic, event_type, identity.removeprefix("-- "), pairs, text.strip()))
    return found


def test_no_kind_of_entry_lacks_an_explanation_and_no_explanation_is_stale() -> None:
    found = written()
    assert {(entry.topic, entry.type) for entry in entries()} == found
    assert len(entries()) == len(found)


def test_what_is_looked_for_is_found() -> None:
    found = written()
    assert len(found) > 130
    assert {
        ("agent.prompt", "prompt"),
        ("tool.*", "invocation"),
        ("approval.lapsed", "lapsed"),
        ("daemon.state", "panic"),
        ("tool.inotify.event", "overflow"),
        ("agent.error", "timeout"),
        ("unattended.triage", "answered"),
    } <= found


@pytest.mark.parametrize("entry", entries(), ids=lambda entry: f"{entry.topic}/{entry.type}")
def test_every_entry_is_complete(entry: Entry) -> None:
    assert entry.message_id == message_id(entry.topic, entry.type)
    assert [name for name, _ in entry.headers] == HEADERS
    assert all(value for _, value in entry.headers)
    assert len(entry.text.split()) >= 12
    assert all(len(line) <= 80 for line in entry.text.splitlines())
    for field in re.findall(r"@([A-Z_]+)@", f"{entry.headers} {entry.text}"):
        assert field in FIELDS, field


FIELDS = {
    *(f"LIGHTAGENT_{name}" for name in ("SEQ", "AGENT", "SESSION", "TOOL", "ACTION", "EFFECT", "DECISION")),
    *(
        f"LIGHTAGENT_{name}"
        for name in ("TRACE_ID", "CALLER_UID", "DURATION_MS", "RESULT", "PROMPT", "TRIGGER")
    ),
    *(f"LIGHTAGENT_MISSING_{name}" for name in ("FROM", "TO", "COUNT")),
}


def test_journalctl_takes_the_catalog(tmp_path: Path) -> None:
    if shutil.which("journalctl") is None:
        pytest.skip("journalctl is not installed")
    folder = tmp_path / "usr/lib/systemd/catalog"
    folder.mkdir(parents=True)
    (tmp_path / "var/lib/systemd/catalog").mkdir(parents=True)
    (folder / CATALOG.name).write_text(CATALOG.read_text())

    def journalctl(option: str) -> str:
        done = subprocess.run(
            ["journalctl", f"--root={tmp_path}", option], capture_output=True, text=True, check=True
        )
        assert done.stderr == ""
        return done.stdout

    journalctl("--update-catalog")
    listed = dict(line.split(" ", 1) for line in journalctl("--list-catalog").splitlines())
    assert listed == {
        entry.message_id: f"lightagentd: {dict(entry.headers)['Subject']}" for entry in entries()
    }
    dumped = journalctl("--dump-catalog")
    for entry in entries():
        assert entry.text in dumped
