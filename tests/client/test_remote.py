"""The way to another machine: what ssh is asked for, what it may fail with, and what a stranger may send.

ssh is a script here; tests/cli/test_hosts_ssh.py has the real one.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lightagentd import errors
from lightagentd.client.aio import AsyncClient
from lightagentd.client.blocking import Client
from lightagentd.client.remote import Remote, wrong_host
from tests.fake_ssh import GREETING, bridge, fake_ssh
from tests.left import GOING_S
from tests.prepared import REPOSITORY
from tests.scripted_daemon import Connection, ScriptedDaemon

HOSTS = (
    "web1",
    "admin@web1",
    "web-1.example.org",
    "ssh://admin@web1:2222",
    "192.0.2.7",
    "fe80::1%eth0",
    "[::1]",
)
NO_HOSTS = (
    *("", " ", "-oProxyCommand=touch x", "-", "a b", "web1;x", "web1\nweb2", "$(x)", "`x`", "a@-b", "-a@b"),
    *("@web", "web1/x", "x" * 256, "web\u0131", "ssh://-oProxyCommand=x", "a'b", "\x1b[2J"),
)


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder with ssh, first in $PATH."""
    folder = fake_ssh(tmp_path / "bin", "exit 255")
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


@pytest.fixture
def scripted(tmp_path: Path) -> ScriptedDaemon:
    return ScriptedDaemon(tmp_path / "control.sock")


def test_only_names_of_hosts_reach_ssh() -> None:
    assert [host for host in HOSTS if wrong_host(host)] == []
    assert [host for host in NO_HOSTS if not wrong_host(host)] == []


def test_ssh_is_asked_for_a_pipe_and_no_shell_sees_the_socket() -> None:
    argv = Remote(host="web1", socket="/a b';x", may_ask=False).argv()
    before = argv.index("--")
    assert argv[before:] == ["--", "web1", "lactl bridge --greet --socket '/a b'\"'\"';x'"]
    assert {"-T", "-a", "-x", "BatchMode=yes", "ConnectTimeout=10", "RemoteCommand=none"} <= set(
        argv[:before]
    )
    assert "BatchMode=yes" not in Remote(host="web1").argv()


async def test_both_clients_talk_through_it(ssh: Path, scripted: ScriptedDaemon) -> None:
    fake_ssh(ssh, bridge(scripted.path))
    scripted.answer("Manager.GetStatus", {"status": {"text": "x" * 1_000_000}})
    scripted.answer("Events.Subscribe", {"event": {"seq": 1}}, {"event": {"seq": 2}}, {"event": None})
    scripted.start()
    remote = Remote(host="web1")
    try:
        with Client(remote) as client:
            assert len(client.call("Manager.GetStatus", text="y" * 1_000_000)["status"]["text"]) == 1_000_000
            assert [one["event"] for one in client.stream("Events.Subscribe")][:2] == [{"seq": 1}, {"seq": 2}]
        async with AsyncClient(remote, timeout_s=60) as other:
            assert [one["event"] async for one in other.stream("Events.Subscribe")][1] == {"seq": 2}
    finally:
        scripted.stop()
    assert remote.uid == os.geteuid()


FAILURES = {
    "name": (
        "echo 'ssh: Could not resolve hostname x' >&2; exit 255",
        "DaemonUnreachable",
        "cannot be reached. ssh",
    ),
    "key": ("echo 'u@web1: Permission denied (publickey).' >&2; exit 255", "PermissionDenied", "(publickey)"),
    "host key": (
        "echo 'Host key verification failed.' >&2; exit 255",
        "PermissionDenied",
        "verification failed",
    ),
    "no lactl": (
        "echo 'sh: 1: lactl: not found' >&2; exit 127",
        "DaemonUnreachable",
        "There is no lactl on web1",
    ),
    "old lactl": ("echo 'There is no command bridge' >&2; exit 2", "DaemonUnreachable", "too old"),
    "no shell": ("echo 'no account' >&2; exit 1", "DaemonUnreachable", "status 1. ssh says: no account"),
    "login text": ("echo 'Welcome to web1!'; exec cat >/dev/null", "MalformedMessage", "'Welcome to web1!'"),
    "escapes": (r"printf '\033]0;x\007\0'; exec cat >/dev/null", "MalformedMessage", r"'\x1b]0;x\x07'"),
    "endless": ("exec yes", "MalformedMessage", "is not lactl: 'y'"),
    "deep": (
        "head -c 60000 /dev/zero | tr '\\0' '['; printf '\\0'; exec cat >/dev/null",
        "MalformedMessage",
        "not lactl",
    ),
    "silent": ("exec sleep 60", "TimedOut", "web1 did not answer in time"),
    "later": (
        r"""printf '{"lightagent": 2, "uid": 1}\0'; exec cat >/dev/null""",
        "MalformedMessage",
        "not lactl",
    ),
    "no daemon": (
        r"""printf '{"error":{"code":"daemon_unreachable","message":"Nothing answers."}}\0'""",
        "DaemonUnreachable",
        "On web1: Nothing answers.",
    ),
    "breaks": (
        f"{GREETING}; echo 'Connection reset' >&2; exit 255",
        "DaemonUnreachable",
        "broke. ssh says: Conn",
    ),
    "daemon ends": (f"{GREETING}; exit 0", "DaemonUnreachable", "The daemon on web1 closed the connection"),
    "garbage": (
        rf"{GREETING}; head -c1 >/dev/null; printf 'garbage\0'; exec cat >/dev/null",
        "MalformedMessage",
        "not JSON",
    ),
    "flood": (f"{GREETING}; head -c1 >/dev/null; exec yes", "MessageTooLarge", "larger than"),
}


@pytest.mark.parametrize("way", ["blocking", "async"])
async def test_a_failure_is_one_sentence(ssh: Path, way: str) -> None:
    async def ask(limit_s: float) -> None:
        if way == "async":
            async with AsyncClient(Remote(host="web1"), timeout_s=limit_s) as other:
                await other.call("Manager.GetStatus")
        else:
            with Client(Remote(host="web1"), timeout_s=limit_s) as client:
                client.call("Manager.GetStatus")

    for name, (script, kind, text) in FAILURES.items():
        fake_ssh(ssh, script)
        with pytest.raises(getattr(errors, kind)) as caught:
            await ask(0.5 if name == "silent" else 60.0)
        found = caught.value
        assert type(found) is getattr(errors, kind), name
        assert text in found.message, name
        assert len(found.message) < 500, name


def test_no_ssh_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with (
        pytest.raises(errors.DaemonUnreachable, match="ssh, which is not installed"),
        Client(Remote(host="web1")),
    ):
        pass


def start_bridge(*arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "lightagentd.cli.main", "bridge", *arguments],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )


def stays_silent(connection: Connection, call: dict[str, Any]) -> None:
    """Begin a stream as the daemon does: it outlives a half-closed connection, and ends with a closed one."""
    connection.reply({}, continues=True)
    hung_up = select.poll()
    hung_up.register(connection.sock, 0)
    hung_up.poll(60_000)


def test_the_bridge_passes_the_end_of_input_on_and_greeting_ends_both(scripted: ScriptedDaemon) -> None:
    scripted.answer("Manager.GetStatus", {"status": {}})
    scripted.start()
    try:
        call = json.dumps({"method": "org.lightagent1.Manager.GetStatus", "parameters": {}}).encode() + b"\0"
        with start_bridge("--socket", str(scripted.path)) as plain:
            out, _ = plain.communicate(call, timeout=60)
        assert json.loads(out[:-1]) == {"parameters": {"status": {}}}
        scripted.handle("Events.Subscribe", stays_silent)
        with start_bridge("--greet", "--socket", str(scripted.path)) as greeted:
            assert greeted.stdin is not None
            assert greeted.stdout is not None
            greeted.stdin.write(call.replace(b"Manager.GetStatus", b"Events.Subscribe"))
            greeted.stdin.flush()
            while b"continues" not in (said := os.read(greeted.stdout.fileno(), 1 << 16)):
                assert said
            greeted.stdin.close()
            assert greeted.wait(GOING_S) == 0
    finally:
        scripted.stop()


def test_the_bridge_says_why_there_is_no_connection(tmp_path: Path) -> None:
    with start_bridge("--greet", "--socket", str(tmp_path / "none.sock")) as bridge_process:
        out, _ = bridge_process.communicate(timeout=60)
    assert json.loads(out[:-1])["error"]["code"] == "daemon_unreachable"
    assert bridge_process.returncode == errors.DaemonUnreachable.exit_status


def test_ctrl_c_is_for_lactl_and_not_for_ssh(ssh: Path) -> None:
    ignored = "grep -q 'SigIgn:.*[2367abef]$' /proc/$$/status"  # the bit of SIGINT, see proc_pid_status(5)
    fake_ssh(ssh, f"{GREETING}; head -c1 >/dev/null; {ignored} && exit 255; exit 0")
    with Client(Remote(host="web1")) as client, pytest.raises(errors.DaemonUnreachable, match="broke"):
        client.call("Manager.GetStatus")
