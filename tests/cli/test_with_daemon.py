"""lactl against the real daemon, workers and history, each as a process of its own."""

from __future__ import annotations

import json
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lightagentd.host.paths import Paths
from tests.cli.conftest import on_terminal, start
from tests.conftest import DaemonProcess, write

SLOW_SKILL = {
    "SKILL.md": "---\nname: slow-report\ndescription: Waits for ever, slowly.\n---\n# slow-report\n",
    "runbook.yaml": "script: scripts/slow.py\n",
    "examples.txt": "make the slow report\n",
}


@pytest.fixture(scope="module")
def daemon() -> Iterator[DaemonProcess]:
    """One daemon for the tests of this module, with a skill that takes a minute.

    Its folders are open to others, as those of the system are: workers of root's daemon run as nobody.
    """
    with tempfile.TemporaryDirectory() as name:
        base = Path(name)
        base.chmod(0o755)
        paths = Paths(config=base / "etc", state=base / "state", runtime=base / "run")
        folder = paths.config / "skills" / "slow-report"
        for file, text in SLOW_SKILL.items():
            write(folder / file, text)
        write(folder / "scripts" / "slow.py", "import time\ntime.sleep(60)\n")
        process = DaemonProcess(paths)
        try:
            process.start()
            yield process
        finally:
            process.close()


def run(daemon: DaemonProcess, *arguments: str, stdin: bytes = b"") -> str:
    done = daemon.lactl(*arguments, stdin=stdin)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_json(daemon: DaemonProcess, *arguments: str) -> Any:
    return json.loads(run(daemon, *arguments, "--json"))


@pytest.mark.parametrize(
    "command",
    [
        "status",
        "agents list",
        "agents show ops",
        "sessions list",
        "tools list",
        "tools show bash",
        "skills list",
        "skills show disk-check",
        "audit verify",
        "reload",
    ],
)
def test_commands_that_look_work_as_text_and_as_json(daemon: DaemonProcess, command: str) -> None:
    assert run_json(daemon, *command.split()) is not None
    run(daemon, *command.split())


def test_a_prompt_leaves_a_session_a_history_and_a_trace(daemon: DaemonProcess) -> None:
    answer = run(daemon, "prompt", "ops", "check memory", "--new")
    assert "memory" in answer.lower()
    (session, *_) = run_json(daemon, "sessions", "list")
    shown = run_json(daemon, "sessions", "show", session["id"])
    assert shown["messages"][0]["content"] == "check memory"
    assert shown["messages"][-1]["content"].strip() == answer.strip()
    assert "check memory" in run(daemon, "sessions", "show", session["id"])
    stored = run(daemon, "history", "--session", session["id"], "--json").splitlines()
    trace = json.loads(stored[-1])["trace_id"]
    turn = run_json(daemon, "trace", "show", trace)
    steps = [child for child in turn["children"] if child["kind"] == "step"]
    assert (turn["result"], len(steps)) == ("done", 2)
    assert [child["kind"] for child in steps[0]["children"]] == ["model", "call"]
    assert "─ skill.run  " in run(daemon, "trace", "show", trace)
    (row, *_) = [line for line in run(daemon, "trace", "list").splitlines() if line.startswith(trace)]
    assert row.split("\t")[6] == "done"
    (act, *_) = run(daemon, "audit", "list", "--trace", trace).splitlines()
    assert act.split("\t")[4:9] == ["skill.run", "observe", "allow", "default-observe", "ok"]


def test_a_prompt_on_a_terminal_shows_the_call(daemon: DaemonProcess) -> None:
    done = on_terminal(["prompt", "ops", "check memory"], env=daemon.env | {"TERM": "dumb"})
    assert done.status == 0
    assert done.out.startswith("→ skill.run name=memory-check ")
    assert "\n← skill.run ok " in done.out


@pytest.mark.parametrize(
    ("command", "status"),
    [
        ("prompt nobody hello", 66),
        ("prompt ops hello --session ses_0", 66),
        ("sessions show ses_0", 66),
        ("tools show nothing", 66),
        ("tools call ops nothing.happens", 66),
        ("tools call ops bash.exec", 65),
        ("tools call ops bash.exec command=true effect=change", 77),
        ("prompt ops write me a poem", 81),
        ("events --topic nosuch", 65),
        ("events --agent nosuch", 66),
        ("history --agent nosuch", 66),
        ("history --topic agents", 65),
        ("history --topic tool.inotify,daemn", 65),
        ("agents create ops", 73),
        ("agents create UPPER", 65),
        ("trace show trace_none", 66),
    ],
)
def test_errors_have_their_status(daemon: DaemonProcess, command: str, status: int) -> None:
    done = daemon.lactl(*command.split())
    assert (done.returncode, done.stdout) == (status, "")
    assert done.stderr.startswith("lactl: ")


@pytest.mark.parametrize(("command", "how"), [("exit 3", "with status 3"), ("kill -9 $$", "by SIGKILL")])
def test_a_command_that_fails_has_a_status_of_its_own(daemon: DaemonProcess, command: str, how: str) -> None:
    done = daemon.lactl("tools", "call", "ops", "bash.exec", f"command={command}", "effect=observe")
    assert (done.returncode, done.stderr) == (80, f"lactl: The command ended {how}.\n")


def test_a_tool_is_called_with_arguments_of_the_right_types(daemon: DaemonProcess) -> None:
    assert "slow-report" in run(daemon, "tools", "call", "ops", "skill.list")
    assert len(run(daemon, "tools", "call", "ops", "proc.list", "limit=1").splitlines()) == 3


def test_an_agent_is_made_stopped_and_deleted(daemon: DaemonProcess) -> None:
    made = run_json(daemon, "agents", "create", "web", "--description", "Watches the web", "--prompt", "Be.")
    assert (made["description"], made["state"]) == ("Watches the web", "running")
    assert run(daemon, "agents", "stop", "web") == "web\tstopped\n"
    assert daemon.lactl("prompt", "web", "hello").returncode == 73
    assert run(daemon, "agents", "start", "web") == "web\trunning\n"
    run(daemon, "agents", "delete", "web")
    assert daemon.lactl("agents", "show", "web").returncode == 66


def test_ctrl_c_cancels_the_turn(daemon: DaemonProcess) -> None:
    process = start(
        ["prompt", "--json", "--new", "ops", "make the slow report"],
        env=daemon.env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with process:
        assert process.stdout is not None
        session = ""
        while b"tool_call" not in (line := process.stdout.readline()):
            session = json.loads(line)["session"]
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=30)
    assert process.returncode == 130
    assert json.loads(out.splitlines()[-1])["code"] == "cancelled"
    assert run_json(daemon, "sessions", "show", session)["state"] == "idle"


def test_ctrl_c_cancels_a_call_that_has_no_session(daemon: DaemonProcess) -> None:
    process = start(
        ["tools", "call", "--json", "ops", "skill.run", "name=slow-report"],
        env=daemon.env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    with process:
        assert process.stdout is not None
        called = json.loads(process.stdout.readline())
        assert called["type"] == "tool_call"
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
    assert process.returncode == 130
    results: list[str] = []
    deadline = time.monotonic() + 30
    while not results and time.monotonic() < deadline:  # the daemon stores it after lactl has gone
        lines = run(daemon, "history", "--topic", "tool.skill", "--trace", called["trace_id"], "--json")
        results = [json.loads(line)["data"]["result"] for line in lines.splitlines()]
    assert results == ["cancelled"]


def test_following_events_misses_none_when_the_daemon_is_killed(daemon_process: DaemonProcess) -> None:
    daemon_process.start()
    follow = start(
        ["events", "--follow", "--since", "1", "--json"],
        env=daemon_process.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with follow:
        assert follow.stdout is not None
        assert follow.stderr is not None
        seqs = [json.loads(follow.stdout.readline())["seq"]]
        daemon_process.kill()
        assert follow.stderr.readline().startswith(b"lactl: The daemon has stopped")
        daemon_process.start()
        last = json.loads(run(daemon_process, "history", "--limit", "1", "--json"))["seq"]
        while seqs[-1] < last:
            seqs.append(json.loads(follow.stdout.readline())["seq"])
        follow.terminate()
    assert seqs == list(range(1, last + 1))
