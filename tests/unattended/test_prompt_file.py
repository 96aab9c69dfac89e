"""Prompts on a calendar: their files, whose session it is, and where the answer goes."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import sys
from pathlib import Path

import pytest

from lightagentd.config.unattended import check, load, prompt_files
from lightagentd.errors import ConfigError, NotFound
from tests.conftest import REPOSITORY, DaemonProcess, write
from tests.scripted_daemon import ScriptedDaemon, turn_event

from .conftest import PlayedJournal, needs_root

OWNER = pwd.getpwuid(os.geteuid()).pw_name
GOOD = f'agent = "ops"\nprompt = "check disk"\nowner = "{OWNER}"\n'
RUN = "Triggers.Run"

# grp is imported later by the client: the owner may not be able to read a Python that root has for himself.
_PROGRAM = """
import grp, sys
from pathlib import Path
from lightagentd.errors import LightagentError
from lightagentd.unattended import answer_file, delivery
from lightagentd.unattended.prompt_file import run
name, folder, control, journal, sendmail = sys.argv[1:6]
delivery.SENDMAIL_PATH = sendmail
answer_file.TOP = Path(folder)  # everybody can write to the /tmp above it
try:
    run(name, Path(folder), control=Path(control), journal_socket=Path(journal))
except LightagentError as err:
    print(err, err.suggestion)
    sys.exit(err.exit_status)
"""


def run(
    folder: Path,
    journal: PlayedJournal,
    control: Path,
    name: str = "daily",
    sendmail: Path = Path("/nowhere"),
) -> subprocess.CompletedProcess[str]:
    """In a process of its own, which becomes the owner and gives up new privileges for good."""
    argv = [sys.executable, "-c", _PROGRAM, name, *map(str, (folder, control, journal.path, sendmail))]
    return subprocess.run(argv, cwd=REPOSITORY, capture_output=True, text=True, timeout=120)


@pytest.fixture
def etc(tmp_path: Path) -> Path:
    write(tmp_path / "etc/prompts/daily.toml", GOOD)
    return tmp_path / "etc"


@pytest.fixture
def answering(scripted: ScriptedDaemon) -> ScriptedDaemon:
    """A daemon that answers `all is well`."""
    scripted.turn({"type": "done", "text": "all is well", "steps": 1, "duration_ms": 5}, method=RUN)
    return scripted


# The file


def test_a_file_with_the_three_keys_is_enough(etc: Path) -> None:
    found = load(etc, "daily")
    assert (found.agent, found.prompt, found.owner) == ("ops", "check disk", OWNER)
    assert (found.session, found.answer, found.timeout_s) == ("new", "journal", 600)
    assert prompt_files(etc) == [etc / "prompts/daily.toml"]


def test_an_unknown_key_names_file_line_and_the_nearest_key(etc: Path) -> None:
    path = write(etc / "prompts/daily.toml", GOOD + "timeout = 5\n")
    with pytest.raises(ConfigError) as caught:
        load(etc, "daily")
    assert caught.value.message == f"{path}:4: the key 'timeout' is not known."
    assert caught.value.suggestion == "Did you mean 'timeout_s'?"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (GOOD.replace("agent", "agnet"), "agnet|agent"),
        ('agent = "ops"\nowner = "root"\n', "the key 'prompt' is missing"),
        (GOOD + "timeout_s = 0\n", ":4: timeout_s"),
        (GOOD + 'answer = "fax"\n', ":4: answer"),
        (GOOD + 'answer = "file"\n', "go together"),
        (GOOD + 'file = "/tmp/x"\n', "go together"),
        (GOOD + 'answer = "file"\nfile = "x"\n', "absolute"),
        (GOOD + "append = true\n", "append is about a file"),
        (GOOD + 'mail_to = "a@b"\n', "mail_to goes with"),
        (GOOD + 'answer = "mail"\nmail_to = "-oQ/tmp"\n', ":5: mail_to"),
        (GOOD + 'answer = "mail"\nmail_to = "a@b\\nBcc: c@d"\n', ":5: mail_to"),
        (GOOD + 'session = "latest"\n', ":4: session"),
        (GOOD.replace("check disk", ""), ":2: prompt"),
        (GOOD.replace(f'"{OWNER}"', '"no-such-user"'), "there is no user 'no-such-user'"),
        ("agent = ", "is not TOML"),
    ],
)
def test_a_wrong_file_is_refused_with_the_place(text: str, said: str, etc: Path) -> None:
    write(etc / "prompts/daily.toml", text)
    with pytest.raises(ConfigError, match=said):
        load(etc, "daily")


@pytest.mark.parametrize("name", ["", "../lightagentd", "a b", "-x", ".hidden", "x" * 101, "ä"])
def test_a_name_that_no_unit_can_have_is_refused(name: str, etc: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be the name of a prompt"):
        load(etc, name)


def test_a_file_with_such_a_name_is_found_by_the_check(etc: Path) -> None:
    path = write(etc / "prompts/two words.toml", GOOD)
    with pytest.raises(ConfigError, match="a name that no unit can have"):
        check(path)


def test_a_missing_file_says_what_to_write(etc: Path) -> None:
    with pytest.raises(NotFound, match=r"There is no .*/prompts/weekly\.toml"):
        load(etc, "weekly")


def test_config_check_looks_at_prompts_too(etc: Path) -> None:
    argv = [sys.executable, "-m", "lightagentd.cli.main", "--json", "config", "check", "--folder", str(etc)]
    done = subprocess.run(argv, cwd=REPOSITORY, capture_output=True, text=True, timeout=60)
    assert json.loads(done.stdout)["files"] == [f"{etc}/prompts/daily.toml"]
    write(etc / "prompts/daily.toml", GOOD + "promt = 1\n")
    done = subprocess.run(argv, cwd=REPOSITORY, capture_output=True, text=True, timeout=60)
    assert done.returncode == 78
    [error] = json.loads(done.stdout)["errors"]
    assert error["message"] == f"{etc}/prompts/daily.toml:4: the key 'promt' is not known."


# Asking


def test_the_answer_is_in_the_journal_with_its_fields(
    etc: Path, answering: ScriptedDaemon, journal: PlayedJournal
) -> None:
    done = run(etc, journal, answering.path)
    assert (done.returncode, done.stdout) == (0, ""), done
    asked = answering.parameters("Triggers.Run")
    assert asked == {"name": "prompt@daily", "data": {}, "correlation_id": "prompt:daily"}
    entry = journal.entry()
    assert entry["MESSAGE"] == "all is well"
    assert (entry["LIGHTAGENT_PROMPT"], entry["LIGHTAGENT_AGENT"]) == ("daily", "ops")
    assert (entry["LIGHTAGENT_SESSION"], entry["LIGHTAGENT_TRACE_ID"]) == ("ses_1", "trace_1")


def test_what_policy_refused_is_told(etc: Path, answering: ScriptedDaemon, journal: PlayedJournal) -> None:
    call = {"type": "tool_call", "tool": "systemd", "action": "restart", "decision": "deny"}
    answering.turn(call, call, {"type": "done", "text": "not allowed", "steps": 2}, method=RUN)
    assert run(etc, journal, answering.path).returncode == 0
    refused = journal.entry()
    assert refused["MESSAGE"].endswith("so it was refused: systemd.restart")
    assert refused["PRIORITY"] == "5"
    assert journal.entry()["MESSAGE"] == "not allowed"


def test_an_error_of_the_turn_is_the_exit_status(
    etc: Path, answering: ScriptedDaemon, journal: PlayedJournal
) -> None:
    event = turn_event("error", code="budget_exceeded", message="The budget is used up.")
    answering.turn(event, method=RUN)
    done = run(etc, journal, answering.path)
    assert done.returncode == 79
    assert "The budget is used up." in done.stdout


def test_a_stopped_daemon_is_a_clear_error(etc: Path, journal: PlayedJournal, tmp_path: Path) -> None:
    done = run(etc, journal, tmp_path / "nothing.sock")
    assert done.returncode == 69
    assert "not running" in done.stdout


# Where the answer goes


def test_a_file_is_replaced_whole(etc: Path, answering: ScriptedDaemon, journal: PlayedJournal) -> None:
    target = write(etc / "out/answer.md", "old\n" * 1000)
    target.chmod(0o640)
    write(etc / "prompts/daily.toml", GOOD + f'answer = "file"\nfile = "{target}"\n')
    assert run(etc, journal, answering.path).returncode == 0
    assert target.read_text() == "all is well\n"
    assert target.stat().st_mode & 0o777 == 0o640
    assert [path.name for path in target.parent.iterdir()] == ["answer.md"]
    assert journal.entry()["MESSAGE"] == f"The answer of ops is in {target}."


def test_a_file_grows_with_the_time_of_each_answer(
    etc: Path, answering: ScriptedDaemon, journal: PlayedJournal
) -> None:
    target = etc / "answers.md"
    write(etc / "prompts/daily.toml", GOOD + f'answer = "file"\nfile = "{target}"\nappend = true\n')
    for _ in range(2):
        assert run(etc, journal, answering.path).returncode == 0
    text = target.read_text()
    assert text.count("\nall is well\n") == 2
    assert text.count(" daily, session ses_1\n") == 2
    assert target.stat().st_mode & 0o077 == 0


def test_where_nothing_can_be_written_nothing_is_asked(
    etc: Path, answering: ScriptedDaemon, journal: PlayedJournal
) -> None:
    write(etc / "prompts/daily.toml", GOOD + f'answer = "file"\nfile = "{etc}/gone/answer.md"\n')
    done = run(etc, journal, answering.path)
    assert done.returncode == 74
    assert f"cannot be written to {etc}/gone/answer.md: No such file or directory" in done.stdout
    assert "ReadWritePaths=" in done.stdout
    assert answering.calls == []


SENDMAIL = """#!/bin/sh
echo "$*" > "$(dirname "$0")/args"
cat > "$(dirname "$0")/mail"
"""


def test_mail_goes_through_sendmail(etc: Path, answering: ScriptedDaemon, journal: PlayedJournal) -> None:
    write(etc / "bin/sendmail", SENDMAIL).chmod(0o755)
    write(etc / "prompts/daily.toml", GOOD + 'answer = "mail"\nmail_to = "ops@example.org"\n')
    done = run(etc, journal, answering.path, sendmail=etc / "bin")
    assert done.returncode == 0, done
    assert (etc / "bin/args").read_text() == "-i -- ops@example.org\n"
    mail = (etc / "bin/mail").read_text()
    for line in (
        "To: ops@example.org",
        "Subject: ops: daily",
        "Auto-Submitted: auto-generated",
        "all is well",
    ):
        assert line in mail
    assert journal.entry()["MESSAGE"] == "The answer of ops was mailed to ops@example.org."


def test_without_sendmail_nothing_is_asked(
    etc: Path, answering: ScriptedDaemon, journal: PlayedJournal
) -> None:
    write(etc / "prompts/daily.toml", GOOD + 'answer = "mail"\n')
    done = run(etc, journal, answering.path)
    assert done.returncode == 69
    assert "no sendmail(8)" in done.stdout
    assert answering.calls == []


def test_a_sendmail_that_fails_says_where_the_answer_is(
    etc: Path, answering: ScriptedDaemon, journal: PlayedJournal
) -> None:
    write(etc / "bin/sendmail", "#!/bin/sh\necho queue is full >&2\nexit 75\n").chmod(0o755)
    write(etc / "prompts/daily.toml", GOOD + 'answer = "mail"\n')
    done = run(etc, journal, answering.path, sendmail=etc / "bin")
    assert done.returncode == 69
    assert "sendmail ended with status 75: queue is full." in done.stdout
    assert "lactl sessions show ses_1" in done.stdout


# Whose session it is


@needs_root
def test_the_session_is_the_owners(reachable: DaemonProcess, journal: PlayedJournal) -> None:
    """The daemon sees the owner's uid, though root started the program."""
    process = reachable
    nobody = pwd.getpwnam("nobody")
    folder = process.paths.config
    write(folder / "prompts/daily.toml", GOOD.replace(f'"{OWNER}"', '"nobody"'))
    process.start()
    done = run(folder, journal, process.paths.socket)
    assert done.returncode == 0, done
    with process.client() as client:
        [session] = client.call("Sessions.List")["sessions"]
    assert (session["owner"], session["title"]) == (nobody.pw_uid, "prompt daily")
    assert journal.entry()["LIGHTAGENT_SESSION"] == session["id"]


@pytest.fixture
def reachable(daemon_process: DaemonProcess, journal: PlayedJournal) -> DaemonProcess:
    """A daemon, not started, to which other users get, as to the journal."""
    for path in (daemon_process.paths.state, journal.path):
        for folder in list(path.parents)[:-2]:
            folder.chmod(folder.stat().st_mode | 0o011)
    journal.path.chmod(0o666)
    return daemon_process


@needs_root
def test_the_program_has_nothing_of_roots_once_it_is_the_owner() -> None:
    code = """
import os, pwd
from lightagentd.host.libc import forbid_new_privileges
from lightagentd.unattended.owner import become
account = pwd.getpwnam("daemon")
become(account)
forbid_new_privileges()
print(os.getresuid(), os.getresgid(), os.getgroups() == os.getgrouplist("daemon", account.pw_gid))
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
capabilities = [int(status[name], 16) for name in ("CapPrm", "CapEff", "CapAmb")]
print(capabilities, int(status["NoNewPrivs"]), os.environ["USER"])
try:
    os.setresuid(0, 0, 0)
except PermissionError:
    print("stays")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=True
    )
    account = pwd.getpwnam("daemon")
    ids = ((account.pw_uid,) * 3, (account.pw_gid,) * 3)
    assert done.stdout.splitlines() == [f"{ids[0]} {ids[1]} True", "[0, 0, 0] 1 daemon", "stays"]


@needs_root
def test_an_owner_who_may_not_connect_is_told_so(reachable: DaemonProcess, journal: PlayedJournal) -> None:
    process = reachable
    write(process.paths.config / "prompts/daily.toml", GOOD.replace(f'"{OWNER}"', '"daemon"'))
    process.start()
    done = run(process.paths.config, journal, process.paths.socket)
    assert done.returncode == 77
    assert "You may not connect to" in done.stdout


def test_the_daily_health_report_needs_no_file_and_one_goes_before_it(tmp_path: Path) -> None:
    assert load(tmp_path, "health").owner == "root"
    timer = (REPOSITORY / "units/lightagent-health.timer").read_text()
    assert "Unit=lightagent-prompt@health.service" in timer
    write(tmp_path / "prompts" / "health.toml", GOOD)
    assert load(tmp_path, "health").prompt == "check disk"
