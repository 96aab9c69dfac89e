"""The daemon's own messages: to the journal where it is the journal's, and never in the way."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lightagentd.events.journal.log import JournalHandler

from .test_sink import Journal


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    found = Journal(tmp_path / "journal")
    yield found
    if found.path.exists():
        found.close()


@pytest.fixture
def log(journal: Journal) -> Iterator[logging.Logger]:
    found = logging.Logger("lightagentd.x")
    handler = JournalHandler(journal.path)
    found.addHandler(handler)
    yield found
    handler.close()


def test_a_message_has_its_severity_and_place(journal: Journal, log: logging.Logger) -> None:
    log.warning("about %s", "it\x1b[2J")
    entry = journal.receive()
    assert (entry["MESSAGE"], entry["PRIORITY"]) == ("about it\\x1b[2J", "4")
    assert entry["SYSLOG_IDENTIFIER"] == "lightagentd"
    assert (entry["CODE_FILE"], entry["CODE_FUNC"]) == (
        __file__,
        "test_a_message_has_its_severity_and_place",
    )
    for level, priority in (("debug", "7"), ("info", "6"), ("error", "3"), ("critical", "2")):
        getattr(log, level)("x")
        assert journal.receive()["PRIORITY"] == priority


def test_a_traceback_is_one_entry_with_its_lines(journal: Journal, log: logging.Logger) -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError:
        log.exception("it failed")
    lines = journal.receive()["MESSAGE"].splitlines()
    assert lines[0] == "it failed"
    assert lines[-2:] == ["ValueError: two", "lines"]


def test_a_journal_that_is_stuck_or_gone_holds_nobody_up_and_gets_what_comes_later(
    journal: Journal, log: logging.Logger
) -> None:
    room = int(Path("/proc/sys/net/unix/max_dgram_qlen").read_text())
    for number in range(room + 50):
        log.info("%d", number)
    assert journal.receive()["MESSAGE"] == "0"
    journal.close()
    log.info("nobody hears it")
    back = Journal(journal.path)
    log.info("again")
    assert back.receive()["MESSAGE"] == "again"
    back.close()


PROGRAM = """\
import logging, os
from lightagentd.events.journal import log as journal_log
info = os.fstat(2)
if not os.environ.get("JOURNAL_STREAM"):
    os.environ["JOURNAL_STREAM"] = f"{info.st_dev}:{info.st_ino}"
handler = journal_log.handler()
print(type(handler).__name__)
handler.close()
"""


@pytest.mark.parametrize(("stream", "kind"), [("", "JournalHandler"), ("1:2", "StreamHandler")])
def test_it_is_used_where_standard_error_is_the_journals(stream: str, kind: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "JOURNAL_STREAM": stream},
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.stderr) == (f"{kind}\n", "")
