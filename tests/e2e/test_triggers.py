"""Triggers on a machine that boots: units that fail, files, timers, and answers as their owners."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from .machine import Machine
from .product import eventually, lactl, lactl_json, new_uid, start_service

pytestmark = pytest.mark.e2e

FOLDER = "/etc/lightagentd/triggers"
UNIT = "lightagent-triggers.service"
ANSWER = "/home/carol/answer.md"


@pytest.fixture(scope="module", autouse=True)
def carol(service: Machine) -> Iterator[None]:
    service.run(["useradd", new_uid(), "--create-home", "--groups=lightagent", "carol"])
    yield
    service.run(["userdel", "--remove", "carol"])


@pytest.fixture(scope="module", autouse=True)
def files(service: Machine, carol: None) -> Iterator[None]:
    """The triggers of the first tests, which are followed: the service starts by itself."""
    write(service, "failed", 'on = "unit-failed"\nunit = "e2e-*"\nprompt = "why did {unit} fail"')
    text = f'on = "inotify"\npath = "/srv"\nprompt = "check disk"\nanswer = "file"\nfile = "{ANSWER}"'
    write(service, "files", text)
    follow(service, "failed", "files")
    yield
    service.run(["sh", "-c", f"rm -rf {FOLDER}; systemctl stop {UNIT}"])
    start_service(service)
    lactl(service, "reload")


def write(machine: Machine, name: str, text: str) -> None:
    machine.run(["mkdir", "-p", FOLDER])
    machine.write(f"{FOLDER}/{name}.toml", f'{text}\nagent = "ops"\nowner = "carol"\n')


def follow(machine: Machine, *names: str) -> None:
    """Have the daemon read the triggers, and wait until these are followed."""
    lactl(machine, "reload")

    def followed() -> bool:
        return {found(machine, name)["state"] for name in names} == {"active"}

    eventually(followed, f"{names} are followed")


def found(machine: Machine, name: str) -> dict[str, Any]:
    return dict(lactl_json(machine, "triggers", "show", name))


def answered(machine: Machine, name: str, count: int = 1) -> list[dict[str, Any]]:
    """What the journal says of the answers of a trigger, once there are so many."""

    def entries() -> list[dict[str, Any]]:
        return machine.journal("--unit", UNIT, f"LIGHTAGENT_TRIGGER={name}")

    eventually(lambda: len(entries()) >= count, f"{name} is answered {count} times")
    return entries()


def test_a_unit_that_fails_is_looked_into_and_a_forged_entry_is_not(service: Machine) -> None:
    unit = "/run/systemd/system/e2e-broken.service"
    service.write(
        unit, "[Service]\nType=oneshot\nExecStart=/bin/sh -c 'echo the widget jammed >&2; exit 42'\n"
    )
    service.run(["systemctl", "daemon-reload"])
    forged = "MESSAGE_ID=d9b373ed55a64feb8242e02dbe79a49c\nUNIT=e2e-forged.service\nMESSAGE=x\n"
    service.run(["sh", "-c", f"printf '{forged}' | logger --journald"])
    service.run(["systemctl", "start", "e2e-broken.service"], check=False)
    (entry,) = answered(service, "failed")
    assert "e2e-broken" in entry["MESSAGE"]
    assert found(service, "failed")["fired"] == 1
    service.run(["rm", unit])
    service.run(["systemctl", "reset-failed", "e2e-broken.service"])


def test_a_file_has_its_answer_written_as_the_owner(service: Machine) -> None:
    service.write("/srv/new", "x")
    (entry,) = answered(service, "files")
    assert entry["MESSAGE"] == f"The answer of ops is in {ANSWER}."
    stat = service.run(["stat", "--format=%U %a", ANSWER]).stdout.strip()
    assert stat == "carol 600"
    assert "file systems" in service.run(["cat", ANSWER]).stdout
    service.run(["rm", "/srv/new"])


def test_a_timer_catches_up_after_a_stop_and_the_daemon_says_who_is_missing(service: Machine) -> None:
    text = 'on = "timer"\ncalendar = "*:*:0/2"\nprompt = "check memory"\ncatch_up = true\nrate_limit = 1000'
    write(service, "often", text)
    follow(service, "often")
    answered(service, "often")
    service.run(["systemctl", "stop", "lightagentd"])
    state = ["systemctl", "show", "--property=ActiveState", "--value", UNIT]
    eventually(lambda: service.run(state).stdout.strip() == "inactive", "it ends, too")
    before = service.run(["date", "+%s"]).stdout
    eventually(lambda: int(service.run(["date", "+%s"]).stdout) >= int(before) + 3, "three seconds")
    start_service(service)
    eventually(lambda: found(service, "often")["state"] == "active", "it is followed again")

    def missed() -> list[dict[str, Any]]:
        log = lactl(service, "--json", "triggers", "log", "often").stdout
        return [one for one in map(json.loads, log.splitlines()) if one["topic"] == "trigger.missed"]

    eventually(missed, "what was missed is told")
    assert missed()[-1]["data"]["catch_up"] is True
    service.run(["systemctl", "stop", "lightagent-triggers.path", UNIT])
    assert found(service, "often")["state"] == "unfollowed"
