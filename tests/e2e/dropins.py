"""Drop-ins, as `systemctl edit` would write them, for the time of a test; and a report that takes long."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from .machine import Machine
from .product import UNIT, eventually, lactl_json

SLOW_SKILL = {
    "SKILL.md": "---\nname: slow-report\ndescription: Waits until it may end.\n---\n# slow-report\n",
    "runbook.yaml": "script: scripts/slow.py\ntimeout_s: 120\n",
    "examples.txt": "make the slow report\n",
}
# The worker sees the machine's /srv, and cannot write there: whoever runs the test says go.
SLOW_SCRIPT = """import os, time
while not os.path.exists("/srv/e2e-go"):
    time.sleep(0.1)
print("the slow report is done")
"""
_SKILL_FOLDER = "/etc/lightagentd/skills/slow-report"


@contextlib.contextmanager
def edited(machine: Machine, unit: str, text: str) -> Iterator[None]:
    """The unit with a drop-in; whoever calls restarts what has to be."""
    folder = f"/etc/systemd/system/{unit}.d"
    machine.write(f"{folder}/e2e.conf", text)
    machine.run(["systemctl", "daemon-reload"])
    try:
        yield
    finally:
        machine.run(["rm", f"{folder}/e2e.conf"])
        machine.run(["systemctl", "daemon-reload"])


@contextlib.contextmanager
def slow_report(machine: Machine) -> Iterator[None]:
    """The prompt "make the slow report" takes until `let_it_end`: see `slow_turn`."""
    for file, text in SLOW_SKILL.items():
        machine.write(f"{_SKILL_FOLDER}/{file}", text)
    machine.write(f"{_SKILL_FOLDER}/scripts/slow.py", SLOW_SCRIPT)
    machine.run(["systemctl", "reload", UNIT])
    try:
        yield
    finally:
        machine.run(["rm", "-rf", _SKILL_FOLDER, "/srv/e2e-go"])


def slow_turn(machine: Machine) -> str:
    """The session of a turn that has begun to make the slow report, for a client in the unit e2e-slow."""
    machine.run(["rm", "-f", "/srv/e2e-go"])
    in_background(machine, "e2e-slow", "lactl", "prompt", "ops", "--new", "make the slow report")
    eventually(lambda: machine.run(["pgrep", "-f", "scripts/slow.py"], check=False).stdout, "its script runs")
    assert lactl_json(machine, "status")["turns_running"] == 1
    [session] = [one["id"] for one in lactl_json(machine, "sessions", "list") if one["state"] == "running"]
    return str(session)


def let_it_end(machine: Machine) -> None:
    machine.run(["touch", "/srv/e2e-go"])


def in_background(machine: Machine, name: str, *argv: str) -> None:
    """Run a command as the transient unit `name`, which stays until it is stopped, also when it failed."""
    machine.run(["systemd-run", f"--unit={name}", "--remain-after-exit", "--quiet", *argv])
