"""What a failed unit's diagnosis does, over a real daemon and over one whose answers are written down."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from lightagentd.errors import LightagentError
from lightagentd.unattended.triage import ALL_TOGETHER, is_own, triage, unit_name
from tests.conftest import REPOSITORY, DaemonProcess
from tests.scripted_daemon import Connection, ScriptedDaemon

from .conftest import PlayedJournal

DONE = {
    "type": "done",
    "session": "ses_1",
    "trace_id": "trace_1",
    "text": "# It crashed\n\nbadly",
    "steps": 1,
}


def run(
    journal: PlayedJournal,
    runtime: Path,
    control: Path,
    unit: str = "foo.service",
    timeout_s: float = 60,
    flow: str = "",
) -> int:
    return triage(
        unit,
        agent="ops",
        flow=flow,
        timeout_s=timeout_s,
        runtime=runtime,
        control=control,
        journal_socket=journal.path,
    )


@pytest.mark.parametrize(
    ("instance", "unit"),
    [
        ("foo.service", "foo.service"),
        ("foo", "foo.service"),
        ("foo@bar.service", "foo@bar.service"),
        ("a\\x2db.mount", "a\\x2db.mount"),
        ("-.mount", "-.mount"),
        ("lib.so.1", "lib.so.1.service"),
    ],
)
def test_an_instance_name_is_taken_as_the_unit_that_it_names(instance: str, unit: str) -> None:
    assert unit_name(instance) == unit


@pytest.mark.parametrize(
    "instance", ["", "a b.service", "a\nb.service", "../x.service", "a" * 300, "ä.service"]
)
def test_what_can_be_no_unit_is_refused(instance: str) -> None:
    if instance:
        with pytest.raises(LightagentError, match="not the name of a unit"):
            unit_name(instance)


@pytest.mark.parametrize(
    "unit",
    [
        "lightagentd.service",
        "lightagentd.socket",
        "lightagent-observe@ops.service",
        "lightagent-triage@foo.service.service",
        "lightagent-triage@lightagent-triage@foo.service.service.service",
        "lightagent-prompt@daily.timer",
        "dbus-org.lightagent1.service",
        "system-lightagent\\x2dobserve.slice",
    ],
)
def test_own_units_get_no_diagnosis_and_nobody_is_asked(
    unit: str, journal: PlayedJournal, scripted: ScriptedDaemon, tmp_path: Path
) -> None:
    assert run(journal, tmp_path, scripted.path, unit) == 0
    assert scripted.calls == []
    entry = journal.entry()
    assert "a unit of lightagentd itself" in entry["MESSAGE"]
    assert "OBJECT_SYSTEMD_UNIT" not in entry


@pytest.mark.parametrize(
    "unit", ["foo.service", "lightagents.service", "my-lightagentd.service", "light.service"]
)
def test_units_with_like_names_are_not_own(unit: str) -> None:
    assert not is_own(unit)


def test_the_answer_is_one_entry_for_both_units(
    journal: PlayedJournal, scripted: ScriptedDaemon, tmp_path: Path
) -> None:
    scripted.turn(dict(DONE), method="Triggers.Run")
    assert run(journal, tmp_path, scripted.path, "foo@bar.service") == 0
    asked = scripted.parameters("Triggers.Run")
    data = {"unit": "foo@bar.service"}
    correlation = "triage:foo@bar.service"
    assert asked == {"name": "triage", "data": data, "agent": "ops", "correlation_id": correlation}
    entry = journal.entry()
    assert entry["MESSAGE"] == "Diagnosis of foo@bar.service by the agent ops: # It crashed\n\nbadly"
    assert entry["OBJECT_SYSTEMD_UNIT"] == "foo@bar.service"
    assert entry["LIGHTAGENT_CORRELATION_ID"] == "triage:foo@bar.service"
    assert (entry["LIGHTAGENT_SESSION"], entry["LIGHTAGENT_TRACE_ID"]) == ("ses_1", "trace_1")
    assert len(entry["MESSAGE_ID"]) == 32
    assert journal.is_empty()


def test_a_flow_may_run_in_place_of_the_question(
    journal: PlayedJournal, scripted: ScriptedDaemon, tmp_path: Path
) -> None:
    scripted.turn(dict(DONE), method="Triggers.Run")
    assert run(journal, tmp_path, scripted.path, flow="incident") == 0
    asked = scripted.parameters("Triggers.Run")
    assert (asked["name"], asked["flow"], asked.get("agent")) == ("triage", "incident", None)
    assert journal.entry()["MESSAGE"].startswith("Diagnosis of foo.service by the flow incident: ")


def test_secrets_and_escapes_in_an_answer_do_not_reach_the_journal(
    journal: PlayedJournal, scripted: ScriptedDaemon, tmp_path: Path
) -> None:
    key = "sk-" + "a1" * 20
    scripted.turn({**DONE, "text": f"\x1b[31mred\x1b[0m {key} \u202ebidi"}, method="Triggers.Run")
    run(journal, tmp_path, scripted.path)
    message = journal.entry()["MESSAGE"]
    assert key not in message
    assert "\x1b" not in message
    assert "\u202e" not in message
    assert "red" in message


def test_an_endless_answer_is_cut_and_says_so(
    journal: PlayedJournal, scripted: ScriptedDaemon, tmp_path: Path
) -> None:
    scripted.turn({**DONE, "text": "x" * 500_000}, method="Triggers.Run")
    run(journal, tmp_path, scripted.path)
    message = journal.entry()["MESSAGE"]
    assert len(message) < 50_000
    assert "more characters" in message


def test_a_unit_that_fails_again_at_once_is_not_asked_about_again(
    journal: PlayedJournal, scripted: ScriptedDaemon, tmp_path: Path
) -> None:
    scripted.turn(dict(DONE), method="Triggers.Run")
    assert run(journal, tmp_path, scripted.path) == 0
    assert run(journal, tmp_path, scripted.path) == 0
    assert len(scripted.calls) == 1
    assert journal.entry()["MESSAGE"].startswith("Diagnosis of")
    skipped = journal.entry()
    assert skipped["MESSAGE"] == (
        "No diagnosis of foo.service: foo.service had its diagnosis in the last 10 minutes."
    )
    assert skipped["OBJECT_SYSTEMD_UNIT"] == "foo.service"


def test_many_units_that_fail_at_once_do_not_flood_the_agent(
    journal: PlayedJournal, scripted: ScriptedDaemon, tmp_path: Path
) -> None:
    scripted.turn(dict(DONE), method="Triggers.Run")
    for number in range(ALL_TOGETHER + 3):
        assert run(journal, tmp_path, scripted.path, f"u{number}.service") == 0
        journal.entry()
    assert len(scripted.calls) == ALL_TOGETHER


def test_a_stopped_daemon_is_one_line_and_no_failure(journal: PlayedJournal, tmp_path: Path) -> None:
    assert run(journal, tmp_path, tmp_path / "nothing.sock") == 0
    message = journal.entry()["MESSAGE"]
    assert "No diagnosis of foo.service" in message
    assert "not running" in message
    assert "\n" not in message
    assert journal.is_empty()


def test_a_turn_that_fails_is_told_with_its_exit_status(
    journal: PlayedJournal, scripted: ScriptedDaemon, tmp_path: Path
) -> None:
    scripted.turn(
        {"type": "started", "session": "ses_1"},
        {"type": "error", "session": "ses_1", "code": "model_unreachable", "message": "The model is away."},
        method="Triggers.Run",
    )
    assert run(journal, tmp_path, scripted.path) == 70
    entry = journal.entry()
    assert "The model is away. Look: lactl sessions show ses_1" in entry["MESSAGE"]
    assert entry["PRIORITY"] == "3"


def test_a_daemon_that_refuses_is_told_with_its_exit_status(
    journal: PlayedJournal, scripted: ScriptedDaemon, tmp_path: Path
) -> None:
    scripted.fail("Triggers.Run", "org.lightagent1.AgentNotFound", message="There is no agent 'ops'.")
    assert run(journal, tmp_path, scripted.path) == 66
    assert "There is no agent 'ops'." in journal.entry()["MESSAGE"]


class Silent:
    """A prompt that is never answered, until the session is cancelled."""

    def __init__(self, scripted: ScriptedDaemon) -> None:
        self.begun, self.cancelled = threading.Event(), threading.Event()
        scripted.handle("Triggers.Run", self._prompt)
        scripted.handle("Sessions.Cancel", self._cancel)

    def _prompt(self, connection: Connection, call: dict[str, Any]) -> None:
        event = {"type": "started", "session": "ses_slow", "trace_id": "trace_1"}
        connection.reply({"event": event}, continues=True)
        self.begun.set()
        self.cancelled.wait(60)

    def _cancel(self, connection: Connection, call: dict[str, Any]) -> None:
        assert call["parameters"] == {"session": "ses_slow"}
        self.cancelled.set()
        connection.reply({"cancelled": 1})


def test_an_answer_that_takes_too_long_is_cancelled(
    journal: PlayedJournal, scripted: ScriptedDaemon, tmp_path: Path
) -> None:
    silent = Silent(scripted)
    assert run(journal, tmp_path, scripted.path, timeout_s=2.0) == 124
    assert silent.cancelled.is_set()
    assert "did not answer within 2 seconds" in journal.entry()["MESSAGE"]


_PROGRAM = """
import sys
from pathlib import Path
from lightagentd.unattended.triage import triage
runtime, control, journal = map(Path, sys.argv[1:4])
places = {"runtime": runtime, "control": control, "journal_socket": journal}
sys.exit(triage("foo.service", agent="ops", timeout_s=60, **places))
"""


def test_sigterm_cancels_the_turn(journal: PlayedJournal, scripted: ScriptedDaemon, tmp_path: Path) -> None:
    silent = Silent(scripted)
    argv = [sys.executable, "-c", _PROGRAM, str(tmp_path), str(scripted.path), str(journal.path)]
    with subprocess.Popen(argv, cwd=REPOSITORY) as process:
        try:
            assert silent.begun.wait(60)
            # The handler is there before the prompt is sent, so the signal cannot come too early.
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 130
        finally:
            process.kill()
    assert silent.cancelled.is_set()
    assert "told to end" in journal.entry()["MESSAGE"]


def test_the_embedded_model_answers_about_the_unit(
    daemon_process: DaemonProcess, journal: PlayedJournal, tmp_path: Path
) -> None:
    daemon_process.start()
    assert run(journal, tmp_path, daemon_process.paths.socket, "no-such-unit-here.service") == 0
    entry = journal.entry()
    assert "no-such-unit-here" in entry["MESSAGE"]
    with daemon_process.client() as client:
        [session] = client.call("Sessions.List")["sessions"]
        query = {"session": session["id"], "limit": 1000}
        events = client.call("History.Query", **query)["events"]
    assert session["id"] == entry["LIGHTAGENT_SESSION"]
    assert "triage:no-such-unit-here.service" in {event["correlation_id"] for event in events}


def test_the_program_says_what_is_wrong_with_its_arguments() -> None:
    argv = [sys.executable, "-m", "lightagentd.unattended.triage", "--unit=a b"]
    done = subprocess.run(argv, cwd=REPOSITORY, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.startswith("<3>lightagent-triage: 'a b' is not the name of a unit. Write OnFailure=")


def test_without_a_journal_the_answer_is_printed(
    scripted: ScriptedDaemon, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scripted.turn(dict(DONE), method="Triggers.Run")
    missing = tmp_path / "no-journal"
    triage(
        "foo.service",
        agent="ops",
        timeout_s=60,
        runtime=tmp_path,
        control=scripted.path,
        journal_socket=missing,
    )
    assert "# It crashed" in capsys.readouterr().out
