"""`lactl flows` against the real daemon, its tools and workers."""

from __future__ import annotations

import json
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lightagentd.host.paths import Paths
from tests.cli.conftest import start
from tests.conftest import DaemonProcess, write

SHELL = """
description = "Count"
agent = "ops"
[inputs.what]
description = "Anything"
[[step]]
name = "say"
call = "bash.exec"
args = { command = "printf '%s|' {inputs.what} 'end'" }
check = "test {say.output} = {inputs.what}'|end|'"
[[step]]
name = "ask"
depends_on = ["say"]
ask = "Go on after {say.output}?"
choices = ["yes", "no"]
[[step]]
name = "change"
depends_on = ["ask"]
when = { step = "ask", equals = "yes" }
requires_approval = true
call = "bash.exec"
args = { command = "touch {inputs.what}", cwd = "@OUT@", effect = "change" }
[[step]]
name = "report"
depends_on = ["change"]
prompt = "check disk"
"""
BROKEN = """
description = "Broken"
agent = "nobody-here"
[[step]]
name = "a"
depends_on = ["b"]
call = "bash.exec"
[[step]]
name = "b"
depends_on = ["a"]
ask = "?"
"""


@pytest.fixture(scope="module")
def daemon(sandboxed: None) -> Iterator[DaemonProcess]:
    with tempfile.TemporaryDirectory() as name:
        base = Path(name)
        base.chmod(0o755)
        paths = Paths(config=base / "etc", state=base / "state", runtime=base / "run")
        (base / "out").mkdir()
        write(paths.config / "lightagentd.toml", '[worker]\nchange_agents = ["ops"]\n')
        write(paths.config / "flows" / "shell.toml", SHELL.replace("@OUT@", str(base / "out")))
        write(paths.config / "flows" / "broken.toml", BROKEN)
        write(
            paths.config / "flows" / "slow.toml",
            'description = "Slow"\nagent = "ops"\n[[step]]\nname = "sleep"\ncall = "bash.exec"\n'
            'args = { command = "sleep 60", effect = "change" }\n',
        )
        write(
            paths.config / "policy.d" / "slow.toml",
            '[[rule]]\nname = "slow"\ntool = "bash"\ndecision = "allow"\nargs = { command = "sleep 60" }\n',
        )
        process = DaemonProcess(paths)
        try:
            process.start()
            yield process
        finally:
            process.close()


def run(daemon: DaemonProcess, *arguments: str, status: int = 0) -> str:
    done = daemon.lactl("flows", *arguments)
    assert done.returncode == status, done.stderr
    return done.stdout if status == 0 else done.stderr


def shown(daemon: DaemonProcess, run_id: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(daemon, "show", run_id, "--json"))
    return found


def waits(daemon: DaemonProcess, run_id: str, *, after: str = "") -> str:
    """Wait until a run waits for a person, and not for what was just answered; gives the question's id."""
    deadline = time.monotonic() + 60
    while (found := shown(daemon, run_id)["run"]["waits"]) in ([], [after]):
        assert time.monotonic() < deadline, found
        time.sleep(0.05)
    return str(found[0])


def test_flows_are_listed_checked_and_drawn(daemon: DaemonProcess, tmp_path: Path) -> None:
    assert "shell\tops\t4\twhat\tCount" in run(daemon, "list")
    assert run(daemon, "check", "shell") == "shell\tok\n"
    said = run(daemon, "check", status=78)
    assert "broken.toml:4: the steps wait for each other: a → b → a" in said
    file = write(
        tmp_path / "new.toml",
        'description = "x"\n[[step]]\nname = "a"\ncall = "bash.nothing"\nagent = "ops"\n',
    )
    assert f"{file}:2: step a: the agent ops has no action bash.nothing" in run(
        daemon, "check", str(file), status=78
    )
    assert "report  [prompt]  after change" in run(daemon, "graph", "shell")
    assert run(daemon, "graph", "shell", "--format", "svg").startswith("<svg ")
    assert '"ask" -> "change"' in run(daemon, "graph", "shell", "--format", "dot")


def test_a_dry_run_says_what_would_run(daemon: DaemonProcess) -> None:
    said = run(daemon, "run", "shell", "-i", "what=a b", "--dry-run")
    assert "touch 'a b'" in said
    assert "{say.output}" in said
    assert "No flow has run" in run(daemon, "runs") or "shell" not in run(daemon, "runs")
    assert "The input what is missing" in run(daemon, "run", "shell", "--dry-run", status=65)


def test_a_run_from_the_beginning_to_the_end(daemon: DaemonProcess) -> None:
    hostile = "a b; touch pwned $(touch pwned) `touch pwned` \"'"
    out = daemon.paths.config.parent / "out"
    run_id = run(daemon, "run", "shell", "-i", f"what={hostile}", "-d").strip()
    found = waits(daemon, run_id)
    assert daemon.lactl("answer", found, "yes").returncode == 0
    found = waits(daemon, run_id, after=found)
    assert found.startswith("apr_")
    daemon.kill()
    daemon.start()
    assert waits(daemon, run_id) == found
    assert daemon.lactl("approve", found).returncode == 0
    said = run(daemon, "follow", run_id)
    assert "ok         change" in said
    assert "All file systems" in said
    assert [one.name for one in out.iterdir()] == [hostile]
    steps = {one["name"]: one for one in shown(daemon, run_id)["steps"]}
    assert steps["say"]["output"] == f"{hostile}|end|"
    assert {one["state"] for one in steps.values()} == {"success"}
    assert run_id in run(daemon, "runs", "shell")
    assert f"  {steps['change']['trace_id']}" in run(daemon, "show", run_id)
    assert run(daemon, "show", run_id, "say") == f"{hostile}|end|\n"
    again = run(daemon, "run", "shell", "--from", "report")
    assert "ok         report" in again


def test_a_kill_in_the_middle_of_a_change_asks_what_it_did(daemon: DaemonProcess) -> None:
    run_id = run(daemon, "run", "slow", "-d").strip()
    deadline = time.monotonic() + 60
    while shown(daemon, run_id)["steps"][0]["state"] != "running":
        assert time.monotonic() < deadline, shown(daemon, run_id)
    wanted = [
        "events",
        "--trace",
        shown(daemon, run_id)["steps"][0]["trace_id"],
        "--topic",
        "agent.tool_dispatch",
    ]
    while "intent" not in daemon.lactl(*wanted).stdout:
        assert time.monotonic() < deadline
    daemon.kill()
    daemon.start()
    found = waits(daemon, run_id)
    question = daemon.lactl("inputs", "show", found).stdout
    assert "was stopped in the middle" in question
    assert "bash.exec" in question
    assert daemon.lactl("answer", found, "it failed").returncode == 0
    assert "A person said that it failed" in run(daemon, "follow", run_id, status=80)
    run_id = run(daemon, "resume", run_id, "-d").strip()
    assert run(daemon, "cancel", run_id) == "cancelled\n"


def test_ctrl_c_only_stops_following(daemon: DaemonProcess) -> None:
    process = start(["flows", "run", "slow"], env=daemon.env)
    deadline = time.monotonic() + 60
    while not (found := json.loads(run(daemon, "runs", "slow", "--json"))) or found[0]["state"] != "running":
        assert time.monotonic() < deadline
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 0
    assert json.loads(run(daemon, "runs", "slow", "--json"))[0]["state"] == "running"
    run(daemon, "cancel", found[0]["id"])
