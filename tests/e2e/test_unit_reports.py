"""Units that really fail, loop, hang and are stopped: what the skills' first sentences and checks say.

The scripts run as a user with the groups of a worker, straight from the checkout: no daemon takes part.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .debian import CHECKOUT
from .machine import Machine
from .product import eventually, new_uid

pytestmark = pytest.mark.e2e

USER, SKILLS, UNITS = "reporter", "/opt/e2e-skills", "/run/systemd/system"
AREAS = ("units", "timers", "boot", "journal", "kernel", "storage", "containers", "limits")
CHECK = f"""
import sys
sys.path.insert(0, "{SKILLS}/_lib")
import checks
checks.load_areas()
names = [name for name in checks.CHECKS if name.partition(".")[0] in {AREAS}]
for one in checks.worst_first(checks.made(names, timeout_s=20)):
    print(one.text)
"""
LOOP = "Restart=always\nRestartSec"
FAULTS = {
    "e2e-pre.service": "ExecStart=/bin/true\nExecStartPre=/bin/sh -c 'echo broken key >&2; exit 7'",
    "e2e-loop.service": f"{LOOP}=2\nExecStart=/bin/sh -c 'echo no such db >&2; exit 3'",
    "e2e-limit.service": f"{LOOP}=10ms\nExecStart=/bin/sh -c 'echo bad password >&2; exit 1'",
    "e2e-step.service": "WorkingDirectory=/opt/e2e-missing\nExecStart=/bin/sleep inf",
    "e2e-denied.service": "User=nobody\nExecStart=/bin/cat /etc/shadow",
    "e2e-ready.service": "Type=notify\nTimeoutStartSec=1\nExecStart=/bin/sleep inf",
    "e2e-needy.service": "ExecStart=/bin/sleep inf\n[Unit]\nRequires=e2e-masked.service",
    "e2e-none.service": "Type=simple",
}
SAID = {
    "e2e-pre.service": "broken key (ExecStartPre ended with status 7)",
    "e2e-loop.service": "no such db (its process ended with status 3)",
    "e2e-limit.service": "bad password (its process ended with status 1); systemd has given up restarting it",
    "e2e-step.service": "WorkingDirectory=/opt/e2e-missing",
    "e2e-denied.service": "/etc/shadow belongs to root with mode 0640; the unit runs as nobody",
    "e2e-ready.service": "it did not start within 1s; it never told systemd that it is ready",
    "e2e-needy.service": "e2e-masked.service, which it needs, is masked",
    "e2e-none.service": "Service has no ExecStart=",
}


def script(machine: Machine, name: str, *options: str) -> str:
    """The first sentence of a skill's report."""
    path = f"{SKILLS}/{name}/scripts/{name.replace('-', '_')}.py"
    return machine.run(["python3", "-I", path, *options], user=USER, check=False).stdout.partition("\n")[0]


def found(machine: Machine) -> str:
    """All that the checks of these areas find."""
    return machine.run(["python3", "-I", "-c", CHECK], user=USER).stdout


@pytest.fixture(scope="module")
def faulty(machine: Machine) -> Iterator[tuple[Machine, str]]:
    """The machine with the faults, and what was found on it before."""
    machine.run(["useradd", new_uid(), "--groups", "adm,systemd-journal", USER])
    machine.copy_in(CHECKOUT / "skills", SKILLS)
    healthy = found(machine)
    for name, text in FAULTS.items():
        machine.write(f"{UNITS}/{name}", f"[Service]\n{text}\n")
    machine.write(f"{UNITS}/e2e-never.timer", "[Timer]\nOnCalendar=2020-01-01\nUnit=e2e-pre.service\n")
    machine.run(["ln", "-s", "/dev/null", f"{UNITS}/e2e-masked.service"])
    machine.run(["systemctl", "daemon-reload"])
    machine.run(["systemctl", "start", "e2e-never.timer"])
    for name in FAULTS:
        machine.run(["systemctl", "start", name], check=False)
    state = ["systemctl", "show", "--property=ActiveState", "--value", "e2e-limit.service"]
    eventually(lambda: machine.run(state).stdout.strip() == "failed", "systemd has given up")
    machine.run(["journalctl", "--sync"])
    yield machine, healthy
    machine.run(["systemctl", "stop", "e2e-never.timer", *FAULTS], check=False)
    machine.run(["sh", "-c", f"rm -r {UNITS}/e2e-* {SKILLS}"])
    machine.run(["systemctl", "daemon-reload"])
    machine.run(["systemctl", "reset-failed"])
    machine.run(["userdel", USER])


def test_the_first_sentence_names_the_cause(faulty: tuple[Machine, str]) -> None:
    machine, _ = faulty
    said = {name: script(machine, "service-triage", f"--unit={name}") for name in FAULTS}
    assert {name: text for name, text in said.items() if SAID[name] not in text or name not in text} == {}
    assert "status 0" not in "".join(said.values())


def test_the_checks_find_what_systemd_knows_of(faulty: tuple[Machine, str]) -> None:
    text = found(faulty[0])
    hidden = {"e2e-needy.service", "e2e-none.service"}  # systemd loads neither, for nothing pulls them in
    assert [name for name in FAULTS if name not in hidden and SAID[name] not in text] == []
    assert "e2e-never.timer has never run and has no next run" in text


def test_no_unit_has_failed_is_not_said_of_a_unit_in_auto_restart(faulty: tuple[Machine, str]) -> None:
    machine, _ = faulty
    machine.run(["systemctl", "reset-failed"])
    assert "e2e-loop.service crashes again and again" in script(machine, "service-triage")


def test_a_stopped_unit_and_a_timer_are_told_with_their_state(faulty: tuple[Machine, str]) -> None:
    machine, _ = faulty
    machine.run(["systemctl", "stop", "e2e-loop.service"])
    assert "e2e-loop.service was stopped" in script(machine, "stopped-services", "--unit=e2e-loop")
    told = script(machine, "timer-check", "--unit=e2e-never")
    assert "last run never, next run none" in told
    assert "There is no unit sda.service" in script(machine, "log-errors", "--unit=sda")
