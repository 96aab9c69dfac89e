"""`lactl --host` with real parts: two network namespaces with an sshd each, and a daemon behind each."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lightagentd.host.paths import Paths
from tests.cli.conftest import Finished, finish, start
from tests.conftest import DaemonProcess
from tests.left import GOING_S
from tests.ssh_hosts import SshHosts, missing


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshHosts]:
    if why := missing():
        if os.environ.get("CI") and os.geteuid() == 0:
            pytest.fail(why)
        pytest.skip(why)
    daemons = {}
    for name in ("web1", "web2"):
        base = tmp_path_factory.mktemp(name)
        daemons[name] = DaemonProcess(Paths(config=base / "etc", state=base / "state", runtime=base / "run"))
        daemons[name].spawn()
    try:
        for one in daemons.values():
            one.until_serving()
        sockets = {name: one.paths.socket for name, one in daemons.items()}
        with SshHosts(tmp_path_factory.mktemp("ssh"), sockets) as made:
            yield made
    finally:
        for one in daemons.values():
            one.close()


def lactl(hosts: SshHosts, *arguments: str, stdin: bytes = b"") -> Finished:
    return finish(arguments, stdin, hosts.env)


def test_each_host_has_its_own_sessions(hosts: SshHosts) -> None:
    made = [lactl(hosts, "--host", name, "prompt", "-q", "ops", "uptime") for name in ("web1", "web2")]
    assert [one.status for one in made] == [0, 0], made
    assert "up for" in made[0].out
    sessions = [
        lactl(hosts, "--json", "--host", name, "sessions", "list") for name in ("web1", "ssh://web2:22")
    ]
    first, second = (json.loads(one.out) for one in sessions)
    assert len(first) == len(second) == 1
    assert first[0]["id"] != second[0]["id"]


def test_both_at_once_and_one_that_is_not_there(hosts: SshHosts) -> None:
    found = lactl(hosts, "--json", "--hosts", "web1,web2,nowhere.invalid", "prompt", "ops", "uptime")
    first, second, gone = json.loads(found.out)
    assert (first["ended"], second["ended"], gone["ended"]) == ("done", "done", "daemon_unreachable")
    assert "up for" in first["answer"]
    assert found.status == 83


def test_ssh_says_why_it_refuses(hosts: SshHosts) -> None:
    found = lactl(hosts, "--host", "stranger", "--no-ask-password", "status")
    assert (found.status, found.out) == (77, "")
    assert "stranger cannot be reached. ssh says:" in found.err
    assert "Permission denied (publickey" in found.err
    found = lactl(hosts, "--host", "web1", "--socket", "/no'where", "status")
    assert (found.status, "On web1: Nothing answers on /no'where" in found.err) == (69, True)


def test_nothing_stays_there_when_a_stream_is_killed(hosts: SshHosts) -> None:
    env = hosts.env | {"PYTHONUNBUFFERED": "1"}
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with start(["--host", "web2", "events", "--follow", "--since", "1"], env=env, **streams) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        assert _bridges(hosts)
        process.kill()
    end_s = time.monotonic() + GOING_S
    while (there := _bridges(hosts)) and time.monotonic() < end_s:
        time.sleep(0.02)
    assert there == []


def _bridges(hosts: SshHosts) -> list[str]:
    """The processes of lactl on the hosts: their sockets are named in the environment that sshd gave them."""
    found, path = [], str(hosts.bin.parent / "there").encode()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (
                path in (process / "environ").read_bytes()
                and b"\0bridge\0" in (process / "cmdline").read_bytes()
            ):
                found.append(process.name)
    return found
