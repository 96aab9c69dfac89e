"""The daemon is stopped once: what ends with it, what tells of it, who does not start it, the next start."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from lightagentd.worker import first_units

from .calls import call, main_pid, shell
from .cgroup import pids_below
from .machine import Machine
from .product import UNIT, eventually, lactl, lactl_json, new_uid, show, start_service
from .test_gateway import ask
from .test_prompt_timer import FOLDER, ended, start
from .test_triage import SERVICE, fail, message, state, unit

pytestmark = pytest.mark.e2e

KEYS = "lightagent-keys.service"
GATEWAY = "lightagent-gateway.service"
USERS = {"carol": "lightagent", "dave": "lightagent", "eve": ""}
STATUS = ("org.lightagent1", "/org/lightagent1", "org.lightagent1.Manager", "GetStatus")


@dataclass(frozen=True, kw_only=True)
class Before:
    """What there was before the stop."""

    cgroup: Path
    """Of the daemon, on the host."""
    key: str
    keys_pid: int
    paused: str
    """A session of carol's."""
    shadow: str


@pytest.fixture(scope="module", autouse=True)
def before(service: Machine) -> Iterator[Before]:
    """The stop. carol and dave are in the group lightagent, eve is not."""
    for name, groups in USERS.items():
        service.run(["useradd", new_uid(), "--create-home", f"--groups={groups}", name])
    service.run(["systemctl", "start", "lightagent-keys.socket"])
    service.run(["systemctl", "enable", "--now", GATEWAY])
    made = call(service, "crypto.generate_keypair", algorithm="ecdsa-p256", label="web")
    keys_pid = main_pid(service, KEYS)
    assert keys_pid
    paused = lactl_json(service, "sessions", "new", "ops", user="carol")["id"]
    pause = ["busctl", "call", *STATUS[:2], "org.lightagent1.Sessions", "Pause", "s", paused]
    assert service.run(pause, user="dave", check=False).status != 0
    service.run(pause, user="carol")
    shell(service, "true")
    assert lactl_json(service, "status")["workers"]
    cgroup = service.cgroup / "payload" / show(service, "ControlGroup")["ControlGroup"].lstrip("/")
    assert len(pids_below(cgroup)) == 1  # the workers are in units of their own
    shadow = service.run(["stat", "--format=%U:%G %a", "/etc/shadow"]).stdout
    service.run(["systemctl", "stop", KEYS])
    service.run(["systemctl", "stop", UNIT], timeout_s=90)
    yield Before(
        cgroup=cgroup, key=made["metadata"]["handle"], keys_pid=keys_pid, paused=paused, shadow=shadow
    )
    service.run(["systemctl", "disable", "--now", GATEWAY, "lightagent-gateway.socket"])
    service.run(["systemctl", "stop", "lightagent-keys.socket", KEYS], check=False)
    service.run(["rm", "-rf", "/var/lib/lightagent-keys"])
    for name in USERS:
        service.run(["userdel", "--remove", name])


def test_it_leaves_no_process(service: Machine, before: Before) -> None:
    wanted = {"ActiveState": "inactive", "Result": "success", "ExecMainStatus": "0"}
    assert show(service, *wanted) == wanted
    assert pids_below(before.cgroup) == set()
    assert service.run(["pgrep", "-u", "lightagent"], check=False).stdout == ""
    eventually(lambda: state(service, GATEWAY) == "inactive", "the gateway has ended, too")


def test_lactl_says_how_to_start_it(service: Machine) -> None:
    refused = lactl(service, "status", check=False)
    assert (refused.status, refused.stdout) == (69, "")
    assert "systemctl start lightagentd" in refused.stderr


def test_a_triage_tells_of_it_and_does_not_start_it(service: Machine) -> None:
    service.run(["rm", "-f", "/run/lightagent-triage/taken"])
    with unit(service, "e2e-alone.service", SERVICE):
        triage = fail(service, "e2e-alone.service")
    assert "the daemon is not running" in message(service, triage)
    assert "\n" not in message(service, triage)
    assert state(service, triage) == "inactive"
    assert show(service, "ActiveState")["ActiveState"] == "inactive"


def test_a_prompt_on_a_calendar_does_not_start_it(service: Machine) -> None:
    assert start(service, "alone").status != 0
    status, said = ended(service, "alone")
    assert status == 69
    assert "the daemon is not running" in said
    assert show(service, "ActiveState")["ActiveState"] == "inactive"
    service.run(["rm", f"{FOLDER}/alone.toml"])
    service.run(["systemctl", "reset-failed", "lightagent-prompt@alone.service"])


def test_no_user_starts_it(service: Machine) -> None:
    for user in ("carol", "eve"):
        asked = ["busctl", "--timeout=20", "call", *STATUS]
        assert service.run(asked, user=user, check=False, timeout_s=60).status != 0
        for verb in ("start", "restart"):
            argv = ["systemctl", "--no-ask-password", verb, UNIT]
            assert service.run(argv, user=user, check=False).status != 0
    assert show(service, "ActiveState")["ActiveState"] == "inactive"


def test_the_next_start_gives_no_file_away_and_begins_the_first_workers_early(
    service: Machine, before: Before
) -> None:
    """The service manager works as root in a folder that the daemon's user can write to."""
    plant = "rm -f /run/lightagentd/control.sock && ln -s /etc/shadow /run/lightagentd/control.sock"
    service.run(["sh", "-c", plant], user="lightagent")
    service.run(["systemctl", "start", "lightagentd.socket"])
    service.run(["systemctl", "stop", "lightagentd.socket", UNIT], timeout_s=60)
    service.run(["sh", "-c", plant], user="lightagent")
    start_service(service)
    told_us = last_us(service, "LIGHTAGENT_TYPE=starting")
    started_us = int(show(service, "ExecMainStartTimestampMonotonic")["ExecMainStartTimestampMonotonic"])
    begun_us = [
        last_us(service, f"UNIT={unit}", "JOB_TYPE=start", "--grep=^Starting") for unit in first_units.FIRST
    ]
    # To import the daemon takes a multiple of what it takes to ask for these.
    assert all(started_us < one < (started_us + told_us) / 2 for one in begun_us)
    assert lactl_json(service, "status")["state"] == "running"
    assert service.run(["stat", "--format=%U:%G %a", "/etc/shadow"]).stdout == before.shadow


def test_what_was_there_is_found_again(service: Machine, before: Before) -> None:
    start_service(service)
    signed = call(service, "crypto.sign", handle=before.key, text="x")["metadata"]["hex"]
    assert main_pid(service, KEYS) not in (0, before.keys_pid)
    verified = call(service, "crypto.verify_with_key", handle=before.key, text="x", signature=signed)
    assert verified["metadata"]["valid"]
    eventually(lambda: state(service, GATEWAY) == "active", "the gateway runs again")
    assert ask(service, "/healthz") == [200, {"status": "ok"}]
    assert lactl_json(service, "sessions", "show", before.paused, user="carol")["paused"]
    ask_on = ("prompt", "ops", f"--session={before.paused}", "check disk")
    refused = lactl(service, "--json", *ask_on, user="carol", check=False)
    assert refused.status == 73
    assert json.loads(refused.stderr.splitlines()[-1])["error"]["code"] == "session_paused"
    lactl(service, "sessions", "resume", before.paused, user="carol")
    assert "room" in lactl(service, *ask_on, user="carol").stdout


def last_us(machine: Machine, *match: str) -> int:
    entry = machine.run(["journalctl", "--output=json", "-n1", *match]).stdout
    return int(json.loads(entry)["__MONOTONIC_TIMESTAMP"])
