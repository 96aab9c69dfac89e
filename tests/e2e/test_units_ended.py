"""How worker units are ended: by an emergency stop, by a call whose time is over, and with the daemon.

Whatever they run ignores signals or hangs; in the units for change it does so as root.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from .calls import call, main_pid, shell
from .machine import Machine
from .product import UNIT, eventually, lactl, lactl_json, start_service

pytestmark = pytest.mark.e2e

EFFECTS = ("observe", "reach", "change")
MARK = "7654321"
HANGING = f"trap '' TERM HUP INT; setsid sleep {MARK} & while :; do sleep {MARK}; done"


@pytest.fixture(scope="module", autouse=True)
def changer(service: Machine) -> Iterator[None]:
    """The shipped agent with a worker for change: no file has to be touched for that."""
    service.run(["systemctl", "enable", "--now", "lightagent-change@ops.socket"])
    yield
    service.run(["systemctl", "disable", "--now", "lightagent-change@ops.socket"])
    service.run(["systemctl", "reset-failed"])


@pytest.fixture
def hanging(service: Machine) -> Iterator[None]:
    """A shell command for each effect that does not want to end."""
    _begin_all(service)
    yield
    service.run(["systemctl", "stop", *(f"e2e-hanging-{effect}.service" for effect in EFFECTS)], check=False)


def _begin_all(machine: Machine) -> None:
    for effect in EFFECTS:
        _begin(machine, effect, HANGING, timeout_s=300)
    eventually(lambda: len(_running(machine)) == 2 * len(EFFECTS), "the commands run")


def _begin(machine: Machine, effect: str, command: str, *, timeout_s: float) -> None:
    args = json.dumps({"command": command, "effect": effect, "timeout_s": timeout_s})
    argv = ["lactl", "tools", "call", "ops", "bash.exec", "--args", args]
    unit = f"e2e-hanging-{effect}"
    machine.run(["systemctl", "stop", f"{unit}.service"], check=False)
    machine.run(["systemd-run", f"--unit={unit}", "--collect", *argv])


def _running(machine: Machine) -> list[str]:
    return machine.run(["pgrep", "-fx", f"sleep {MARK}"], check=False).stdout.split()


CHANGE = "lightagent-change@ops.service"


@pytest.mark.parametrize("stopped", [False, True], ids=["busy", "stopped by a signal"])
@pytest.mark.usefixtures("hanging")
def test_an_emergency_stop_ends_what_ignores_signals(service: Machine, stopped: bool) -> None:
    """Everything is dead when `lactl panic` returns, and nothing was waited for that could hang."""
    units = [worker["unit"] for worker in lactl_json(service, "status")["workers"]]
    before = [main_pid(service, unit) for unit in units]
    assert len(set(before) - {0}) == len(EFFECTS)
    if stopped:
        service.run(["kill", "-STOP", *map(str, before)])
    began = time.monotonic()
    told = json.loads(lactl(service, "--json", "panic", "--reason", "a trial").stdout)
    took_s = time.monotonic() - began
    try:
        assert _running(service) == []
        assert [main_pid(service, unit) for unit in units] == [0, 0, 0]
        assert (told["workers"], told["problems"]) == (len(EFFECTS), [])
        assert lactl_json(service, "status")["state"] == "panicked"
        for effect in EFFECTS:
            args = json.dumps({"command": "true", "effect": effect})
            refused = lactl(service, "tools", "call", "ops", "bash.exec", "--args", args, check=False)
            assert "An administrator has stopped everything: a trial." in refused.stderr
        assert [main_pid(service, unit) for unit in units] == [0, 0, 0]
    finally:
        lactl(service, "panic", "--off")
    print(f"everything was dead {took_s:.2f} s after lactl panic began")
    for effect in EFFECTS:
        assert shell(service, "echo back", effect) == "back\n"


def test_a_worker_for_change_that_hangs_is_killed_when_the_time_of_its_call_is_over(service: Machine) -> None:
    shell(service, "true", "change")
    before = main_pid(service, CHANGE)
    _begin(service, "change", f"kill -STOP {before}; exec sleep {MARK}", timeout_s=1)
    eventually(lambda: main_pid(service, CHANGE) != before, "the worker is killed")
    eventually(lambda: _running(service) == [], "so is what it ran")
    assert shell(service, "echo again", "change") == "again\n"


def test_neither_a_stop_nor_a_restart_waits_for_calls_and_watches(service: Machine, hanging: None) -> None:
    """Less than `TimeoutStopSec=`, after which systemd would have killed the daemon."""
    made = call(service, "inotify.watch", path="/srv")
    assert made["type"] == "tool_result"
    service.run(["systemctl", "stop", UNIT], timeout_s=50)
    try:
        assert service.run(["systemctl", "show", "-P", "Result", UNIT]).stdout == "success\n"
        eventually(lambda: _running(service) == [], "what the calls ran is gone")
        eventually(
            lambda: not service.run(["pgrep", "-f", "lightagentd.worker.unit"], check=False).stdout,
            "so are the workers",
        )
    finally:
        start_service(service)
    assert "/srv" in call(service, "inotify.list")["text"]
    call(service, "inotify.stop", watch=made["metadata"]["watch"])

    _begin_all(service)
    since = service.run(["date", "+@%s"]).stdout.strip()
    service.run(["systemctl", "restart", "--no-block", UNIT])
    service.run(["systemctl", "restart", UNIT], timeout_s=50)
    # What has begun a moment ago waits for no job of the service manager's that waits for its end.
    assert "cannot be stopped" not in str(service.journal("--unit", UNIT, f"--since={since}"))
    assert _running(service) == []
    assert lactl_json(service, "status")["sandbox"] == "systemd"
    for effect in EFFECTS:
        assert shell(service, "echo again", effect) == "again\n"


@pytest.mark.parametrize(
    "name", [*(f"lightagent-{effect}@07" for effect in EFFECTS), "lightagent-keys", "lightagent-inspect"]
)
def test_no_number_of_restarts_keeps_a_worker_from_starting(service: Machine, name: str) -> None:
    """They begin anew with the daemon; at a limit of starts systemd refuses, and then no sandbox holds."""
    units = [f"{name}.socket", f"{name}.service"]
    shown = service.run(["systemctl", "show", "--property=StartLimitIntervalUSec", *units]).stdout
    assert shown.split() == ["StartLimitIntervalUSec=0"] * 2
