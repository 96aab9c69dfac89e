"""What `lactl doctor` looks at without a daemon: on a real file system, a real bus, and a real other user."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pwd
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from lightagentd.api import Finding
from lightagentd.bus.connection import connect
from lightagentd.doctor import Running, access, files, look, machine, models
from lightagentd.doctor.finding import AS_ROOT, GROUPS, merged, not_tried, note, ok, wrong
from lightagentd.host.paths import Paths
from tests.conftest import REPOSITORY, write
from tests.fake_systemd import private_bus


def named(findings: list[Finding], name: str) -> Finding:
    return next(finding for finding in findings if finding.name == name)


async def test_nothing_is_wrong_with_folders_that_are_as_they_should_be(paths: Paths) -> None:
    paths.state.mkdir(mode=0o700, parents=True)
    paths.runtime.mkdir(mode=0o755)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(paths.socket))
        paths.socket.chmod(0o660)
        found = await look(paths, None)
    mine = [one for one in found if one.group in ("socket", "configuration", "files", "models", "programs")]
    assert [one for one in mine if one.status == "wrong"] == []
    assert [one for one in found if one.status not in ("ok", "note") and not one.remedy] == []
    assert {one.group for one in found} <= set(GROUPS)
    assert [GROUPS.index(one.group) for one in found] == sorted(GROUPS.index(one.group) for one in found)


@pytest.mark.parametrize(
    ("broken", "name", "said", "remedy"),
    [
        ("nothing", "control socket", "is not there", "systemctl start lightagentd"),
        ("file", "control socket", "is no socket", "rm "),
        ("open", "control socket", "0666", "chmod 0660"),
    ],
)
async def test_a_control_socket_that_is_not_right(
    paths: Paths, broken: str, name: str, said: str, remedy: str
) -> None:
    paths.runtime.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as listener:
        if broken == "file":
            paths.socket.touch()
        elif broken == "open":
            listener.bind(str(paths.socket))
            paths.socket.chmod(0o666)
        found = access.control_socket(paths.socket)
    assert (found.name, found.status) == (name, "wrong")
    assert said in found.detail
    assert remedy in found.remedy


async def test_who_has_the_bus_name(paths: Paths) -> None:
    with private_bus() as address:
        write(paths.config / "lightagentd.toml", f'[daemon]\nbus = "{address.partition(",")[0]}"\n')
        assert named(await access.bus(paths, None), "bus name").status == "not_tried"
        nobody = named(await access.bus(paths, 1), "bus name")
        assert (nobody.status, "nobody has the name" in nobody.detail) == ("wrong", True)
        async with connect(address) as owner:
            await owner.request_name("org.lightagent1")
            assert named(await access.bus(paths, os.getpid()), "bus name").status == "ok"
            other = named(await access.bus(paths, 1), "bus name")
            assert (other.status, f"process {os.getpid()}" in other.detail) == ("wrong", True)
            left = named(await access.bus(paths, None), "bus name")
            assert (left.status, "nobody serves the control socket" in left.detail) == ("wrong", True)
    gone = named(await access.bus(paths, 1), "bus")
    assert gone.status in ("wrong", "note")  # a note where no systemd runs
    assert gone.remedy


async def test_the_bus_name_is_not_wrong_because_the_daemon_answers_nobody(paths: Paths) -> None:
    """Who listens on the control socket is known without an answer, and what cannot be told is not tried."""
    paths.runtime.mkdir(parents=True)
    with private_bus() as address:
        write(paths.config / "lightagentd.toml", f'[daemon]\nbus = "{address.partition(",")[0]}"\n')
        async with connect(address) as owner:
            await owner.request_name("org.lightagent1")
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(str(paths.socket))
                listener.listen(1)
                held = named(await access.bus(paths, None), "bus name")
                assert (held.status, held.detail) == ("ok", "org.lightagent1 belongs to the daemon")
                with contextlib.ExitStack() as waiting:
                    fill(paths.socket, waiting)
                    full = named(await access.bus(paths, None), "bus name")
                    assert (full.status, full.remedy) == ("not_tried", AS_ROOT)
                    assert "one more cannot" in full.detail
            paths.socket.unlink()
            argv = [sys.executable, "-c", LISTEN, str(paths.socket)]
            with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
                assert other.stdout is not None
                await asyncio.to_thread(other.stdout.readline)
                stolen = named(await access.bus(paths, None), "bus name")
                other.communicate()
            assert (stolen.status, f"the daemon is {other.pid}" in stolen.detail) == ("wrong", True)


def fill(path: Path, waiting: contextlib.ExitStack) -> None:
    """Connect to a socket until nobody else can."""
    while True:
        client = waiting.enter_context(socket.socket(socket.AF_UNIX))
        client.setblocking(False)
        try:
            client.connect(str(path))
        except BlockingIOError:
            return


LISTEN = """
import socket, sys
with socket.socket(socket.AF_UNIX) as listener:
    listener.bind(sys.argv[1])
    listener.listen()
    print("listens", flush=True)
    sys.stdin.read()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
async def test_a_key_that_is_closed_has_to_belong_to_the_daemon(paths: Paths) -> None:
    key = write(paths.config / "key", "secret\n")
    key.chmod(0o644)
    provider = f'[models.providers.x]\nbase_url = "https://x.example/v1"\napi_key_file = "{key}"\n'
    write(paths.config / "lightagentd.toml", provider)
    paths.state.mkdir(mode=0o700, parents=True)
    own = named(files.check(paths), f"key file {key}")
    assert own.remedy == f"Close it (chmod 600 {key}), and think about a new key."
    os.chown(paths.state, pwd.getpwnam("daemon").pw_uid, -1)
    given = named(files.check(paths), f"key file {key}")
    assert (given.status, given.remedy) == (
        "wrong",
        f"Close it (chown daemon {key}; chmod 600 {key}), and think about a new key.",
    )


def test_a_state_folder_that_is_a_link_is_named_with_what_works(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "lightagentd").symlink_to(tmp_path / "elsewhere")
    [found] = files.linked([tmp_path / "lightagentd", tmp_path / "elsewhere", tmp_path / "nothing"])
    assert (found.status, found.name) == ("wrong", "folder lightagentd")
    assert f"mount --bind {tmp_path}/elsewhere {tmp_path}/lightagentd" in found.remedy


async def test_a_broken_prompt_file_is_named(paths: Paths) -> None:
    write(
        paths.config / "prompts" / "daily.toml",
        'agent = "ops"\nprompt = "x"\nowner = "root"\nanswr = "journal"\n',
    )
    found = named(await look(paths, None), "prompt daily")
    assert found.status == "wrong"
    assert "answr" in found.detail
    assert "answer" in found.remedy


async def test_an_emergency_stop_is_seen_without_a_daemon(paths: Paths) -> None:
    write(paths.state / "panic", "")
    found = named(await look(paths, None), "emergency stop")
    assert (found.status, "lactl panic --off" in found.remedy) == ("note", True)


async def test_a_history_of_the_future_means_that_the_clock_was_set_back(paths: Paths) -> None:
    data = write(paths.history / "data.mdb", "")
    os.utime(data, (4_000_000_000, 4_000_000_000))
    assert named(await look(paths, None), "set back").status == "wrong"


def test_what_is_missing_is_named_with_its_package(
    monkeypatch: pytest.MonkeyPatch, paths: Paths, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = machine.check(paths)
    assert "bwrap" in named(found, "programs").detail
    assert "apt install bubblewrap util-linux xdg-dbus-proxy systemd" in named(found, "programs").remedy
    assert "iproute2" in named(found, "programs of reports").remedy


async def test_keys_that_only_the_daemon_has_are_not_tried_from_outside(paths: Paths) -> None:
    toml = """
[models]
default = "gone/model"
[models.providers.credential]
base_url = "https://x.example/v1"
api_key_file = "lightagentd.x"
[models.providers.variable]
base_url = "https://y.example/v1"
api_key_env = "NO_SUCH_VARIABLE"
"""
    write(paths.config / "lightagentd.toml", toml)
    found = await models.check(paths, in_daemon=False, reach=False)
    assert named(found, "credential, key").status == "not_tried"
    assert named(found, "variable, key").status == "not_tried"
    assert named(found, "default").status == "wrong"


async def test_certificates_that_cannot_be_used_are_named(paths: Paths) -> None:
    (paths.config / "der").write_bytes(b"0\x82\x03\xff")
    good = write(paths.config / "good.pem", "-----BEGIN CERTIFICATE-----\n")
    toml = f"""
[models.providers.x]
base_url = "https://x.example/v1"
ca_file = "{paths.config}/gone.pem"
client_cert = "{paths.config}/der"
client_key = "{good}"
"""
    write(paths.config / "lightagentd.toml", toml)
    found = await models.check(paths, in_daemon=True, reach=False)
    assert named(found, "x, ca_file").status == "wrong"
    assert "No such file" in named(found, "x, ca_file").detail
    assert "no PEM file" in named(found, "x, client_cert").detail
    assert "x, client_key" not in [one.name for one in found]


def test_of_two_answers_the_one_that_was_tried_and_then_the_worse_counts() -> None:
    inside = [
        ok("files", "a", "inside"),
        not_tried("files", "b", "inside"),
        wrong("files", "c", "inside", "mend it"),
        ok("bus", "d", "inside"),
    ]
    outside = [
        wrong("files", "a", "outside", "mend it"),
        ok("files", "b", "outside"),
        ok("files", "c", "outside"),
        not_tried("bus", "d", "outside"),
        note("units", "e", "outside", "look"),
    ]
    found = merged(inside, outside)
    assert [(one.name, one.detail) for one in found] == [
        ("d", "inside"),
        ("e", "outside"),
        ("a", "outside"),
        ("b", "outside"),
        ("c", "inside"),
    ]


LOOK = """
import asyncio, json, os, sys
from dataclasses import asdict
from pathlib import Path
from lightagentd.doctor import look
from lightagentd.host.paths import Paths
folder = Path(sys.argv[1])
warm = Paths(config=folder / "none", state=folder / "none", runtime=folder / "none")
asyncio.run(look(warm, None))  # loads what the other user may not read
os.setgroups([]); os.setresgid(54321, 54321, 54321); os.setresuid(54321, 54321, 54321)
paths = Paths(config=folder / "etc", state=folder / "state", runtime=folder / "run")
print(json.dumps([asdict(one) for one in asyncio.run(look(paths, None))]))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_what_an_ordinary_user_may_not_see_is_not_tried() -> None:
    with tempfile.TemporaryDirectory(prefix="la") as name:
        base = Path(name)
        base.chmod(0o755)
        write(base / "state" / "history" / "data.mdb", "")
        (base / "state").chmod(0o700)
        write(base / "etc" / "lightagentd.toml", "").chmod(0o600)
        argv = [sys.executable, "-c", LOOK, name]
        done = subprocess.run(argv, cwd=REPOSITORY, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    found = [Finding(**each) for each in json.loads(done.stdout)]
    unseen = {one.name: one.remedy for one in found if one.status == "not_tried"}
    assert {"configuration", "history's folder", "history's file", "emergency stop", "set back"} <= set(
        unseen
    )
    assert all(unseen.values())


async def test_a_daemon_that_is_said_to_run_is_looked_for_in_the_journal(paths: Paths) -> None:
    found = await look(paths, Running(pid=1, seq=1))
    journal = [one for one in found if one.group == "journal"]
    assert journal
    assert all(one.status in ("ok", "note") or one.remedy for one in journal)
