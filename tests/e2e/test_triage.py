"""OnFailure=lightagent-triage@%n.service: units that really fail, and what the journal says of them then."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import pytest

from .dropins import edited
from .machine import Machine
from .product import UNIT, eventually, lactl, lactl_json, start_service

pytestmark = pytest.mark.e2e

FOLDER = "/run/systemd/system"
ON_FAILURE = "[Unit]\nOnFailure=lightagent-triage@%n.service\n"
SERVICE = f"{ON_FAILURE}[Service]\nType=oneshot\nExecStart=/bin/sh -c 'echo the widget jammed >&2; exit 42'\n"
MOUNT = f"{ON_FAILURE}[Mount]\nWhat=/dev/no-such-disk\nWhere=/srv/a-b\nType=ext4\n"
WHY = """
description = "Says which unit it is"
agent = "ops"
[inputs.unit]
[[step]]
name = "say"
call = "bash.exec"
args.command = "echo look at {inputs.unit}"
"""

# systemd refuses longer names than 255 characters, and this is the instance of lightagent-triage@.service.
LONGEST = "e2e-" + "long-" * 43 + "xx"


@pytest.fixture(autouse=True)
def fresh(service: Machine) -> Iterator[None]:
    """Each test has the allowance of a boot, and the daemon running."""
    service.run(["rm", "-f", "/run/lightagent-triage/taken"])
    yield
    start_service(service)


@contextlib.contextmanager
def unit(machine: Machine, name: str, text: str, *instances: str) -> Iterator[None]:
    machine.write(f"{FOLDER}/{name}", text)
    machine.run(["systemctl", "daemon-reload"])
    try:
        yield
    finally:
        machine.run(["rm", f"{FOLDER}/{name}"])
        machine.run(["systemctl", "reset-failed", *(instances or (name,))], check=False)
        machine.run(["systemctl", "daemon-reload"])


def fail(machine: Machine, name: str) -> str:
    """Start a unit, which fails, and wait for its triage to end; gives the name of the triage unit."""
    triage = f"lightagent-triage@{name}.service"
    before = len(entries(machine, triage))
    assert machine.run(["systemctl", "start", name], check=False).status != 0
    eventually(lambda: len(entries(machine, triage)) > before, f"{triage} says something")
    eventually(lambda: state(machine, triage) in ("inactive", "failed"), f"{triage} has ended")
    return triage


def state(machine: Machine, name: str) -> str:
    return machine.run(["systemctl", "show", "--property=ActiveState", "--value", name]).stdout.strip()


def entries(machine: Machine, name: str) -> list[dict[str, Any]]:
    """What programs of the triage wrote, as `journalctl -u NAME` shows it."""
    return machine.journal("--unit", name, "--identifier=lightagent-triage")


def message(machine: Machine, name: str) -> str:
    return str(entries(machine, name)[-1]["MESSAGE"])


@pytest.mark.parametrize(
    ("file", "name", "text", "finding"),
    [
        ("e2e-jams@.service", "e2e-jams@left.service", SERVICE, "the widget jammed"),
        (r"srv-a\x2db.mount", r"srv-a\x2db.mount", MOUNT, "no-such-disk"),
        (f"{LONGEST}.service", f"{LONGEST}.service", SERVICE, "the widget jammed"),
    ],
)
def test_diagnosis_is_in_the_journal_of_both_units(
    service: Machine, file: str, name: str, text: str, finding: str
) -> None:
    with unit(service, file, text, name):
        triage = fail(service, name)
    assert state(service, triage) == "inactive"
    [own] = entries(service, triage)
    [entry] = entries(service, name)
    assert own["MESSAGE_ID"] == entry["MESSAGE_ID"]
    assert str(entry["MESSAGE"]).startswith(f"Diagnosis of {name} by the agent ops: **")
    assert finding in str(entry["MESSAGE"])
    assert (entry["_UID"], entry["OBJECT_SYSTEMD_UNIT"]) == ("0", name)
    assert entry["_SYSTEMD_UNIT"] == triage
    [session] = [
        one for one in lactl_json(service, "sessions", "list") if one["id"] == entry["LIGHTAGENT_SESSION"]
    ]
    assert session["owner"] == 0
    events = lactl(service, "history", "--session", session["id"]).stdout
    assert "service-triage" in events


def test_unit_that_fails_in_a_circle_is_asked_about_once(service: Machine) -> None:
    with unit(service, "e2e-again.service", SERVICE):
        triage = fail(service, "e2e-again.service")
        fail(service, "e2e-again.service")
    said = [str(entry["MESSAGE"]) for entry in entries(service, "e2e-again.service")]
    assert [line.partition(":")[0].partition(" by ")[0] for line in said] == [
        "Diagnosis of e2e-again.service",
        "No diagnosis of e2e-again.service",
    ]
    assert "had its diagnosis in the last 10 minutes" in said[1]
    assert state(service, triage) == "inactive"


def test_a_journald_that_is_late_says_which_unit_it_was(service: Machine) -> None:
    """It looks that up when it reads the entry, and not of a process that has ended."""
    with unit(service, "e2e-late.service", SERVICE):
        triage = fail(service, "e2e-late.service")
        service.run(["systemctl", "kill", "--signal=STOP", "systemd-journald.service"])
        try:
            service.run(["systemctl", "start", "e2e-late.service"], check=False)
            time.sleep(4)  # longer than it takes to say that there was a diagnosis
        finally:
            service.run(["systemctl", "kill", "--signal=CONT", "systemd-journald.service"])
        eventually(lambda: len(entries(service, triage)) == 2, "both entries are the unit's")


def test_a_flow_that_a_drop_in_names_runs_for_the_unit(service: Machine) -> None:
    file = "/etc/lightagentd/flows/e2e-why.toml"
    service.write(file, WHY)
    service.run(["systemctl", "reload", UNIT])
    with (
        edited(service, "lightagent-triage@.service", "[Service]\nEnvironment=FLOW=e2e-why\n"),
        unit(service, "e2e-flow.service", SERVICE),
    ):
        fail(service, "e2e-flow.service")
    service.run(["rm", file])
    [entry] = entries(service, "e2e-flow.service")
    assert entry["MESSAGE"] == "Diagnosis of e2e-flow.service by the flow e2e-why: look at e2e-flow.service"
    session = entry["LIGHTAGENT_SESSION"]
    [run] = [one for one in lactl_json(service, "flows", "runs") if one["session"] == session]
    assert (run["flow"], run["state"], run["owner"]) == ("e2e-why", "success", 0)


def test_own_units_are_left_alone_though_a_drop_in_is_for_all_services(service: Machine) -> None:
    failing = "lightagent-prompt@e2e-missing.service"
    sessions = len(lactl_json(service, "sessions", "list"))
    with edited(service, "service", ON_FAILURE):
        triage = fail(service, failing)
        assert message(service, triage) == f"No diagnosis of {failing}: it is a unit of lightagentd itself."
        assert state(service, triage) == "inactive"
    units = service.run(["systemctl", "list-units", "--all", "--plain", "--no-legend", "lightagent-triage@*"])
    assert f"lightagent-triage@{triage}" not in units.stdout
    assert len(lactl_json(service, "sessions", "list")) == sessions
    service.run(["systemctl", "reset-failed", failing], check=False)
