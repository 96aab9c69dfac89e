"""`lactl panic`: what it prints, and what it advises when the daemon does not answer."""

from __future__ import annotations

import json

import pytest

from tests import scripted_daemon
from tests.cli.conftest import Lactl, on_terminal
from tests.conftest import DaemonProcess
from tests.scripted_daemon import ScriptedDaemon

PANIC = {"since_us": 1_763_768_400_000_000, "by": 0, "reason": "it lies"}
STOPPED = {"panic": PANIC, "turns": 3, "workers": 1, "problems": []}


def test_it_says_what_it_stopped_and_how_to_go_on(scripted: ScriptedDaemon, lactl: Lactl) -> None:
    scripted.answer("Manager.Panic", {"stopped": STOPPED})
    done = lactl("panic", "--reason", "it lies")
    assert (done.status, done.err) == (0, "")
    assert "3 turns ended, 1 worker killed" in done.out
    assert "lactl panic --off" in done.out
    assert scripted.parameters("Manager.Panic") == {"reason": "it lies"}


def test_problems_go_to_standard_error(scripted: ScriptedDaemon, lactl: Lactl) -> None:
    scripted.answer("Manager.Panic", {"stopped": {**STOPPED, "problems": ["The disk is full."]}})
    done = lactl("panic")
    assert (done.status, done.err) == (0, "lactl: The disk is full.\n")


def test_json_is_what_the_daemon_said(scripted: ScriptedDaemon, lactl: Lactl) -> None:
    scripted.answer("Manager.Panic", {"stopped": STOPPED})
    assert json.loads(lactl("panic", "--json").out) == STOPPED


def test_off_ends_it_and_takes_no_reason(scripted: ScriptedDaemon, lactl: Lactl) -> None:
    scripted.answer("Manager.EndPanic", {})
    assert lactl("panic", "--off").status == 0
    assert [call["method"] for call in scripted.calls] == ["Manager.EndPanic"]
    assert lactl("panic", "--off", "--reason", "x").status == 2


@pytest.mark.parametrize("error", ["LimitExceeded", "TimedOut"])
def test_a_daemon_that_answers_nobody_is_stopped_by_a_signal(
    scripted: ScriptedDaemon, lactl: Lactl, error: str
) -> None:
    scripted.fail("Manager.Panic", f"org.lightagent1.{error}", code="", message="Too many.")
    done = lactl("panic")
    assert done.status != 0
    assert "SIGUSR1" in done.err
    assert "SIGUSR1" in lactl("panic", "--help").out


def test_status_begins_with_it_and_takes_no_escapes_from_the_reason(scripted: ScriptedDaemon) -> None:
    panic = {**PANIC, "reason": "\x1b[2Jit lies"}
    scripted.answer("Manager.GetStatus", {"status": scripted_daemon.status(panic=panic, state="panicked")})
    done = on_terminal(["status"])
    assert "panic" in done.out.splitlines()[0]
    assert "it lies" in done.out.splitlines()[0]
    assert "\x1b[2J" not in done.out


def test_a_real_daemon_stops_refuses_and_goes_on(daemon_process: DaemonProcess) -> None:
    daemon_process.start()
    assert daemon_process.lactl("panic", "--reason", "enough").returncode == 0
    refused = daemon_process.lactl("prompt", "ops", "hello")
    assert refused.returncode == 69
    assert "enough" in refused.stderr
    daemon_process.stop()
    daemon_process.start()
    assert json.loads(daemon_process.lactl("status", "--json").stdout)["state"] == "panicked"
    assert daemon_process.lactl("panic", "--off").returncode == 0
    assert daemon_process.lactl("prompt", "ops", "check memory").returncode == 0
    assert daemon_process.lactl("panic", "--off").returncode == 73
