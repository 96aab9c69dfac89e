"""`lactl doctor` on a machine that is well, and on one where one thing after the other is broken."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from .machine import Machine
from .product import BUS_POLICY, POLKIT_RULES, UNIT, lactl, new_uid

pytestmark = pytest.mark.e2e

AGENT = "/etc/lightagentd/agent/idle/AGENT.md"
CONFIG = "/etc/lightagentd/lightagentd.toml.d/doctor.toml"
PROMPT = "/etc/lightagentd/prompts/doctor.toml"
KEY = "/etc/lightagentd/doctor.key"
ACTIONS = "/usr/share/polkit-1/actions/org.lightagent1.policy"
SOCKET = "/run/lightagentd/control.sock"
DROP_IN = f"/etc/systemd/system/{UNIT}.d/doctor.conf"
STRANGER = "lightagent-change@nobody.socket"

PROVIDER = f"""
[models.providers.x]
base_url = "http://127.0.0.1:1/v1"
api_key_file = "{KEY}"
"""

Found = dict[str, dict[str, Any]]


def examine(machine: Machine, *args: str, user: str | None = None) -> tuple[int, Found]:
    """The exit status, and the findings by name; each that is not ok says what to do."""
    done = lactl(machine, "doctor", "--json", *args, user=user, check=False)
    said = json.loads(done.stdout)
    findings = said["checks"] + [each for worker in said["workers"] for each in worker["findings"]]
    silent = [each for each in findings if each["status"] not in ("ok", "note") and not each["remedy"]]
    assert silent == []
    assert (done.status == 0) is said["ok"]
    return done.status, {each["name"]: each for each in said["checks"]}


def wrong(found: Found) -> dict[str, str]:
    return {name: each["remedy"] for name, each in found.items() if each["status"] in ("wrong", "not_held")}


@pytest.fixture(scope="module")
def idle(service: Machine) -> Iterator[Machine]:
    """The machine with an agent that has no workers: to look at everything but the sandboxes is quick."""
    service.write(AGENT, "---\ndescription: Does nothing.\neffects: []\n---\nDo nothing.\n")
    service.run(["systemctl", "reload", UNIT])
    yield service
    service.run(["rm", "-rf", "/etc/lightagentd/agent/idle"])
    service.run(["systemctl", "reload-or-restart", UNIT])


def test_a_machine_that_is_well_has_nothing_wrong(service: Machine) -> None:
    status, found = examine(service)
    assert wrong(found) == {}
    assert status == 0
    tried = {"control socket", "bus", "bus name", "bus policy", "polkit", "actions", "rules", "installed"}
    tried |= {"state", "watchdog", "history", "events", "room", "inodes", "clock", "configuration", "version"}
    assert {name: found[name]["status"] for name in tried} == dict.fromkeys(tried, "ok")
    shown = lactl(service, "doctor").stdout.splitlines()
    assert shown[0] == "All that is promised holds."
    assert len(shown) <= 3


def test_each_thing_that_is_broken_is_named_with_what_to_do(idle: Machine) -> None:
    hidden = (POLKIT_RULES, ACTIONS, BUS_POLICY)
    service_file = idle.run(["systemctl", "show", "--property=FragmentPath", "--value", UNIT]).stdout.strip()
    try:
        idle.write(
            CONFIG, f'[models.providers.x]\nbase_url = "http://127.0.0.1:1/v1"\napi_key_file = "{KEY}"\n'
        )
        idle.write(KEY, "a-key\n", 0o644)
        idle.write(PROMPT, 'agent = "ops"\nwhen = "now"\n')
        idle.write("/run/systemd/system/lightagent-doctor.service", "[Service]\nExecStart=/bin/false\n")
        idle.write(DROP_IN, "[Service]\nLogLevelMax=debug\n")
        idle.run(["systemctl", "daemon-reload"])
        idle.run(["systemctl", "start", "lightagent-doctor.service"], check=False)
        idle.run(["systemctl", "enable", STRANGER])
        for path in hidden:
            idle.run(["mv", path, f"{path}.away"])
        idle.run(["chmod", "0666", SOCKET])
        idle.run(["chmod", "0755", "/var/lib/lightagentd"])
        idle.run(["touch", service_file])
        idle.run(["systemctl", "reload", "polkit"], check=False)
        status, found = examine(idle, "idle", "--models")
    finally:
        for path in hidden:
            idle.run(["mv", f"{path}.away", path], check=False)
        idle.run(["systemctl", "disable", STRANGER])
        idle.run(["rm", "-f", CONFIG, KEY, PROMPT, DROP_IN, "/run/systemd/system/lightagent-doctor.service"])
        idle.run(["systemctl", "reset-failed", "lightagent-doctor.service"], check=False)
        idle.run(["systemctl", "daemon-reload"])
        idle.run(["chmod", "0660", SOCKET])
        idle.run(["chmod", "0700", "/var/lib/lightagentd"])
    expected = {
        f"key file {KEY}": f"chmod 600 {KEY}",
        "x, endpoint": "curl -v http://127.0.0.1:1/v1",
        "prompt doctor": "lactl config check",
        "lightagent-doctor.service": "journalctl -u lightagent-doctor.service",
        f"{UNIT}, on disk": "systemctl daemon-reload",
        STRANGER: f"systemctl disable --now {STRANGER}",
        "rules": "apt install --reinstall lightagentd",
        "actions": "apt install --reinstall lightagentd",
        "bus policy": "apt install --reinstall lightagentd",
        "control socket": f"chmod 0660 {SOCKET}",
        "state folder": "chmod 0700 /var/lib/lightagentd",
    }
    remedies = wrong(found)
    assert status == 1
    assert set(expected) <= set(remedies), found
    assert {name: remedy for name, remedy in expected.items() if remedy not in remedies[name]} == {}
    overridden = found[f"{UNIT}, overridden"]
    assert (overridden["status"], DROP_IN in overridden["detail"]) == ("note", True)


def test_after_it_is_mended_nothing_is_wrong(idle: Machine) -> None:
    _, found = examine(idle, "idle")
    assert wrong(found) == {}


def test_a_journald_that_is_gone_is_named(idle: Machine) -> None:
    units = ["systemd-journald.socket", "systemd-journald-dev-log.socket", "systemd-journald.service"]
    try:
        idle.run(["systemctl", "stop", *units], check=False)
        idle.run(["rm", "-f", "/run/systemd/journal/socket"])
        _, found = examine(idle, "idle")
    finally:
        idle.run(["systemctl", "restart", "systemd-journald.socket", "systemd-journald-dev-log.socket"])
        idle.run(["systemctl", "restart", "systemd-journald.service"])
    assert "systemctl restart systemd-journald.socket" in wrong(found)["journal"]


def test_users_are_told_what_they_may_not_see(idle: Machine) -> None:
    for name, groups in (("carol", "lightagent"), ("eve", "")):
        idle.run(["useradd", new_uid(), "--create-home", f"--groups={groups}", name])
    try:
        _, member = examine(idle, user="carol")
        _, stranger = examine(idle, user="eve")
    finally:
        for name in ("carol", "eve"):
            idle.run(["userdel", "--remove", name])
    assert wrong(member) == {}
    assert wrong(stranger) == {}
    assert member["daemon"]["status"] == "ok"
    assert stranger["daemon"]["status"] == "not_tried"
    assert "usermod -aG lightagent eve" in stranger["daemon"]["remedy"]
    for found in (member, stranger):
        unseen = ("history's folder", "history's file", "emergency stop", "set back", "events")
        assert {name: found[name]["status"] for name in unseen} == dict.fromkeys(unseen, "not_tried")
        assert found["installed"]["status"] == "ok"
    assert "administer" in member["what the daemon knows"]["detail"]


def test_a_broken_configuration_keeps_the_daemon_down_and_is_named(idle: Machine) -> None:
    """The last of these tests: it leaves it down."""
    try:
        idle.write(CONFIG, "[limits]\nmax_stepps = 3\n")
        idle.run(["systemctl", "restart", UNIT], check=False)
        status, found = examine(idle)
    finally:
        idle.run(["rm", "-f", CONFIG])
        idle.run(["systemctl", "reset-failed", UNIT], check=False)
    remedies = wrong(found)
    assert status == 1
    assert "systemctl start lightagentd" in remedies["daemon"]
    assert f"journalctl -u {UNIT}" in remedies[UNIT]
    assert "max_steps" in remedies["configuration"]
