"""lactl health, changes and snapshot against the real daemon and worker, and a report that found nothing."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lightagentd.config.service_problem import problem_file
from lightagentd.host.paths import Paths
from tests.conftest import DaemonProcess, write

NOWHERE = "print('**There is no such thing.**')\nraise SystemExit(4)\n"


@pytest.fixture(scope="module")
def daemon() -> Iterator[DaemonProcess]:
    """One daemon, with a skill that finds nothing."""
    with tempfile.TemporaryDirectory() as name:
        base = Path(name)
        base.chmod(0o755)
        paths = Paths(config=base / "etc", state=base / "state", runtime=base / "run")
        folder = paths.config / "skills" / "nowhere"
        write(folder / "SKILL.md", "---\nname: nowhere\ndescription: Looks for the flux capacitor.\n---\n")
        write(folder / "runbook.yaml", "script: nowhere.py\n")
        write(folder / "examples.txt", "where is the flux capacitor\n")
        write(folder / "nowhere.py", NOWHERE)
        broken = paths.config / "skills" / "broken"
        write(broken / "SKILL.md", "---\nname: broken\ndescription: Looks for the sonic probe.\n---\n")
        write(broken / "runbook.yaml", "script: broken.py\n")
        write(broken / "examples.txt", "where is the sonic probe\n")
        write(broken / "broken.py", "raise SystemExit('It is lost.')\n")
        process = DaemonProcess(paths)
        try:
            process.start()
            yield process
        finally:
            process.close()


def as_json(daemon: DaemonProcess, *arguments: str) -> Any:
    return json.loads(daemon.lactl(*arguments, "--json").stdout)


def test_the_exit_status_of_health_is_the_worst_that_was_found(daemon: DaemonProcess) -> None:
    found = daemon.lactl("health", "--json")
    assert found.stdout, found.stderr
    whole = json.loads(found.stdout)
    severities = {finding["severity"] for finding in whole["findings"]}
    assert severities <= {"problem", "warning"}
    assert found.returncode == (2 if "problem" in severities else 1 if severities else 0)
    assert len(whole["checks"]) > 30
    text = daemon.lactl("health").stdout
    assert text.startswith("**")
    assert len(text.splitlines()) <= 25


def test_a_service_beside_the_daemon_that_fails_is_a_warning(daemon: DaemonProcess) -> None:
    told = write(problem_file(daemon.paths.runtime, "lightagent-away"), "phone: it says\x1b no")
    found = daemon.lactl("health")
    told.unlink()
    assert found.stdout.endswith("warning: Notifications: phone: it says\\x1b no\n")
    assert found.returncode in (1, 2)


def test_what_changed_since_a_snapshot_is_told(daemon: DaemonProcess) -> None:
    before = as_json(daemon, "changes", "--since=-1h")
    assert not before["has_snapshot"]
    taken = as_json(daemon, "snapshot")
    assert {section["name"] for section in taken["sections"]} >= {"package", "file", "user", "kernel"}
    after = as_json(daemon, "changes", "--since=-60m")
    assert after["has_snapshot"]
    assert after["snapshot"] == pytest.approx(taken["taken_us"] / 1e6)
    assert after["since"] < after["snapshot"] - 3500, "what was before the first snapshot is told, too"
    settled = ("package", "user", "kernel")
    changed = [change for change in after["changes"] if change["section"] in settled]
    assert all(change in before["changes"] for change in changed), "only what logs tell of the time before it"


def test_without_ops_the_first_agent_that_may_run_the_checks_makes_them(daemon: DaemonProcess) -> None:
    folder = daemon.paths.config / "agent"
    write(folder / "ops" / "AGENT.md", "---\nskills: [nowhere]\n---\n")
    write(folder / "blind" / "AGENT.md", "---\ntools: [proc]\n---\n")
    try:
        daemon.lactl("reload")
        refused = daemon.lactl("snapshot")
        assert (refused.returncode, "No running agent may run the skill what-changed" in refused.stderr) == (
            66,
            True,
        )
        write(folder / "watch" / "AGENT.md", "---\nskills: [what-changed]\n---\n")
        daemon.lactl("reload")
        assert as_json(daemon, "snapshot")["sections"]
        assert "No running agent may run the skill health" in daemon.lactl("health").stderr
        assert daemon.lactl("snapshot", "--agent", "blind").returncode == 77
    finally:
        shutil.rmtree(folder)
        daemon.lactl("reload")


def test_a_report_that_found_nothing_has_a_status_of_its_own(daemon: DaemonProcess) -> None:
    done = daemon.lactl("prompt", "ops", "where is the flux capacitor")
    assert (done.returncode, done.stdout) == (4, "**There is no such thing.**\n"), done.stderr
    assert daemon.lactl("tools", "call", "ops", "skill.run", "name=nowhere").returncode == 4
    failed = daemon.lactl("prompt", "ops", "where is the sonic probe")
    assert (failed.returncode, "It is lost." in failed.stdout) == (1, True), failed
