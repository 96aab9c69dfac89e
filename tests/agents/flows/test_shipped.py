"""The shipped flows in a plain daemon, with the runbook model alone, as far as they change nothing.

What they change is tested on a machine that boots, in tests/e2e/test_flows_shipped.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import tempfile
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lightagentd.host.paths import Paths, share_folder
from tests.agents.flows.certificates import certificate
from tests.conftest import DaemonProcess

NAMES = ["cert-renewal-check", "disk-full", "incident", "patch-day"]


@pytest.fixture(scope="module")
def daemon() -> Iterator[DaemonProcess]:
    """One daemon for the tests of this module, in folders that are open to its workers."""
    with tempfile.TemporaryDirectory(prefix="la-") as name:
        base = Path(name)
        base.chmod(0o755)
        process = DaemonProcess(Paths(config=base / "etc", state=base / "state", runtime=base / "run"))
        process.paths.config.mkdir()
        with small_disk(base / "disk"):
            process.start()
            yield process
            process.close()


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """For root a file system of its own: what fills a whole machine takes long to find."""
    folder.mkdir()
    if os.geteuid() != 0:
        yield
        return
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m,mode=755", "tmpfs", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def ran(daemon: DaemonProcess, name: str, *inputs: str) -> tuple[str, dict[str, Any]]:
    """Run a flow to its good end; gives its report, and its steps by their names."""
    options = [f"--input={one}" for one in inputs]
    done = daemon.lactl("--json", "flows", "run", name, *options)
    assert done.returncode == 0, done.stderr
    progress = [json.loads(line) for line in done.stdout.splitlines()]
    steps = {step["name"]: step for one in progress for step in one["steps"]}
    assert progress[-1]["run"]["state"] == "success"
    assert {step["state"] for step in steps.values()} <= {"success", "skipped"}
    last = [step["name"] for step in steps.values() if step["name"] in ("report", "summary")]
    return daemon.lactl("flows", "show", progress[-1]["run"]["id"], *last).stdout, steps


def test_they_pass_the_check_with_the_agent_and_its_tools_and_have_short_names(daemon: DaemonProcess) -> None:
    listed = json.loads(daemon.lactl("--json", "flows", "list").stdout)
    assert [one["name"] for one in listed] == [f"ops.{name}" for name in NAMES]
    assert all(one["agent"] == "ops" and not one["problem"] for one in listed)
    checked = daemon.lactl("flows", "check")
    assert (checked.returncode, checked.stderr) == (0, "")
    for name in NAMES:
        assert json.loads(daemon.lactl("--json", "flows", "check", name).stdout)[0]["faults"] == []
        assert all(one["required"] is False for one in listed[NAMES.index(name)]["inputs"])
        assert daemon.lactl("flows", "graph", name).stdout


def test_what_only_observes_has_no_step_that_could_change_something() -> None:
    effects: dict[str, set[str]] = {}
    for name in NAMES:
        steps = tomllib.loads((share_folder() / f"agent/ops/flows/{name}.toml").read_text())["step"]
        effects[name] = {step.get("args", {}).get("effect", "observe") for step in steps}
        changing = [step for step in steps if step.get("args", {}).get("effect") == "change"]
        assert all(step["requires_approval"] for step in changing)
    assert effects["incident"] == {"observe"}
    assert effects["cert-renewal-check"] == {"observe", "reach"}
    assert "change" in effects["patch-day"] & effects["disk-full"]


def test_a_dry_patch_day_proposes_and_changes_nothing(daemon: DaemonProcess) -> None:
    report, steps = ran(daemon, "patch-day", "dry_run=yes", "refresh=no")
    said = "Dry run, nothing was changed|Nothing is to be upgraded|There are no lists|There is no apt"
    assert re.match(said, report), report
    assert "The kernel" in report
    skipped = [name for name, step in steps.items() if step["state"] == "skipped"]
    assert skipped == ["upgrade", "wait", "installed", "services", "verdict"]


def test_disk_full_leaves_a_disk_with_room_alone_and_proposes_old_rotated_logs(daemon: DaemonProcess) -> None:
    disk = daemon.paths.state.parent / "disk"
    report, steps = ran(daemon, "disk-full", f"path={disk}", "above=101")
    assert re.match(r"Nothing is to be done: .* is \d+ % full .* and 101 % is the limit\.", report)
    assert steps["propose"]["state"] == steps["clean"]["state"] == "skipped"
    logs = disk / "log"
    logs.mkdir()
    for name, days in (("app.log.1", 30), ("new.log.1", 1), ("app.log", 30)):
        (logs / name).write_bytes(bytes(1 << 20))
        os.utime(logs / name, (time.time() - days * 86400,) * 2)
    report, steps = ran(daemon, "disk-full", f"path={disk}", "above=0", "kinds=logs", "dry_run=yes")
    assert report.startswith("Dry run, nothing was deleted: ")
    assert steps["clean"]["state"] == "skipped"
    proposed = {one[0] for one in json.loads(steps["propose"]["output"])["logs"]}
    assert {path for path in proposed if path.startswith(f"{disk}/")} == {f"{logs}/app.log.1"}
    assert (logs / "app.log.1").exists()


def test_certificates_that_ended_and_that_end_soon_are_named(
    daemon: DaemonProcess, open_folder: Path
) -> None:
    for name, days in (("soon", 5), ("ended", -3), ("fine", 200)):
        certificate(open_folder / f"{name}.pem", f"{name}.example.org", days)
    inputs = (f"folders={open_folder},/nosuch", "hosts=127.0.0.1:9")
    report, _ = ran(daemon, "cert-renewal-check", *inputs)
    assert f"{open_folder}/ended.pem (ended.example.org) ended 3 days ago" in report
    assert f"{open_folder}/soon.pem (soon.example.org) ends in 5 days" in report
    assert "fine.pem" not in report
    assert "/nosuch does not exist." in report
    assert "The certificate of 127.0.0.1:9 could not be fetched" in report
    report, steps = ran(daemon, "cert-renewal-check", f"folders={open_folder}/fine.pem", "days=5")
    assert "ends in 200 days" in report
    assert steps["hosts"]["state"] == "skipped"


def test_an_incident_is_told_from_what_can_be_seen_here(daemon: DaemonProcess) -> None:
    report, steps = ran(daemon, "incident", "since=30min")
    assert report.startswith(("Since 2", "Nothing "))
    assert [step["state"] for step in steps.values()] == ["success"] * 6
    refused = daemon.lactl("flows", "run", "incident", "--input=since=last week")
    assert refused.returncode != 0
    assert "does not fit its pattern" in refused.stderr
