"""lactl against the real daemon: a session from its first prompt to its end, and turns that one waits for."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lightagentd.client.blocking import Client
from lightagentd.errors import InvalidArgument
from lightagentd.host.paths import Paths
from tests.cli.test_with_daemon import SLOW_SKILL, run, run_json
from tests.conftest import DaemonProcess, write


@pytest.fixture(scope="module")
def daemon() -> Iterator[DaemonProcess]:
    """One daemon for the tests of this module, with a skill that takes a minute."""
    with tempfile.TemporaryDirectory() as name:
        base = Path(name)
        base.chmod(0o755)  # workers of root's daemon run as nobody
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


@pytest.fixture
def session(daemon: DaemonProcess) -> str:
    """A session with one turn, the current one."""
    made = run_json(daemon, "sessions", "new", "ops", "--title", "memory")
    run(daemon, "prompt", "ops", "check memory")
    return str(made["id"])


def fails(daemon: DaemonProcess, *arguments: str, stdin: bytes = b"") -> tuple[int, str]:
    """The status and the code of a command that fails."""
    done = daemon.lactl("--json", *arguments, stdin=stdin)
    assert done.returncode != 0
    return done.returncode, json.loads(done.stderr.splitlines()[-1])["error"]["code"]


def get(daemon: DaemonProcess, session: str) -> dict[str, Any]:
    found = run_json(daemon, "sessions", "show", session)
    assert isinstance(found, dict)
    return found


def until_running(daemon: DaemonProcess, session: str) -> None:
    """Wait until a turn runs; the time is only there to end a test that fails."""
    deadline = time.monotonic() + 60
    while get(daemon, session)["state"] != "running":
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_question_standard_input_and_files_arrive_in_their_order(
    daemon: DaemonProcess, tmp_path: Path
) -> None:
    (tmp_path / "a.log").write_text("one\n")
    (tmp_path / "b.log").write_text("```\ntwo\n")
    files = ["-a", str(tmp_path / "b.log"), "-a", str(tmp_path / "a.log")]
    run(daemon, "prompt", "--new", "ops", "check memory", *files, stdin=b"piped\n")
    shown = get(daemon, "ops")
    assert shown["messages"][0]["content"] == (
        "check memory\n\n```standard input\npiped\n```\n\n````b.log\n```\ntwo\n````\n\n```a.log\none\n```"
    )
    assert shown["tainted"]
    assert shown["title"] == "check memory"


def test_what_is_attached_chooses_no_runbook(daemon: DaemonProcess, tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("check disk. who is listening on 8080? is nginx ok?\n" * 100)
    run(daemon, "prompt", "--new", "ops", "check memory", "-a", str(tmp_path / "a.log"))
    [call] = [call for each in get(daemon, "ops")["messages"] for call in each["tool_calls"]]
    assert '"memory-check"' in call["arguments"]


@pytest.mark.parametrize(
    ("content", "code"), [(b"x" * ((1 << 20) + 1), "attachment_too_large"), (b"a\0b", "attachment_invalid")]
)
def test_what_the_daemon_does_not_take_begins_no_turn(
    daemon: DaemonProcess, tmp_path: Path, session: str, content: bytes, code: str
) -> None:
    (tmp_path / "file").write_bytes(content)
    assert fails(daemon, "prompt", "ops", "check memory", "-a", str(tmp_path / "file")) == (65, code)
    assert get(daemon, session)["turns"] == 1


@pytest.mark.parametrize(
    "wrong",
    ["x", ["x"], [None], [{"name": "a"}], [{"name": "a", "text": 1}], [{"name": "a", "text": "b", "c": 1}]],
)
def test_what_is_no_attachment_is_refused_on_the_socket(daemon: DaemonProcess, wrong: Any) -> None:
    with Client(daemon.env["LIGHTAGENT_SOCKET"]) as client, pytest.raises(InvalidArgument) as caught:
        next(client.stream("Sessions.Prompt", agent="ops", text="check memory", attachments=wrong))
    assert caught.value.field == "attachments"


class TestWaiting:
    def test_for_a_turn_that_was_only_stored(self, daemon: DaemonProcess, session: str) -> None:
        made = run_json(daemon, "prompt", "ops", "check memory", "--no-wait")
        assert made["session"] == session
        assert made["trace_id"].startswith("trace_")
        assert run(daemon, "wait", "ops") == run(daemon, "wait", session[:12])
        assert "memory" in run(daemon, "wait", session)
        assert get(daemon, session)["turns"] == 2

    def test_for_a_running_turn_until_the_time_is_over_and_after_a_cancel(
        self, daemon: DaemonProcess, session: str
    ) -> None:
        done = daemon.lactl("prompt", "ops", "make the slow report", "--timeout", "0.2")
        assert (done.returncode, done.stdout) == (124, "")
        assert f"lactl cancel {session}" in done.stderr
        until_running(daemon, session)
        assert fails(daemon, "wait", session, "--timeout", "0.1") == (124, "timeout")
        run(daemon, "prompt", "ops", "check memory", "--no-wait")
        assert run(daemon, "cancel", "ops") == "2\n"
        assert fails(daemon, "wait", session) == (130, "cancelled")
        assert run(daemon, "cancel", session) == "0\n"

    def test_for_a_session_that_had_no_turn(self, daemon: DaemonProcess) -> None:
        made = run(daemon, "sessions", "new", "ops").strip()
        assert run_json(daemon, "wait", made) == {"session": made, "state": "idle", "ended": "", "answer": ""}

    def test_for_a_paused_session_tells_what_stays(self, daemon: DaemonProcess, session: str) -> None:
        run(daemon, "prompt", "ops", "make the slow report", "--no-wait")
        until_running(daemon, session)
        run(daemon, "prompt", "ops", "check memory", "--no-wait")
        run(daemon, "sessions", "pause", "ops")
        assert get(daemon, session)["queued"] == 1
        assert fails(daemon, "prompt", "ops", "more") == (73, "session_paused")
        assert fails(daemon, "wait", session, "--timeout", "0.1")[0] == 124, "what runs goes on"
        run(daemon, "cancel", session)
        run(daemon, "sessions", "resume", session)
        assert fails(daemon, "sessions", "resume", session) == (73, "session_not_paused")


def test_a_session_is_renamed_forked_exported_imported_and_deleted(
    daemon: DaemonProcess, session: str, tmp_path: Path
) -> None:
    run(daemon, "sessions", "rename", session, "the", "memory")
    messages = get(daemon, session)["messages"]
    fork = run(daemon, "sessions", "fork", session, "--up-to", str(messages[0]["seq"])).strip()
    assert [each["content"] for each in get(daemon, fork)["messages"]] == ["check memory"]
    assert get(daemon, fork)["forked_from"] == session
    assert run_json(daemon, "sessions", "list")[0]["id"] == fork
    run(daemon, "sessions", "switch", session)
    assert get(daemon, "ops")["id"] == session

    assert "# the memory" in run(daemon, "sessions", "export", session)
    file = tmp_path / "memory.jsonl"
    run(daemon, "sessions", "export", session, "--format", "jsonl", "-o", str(file))
    imported = run(daemon, "sessions", "import", str(file), "--agent", "ops").strip()
    assert [each["content"] for each in get(daemon, imported)["messages"]] == [
        each["content"] for each in messages
    ]
    damaged = file.read_text().splitlines()[:-1]
    assert fails(daemon, "sessions", "import", "-", "--agent", "ops", stdin="\n".join(damaged).encode()) == (
        65,
        "import_invalid",
    )

    assert fails(daemon, "sessions", "delete", session) == (73, "confirmation_required")
    run(daemon, "sessions", "delete", session, "--yes")
    assert fails(daemon, "sessions", "show", session) == (66, "session_not_found")
    assert "intact" in run(daemon, "audit", "verify")


def test_all_of_it_outlives_a_kill(daemon_process: DaemonProcess) -> None:
    daemon_process.start()
    session = run(daemon_process, "sessions", "new", "ops", "--title", "kept").strip()
    run(daemon_process, "prompt", "ops", "check memory")
    run(daemon_process, "sessions", "pause", session)
    daemon_process.kill()
    daemon_process.start()
    shown = get(daemon_process, "ops")
    assert (shown["id"], shown["title"], shown["paused"]) == (session, "kept", True)
    assert shown["messages"][-1]["content"].strip() == run(daemon_process, "wait", session).strip()
