"""The life of the Debian package, in the second machine: install, upgrade, remove, install again, purge.

Each fixture is a stage that builds on the one before it, and the tests stand in this order. What the package
consists of is in `test_package_contents.py`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest

from .calls import call, main_pid
from .machine import Completed, Machine
from .product import (
    PACKAGE,
    PREFIX,
    SHARE,
    UNIT,
    apt,
    eventually,
    lactl,
    lactl_json,
    start_service,
)

pytestmark = pytest.mark.e2e

USERS = (
    "lightagent",
    "lightagent-approver",
    "lightagent-w00",
    "lightagent-w31",
    "lightagent-inspect",
    "lightagent-keys",
)
CONFIG = "/etc/lightagentd/lightagentd.toml"
ADMINS_AGENT = "/etc/lightagentd/agent/scout/AGENT.md"
NEXT_VERSION = "0.1.1"
NEXT_PACKAGE = "/var/tmp/lightagentd-next.deb"
CHANGE_SOCKET = "lightagent-change@ops.socket"
TIMER = "lightagent-prompt@e2e.timer"
FAILING = "lightagent-prompt@e2e-missing.service"
APPROVER = ("lightagent-approver.socket", "lightagent-approver-daemon.socket")
PROFILE = "/etc/systemd/system/lightagent-change@ops.service.d/50-profile.conf"
STATE = (
    "/var/lib/lightagentd",
    "/var/lib/lightagent-approver",
    "/var/lib/lightagent-keys",
    "/var/lib/lightagent-change",
)

# The same package with another version: unpacked, changed and packed again, inside of the machine.
REPACK = f"""
set -eu
umask 022
cd /var/tmp
rm -rf next
dpkg-deb --raw-extract {PACKAGE} next
sed -i 's/^Version: .*/Version: {NEXT_VERSION}/' next/DEBIAN/control
sed -i 's/^__version__ = .*/__version__ = "{NEXT_VERSION}"/' next{PREFIX}/lightagentd/__init__.py
(cd next && find usr -type f -exec md5sum {{}} + > DEBIAN/md5sums)
dpkg-deb -Znone --build --root-owner-group next {NEXT_PACKAGE}
rm -r next
"""
# A skill of the administrator's that reports when a file is there: a turn that lasts as long as a test wants.
SKILL = {
    "SKILL.md": "---\nname: slow-report\ndescription: Waits for the bell and then reports.\n---\nWaits.\n",
    "runbook.yaml": "script: scripts/slow_report.py\ntimeout_s: 120\n",
    "examples.txt": "wait for the bell\n",
}
# Puts a command where the calls of an agent that may change things run.
CGROUP = "/sys/fs/cgroup/e2e/lightagent-change@e2e.service"
BY_AGENT = ("sh", "-c", f'mkdir -p {CGROUP} && echo 0 > {CGROUP}/cgroup.procs && exec "$@"', "sh")
GO = "/tmp/e2e-the-bell"
SCRIPT = f"""\
import pathlib, time
while not pathlib.Path("{GO}").exists():
    time.sleep(0.05)
print("**The bell has rung.**")
"""


@dataclass(frozen=True, kw_only=True)
class Upgraded:
    """What an upgrade was seen to do while a turn ran."""

    answer: Completed
    """Of the `lactl prompt` whose turn was running."""
    session: str
    """A session from before the upgrade."""
    messages: list[object]
    pid_before: int
    active_before: set[str]


@pytest.fixture(scope="module")
def fresh(other_machine: Machine) -> Machine:
    """The machine, in which `test_package_contents.py` has only looked around."""
    return other_machine


@pytest.fixture(scope="module")
def upgraded(fresh: Machine, installed: Completed) -> Upgraded:
    """The upgrade of a running daemon in the middle of a turn."""
    fresh.run(["sh", "-c", REPACK], timeout_s=60)
    for file, text in SKILL.items():
        fresh.write(f"/etc/lightagentd/skills/slow-report/{file}", text)
    fresh.write("/etc/lightagentd/skills/slow-report/scripts/slow_report.py", SCRIPT)
    fresh.write(ADMINS_AGENT, "---\ndescription: Looks around.\n---\nLook around.\n")
    config = fresh.run(["cat", CONFIG]).stdout
    fresh.write(CONFIG, config.replace("# drain_timeout_s = 30.0", "drain_timeout_s = 50.0"))
    fresh.run(["systemctl", "enable", UNIT])
    fresh.run(["systemctl", "start", "lightagentd.socket", CHANGE_SOCKET, TIMER])
    start_service(fresh)
    # As version 0.1 left it: nobody answers for changes, and a worker for change is enabled.
    fresh.run(["systemctl", "stop", *APPROVER])
    lactl(fresh, "prompt", "ops", "check memory")
    [session] = lactl_json(fresh, "sessions", "list")
    messages = lactl_json(fresh, "sessions", "show", session["id"])["messages"]
    before = active(fresh)
    pid = main_pid(fresh, UNIT)

    ask = ["lactl", "prompt", "--new", "ops", "wait for the bell"]
    keep = ["systemd-run", "--quiet", "--remain-after-exit", "--property=StandardOutput=file:/tmp/e2e-answer"]
    fresh.run([*keep, "--unit=e2e-prompt", *ask])
    eventually(lambda: fresh.run(["pgrep", "-f", "slow_report.py"], check=False).stdout, "the turn runs")
    fresh.run(
        ["systemd-run", "--quiet", "--remain-after-exit", "--unit=e2e-apt",
         "--setenv=DEBIAN_FRONTEND=noninteractive", "apt-get", "--yes", "install", NEXT_PACKAGE]
    )  # fmt: skip
    eventually(lambda: state(fresh, UNIT) == "deactivating", "the upgrade has asked the daemon to stop")
    fresh.run(["touch", GO])
    for unit in ("e2e-prompt", "e2e-apt"):
        ended(fresh, f"{unit}.service")
    answer = Completed(
        argv=tuple(ask),
        status=int(show(fresh, "e2e-prompt.service", "ExecMainStatus")),
        stdout=fresh.run(["cat", "/tmp/e2e-answer"]).stdout,
        stderr="\n".join(str(entry["MESSAGE"]) for entry in fresh.journal("--unit", "e2e-prompt.service")),
    )
    log = "\n".join(str(entry["MESSAGE"]) for entry in fresh.journal("--unit", "e2e-apt.service"))
    assert show(fresh, "e2e-apt.service", "ExecMainStatus") == "0", log
    return Upgraded(
        answer=answer, session=session["id"], messages=messages, pid_before=pid, active_before=before
    )


@pytest.fixture(scope="module")
def removed(fresh: Machine, upgraded: Upgraded) -> Completed:
    """What apt said when it removed the package while the daemon and an agent's worker for change ran."""
    start_service(fresh)
    fresh.run(["systemctl", "enable", "--now", CHANGE_SOCKET])
    fresh.run(["systemctl", "enable", "lightagentd.socket"])
    assert fresh.run(["systemctl", "start", FAILING], check=False).status != 0
    assert FAILING in active(fresh)
    return apt(fresh, "remove", "lightagentd")


@pytest.fixture(scope="module")
def purged(fresh: Machine, removed: Completed) -> Completed:
    """What apt said when it purged the package, which was installed again and had run meanwhile."""
    apt(fresh, "install", NEXT_PACKAGE)
    start_service(fresh)
    lactl(fresh, "change", "narrow", "ops", "files")
    return apt(fresh, "purge", "lightagentd")


def active(machine: Machine) -> set[str]:
    """All units of the package that are not inactive."""
    listed = machine.run(
        ["systemctl", "list-units", "--plain", "--no-legend", "--full", "lightagent*"]
    ).stdout
    return {line.split()[0] for line in listed.splitlines()}


def ended(machine: Machine, unit: str) -> None:
    """Wait until the main process of a unit has ended, which may be apt and take long; the unit stays."""
    eventually(lambda: show(machine, unit, "SubState") != "running", f"{unit} is done", deadline_s=90)


def state(machine: Machine, unit: str) -> str:
    return show(machine, unit, "ActiveState")


def show(machine: Machine, unit: str, name: str) -> str:
    return machine.run(["systemctl", "show", "--value", f"--property={name}", unit]).stdout.strip()


def links(machine: Machine) -> list[str]:
    """Where units of the package are enabled."""
    out = machine.run(["find", "/etc/systemd", "-lname", "*/lightagent*", "-printf", "%P\\n"]).stdout
    return sorted(out.splitlines())


def bytecode(machine: Machine) -> set[str]:
    out = machine.run(["find", f"{PREFIX}/lightagentd", SHARE, "-name", "*.pyc"], check=False).stdout
    return set(out.splitlines())


# Install


def test_installing_says_nothing_odd(installed: Completed) -> None:
    assert installed.stderr == ""
    for word in ("warning", "error", "fail", "skip", "cannot", "not found"):
        assert word not in installed.stdout.lower()


@pytest.mark.usefixtures("installed")
def test_installing_starts_and_enables_nothing(fresh: Machine) -> None:
    assert active(fresh) == set()
    assert links(fresh) == []
    for user in USERS:
        assert fresh.run(["pgrep", "-u", user], check=False).stdout == ""
    assert fresh.run(["systemctl", "is-system-running"]).stdout == "running\n"


@pytest.mark.usefixtures("installed")
def test_users_cannot_log_in(fresh: Machine) -> None:
    for user in USERS:
        account = fresh.account(user)
        assert account.pw_shell == "/usr/sbin/nologin"
        assert account.pw_uid < 1000
        shadow = fresh.run(["getent", "shadow", user]).stdout.split(":")
        assert shadow[1].startswith("!")
    groups = fresh.run(["id", "-Gn", "lightagent"]).stdout.split()
    assert groups == ["lightagent"]


@pytest.mark.usefixtures("installed")
def test_folders_belong_to_whom_they_should(fresh: Machine) -> None:
    expected = {
        "/etc/lightagentd": "755 root root",
        "/etc/lightagentd/agent": "755 root root",
        "/etc/lightagentd/keys": "500 lightagent root",
        "/etc/lightagentd/policy.d": "755 root root",
        CONFIG: "644 root root",
        "/run/lightagentd": "755 lightagent lightagent",
        "/run/lightagent-workers": "755 root root",
        "/run/lightagent-bus": "755 root root",
        "/run/lightagent-approver": "755 root root",
    }
    seen = fresh.run(["stat", "-c", "%n %a %U %G", *expected]).stdout.splitlines()
    assert seen == [f"{path} {mode}" for path, mode in expected.items()]
    for path in STATE:  # systemd makes them when a unit starts
        assert fresh.run(["test", "-e", path], check=False).status != 0


@pytest.mark.usefixtures("installed")
def test_keys_are_for_the_daemon_and_not_for_the_people_of_its_group(fresh: Machine) -> None:
    key = "/etc/lightagentd/keys/e2e"
    fresh.write(key, "secret\n")  # as careless as can be: readable by everybody
    fresh.run(["useradd", "--groups", "lightagent", "e2e-member"])
    try:
        assert fresh.run(["cat", key], user="lightagent").stdout == "secret\n"
        for user in ("e2e-member", "lightagent-w07", "lightagent-keys"):
            assert fresh.run(["cat", key], user=user, check=False).stdout == ""
    finally:
        fresh.run(["userdel", "e2e-member"])
        fresh.run(["rm", key])


@pytest.mark.usefixtures("installed")
def test_bus_policy_and_sysctl_apply_at_once(fresh: Machine) -> None:
    ask = ["busctl", "--no-pager", "call", "org.lightagent1", "/", "org.example.E2E", "Ask"]
    refused = fresh.run(ask, user="lightagent-w07", check=False)
    assert "Access denied" in refused.stderr, refused.explain()
    assert fresh.run(["cat", "/proc/sys/net/ipv4/ping_group_range"]).stdout.split() == ["0", "2147483647"]


@pytest.mark.usefixtures("installed")
def test_shipped_configuration_is_valid(fresh: Machine) -> None:
    assert lactl(fresh, "config", "check").status == 0


@pytest.mark.usefixtures("installed")
def test_code_is_compiled_when_it_is_installed(fresh: Machine) -> None:
    compiled = bytecode(fresh)
    assert f"{PREFIX}/lightagentd/daemon/__pycache__/daemon.cpython-313.pyc" in compiled
    assert f"{PREFIX}/lightagentd/_vendor/asyncvarlink/__pycache__/types.cpython-313.pyc" in compiled
    assert f"{SHARE}/tools/__pycache__/bash.cpython-313.pyc" in compiled


# Upgrade


def test_turn_ends_with_its_answer_before_the_code_is_replaced(upgraded: Upgraded) -> None:
    assert upgraded.answer.status == 0, upgraded.answer.explain()
    assert "The bell has rung." in upgraded.answer.stdout


def test_daemon_runs_again_with_the_new_version(fresh: Machine, upgraded: Upgraded) -> None:
    status = lactl_json(fresh, "status")
    assert status["version"] == NEXT_VERSION
    assert status["pid"] not in (0, upgraded.pid_before)
    assert state(fresh, UNIT) == "active"


def test_sessions_and_history_are_kept(fresh: Machine, upgraded: Upgraded) -> None:
    assert lactl_json(fresh, "sessions", "show", upgraded.session)["messages"] == upgraded.messages
    assert lactl(fresh, "audit", "verify").status == 0
    assert "memory" in lactl(fresh, "prompt", "ops", f"--session={upgraded.session}", "check memory").stdout


def test_what_ran_runs_again_and_nothing_else(fresh: Machine, upgraded: Upgraded) -> None:
    lasting = {UNIT, "lightagentd.socket", CHANGE_SOCKET, TIMER}
    assert lasting <= upgraded.active_before
    assert lasting <= active(fresh)
    assert links(fresh) == [
        "system/dbus-org.lightagent1.Approver.service",
        "system/dbus-org.lightagent1.service",
        f"system/multi-user.target.wants/{UNIT}",
    ]


def test_a_worker_for_change_of_the_version_before_changes_things(fresh: Machine, upgraded: Upgraded) -> None:
    assert upgraded.active_before.isdisjoint(APPROVER)
    assert active(fresh) >= {*APPROVER}
    rules = "/etc/lightagentd/policy.d/e2e.toml"
    rule = 'name = "e2e"\ndecision = "allow"\ntool = "file"\neffect = "change"\neven_if_tainted = true\n'
    fresh.write(rules, f"[[rule]]\n{rule}")
    fresh.run(["systemctl", "reload", UNIT])
    assert call(fresh, "file.write", path="/srv/e2e-upgraded", content="x")["result"] == "ok"
    assert state(fresh, "lightagent-approver.service") == "active"
    fresh.run(["test", "-s", "/var/lib/lightagent-approver/public"])
    fresh.run(["rm", rules, "/srv/e2e-upgraded"])
    fresh.run(["systemctl", "reload", UNIT])


@pytest.mark.usefixtures("upgraded")
def test_configuration_of_the_administrator_is_kept(fresh: Machine) -> None:
    assert "\ndrain_timeout_s = 50.0" in fresh.run(["cat", CONFIG]).stdout
    assert lactl_json(fresh, "agents", "list")[-1]["name"] == "scout"
    assert fresh.run(["find", "/etc/lightagentd", "-name", "*.dpkg-*"]).stdout == ""


@pytest.mark.usefixtures("upgraded")
def test_upgrade_of_a_stopped_daemon_leaves_it_stopped(fresh: Machine) -> None:
    fresh.run(["systemctl", "stop", UNIT, "lightagentd.socket", CHANGE_SOCKET, TIMER], timeout_s=60)
    done = apt(fresh, "install", "--reinstall", NEXT_PACKAGE)
    assert done.stderr == ""
    assert active(fresh) == set()
    assert fresh.run(["systemctl", "is-enabled", UNIT]).stdout == "enabled\n"


@pytest.mark.usefixtures("upgraded")
def test_running_writes_no_bytecode(fresh: Machine) -> None:
    owned = fresh.run(["sh", "-c", "rm -f /tmp/e2e-new; touch /tmp/e2e-new"])
    assert owned.status == 0
    start_service(fresh)  # which the test before has left stopped
    lactl(fresh, "prompt", "ops", "check disk")
    newer = ["find", PREFIX, SHARE, "-newer", "/tmp/e2e-new", "-print"]
    assert fresh.run(newer).stdout == ""


def test_agent_that_upgrades_the_package_does_not_kill_dpkg(fresh: Machine, upgraded: Upgraded) -> None:
    """A call of an agent runs below the daemon that dpkg would stop."""
    start_service(fresh)
    pid = main_pid(fresh, UNIT)
    done = fresh.run([*BY_AGENT, "dpkg", "--install", NEXT_PACKAGE], timeout_s=60)
    assert "restart it afterwards" in done.stdout
    assert main_pid(fresh, UNIT) == pid
    refused = fresh.run([*BY_AGENT, "dpkg", "--remove", "lightagentd"], check=False, timeout_s=60)
    assert "cannot be removed by its own agent" in refused.stderr
    assert main_pid(fresh, UNIT) == pid
    status = fresh.run(["dpkg-query", "--show", "--showformat=${Status}", "lightagentd"]).stdout
    assert status.endswith(" ok installed")
    assert upgraded.session in {session["id"] for session in lactl_json(fresh, "sessions", "list")}


# Remove


def test_removing_stops_everything(fresh: Machine, removed: Completed) -> None:
    assert active(fresh) == set()
    for user in USERS:
        assert fresh.run(["pgrep", "-u", user], check=False).stdout == ""
    assert removed.stderr == ""


@pytest.mark.usefixtures("removed")
def test_removing_leaves_no_code(fresh: Machine) -> None:
    left = fresh.run(["find", "/usr", "/run", "-name", "*lightagent*"]).stdout
    assert left == ""
    assert fresh.run(["find", "/usr", "-name", "org.lightagent1*"]).stdout == ""
    assert fresh.run(["sh", "-c", "command -v lactl"], check=False).stdout == ""


@pytest.mark.usefixtures("removed")
def test_removing_keeps_state_and_configuration(fresh: Machine) -> None:
    fresh.run(["test", "-s", "/var/lib/lightagentd/history/data.mdb"])
    fresh.run(["test", "-s", ADMINS_AGENT])
    assert "\ndrain_timeout_s = 50.0" in fresh.run(["cat", CONFIG]).stdout


def test_installing_again_finds_the_sessions_and_starts_nothing(
    fresh: Machine, removed: Completed, upgraded: Upgraded
) -> None:
    apt(fresh, "install", NEXT_PACKAGE)
    assert active(fresh) == set()
    start_service(fresh)
    assert upgraded.session in {session["id"] for session in lactl_json(fresh, "sessions", "list")}
    assert lactl(fresh, "audit", "verify").status == 0


# Purge


def test_purging_removes_what_was_stored(fresh: Machine, purged: Completed) -> None:
    for path in (*STATE, CONFIG, PROFILE, "/run/lightagentd", "/run/lightagent-workers"):
        assert fresh.run(["test", "-e", path], check=False).status != 0, path
    assert active(fresh) == set()
    assert json.dumps(purged.stderr).count("rm:") == 0


@pytest.mark.usefixtures("purged")
def test_purging_disables_every_instance(fresh: Machine) -> None:
    assert links(fresh) == []
    assert fresh.run(["find", "/var/lib/systemd", "-name", "*lightagent*"]).stdout == ""


@pytest.mark.usefixtures("purged")
def test_purging_keeps_what_an_administrator_wrote(fresh: Machine) -> None:
    fresh.run(["test", "-s", ADMINS_AGENT])


@pytest.mark.usefixtures("purged")
def test_purging_keeps_the_users(fresh: Machine) -> None:
    for user in USERS:
        assert fresh.account(user).pw_uid


@pytest.mark.usefixtures("purged")
def test_the_system_is_as_healthy_as_before(fresh: Machine) -> None:
    assert fresh.run(["systemctl", "is-system-running"]).stdout == "running\n"
