"""Backups, exports, and the store itself, through lactl: with the daemon running, stopped and killed."""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import environment
from tests.cli.terminal import Terminal
from tests.conftest import DaemonProcess
from tests.events.backup.test_stored import STRANGER, as_root, owned
from tests.events.made import make
from tests.events.stored import alter
from tests.prepared import LACTL, REPOSITORY
from tests.prepared import run as run_program

Process = subprocess.CompletedProcess[str]
EXPORTED = re.compile(r'"exported_us": \d+')

_AS_OTHER = """
import concurrent.futures.thread, importlib.metadata, os, sys
import lightagentd.cli.history, lightagentd.control.operations.stored, lightagentd.events.backup.importing
from lightagentd.cli.main import run
os.setgroups([])
os.setresgid(4712, 4712, 4712)
os.setresuid(4712, 4712, 4712)
sys.exit(run(sys.argv[1:]))
"""
"""Imports first what comes late otherwise: who is root no more may not be able to read the tests' Python."""


def lactl(*arguments: object, state: Path | None = None, code: str = "", stdin: bytes = b"") -> Process:
    """Run lactl where no daemon is, on the store of a state folder."""
    env = environment(LIGHTAGENT_SOCKET="/nowhere/control.sock")
    if state is not None:
        env["LIGHTAGENT_STATE_DIR"] = str(state)
    words = [str(one) for one in arguments]
    if code:
        command = [sys.executable, "-c", code, *words]
        done = subprocess.run(command, cwd=REPOSITORY, env=env, input=stdin, capture_output=True, timeout=120)
    else:
        done = run_program(LACTL, words, env=env, stdin=stdin, timeout_s=120)
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def told(done: Process) -> Any:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def lines(done: Process) -> list[dict[str, Any]]:
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stopped daemon's state folder, that no test changes."""
    folder = tmp_path_factory.mktemp("files") / "state"
    make(folder)
    return folder


@pytest.fixture
def busy(daemon_process: DaemonProcess) -> DaemonProcess:
    """A running daemon with a session that was prompted."""
    daemon_process.start()
    assert daemon_process.lactl("prompt", "ops", "check memory").returncode == 0
    return daemon_process


def test_a_backup_of_a_running_daemon_is_restored_after_it_was_stopped(
    busy: DaemonProcess, tmp_path: Path
) -> None:
    state = f"--state-dir={busy.paths.state}"
    before = told(busy.lactl("sessions", "list", "--json"))
    saved = told(busy.lactl("history", "backup", str(tmp_path / "backup"), state, "--json"))
    assert saved["verified"]
    assert (tmp_path / "backup").stat().st_mode & 0o777 == 0o600
    assert busy.lactl("sessions", "new", "ops").returncode == 0
    refused = busy.lactl("history", "restore", str(tmp_path / "backup"), state)
    assert refused.returncode == 73
    assert "is running" in refused.stderr
    assert busy.stop() == 0
    placed = told(busy.lactl("history", "restore", str(tmp_path / "backup"), state, "--json"))
    assert (placed["seq"], placed["hash"]) == (saved["seq"], saved["hash"])
    assert Path(placed["set_aside"], "data.mdb").exists()
    busy.start()
    after = told(busy.lactl("sessions", "list", "--json"))
    assert [one["id"] for one in after] == [one["id"] for one in before]
    events = lines(busy.lactl("history", "--topic", "daemon.history", "--json"))
    [installed] = [event for event in events if event["type"] == "installed"]
    assert installed["data"]["set_aside"] == placed["set_aside"]
    assert not [event for event in events if event["type"] == "recovered"]
    assert busy.lactl("prompt", "ops", "check memory").returncode == 0
    assert busy.lactl("audit", "verify").returncode == 0


def test_the_store_itself_says_what_the_daemon_says(busy: DaemonProcess) -> None:
    stored = ("--stored", f"--state-dir={busy.paths.state}")
    [session] = [one["id"] for one in told(busy.lactl("sessions", "list", "--json"))]
    [trace] = {event["trace_id"] for event in lines(busy.lactl("history", "--json")) if event["trace_id"]}
    commands = (
        ("history", "--session", session),
        ("history", "--topic", "agent", "--limit", "3", "--json"),
        ("history", "--type", "message", "--text", "DO?"),
        ("events", "--json"),
        ("events", "--agent", "ops", "--since", "4"),
        ("trace", "show", trace),
        ("sessions", "list"),
        ("sessions", "list", "--agent", "ops", "--json"),
        ("sessions", "export", session),
    )
    for command in commands:
        asked, read = busy.lactl(*command), busy.lactl(*command, *stored)
        asked_said, read_said = (EXPORTED.sub("", each.stdout) for each in (asked, read))
        assert (read.returncode, read_said) == (asked.returncode, asked_said), command
    shown, read = busy.lactl("sessions", "show", session), busy.lactl("sessions", "show", session, *stored)
    usage = ("tokens\t", "cost\t")  # which the daemon alone adds up
    assert [line for line in read.stdout.splitlines() if not line.startswith(usage)] == [
        line for line in shown.stdout.splitlines() if not line.startswith(usage)
    ]
    busy.kill()
    failed = busy.lactl("history")
    assert failed.returncode == 69
    assert "--stored" in failed.stderr
    assert busy.lactl("history", *stored).stdout


def test_what_only_the_daemon_knows_is_an_error(original: Path) -> None:
    followed = lactl("events", "--follow", "--stored", state=original)
    assert followed.returncode == 65
    assert "cannot be followed" in followed.stderr


def test_an_export_is_imported_and_a_daemon_goes_on_with_it(busy: DaemonProcess, tmp_path: Path) -> None:
    state = f"--state-dir={busy.paths.state}"
    assert busy.stop() == 0
    saved = told(busy.lactl("history", "export", str(tmp_path / "one"), state, "--json"))
    assert saved["whole"]
    placed = told(busy.lactl("history", "import", str(tmp_path / "one"), state, "--json"))
    assert (placed["seq"], placed["verified"]) == (saved["seq"], True)
    busy.lactl("history", "export", str(tmp_path / "other"), state)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()
    busy.start()
    assert busy.lactl("prompt", "ops", "check memory").returncode == 0
    assert busy.lactl("audit", "verify").returncode == 0
    assert len(told(busy.lactl("sessions", "list", "--json"))) == 1


def test_a_start_says_that_an_import_was_interrupted(daemon_process: DaemonProcess) -> None:
    (staging := daemon_process.paths.state / "history.installing").mkdir(parents=True)
    (staging / "data.mdb").write_bytes(b"half")
    daemon_process.start()
    [event] = lines(daemon_process.lactl("history", "--type", "install_interrupted", "--json"))
    assert "before it changed anything" in event["data"]["message"]
    assert not staging.exists()


def test_a_pipe_takes_a_backup_an_export_and_gives_an_import(original: Path, tmp_path: Path) -> None:
    (there := tmp_path / "there").mkdir(mode=0o700)
    whole = lactl("history", "export", state=original)
    assert whole.returncode == 0
    assert lactl("history", "import", "-", state=there, stdin=whole.stdout.encode()).returncode == 0
    assert lactl("history", "export", state=there).stdout == whole.stdout
    with (tmp_path / "backup").open("wb") as file:
        done = subprocess.run(
            [sys.executable, "-m", "lightagentd.cli.main", "history", "backup", "-"],
            cwd=REPOSITORY,
            env={**os.environ, "LIGHTAGENT_STATE_DIR": str(original)},
            stdout=file,
            stderr=subprocess.PIPE,
            timeout=120,
        )
    assert done.returncode == 0
    assert b"up to event" in done.stderr
    found = told(lactl("history", "restore", tmp_path / "backup", "--json", state=there))
    assert found["verified"]


def test_a_reader_that_leaves_ends_the_export_quietly(original: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "lightagentd.cli.main", "history", "export"],
            cwd=REPOSITORY,
            env={**os.environ, "LIGHTAGENT_STATE_DIR": str(original)},
            stdout=writing,
            stderr=subprocess.PIPE,
            timeout=120,
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (-13, b"")


@pytest.mark.parametrize("command", ["backup", "export"])
def test_no_file_is_replaced_unless_that_is_said(original: Path, tmp_path: Path, command: str) -> None:
    target = tmp_path / "file"
    target.write_text("mine")
    refused = lactl("history", command, target, state=original)
    assert refused.returncode == 73
    assert "--force" in refused.stderr
    assert target.read_text() == "mine"
    assert lactl("history", command, target, "--force", state=original).returncode == 0
    assert target.stat().st_size > 1000
    assert target.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("command", ["backup", "export"])
def test_a_link_is_not_followed(original: Path, tmp_path: Path, command: str) -> None:
    victim, link = tmp_path / "victim", tmp_path / "file"
    victim.write_text("mine")
    link.symlink_to(victim)
    assert lactl("history", command, link, state=original).returncode == 73
    (tmp_path / "file.partial").symlink_to(victim)
    assert lactl("history", command, link, "--force", state=original).returncode == 73
    (tmp_path / "file.partial").unlink()
    assert lactl("history", command, link, "--force", state=original).returncode == 0
    assert victim.read_text() == "mine"
    assert not link.is_symlink()


def test_what_a_killed_backup_left_is_in_nobodys_way(original: Path, tmp_path: Path) -> None:
    (tmp_path / "file.partial").write_bytes(b"half")
    assert lactl("history", "backup", tmp_path / "file", state=original).returncode == 0
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_files_do_not_go_where_the_store_is(original: Path) -> None:
    before = sorted(path.name for path in (original / "history").iterdir())
    done = lactl("history", "backup", original / "history" / "file", state=original)
    assert done.returncode == 65
    assert "folder of the history" in done.stderr
    assert sorted(path.name for path in (original / "history").iterdir()) == before


def test_wrong_paths_are_named(original: Path, tmp_path: Path) -> None:
    for arguments, status, said in (
        (("backup", tmp_path), 65, "is a folder"),
        (("backup", tmp_path / "none" / "file"), 66, "no folder"),
        (("restore", tmp_path / "none"), 66, "no file"),
        (("restore", tmp_path), 65, "is not a file"),
        (("import", tmp_path / "none"), 66, "no file"),
        (("export", "--state-dir", tmp_path / "none"), 66, "no state folder"),
        (("export", "--state-dir", tmp_path), 66, "no history"),
    ):
        done = lactl("history", *arguments, state=original)
        assert (done.returncode, said in done.stderr) == (status, True), (arguments, done.stderr)
    assert list(tmp_path.iterdir()) == []


def test_bytes_do_not_go_to_a_terminal(original: Path) -> None:
    with Terminal(
        ["history", "backup", "-"], env={**os.environ, "LIGHTAGENT_STATE_DIR": str(original)}
    ) as terminal:
        terminal.until("Standard output is a terminal")


def test_a_file_that_cannot_be_imported_says_which_line(original: Path, tmp_path: Path) -> None:
    data = lactl("history", "export", state=original).stdout.splitlines()
    (tmp_path / "file").write_text("\n".join([*data[:9], "{", *data[10:]]) + "\n")
    done = lactl("history", "import", tmp_path / "file", "--json", state=original)
    assert done.returncode == 65
    error = json.loads(done.stderr)["error"]
    assert error["code"] == "import_invalid"
    assert f"{tmp_path / 'file'} cannot be imported: line 10 is no JSON" in error["message"]


@as_root
def test_root_reads_a_daemons_store_as_the_daemon(open_folder: Path) -> None:
    state = owned(make(open_folder / "state").parent)
    target = open_folder / "backup"
    for arguments in (
        ("history", "backup", target),
        ("history", "--stored"),
        ("history", "restore", target),
        ("history", "export", open_folder / "export"),
        ("history", "import", open_folder / "export"),
    ):
        done = lactl(*arguments, state=state)
        assert (done.returncode, done.stderr) == (0, ""), arguments
    assert (target.stat().st_uid, target.stat().st_gid) == (0, 0)
    assert target.stat().st_mode & 0o777 == 0o600
    assert {path.stat().st_uid for path in [state, *state.rglob("*")]} == {STRANGER}


@as_root
@pytest.mark.parametrize(
    "arguments", [("history", "--stored"), ("history", "backup", "file"), ("history", "export")]
)
def test_another_user_is_told_to_use_sudo(open_folder: Path, arguments: tuple[str, ...]) -> None:
    state = owned(make(open_folder / "state").parent)
    (open_folder / "own").mkdir()
    os.chown(open_folder / "own", 4712, 4712)
    named = [str(open_folder / "own" / "file") if one == "file" else one for one in arguments]
    done = lactl(*named, "--json", state=state, code=_AS_OTHER)
    assert done.returncode == 77
    error = json.loads(done.stderr)["error"]
    assert (error["code"], "sudo" in error["suggestion"]) == ("permission_denied", True)
    assert list((open_folder / "own").iterdir()) == []


@pytest.mark.parametrize("command", ["backup", "export"])
def test_without_room_nothing_is_left(original: Path, tmp_path: Path, command: str) -> None:
    def little_room() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))

    done = subprocess.run(
        [sys.executable, "-m", "lightagentd.cli.main", "history", command, str(tmp_path / "file")],
        cwd=REPOSITORY,
        env={**os.environ, "LIGHTAGENT_STATE_DIR": str(original)},
        capture_output=True,
        preexec_fn=little_room,
        timeout=120,
    )
    assert done.returncode == 74
    assert b"no room" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", [("backup", "-"), ("export",)])
def test_a_full_disk_behind_standard_output_is_an_error(original: Path, command: tuple[str, ...]) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "lightagentd.cli.main", "history", *command],
            cwd=REPOSITORY,
            env={**os.environ, "LIGHTAGENT_STATE_DIR": str(original)},
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=120,
        )
    assert done.returncode == 74
    assert b"no room" in done.stderr


def test_a_backup_that_would_not_verify_is_not_kept(tmp_path: Path) -> None:
    history = make(tmp_path / "state")
    alter(history, 30, lambda line, data: line + b"\n" + data.replace(b"value", b"VALUE"))
    target = tmp_path / "backup"
    done = lactl("history", "backup", target, state=history.parent)
    assert done.returncode == 74
    assert "event 30" in done.stderr
    assert not target.exists()
    assert not told(lactl("history", "backup", target, "--no-verify", "--json", state=history.parent))[
        "verified"
    ]
    assert target.exists()
