"""`lactl audit verify`, `key` and `checkpoints`: who is asked, what is printed, and the journal beside it."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from lightagentd.daemon.daemon import Daemon
from lightagentd.events.audit.signing import public_pem, signing_key
from lightagentd.events.journal.entry import journal_fields
from lightagentd.events.model import Event
from lightagentd.events.queries import StoredHistory
from lightagentd.host.paths import Paths
from tests.cli.conftest import Lactl
from tests.conftest import DaemonProcess
from tests.events.stored import alter
from tests.fake_journal import write_journal
from tests.scripted_daemon import ScriptedDaemon

HASH = "ab" * 32


def verification(**changes: Any) -> dict[str, Any]:
    return {
        "ok": True,
        "events": 20,
        "first_bad_seq": 0,
        "reason": "",
        "head_seq": 20,
        "head_hash": HASH,
        "first_seq": 1,
        "began": "start",
        "kept": 0,
        "erased": 0,
        "checkpoints": 3,
        "key": "cd" * 32,
        "trusted": True,
        "covered_seq": 19,
        "index_entries": 0,
        "rows": 7,
        "bad_rows": [],
        "removed": 0,
        "removals": [],
        "notes": [],
        **changes,
    }


def test_an_intact_history_is_status_zero(scripted: ScriptedDaemon, lactl: Lactl) -> None:
    scripted.answer("History.Verify", {"verification": verification(notes=["a backup was put in place"])})
    done = lactl("audit", "verify")
    assert done.status == 0
    shown = dict(line.split("\t") for line in done.out.splitlines())
    assert (shown["history"], shown["verified_by"], shown["head"]) == ("intact", "the daemon", f"20:{HASH}")
    assert (shown["checkpoints"], shown["signed_up_to"], shown["key"]) == ("3", "19", "cd" * 32)
    assert shown["journal"] == "not compared: only who may read the store can"
    assert "Note: a backup was put in place." in done.err
    assert (shown["rows_of_state"], shown["not_covered"][:13]) == ("7, as signed", "what somebody")
    scripted.answer("History.Verify", {"verification": verification(rows=0)})
    assert "the state beside the events, since no checkpoint" in lactl("audit", "verify").out


def test_altered_rows_and_what_was_removed_are_named(scripted: ScriptedDaemon, lactl: Lactl) -> None:
    row = "the row 'ses_1' of sessions was altered: it is not the one that event 9 lists"
    gone = {"seq": 5, "time_us": 1, "reason": "", "session": "", "rows": 0, "states": []}
    pruned = {**gone, "by": None, "reason": "age", "first_seq": 1, "last_seq": 4, "events": 3}
    of_session = {
        **gone,
        "by": 0,
        "session": "ses_2",
        "events": 8,
        "rows": 2,
        "states": ["sessions", "usage"],
    }
    told = {"bad_rows": [row], "removed": 2, "removals": [pruned, of_session]}
    found = verification(ok=False, first_bad_seq=9, reason=row, **told)
    scripted.answer("History.Verify", {"verification": found})
    done = lactl("audit", "verify")
    assert done.status == 74
    assert f"The stored state was altered: {row}." in done.err
    assert "rows_of_state\t7, 1 altered\n" in done.out
    assert "3 events from 1 to 4 were removed by the daemon at" in done.err
    assert "of 8 events of ses_2 and 2 rows (sessions, usage) were removed by root at" in done.err


def test_an_altered_one_names_the_event(scripted: ScriptedDaemon, lactl: Lactl) -> None:
    found = verification(ok=False, first_bad_seq=12, reason="the data of event 12 was altered")
    scripted.answer("History.Verify", {"verification": found})
    done = lactl("audit", "verify")
    assert done.status == 74
    assert "altered at event 12: the data of event 12 was altered." in done.err
    done = lactl("audit", "verify", "--json")
    assert json.loads(done.out) == {**found, "by": "daemon", "store": "", "journal": None}
    assert json.loads(done.err)["error"]["code"] == "history_damaged"


def test_the_daemon_gets_what_was_said(scripted: ScriptedDaemon, lactl: Lactl, tmp_path: Path) -> None:
    scripted.answer("History.Verify", {"verification": verification()})
    key = signing_key(tmp_path / "audit")
    kept = tmp_path / "kept.json"
    kept.write_text(json.dumps({"head_seq": 7, "head_hash": HASH}))
    lactl(
        *("audit", "verify", "--since", "9", "--indexes", "--public-key", str(tmp_path / "audit/public.pem")),
        *("--expect", f"5:{HASH}", "--expect", str(kept)),
    )
    assert scripted.parameters("History.Verify") == {
        "since_seq": 9,
        "indexes": True,
        "public_keys": [key.public_text],
        "expect": [f"5:{HASH}", f"7:{HASH}"],
    }


def test_the_daemon_gets_nothing_where_nothing_was_said(scripted: ScriptedDaemon, lactl: Lactl) -> None:
    scripted.answer("History.Verify", {"verification": verification()})
    lactl("audit", "verify")
    assert scripted.parameters("History.Verify") == {}


@pytest.mark.parametrize(
    ("options", "status", "words"),
    [
        (("--expect", "x"), 65, "no event's number and hash"),
        (("--expect", "5:abc"), 65, "no event's number and hash"),
        (("--public-key", "/nonexistent"), 66, "There is no file /nonexistent"),
        (("--public-key", "/etc/passwd"), 65, "no public key for Ed25519"),
        (("--journal",), 77, "The daemon cannot read the journal"),
        (("--since", "whenever"), 2, "'whenever'"),
    ],
)
def test_what_cannot_be_is_an_error_and_asks_nobody(
    scripted: ScriptedDaemon, lactl: Lactl, options: tuple[str, ...], status: int, words: str
) -> None:
    done = lactl("audit", "verify", *options)
    assert (done.status, words in done.err) == (status, True), done
    assert not scripted.calls


def test_the_key_is_printed_as_openssl_reads_it(
    scripted: ScriptedDaemon, lactl: Lactl, tmp_path: Path
) -> None:
    key = signing_key(tmp_path / "audit")
    data = {"fingerprint": key.fingerprint, "public_key": key.public_text, "made": True}
    event = {"seq": 1, "time": 5, "data": data}
    scripted.answer("History.Page", {"page": {"events": [event], "next_seq": 0}})
    assert lactl("audit", "key").out == public_pem(key.public)
    assert scripted.parameters("History.Page")["topic"] == "daemon.checkpoint"
    assert scripted.parameters("History.Page")["type"] == "key"
    found = json.loads(lactl("--json", "audit", "key").out)
    assert (found["fingerprint"], found["pem"], found["seq"]) == (key.fingerprint, public_pem(key.public), 1)
    scripted.answer("History.Page", {"page": {"events": [], "next_seq": 0}})
    assert lactl("audit", "key").status == 66


def test_checkpoints_are_listed(scripted: ScriptedDaemon, lactl: Lactl) -> None:
    data = {"seq": 4, "hash": HASH, "fingerprint": "cd" * 32, "signature": "AA=="}
    event = {"seq": 5, "time": 0, "data": data}
    scripted.answer("History.Page", {"page": {"events": [event], "next_seq": 0}})
    row = lactl("audit", "checkpoints").out.split("\t")
    assert (row[0], row[2:]) == ("5", ["4", HASH, "cd" * 8 + "\n"])
    assert json.loads(lactl("--json", "audit", "checkpoints").out) == [{**data, "event": 5, "time": 0}]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The state folder of a daemon that has done something and has stopped; no test changes it."""
    base = tmp_path_factory.mktemp("la")

    async def run() -> None:
        async with Daemon(Paths(config=base / "etc", state=base / "state", runtime=base / "run")):
            pass

    asyncio.run(run())
    return base / "state"


@pytest.fixture
def stored(daemon_process: DaemonProcess, original: Path) -> DaemonProcess:
    """A daemon that is not running, with a copy of that state."""
    shutil.copytree(original, daemon_process.paths.state)
    return daemon_process


def audit(process: DaemonProcess, *options: str, status: int = 0) -> tuple[dict[str, Any], str]:
    done = process.lactl("--json", "audit", "verify", f"--state-dir={process.paths.state}", *options)
    assert done.returncode == status, done
    return json.loads(done.stdout), done.stderr


def test_whoever_may_reads_the_store_itself_running_or_stopped(stored: DaemonProcess) -> None:
    found, _ = audit(stored, "--no-journal", "--indexes")
    assert (found["ok"], found["by"], found["store"]) == (True, "lactl", str(stored.paths.state))
    assert (found["trusted"], found["covered_seq"]) == (True, found["head_seq"] - 1)
    stored.start()
    found, _ = audit(stored, "--no-journal")
    assert (found["ok"], found["by"], found["trusted"]) == (True, "lactl", True)
    asked = json.loads(stored.lactl("--json", "audit", "verify").stdout)
    assert (asked["by"], asked["ok"], asked["head_seq"] >= found["head_seq"]) == ("daemon", True, True)
    assert asked["key"] == found["key"]


def test_a_kept_result_is_taken_as_what_is_expected(stored: DaemonProcess, tmp_path: Path) -> None:
    done = stored.lactl("--json", "audit", "verify", f"--state-dir={stored.paths.state}", "--no-journal")
    (tmp_path / "kept.json").write_text(done.stdout)
    assert audit(stored, "--no-journal", f"--expect={tmp_path}/kept.json")[0]["ok"]
    found, said = audit(stored, "--no-journal", f"--expect=2:{HASH}", status=74)
    assert (found["ok"], found["first_bad_seq"]) == (False, 2)
    assert "event 2 is not the one that was there" in said


def events_of(process: DaemonProcess) -> list[Event]:
    history = StoredHistory(process.paths.history)
    try:
        return history.queries.range(1, 1000)
    finally:
        history.close()


@pytest.mark.skipif(shutil.which("journalctl", path="/usr/bin:/bin") is None, reason="no journalctl here")
class TestJournal:
    def entries(self, process: DaemonProcess) -> list[tuple[int, dict[str, str | bytes]]]:
        """What journald would have of a daemon in its unit."""
        own = {"_SYSTEMD_UNIT": "lightagentd.service", "_UID": str(os.geteuid()), "_PID": "7"}
        return [(event.time_us, {**journal_fields(event), **own}) for event in events_of(process)]

    def test_history_and_journal_agree(self, stored: DaemonProcess, tmp_path: Path) -> None:
        entries = self.entries(stored)
        write_journal(tmp_path / "system.journal", entries)
        found, _ = audit(stored, f"--journal-file={tmp_path}/system.journal")
        assert found["journal"]["matched"] == found["journal"]["entries"] == found["events"] == len(entries)
        assert (found["journal"]["runs"], found["journal"]["lacking"]) == ([], [])
        shown = stored.lactl(
            "audit",
            "verify",
            f"--state-dir={stored.paths.state}",
            f"--journal-file={tmp_path}/system.journal",
        )
        assert f"journal\tagrees, {len(entries)} entries from event 1 to {len(entries)}\n" in shown.stdout
        assert shown.stderr == ""

    def test_a_history_written_anew_is_found_and_the_first_event_named(
        self, stored: DaemonProcess, tmp_path: Path
    ) -> None:
        write_journal(tmp_path / "system.journal", self.entries(stored))
        last = len(events_of(stored))
        alter(
            stored.paths.history,
            last,
            lambda line, data: line.replace(b"daemon", b"d\\u0061emon") + b"\n" + data,
        )
        (stored.paths.audit / "head.json").unlink()
        assert audit(stored, "--no-journal")[0]["ok"]
        found, said = audit(stored, f"--journal-file={tmp_path}/system.journal", status=74)
        assert found["first_bad_seq"] == last
        assert "another one in the journal" in said

    def test_forged_and_lacking_entries_are_told_and_are_no_failure(
        self, stored: DaemonProcess, tmp_path: Path
    ) -> None:
        entries = self.entries(stored)
        del entries[3:5]
        forged = {
            **entries[0][1],
            "_SYSTEMD_UNIT": "evil.service",
            "LIGHTAGENT_SEQ": "4",
            "_EXE": "/tmp/\x1b[2Jx",
        }
        write_journal(tmp_path / "system.journal", [*entries, (entries[-1][0], forged)])
        shown = stored.lactl(
            "audit",
            "verify",
            f"--state-dir={stored.paths.state}",
            f"--journal-file={tmp_path}/system.journal",
        )
        assert shown.returncode == 0
        assert "The journal lacks 2 events from 4 to 5" in shown.stderr
        assert "1 journal entry was not sent by the daemon" in shown.stderr
        assert "unit evil.service, uid" in shown.stderr
        assert "\x1b" not in shown.stderr

    def test_a_journal_without_entries_of_the_unit_is_said(
        self, stored: DaemonProcess, tmp_path: Path
    ) -> None:
        entries = [
            (time_us, {**one, "_SYSTEMD_UNIT": "session-3.scope"}) for time_us, one in self.entries(stored)
        ]
        write_journal(tmp_path / "system.journal", entries)
        found, _ = audit(stored, f"--journal-file={tmp_path}/system.journal")
        assert (found["ok"], found["journal"]["entries"]) == (True, 0)
        assert found["journal"]["forged"] == len(entries)

    def test_a_journal_that_cannot_be_read_is_told(self, stored: DaemonProcess, tmp_path: Path) -> None:
        (tmp_path / "system.journal").write_text("no journal " * 1000)
        done = stored.lactl(
            "audit",
            "verify",
            f"--state-dir={stored.paths.state}",
            f"--journal-file={tmp_path}/system.journal",
        )
        assert done.returncode == 0
        assert "journalctl failed with status 1" in done.stderr

    def test_a_file_that_is_not_there_is_an_error(self, stored: DaemonProcess) -> None:
        done = stored.lactl(
            "audit", "verify", f"--state-dir={stored.paths.state}", "--journal-file=/nonexistent"
        )
        assert (done.returncode, "There is no file /nonexistent" in done.stderr) == (66, True)
