"""`lactl panic`: what it prints, and what it advises when the daemon does not answer."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from lightagentd.errors import TimedOut
from tests import scripted_daemon
from tests.cli.conftest import Lactl, on_terminal
from tests.conftest import DaemonProcess
from tests.fake_systemd import private_bus
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


@pytest.fixture
def busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedDaemon]:
    """A daemon in this process that takes no call of Panic; it serves its private socket alone."""
    server = ScriptedDaemon(tmp_path / "private.sock")
    server.fail("Manager.Panic", "org.lightagent1.LimitExceeded", code="", message="Too many.")
    monkeypatch.setenv("LIGHTAGENT_SOCKET", str(tmp_path / "control.sock"))
    server.start()
    yield server
    server.stop()


@pytest.mark.parametrize("error", ["LimitExceeded", "TimedOut"])
def test_how_to_send_a_signal_by_hand_is_said_where_the_daemon_is_not_known(
    scripted: ScriptedDaemon, lactl: Lactl, error: str
) -> None:
    scripted.fail("Manager.Panic", f"org.lightagent1.{error}", code="", message="Too many.")
    done = lactl("panic")
    assert done.status != 0
    assert "SIGUSR1" in done.err
    assert "SIGUSR1" in lactl("panic", "--help").out


def test_a_daemon_that_answers_nobody_is_stopped_by_a_signal(busy: ScriptedDaemon, lactl: Lactl) -> None:
    def on_signal(*_: object) -> None:
        busy.answer("Manager.GetStatus", {"status": scripted_daemon.status(panic=PANIC, state="panicked")})

    busy.answer("Manager.GetStatus", {"status": scripted_daemon.status()})
    before = signal.signal(signal.SIGUSR1, on_signal)
    try:
        done = lactl("panic", "--reason", "it lies")
        again = lactl("panic", "--json")
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert (done.status, again.status) == (0, 0)
    assert f"process {os.getpid()}, got SIGUSR1, which tells no reason" in done.err
    assert "Everything is stopped by a signal" in done.out
    assert json.loads(again.out) == {"panic": PANIC, "turns": None, "workers": None, "problems": []}


def test_a_signal_that_stops_nothing_is_no_success(
    busy: ScriptedDaemon, lactl: Lactl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lightagentd.cli.panic.PATIENCE_S", 0.3)
    busy.answer("Manager.GetStatus", {"status": scripted_daemon.status()})
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        done = lactl("panic")
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert done.status == TimedOut.exit_status
    assert "not known whether" in done.err


def test_a_daemon_that_is_busy_on_its_socket_is_stopped_over_the_bus(
    daemon_process: DaemonProcess, busy: ScriptedDaemon, lactl: Lactl, monkeypatch: pytest.MonkeyPatch
) -> None:
    with private_bus() as address:
        drop_in = daemon_process.paths.config / "lightagentd.toml.d" / "50-bus.toml"
        drop_in.write_text(f'[daemon]\nbus = "{address}"\n')
        daemon_process.start()
        monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", address)
        monkeypatch.setattr("lightagentd.cli.panic.SYSTEM_SOCKET", os.environ["LIGHTAGENT_SOCKET"])
        done = lactl("panic", "--reason", "enough")
        assert (done.status, done.err) == (0, "lactl: Too many. Asking over D-Bus.\n")
        assert "0 turns ended" in done.out
        with daemon_process.client() as client:
            assert client.call("Manager.GetStatus")["status"]["panic"]["reason"] == "enough"
        daemon_process.stop()


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
