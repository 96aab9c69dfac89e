"""`--host` and `--hosts`: other machines, groups of them, and what works there. ssh is a script here."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest

from lightagentd.cli import several
from lightagentd.cli.main import lactl as program
from lightagentd.cli.places import HERE, SEVERAL
from tests.cli.conftest import Lactl, environment, on_terminal, start
from tests.fake_ssh import GREETING, bridge, fake_ssh
from tests.prepared import REPOSITORY
from tests.scripted_daemon import ScriptedDaemon, session, status

Hosts = Callable[..., dict[str, ScriptedDaemon]]


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = fake_ssh(tmp_path / "bin", "exit 255")
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("LIGHTAGENT_SOCKET", "/nonexistent/control.sock")
    return folder


@pytest.fixture
def hosts(ssh: Path, tmp_path: Path) -> Iterator[Hosts]:
    """Makes scripted daemons on machines of these names; every other one cannot be reached."""
    made: dict[str, ScriptedDaemon] = {}

    def make(*names: str) -> dict[str, ScriptedDaemon]:
        for name in names:
            made[name] = ScriptedDaemon(tmp_path / f"{name}.sock")
            made[name].start()
        cases = "".join(f"{name}) {bridge(one.path)} ;;\n" for name, one in made.items())
        unknown = "*) echo 'ssh: Could not resolve hostname' >&2; exit 255 ;;"
        fake_ssh(ssh, f'case "$there" in\n{cases}{unknown}\nesac')
        return made

    yield make
    for one in made.values():
        one.stop()


def configured(text: str) -> Path:
    path = Path(os.environ["XDG_CONFIG_HOME"]) / "lightagent" / "lactl.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


ASKED = {"type": "approval_requested", "approval": "apr_0123456789abcdef", "tool": "file", "action": "write"}


def test_an_id_that_a_host_made_up_is_no_command_here(hosts: Hosts, lactl: Lactl) -> None:
    hosts("web1")["web1"].turn({**ASKED, "approval": "apr_1; touch x"})
    found = lactl("--hosts", "web1", "prompt", "ops", "x").out
    assert "lactl --host web1 approve 'apr_1; touch x'; refuse it" in found


def test_several_hosts_are_asked_at_once(hosts: Hosts, lactl: Lactl) -> None:
    made = hosts("web1", "web2", "web3")
    made["web1"].turn({"type": "done", "text": "# All is well. Nothing to do.\n\nmore"})
    made["web2"].turn({"type": "text_delta", "text": "I"}, {**ASKED}, {"type": "done", "text": "never seen"})
    made["web3"].turn({"type": "error", "code": "no_runbook", "message": "No runbook fits."})
    asked = ("--hosts", "web1,web2,web3,gone", "prompt", "ops", "check disk")
    found = lactl(*asked)
    assert (found.status, found.err) == (83, "")
    table, _, answers = found.out.partition("\n\n")
    rows = [line.split("\t") for line in table.splitlines()]
    assert [row[:2] for row in rows] == [
        ["web1", "done"],
        ["web2", "waits"],
        ["web3", "no_runbook"],
        ["gone", "daemon_unreachable"],
    ]
    assert rows[0][3] == "All is well."
    assert rows[1][3].startswith("apr_0123456789abcdef: Allow it with: lactl --host web2 approve apr_")
    assert answers.startswith("web1:\n# All is well. Nothing to do.\n\nmore\n")
    assert made["web1"].parameters("Sessions.Prompt") == {"agent": "ops", "text": "check disk"}

    one, two, three, gone = json.loads(lactl("--json", *asked).out)
    assert (one["host"], one["answer"][:6], one["session"]) == ("web1", "# All ", "ses_1")
    assert (two["waits_for"]["id"], two["answer"]) == ("apr_0123456789abcdef", "")
    assert (three["error"]["code"], gone["error"]["code"]) == ("no_runbook", "daemon_unreachable")


def test_a_host_that_takes_too_long_holds_nobody_up(lactl: Lactl, ssh: Path) -> None:
    asked = f"{GREETING}; head -c1 >/dev/null; printf '%s\\0'"
    done = '{"parameters":{"event":{"type":"done","text":"Well."}}}'
    begun = '{"continues":true,"parameters":{"event":{"type":"started","session":"ses_7"}}}'
    cases = f"web1) {asked} '{done}';;\nweb2) {asked} '{begun}';;\nsilent) exec sleep 60;;"
    fake_ssh(ssh, f'case "$there" in\n{cases}\nesac\nexec cat >/dev/null')
    found = lactl("--hosts", "web2,silent,web1", "prompt", "ops", "x", "--timeout", "2")
    rows = [line.split("\t") for line in found.out.splitlines()[:3]]
    assert [row[1] for row in rows] == ["timeout", "timeout", "done"]
    assert "it goes on in ses_7" in rows[0][3]
    assert "Wait for it: lactl --host web2 wait ses_7" in found.out
    assert found.status == 83


def test_so_many_are_asked_at_a_time(ssh: Path, lactl: Lactl, tmp_path: Path) -> None:
    running = tmp_path / "running"
    running.mkdir()
    count = f"mkdir {running}/$there; ls {running} | wc -l >>{tmp_path}/counts; sleep 0.05"
    fake_ssh(ssh, f"{count}; rmdir {running}/$there; exit 255")
    found = lactl("--json", "--hosts", ",".join(f"h{number}" for number in range(40)), "status")
    assert [one["host"] for one in json.loads(found.out)] == [f"h{number}" for number in range(40)]
    counts = [int(line) for line in (tmp_path / "counts").read_text().split()]
    assert len(counts) == 40
    assert max(counts) <= several.AT_ONCE


def test_the_status_of_several(hosts: Hosts, lactl: Lactl) -> None:
    made = hosts("web1", "web2")
    made["web1"].answer("Manager.GetStatus", {"status": status(problems=["The journal is full."])})
    made["web2"].answer("Manager.GetStatus", {"status": {}})  # as another version may answer
    found = lactl("--hosts", "web1,web2", "status")
    assert found.status == 83
    first, second = (line.split("\t") for line in found.out.splitlines()[:2])
    assert (first[1], first[3]) == ("done", "0.1.0, running, model runbook, turns: 1, waiting: 0")
    assert second[1] == "malformed_message"
    assert "The journal is full." in found.out


def test_ctrl_c_ends_the_turns_on_all_hosts(hosts: Hosts, tmp_path: Path) -> None:
    made = hosts("web1", "web2")
    begun = {"event": {"type": "started", "session": "ses_7", "trace_id": "trace_1"}}
    for one in made.values():
        one.handle("Sessions.Prompt", lambda connection, call: connection.reply(begun, continues=True))
        one.answer("Sessions.Cancel", {})
    env = environment(PATH=os.environ["PATH"])
    argv = ["--hosts", "web1,web2", "prompt", "ops", "x"]
    with start(argv, env=env, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while not all(one.calls for one in made.values()):
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    cancelled = [call["method"] for one in made.values() for call in one.calls[1:]]
    assert cancelled == ["Sessions.Cancel"] * 2


def test_groups(hosts: Hosts, lactl: Lactl) -> None:
    made = hosts("web1", "web2", "db1")
    for one in made.values():
        one.answer("Manager.GetStatus", {"status": status()})
    configured('[hosts]\nweb = ["web1", "web2"]\ndb = ["db1"]\n')
    for named, expected in (
        ("@web", "web1 web2"),
        ("web,db1", "web1 web2 db1"),
        ("web2,@web,@db", "web2 web1 db1"),
    ):
        found = lactl("--json", "--hosts", named, "status")
        assert " ".join(one["host"] for one in json.loads(found.out)) == expected
    found = lactl("--hosts", "@cache", "status")
    assert (found.status, "There are: db, web." in found.err) == (66, True)
    path = configured('[hosts]\nweb = ["web1"]\nall = ["web1", "@web"]\n')
    found = lactl("--hosts", "@all", "status")
    assert (found.status, f"{path}:3: '@web' is a group, and groups hold hosts alone." in found.err) == (
        78,
        True,
    )
    configured('[hosts]\nall = ["-oProxyCommand=x"]\n')
    assert f"{path}:2: '-oProxyCommand=x' is not a host" in lactl("--hosts", "@all", "status").err
    configured('[host]\nall = ["a"]\n')
    found = lactl("--hosts", "web1", "status")
    assert (found.status, "host" in found.err, str(path) in found.err) == (78, True, True)
    path.unlink()
    assert "There are none yet." in lactl("--hosts", "@web", "status").err


@pytest.mark.parametrize(
    "arguments",
    [
        ("--host", "", "panic"),
        ("--host", "-oProxyCommand=touch made", "status"),
        ("--hosts", "web1,-oProxyCommand=touch made", "status"),
        ("--hosts", "", "status"),
        ("--hosts", "web1,", "status"),
        ("--host", "web1", "--hosts", "web2", "status"),
        ("--hosts", "web1,web2", "chat", "ops"),
        ("--hosts", "web1", "prompt", "ops", "x", "--no-wait"),
        ("--hosts", "web1", "prompt", "ops", "x", "--session", "ses_1"),
        ("--host", "web1", "history", "--stored"),
        ("--host", "web1", "audit", "verify", "--state-dir", "/x"),
    ],
)
def test_what_makes_no_sense_starts_nothing(
    ssh: Path, lactl: Lactl, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    fake_ssh(ssh, f"touch {tmp_path}/made; exit 255")
    found = lactl(*arguments)
    assert (found.status, found.out) == (2, ""), found.err
    assert not (tmp_path / "made").exists()


def _commands(command: click.Command, path: str = "") -> Iterator[tuple[str, click.Command]]:
    if not isinstance(command, click.Group):
        yield path, command
        return
    with click.Context(command) as context:
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from _commands(inner, f"{path} {name}".strip())


def test_what_works_on_the_machine_itself_says_so(lactl: Lactl) -> None:
    every = dict(_commands(program))
    assert [name for name in (*HERE, *SEVERAL) if name not in every] == []
    for name in HERE:
        words = [
            word
            for one in every[name].params
            if one.required
            for word in ([one.opts[0], "x"] if isinstance(one, click.Option) else ["x"])
        ]
        found = lactl("--host", "web1", *name.split(), *words)
        assert (found.status, f"ssh web1 lactl {name}" in found.err) == (2, True), found.err


def test_the_list_in_the_manual_is_whole() -> None:
    text = (REPOSITORY / "docs/hosts.md").read_text()
    assert [name for name in HERE if f"`{name}`" not in text] == []


def test_another_machine_has_other_users(hosts: Hosts, ssh: Path, lactl: Lactl) -> None:
    """The agent's name means the session of the user who logged in there; users are told by numbers."""
    made = hosts("web1")["web1"]
    own, other = "ses_00000000000000aa", "ses_00000000000000bb"
    made.answer(
        "Sessions.List", {"sessions": [session(id=own, owner=4711), session(id=other, owner=os.geteuid())]}
    )
    made.answer("Sessions.Cancel", {})
    script = bridge(made.path).replace("exec ", "").replace("--greet ", "")
    fake_ssh(ssh, f"{GREETING}; {script}")
    assert lactl("--host", "web1", "cancel", "ops").status == 0
    assert made.parameters("Sessions.Cancel")["session"] == own


def test_errors_name_the_host_and_the_way_there(hosts: Hosts, lactl: Lactl) -> None:
    made = hosts("web1")["web1"]
    made.fail("Agents.List", "org.lightagent1.AuthorizationRequired", message="polkit wants a password.")
    assert "ssh -t web1 lactl" in lactl("--host", "web1", "agents", "list").err
    made.fail(
        "Agents.List", "org.lightagent1.NotFound", message="None.", suggestion="Run: lactl sessions list"
    )
    assert "Run: lactl --host web1 sessions list" in lactl("--host", "web1", "agents", "list").err
    made.answer("Agents.List", {"agents": [{"strange": 1}]})
    found = lactl("--host", "web1", "agents", "list")
    assert (found.status, "web1 answered what this lactl does not understand" in found.err) == (65, True)
    assert "Could not resolve" in lactl("--host", "gone", "doctor").out


def test_escape_sequences_of_a_host_reach_no_terminal(ssh: Path) -> None:
    fake_ssh(ssh, r"printf '\033]0;owned\007\033[2Jssh: \033[31mno\n' >&2; exit 255")
    found = on_terminal(["--hosts", "web1", "status"], env=environment(PATH=os.environ["PATH"], NO_COLOR="1"))
    assert "\x1b" not in found.out
    assert "owned" not in found.out
    assert re.search(r"web1 +daemon_unreachable", found.out)


def test_completion_knows_the_groups(ssh: Path, lactl: Lactl) -> None:
    configured('[hosts]\nweb = ["web1", "web2"]\n')
    env = environment(
        PATH=os.environ["PATH"],
        XDG_CONFIG_HOME=os.environ["XDG_CONFIG_HOME"],
        _LACTL_COMPLETE="bash_complete",
        COMP_WORDS="lactl --hosts w",
        COMP_CWORD="2",
    )
    with start([], env=env, stdout=subprocess.PIPE) as process:
        out, _ = process.communicate(timeout=60)
    assert [line.partition(",")[2] for line in out.decode().splitlines()] == ["web", "web1", "web2"]
