"""The shipped flows on a machine where they have something to do, with the runbook model alone."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agents.flows.certificates import certificate

from .calls import main_pid
from .machine import Machine
from .product import UNIT, eventually, lactl, lactl_json, start_service

pytestmark = pytest.mark.e2e

CHANGE = "lightagent-change@ops.socket"
PATIENCE_S = 120.0
RAN, GO = "/var/tmp/e2e-widget-ran", "/var/tmp/e2e-widget-go"
WRAPPER = "/usr/local/sbin/systemd-run"
PACKAGE = """
set -eu
make() {
  folder=$(mktemp -d)
  mkdir -p "$folder/DEBIAN" /srv/repo
  printf 'Package: e2e-widget\\nVersion: %s\\nArchitecture: all\\n' "$1" >"$folder/DEBIAN/control"
  printf 'Maintainer: e2e <e2e@example.org>\\nDescription: e2e\\n' >>"$folder/DEBIAN/control"
  printf '#!/bin/sh\\nset -e\\n%s\\n' "$2" >"$folder/DEBIAN/postinst"
  chmod 755 "$folder" "$folder/DEBIAN/postinst"
  dpkg-deb --build "$folder" "/srv/repo/e2e-widget_$1.deb"
  rm -r "$folder"
}
offer() {
  make "$1" "$2"
  cd /srv/repo
  : >Packages
  for one in *.deb; do
    dpkg-deb -f "$one" >>Packages
    echo "Filename: ./$one" >>Packages
    echo "Size: $(stat -c %s "$one")" >>Packages
    printf 'SHA256: %s\\n\\n' "$(sha256sum "$one" | cut -d' ' -f1)" >>Packages
  done
}
"""


@pytest.fixture(scope="module", autouse=True)
def changer(service: Machine) -> Iterator[None]:
    """The shipped agent with a worker for change."""
    service.run(["systemctl", "enable", "--now", CHANGE])
    yield
    service.run(["systemctl", "disable", "--now", CHANGE])
    service.run(["systemctl", "reset-failed"])


@pytest.fixture(scope="module")
def repository(service: Machine) -> Iterator[None]:
    """apt with a repository of this machine, and an old package out of it that is marked as automatic."""
    script = f"""{PACKAGE}
    cp -a /etc/apt/sources.list /var/tmp/e2e-sources.list
    offer 1.0 true
    echo 'deb [trusted=yes] file:/srv/repo ./' >/etc/apt/sources.list
    dpkg -i /srv/repo/e2e-widget_1.0.deb
    apt-mark auto e2e-widget
    """
    service.run(["bash", "-c", script])
    yield
    service.run(["touch", GO])
    for one in lactl_json(service, "flows", "runs"):
        if one["state"] in ("running", "waiting"):
            lactl(service, "flows", "cancel", one["id"])
    service.run(
        [
            "bash",
            "-c",
            "mv /var/tmp/e2e-sources.list /etc/apt/sources.list; dpkg --purge e2e-widget; rm -r /srv/repo",
        ]
    )
    service.run(["bash", "-c", f"rm -rf /var/lib/apt/lists/*; rm -f {RAN} {GO} {WRAPPER}"])


def begun(machine: Machine, name: str, *inputs: str) -> str:
    """The run of a flow that goes on."""
    return lactl(
        machine, "flows", "run", name, "--detach", *(f"--input={one}" for one in inputs)
    ).stdout.strip()


def state(machine: Machine, run: str) -> dict[str, Any]:
    """The state of the run, and of its steps."""
    shown = lactl_json(machine, "flows", "show", run)
    return {one["name"]: one["state"] for one in shown["steps"]} | {"": shown["run"]["state"]}


def approve(machine: Machine, run: str) -> str:
    """Approve what a run waits for; gives what that would do."""

    def waits() -> list[str]:
        return [
            one for one in lactl_json(machine, "flows", "show", run)["run"]["waits"] if one.startswith("apr_")
        ]

    eventually(waits, f"{run} waits for an approval", PATIENCE_S)
    (approval,) = waits()
    shown = lactl(machine, "approvals", "show", approval).stdout
    lactl(machine, "approve", approval)
    return shown


def report(machine: Machine, run: str, step: str = "report") -> str:
    """What a run reports once it is over."""
    machine.run(["lactl", "flows", "follow", run], check=False, timeout_s=120)
    return lactl(machine, "flows", "show", run, step).stdout


def killed(machine: Machine) -> None:
    """kill -9, and a start."""
    machine.run(["kill", "-KILL", str(main_pid(machine, UNIT))])
    eventually(lambda: main_pid(machine, UNIT) == 0, "the daemon is dead")
    machine.run(["systemctl", "reset-failed", UNIT], check=False)
    start_service(machine)


def upgrades(machine: Machine, version: str) -> tuple[int, int]:
    """How often dpkg upgraded to a version, and how often its script ran."""
    lines = (f"upgrade e2e-widget:all .* {version}$", "/var/log/dpkg.log"), (f"^{version}$", RAN)
    counts = [machine.run(["grep", "-c", *how], check=False).stdout for how in lines]
    logged, ran = (int(one or 0) for one in counts)
    return logged, ran


def until_script_runs(machine: Machine, run: str, version: str) -> None:
    """Wait until dpkg runs the script of the package, which waits for the test. apt takes long on a machine
    that has other things to do.
    """
    deadline = time.monotonic() + PATIENCE_S
    while (found := upgrades(machine, version)) != (1, 1):
        log = machine.run(
            ["journalctl", "-n", "20", "-o", "cat", "-u", "lightagent-patch-*"], check=False
        ).stdout
        assert time.monotonic() < deadline, (found, lactl_json(machine, "flows", "show", run), log)
        time.sleep(0.2)


def offer(machine: Machine, version: str, script: str) -> None:
    lines = f"echo {version} >>{RAN}; while [ ! -e {GO} ]; do sleep 0.05; done; {script}"
    machine.run(["bash", "-c", f"rm -f {GO}\n{PACKAGE}\noffer {version} '{lines}'"])


@pytest.mark.usefixtures("repository")
def test_patch_day_survives_a_kill_in_the_middle_of_its_upgrade(service: Machine) -> None:
    offer(service, "2.0", "true")
    dry = report(service, begun(service, "patch-day", "dry_run=yes"))
    assert dry.startswith(
        "Dry run, nothing was changed. To be upgraded: 1 package, 0 for security; by lists fetched"
    )
    run = begun(service, "patch-day")
    assert "packages='e2e-widget=2.0'" in approve(service, run)
    until_script_runs(service, run, "2.0")
    eventually(lambda: state(service, run)["upgrade"] == "success", "the run waits for the unit")
    killed(service)
    assert state(service, run)[""] == "running"
    assert service.run(["pgrep", "-x", "apt-get"]).stdout
    service.run(["touch", GO])
    said = report(service, run)
    assert said.startswith(
        "Upgraded: 1 package, 0 for security; by lists fetched now.\n  e2e-widget 1.0 -> 2.0\n"
    )
    assert "Nothing failed that did not fail before" in said
    found = state(service, run)
    assert {*found.values()} == {"success"}
    assert upgrades(service, "2.0") == (1, 1)
    assert service.run(["apt-mark", "showauto", "e2e-widget"]).stdout == "e2e-widget\n"
    assert lactl_json(service, "inputs", "list") == []
    again = report(service, begun(service, "patch-day"))
    assert again.startswith("Nothing is to be upgraded (by lists fetched now); nothing was changed.")


@pytest.mark.usefixtures("repository")
def test_a_patch_day_that_is_killed_as_it_begins_asks_and_tells_of_what_failed(service: Machine) -> None:
    unit = "/run/systemd/system/e2e-broken.service"
    service.write(unit, "[Service]\nType=oneshot\nExecStart=/bin/false\n")
    service.run(["systemctl", "daemon-reload"])
    offer(service, "3.0", "systemctl start e2e-broken.service || true")
    wrapper = f'#!/bin/sh\n/usr/bin/systemd-run "$@"\nwhile [ ! -e {GO} ]; do sleep 0.05; done\n'
    service.write(WRAPPER, wrapper, 0o755)
    run = begun(service, "patch-day")
    approve(service, run)
    until_script_runs(service, run, "3.0")
    assert state(service, run)["upgrade"] == "running"
    killed(service)
    eventually(lambda: lactl_json(service, "inputs", "list"), "a person is asked what became of it")
    (question,) = lactl_json(service, "inputs", "list")
    assert "was stopped in the middle, and may have changed something" in question["question"]
    service.run(["touch", GO])
    lactl(service, "answer", question["id"], "it is done")
    said = report(service, run)
    assert said.startswith("Upgraded: 1 package")
    assert "FAILED since the upgrade: e2e-broken.service." in said
    shown = lactl_json(service, "flows", "show", run)["run"]
    assert shown["state"] == "failed"
    assert "failed: e2e-broken.service. See the step report." in shown["message"]
    assert upgrades(service, "3.0") == (1, 1)
    service.run(["rm", unit, WRAPPER])
    service.run(["systemctl", "reset-failed", "e2e-broken.service"])


def test_disk_full_frees_a_file_system_of_what_was_approved(service: Machine) -> None:
    small = "/srv/small"
    script = f"""
    set -eu
    mkdir -p {small}
    mount -t tmpfs -o size=20M tmpfs {small}
    mkdir {small}/log {small}/data
    head -c 9M /dev/zero >{small}/log/app.log.1
    head -c 6M /dev/zero >{small}/data/old.1
    touch -d '-30 days' {small}/log/app.log.1 {small}/data/old.1
    head -c 3M /dev/zero >{small}/log/app.log
    """
    service.run(["bash", "-c", script])
    try:
        run = begun(service, "disk-full", f"path={small}/data")
        shown = approve(service, run)
        assert (f"{small}/log/app.log.1" in shown, 'app.log"' in shown, "old.1" in shown) == (
            True,
            False,
            False,
        )
        said = report(service, run)
        assert said.startswith(f"9.0 MiB came free: {small} was 90 % full")
        assert "is 45 % full now." in said
        assert f"most of it in {small}/log/app.log.1" in said
        left = service.run(["find", small, "-type", "f"]).stdout.split()
        assert sorted(left) == [f"{small}/data/old.1", f"{small}/log/app.log"]
        rest = report(service, begun(service, "disk-full", f"path={small}"))
        assert rest.startswith(f"Nothing is to be done: {small} is 45 % full")
    finally:
        service.run(["umount", small])


def test_disk_full_has_apt_forget_what_can_be_had_again(service: Machine) -> None:
    kept = "/var/cache/apt/archives/e2e_1_all.deb"
    service.run(["bash", "-c", f"head -c 64M /dev/zero >{kept}"])
    run = begun(service, "disk-full", "above=0", "journal_mib=1000", "kinds=apt,journal")
    shown = approve(service, run)
    assert "if [ '67108864' -gt 0 ]; then apt-get clean" in shown
    assert "if [ '0' -gt 0 ]; then journalctl --rotate --vacuum-size='1000'M" in shown
    said = report(service, run)
    assert re.match(r"\d\d\.\d MiB came free: / was \d+ % full", said)
    assert "apt keeps packages in /var/cache/apt/archives: 64.0 MiB" in said
    assert service.run(["test", "-e", kept], check=False).status == 1


def test_a_certificate_that_ends_in_five_days_and_its_timer_are_told(
    service: Machine, tmp_path: Path
) -> None:
    certificate(tmp_path / "soon.pem", "soon.example.org", 5)
    service.copy_in(tmp_path / "soon.pem", "/srv/certs/soon.pem")
    certificates = "folders=/srv/certs"
    said = report(service, begun(service, "cert-renewal-check", certificates))
    assert "/srv/certs/soon.pem (soon.example.org) ends in 5 days" in said
    assert "Nothing that renews certificates was found: no timer, no job of cron, no service." in said
    units = "/run/systemd/system/e2e-certbot"
    service.write(f"{units}.service", "[Service]\nType=oneshot\nExecStart=/bin/false\n")
    service.write(f"{units}.timer", "[Timer]\nOnActiveSec=0\nAccuracySec=1us\n")
    service.run(["systemctl", "daemon-reload"])
    service.run(["systemctl", "start", "e2e-certbot.timer"])
    failed = ["systemctl", "is-failed", "e2e-certbot.service"]
    eventually(lambda: service.run(failed, check=False).status == 0, "the renewal failed")
    said = report(service, begun(service, "cert-renewal-check", certificates, "days=3"))
    assert "No certificate ends within 3 days" in said
    assert "The timer e2e-certbot.timer is active, ran last " in said
    assert "; e2e-certbot.service FAILED (exit-code)." in said
    service.run(["systemctl", "stop", "e2e-certbot.timer"])
    service.run(["bash", "-c", f"rm -r {units}.* /srv/certs; systemctl reset-failed"])


def test_an_incident_tells_what_failed_and_what_changed_in_the_order_of_time(service: Machine) -> None:
    unit = "/run/systemd/system/e2e-jammed.service"
    command = "/bin/sh -c 'echo the widget jammed >&2; exit 42'"
    service.write(unit, f"[Service]\nType=oneshot\nExecStart={command}\n")
    service.write("/etc/e2e/changed.conf", "x\n")
    service.run(["systemctl", "daemon-reload"])
    service.run(["systemctl", "start", "e2e-jammed.service"], check=False)
    service.run(["logger", "-p", "user.err", "-t", "e2e-app", "the disk is on fire"])
    service.run(["journalctl", "--sync"])
    run = begun(service, "incident", "since=1h")
    said = report(service, run, "summary")
    head, _, timeline = said.partition("\n\n")
    assert head.startswith("Since 2")
    assert "Failed in this time: " in head
    assert "e2e-jammed.service" in head
    assert "the widget jammed" in head
    events = (
        "file     /etc/e2e/changed.conf",
        "failed   e2e-jammed.service",
        "error    e2e-app: the disk is on fire",
    )
    places = [timeline.index(event) for event in events]
    assert places == sorted(places)
    service.run(["rm", "-r", unit, "/etc/e2e"])
    service.run(["systemctl", "reset-failed", "e2e-jammed.service"])


def test_they_are_installed_and_have_short_names(service: Machine) -> None:
    listed = lactl_json(service, "flows", "list")
    names = ["ops.cert-renewal-check", "ops.disk-full", "ops.incident", "ops.patch-day"]
    assert [one["name"] for one in listed if one["name"].startswith("ops.")] == names
    assert not [one["problem"] for one in listed if one["problem"]]
    owners = service.run(["find", "/usr/share/lightagentd/agent/ops", "-printf", "%u %m\n"]).stdout.split(
        "\n"
    )
    assert {*owners} - {""} == {"root 755", "root 644"}
    assert json.loads(lactl(service, "--json", "flows", "check", "patch-day").stdout)[0]["faults"] == []
