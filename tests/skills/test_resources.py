"""What the areas of space, mounts, ports, processes, load, memory and permissions find, from given tables."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lightagentd.toolkit.proc import survey as surveys
from lightagentd.toolkit.proc.procfs import STATES
from lightagentd.toolkit.proc.survey import survey
from tests.skills.library import module
from tests.skills.script import finding, report
from tests.worker.running import wait_until

mounts, space, ports = module("areas.mounts"), module("areas.space"), module("areas.ports")
processes, memory = module("areas.processes"), module("areas.memory")
permissions, procfs = module("areas.permissions"), module("procfs")

MOUNTINFO = """
21 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw,errors=remount-ro
22 21 0:20 / /proc rw,nosuid - proc proc rw
30 21 0:31 / /run/netns/blue rw - nsfs nsfs rw
31 21 254:1 /srv/src /srv/ro ro,relatime shared:1 - ext4 /dev/vda1 rw,errors=remount-ro
32 21 254:2 / /var/with\\040blank rw,relatime - ext4 /dev/vda2 ro
33 21 0:40 / /mnt/nas rw - nfs4 nas:/export rw,vers=4.2
34 21 7:1 / /snap/core/1 ro - squashfs /dev/loop1 ro
35 21 0:50 / /srv/asked ro - tmpfs tmpfs ro
""".replace("\\\\", "\\")
FSTAB = """
# <file system> <mount point> <type> <options> <dump> <pass>
/dev/vda1 / ext4 errors=remount-ro 0 1
/dev/vda2 /var/with\\040blank ext4 defaults 0 2
tmpfs /srv/asked tmpfs ro 0 0
UUID=1 /srv/gone ext4 defaults 0 2
UUID=2 /srv/later ext4 noauto 0 2
UUID=3 none swap sw 0 0
""".replace("\\\\", "\\")


def test_a_mount_is_told_by_its_own_mount_point_and_mode(tmp_path: Path) -> None:
    entries = mounts.parsed(MOUNTINFO)
    (tmp_path / "fstab").write_text(FSTAB)
    wanted = mounts.fstab(str(tmp_path / "fstab"))
    assert [entry.folder for entry in mounts.unexpected_read_only(entries, wanted)] == [
        "/srv/ro",
        "/var/with blank",
    ]
    assert [each.folder for each in mounts.unmounted(entries, wanted)] == ["/srv/gone"]
    on = mounts.holding("/srv/ro/file", entries)
    assert (on.folder, on.is_bind, on.mode, on.root) == ("/srv/ro", True, "read-only", "/srv/src")
    assert mounts.holding("/srv/rocket", entries).folder == "/"
    told = [
        mounts.read_only_sentence(mounts.holding(path, entries), wanted)
        for path in ("/srv/ro", "/var/with blank")
    ]
    assert ["until `mount -o remount,rw /srv/ro`" in told[0], "the kernel does that" in told[1]] == [
        True,
        True,
    ]
    assert [entry.folder for entry in entries if entry.is_network] == ["/mnt/nas"]


@pytest.mark.parametrize(
    ("numbers", "tight", "said"),
    [
        ((1000, 990, 10, 10, 100, 50), True, "99 % full"),
        ((1000, 500, 500, 500, 100, 1), True, "out of inodes: 99 % used, 1 of 100 inodes left"),
        ((1000, 500, 500, 500, 0, 0), False, "50 % full"),
        ((100 << 30, 95 << 30, 0, 5 << 30, 100, 50), True, "5.0 GiB more are reserved for root"),
        ((10 << 40, 9 << 40, 1 << 40, 1 << 40, 100, 50), False, "90 % full"),
    ],
)
def test_a_file_system_is_short_of_bytes_or_of_inodes(
    numbers: tuple[int, ...], tight: bool, said: str
) -> None:
    each = space.Filesystem(mounts.parsed(MOUNTINFO)[0], *numbers)
    assert each.is_tight is tight
    assert said in each.state


def test_file_systems_are_measured_with_those_in_memory_and_without_those_of_no_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A full tmpfs leads, and the mount of a network namespace is no file system that could not be read."""
    table = """
21 1 254:1 / / rw shared:1 - ext4 /dev/vda1 rw
30 21 0:4 net:[4026532300] /run/netns/blue rw shared:2 - nsfs nsfs rw
31 21 0:50 / /srv/cache rw - tmpfs tmpfs rw
32 21 0:51 / /home/far rw - nfs4 nas:/export rw
"""
    blocks = {"/": (1000, 500), "/srv/cache": (1000, 0)}

    def measured(entry: Any, folder: str) -> Any:
        size, free = blocks[folder]
        numbers = {"f_blocks": size, "f_bfree": free, "f_bavail": free, "f_frsize": 4096}
        return SimpleNamespace(**numbers, f_files=100, f_ffree=90, f_favail=90)

    monkeypatch.setattr(mounts, "table", lambda: mounts.parsed(table))
    monkeypatch.setattr(space, "_own_table", lambda: table.partition("32 21")[0])
    monkeypatch.setattr(space, "_measured", measured)
    found, notes = space.filesystems()
    assert [each.folder for each in found] == ["/srv/cache", "/"]
    assert [each.is_tight for each in found] == [True, False]
    assert space.full_sentence(found[0]).startswith("/srv/cache")
    assert notes == ["The file system at /home/far (nfs4) cannot be measured from here."]


def test_a_script_with_a_survey_sees_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "gone").open("w") as held:
        held.write("x" * 5000)
        held.flush()
        sleeper = subprocess.Popen(["sleep", "60"], stdin=held, stdout=subprocess.DEVNULL)
    (tmp_path / "gone").unlink()
    try:
        (tmp_path / "survey").write_text(survey(0))
        text = report("deleted-files", path=str(tmp_path), survey=tmp_path / "survey")
    finally:
        sleeper.kill()
        sleeper.wait()
    said = (
        f"1 deleted file below {tmp_path} is still open and keeps 8.0 KiB, held by sleep (pid {sleeper.pid})"
    )
    assert said in finding(text)
    hidden = {"pid_namespace": "pid:[1]", "processes": [
        {"pid": 7, "ppid": 1, "name": "a", "state": "S", "uid": 0, "memory_bytes": 0, "descriptors": None}
    ]}  # fmt: skip
    (tmp_path / "survey").write_text(json.dumps(hidden))
    text = report("deleted-files", survey=tmp_path / "survey")
    assert "in the processes that can be seen from here, which are not all" in finding(text)
    assert "What 1 process of other users hold open could not be seen." in text


def entry(text: str, **fields: str) -> dict[str, str]:
    return {"MESSAGE": text, "__REALTIME_TIMESTAMP": "1700000000000000", "_TRANSPORT": "kernel", **fields}


CGROUP_KILL = (
    "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=x.service,mems_allowed=0,"
    "oom_memcg=/system.slice/x.service,task_memcg=/system.slice/x.service,task=python3,pid=7,uid=0",
    "Memory cgroup out of memory: Killed process 7 (python3) total-vm:90000kB, anon-rss:65536kB,"
    " file-rss:0kB, shmem-rss:0kB, UID:0 pgtables:180kB oom_score_adj:0",
    "x.service: A process of this unit has been killed by the OOM killer.",
)
MACHINE_KILL = (
    "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,"
    "task_memcg=/system.slice/y.service,task=java,pid=8,uid=5",
    "Out of memory: Killed process 8 (java) total-vm:9kB, anon-rss:1048576kB, file-rss:0kB, UID:5",
)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (CGROUP_KILL, "python3 (pid 7) of x.service was killed for lack of memory"),
        (CGROUP_KILL, "the limit of x.service was reached, not the machine's; it had 64.0 MiB."),
        (MACHINE_KILL, "of y.service was killed for lack of memory"),
        (MACHINE_KILL, "the whole machine had none left; it had 1.0 GiB."),
        (CGROUP_KILL[2:], "A process of x.service was killed for lack of memory"),
        (
            ("Killed /system.slice/z.service due to memory pressure for /system.slice being 80% > 50%",),
            "z.service",
        ),
    ],
)
def test_a_kill_for_lack_of_memory_is_told_once_with_what_was_reached(
    lines: tuple[str, ...], said: str
) -> None:
    [kill] = memory.parsed([entry(line) for line in lines])
    assert said in memory.kill_sentence(kill)


def test_words_that_anybody_may_write_are_no_kill() -> None:
    forged = entry(MACHINE_KILL[1], _TRANSPORT="syslog", SYSLOG_IDENTIFIER="kernel", _UID="1000")
    assert not memory._is_trusted(forged)


@pytest.mark.parametrize(
    ("line", "port"),
    [
        ("bind() to 0.0.0.0:80 failed (98: Address already in use)", 80),
        ("listen tcp :9090: bind: address already in use", 9090),
        ("Error: listen EADDRINUSE: address already in use :::3000", 3000),
        ("could not bind IPv4 address [127.0.0.1]:5432: Address already in use", 5432),
        ("Cannot listen on port 8080: Address already in use", 8080),
        ("OSError: [Errno 98] Address already in use", 0),
    ],
)
def test_the_port_of_a_conflict_is_found(line: str, port: int) -> None:
    assert ports.port_of(line) == port


def test_processes_that_stay_zombies_or_are_stopped_are_named() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", "import os,time\nif os.fork():\n time.sleep(60)\n"], stdout=subprocess.DEVNULL
    )
    stopped = subprocess.Popen(["sleep", "61"])
    stopped.send_signal(signal.SIGSTOP)
    try:
        wait_until(lambda: any(each.ppid == parent.pid for each in processes.lasting("Z", 0)), "no zombie")
        groups = dict(processes.by_parent(processes.lasting("Z", 0.01)))
        assert f"(pid {parent.pid})" in processes.zombie_sentence(parent.pid, groups[parent.pid])
        wait_until(lambda: (found := processes.procfs.stat(stopped.pid)) and found.state == "T", "it runs")
        if not processes.procfs.stat(stopped.pid).tty:
            assert stopped.pid in [each.pid for each in processes.stopped()]
    finally:
        for each in (parent, stopped):
            each.kill()
            each.wait()


@pytest.mark.parametrize(("letter", "word"), sorted(STATES.items()))
def test_a_state_of_the_survey_is_the_letter_of_proc(
    letter: str, word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = {"name": "a", "state": word, "ppid": 1, "memory_bytes": 0}
    monkeypatch.setattr(procfs, "_is_elsewhere", lambda: True)
    monkeypatch.setattr(procfs, "surveyed", lambda: {7: row})
    assert procfs.stat(7).state == letter


def test_modes_that_are_too_wide_are_found(tmp_path: Path) -> None:
    for name, mode in (
        ("etc/open", 0o666),
        ("etc/fine", 0o644),
        ("etc/shadow", 0o644),
        ("etc/ssh/ssh_host_rsa_key", 0o644),
        ("etc/ssh/ssh_host_rsa_key.pub", 0o644),
        ("usr/bin/evil", 0o4755),
        ("usr/bin/bash", 0o4755),
        ("etc/resolv.conf", 0o600),
        ("home/alice/.ssh/id_rsa", 0o640),
        ("home/alice/.ssh/id_rsa.pub", 0o644),
        ("home/alice/.ssh/authorized_keys", 0o666),
        ("etc/app/site.key", 0o644),
        ("etc/app/closed.key", 0o640),
        ("etc/app/public.pem", 0o644),
        ("srv/shared/any", 0o666),
        ("srv/own/any", 0o666),
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("-----BEGIN PRIVATE KEY-----" if path.suffix == ".key" else "x")
        path.chmod(mode)
    found = permissions.world_writable(permissions.Walk(time.monotonic() + 60), str(tmp_path))
    assert [fault.path for fault in found] == [f"{tmp_path}/etc/open"]
    assert {fault.path.removeprefix(f"{tmp_path}/") for fault in permissions.keys(str(tmp_path))} == {
        "etc/shadow",
        "etc/ssh/ssh_host_rsa_key",
        "home/alice/.ssh/id_rsa",
        "home/alice/.ssh/authorized_keys",
        "etc/app/site.key",
    }
    (tmp_path / "srv/shared").chmod(0o1777)
    walk = permissions.Walk(time.monotonic() + 60)
    assert [one.path for one in permissions.open_below(walk, f"{tmp_path}/srv")] == [
        f"{tmp_path}/srv/own/any"
    ]
    said = finding(report("permissions-check", path=f"{tmp_path}/etc/open"))
    assert f"{tmp_path}/etc/open (0666 root:root) can be written by everybody; it is a file that" in said
    said = finding(report("permissions-check", path=f"{tmp_path}/etc"))
    assert f"; everybody may write {tmp_path}/etc/open (0666 root:root)." in said
    found = permissions.suid(permissions.Walk(time.monotonic() + 60), str(tmp_path))
    assert sorted(fault.sentence.removeprefix(f"{tmp_path}/usr/bin/") for fault in found) == [
        "bash (4755 root:root) is SUID: whoever starts it can do anything as root.",
        "evil (4755 root:root) is SUID and belongs to no package.",
    ]
    (tmp_path / "tmp").mkdir(mode=0o755)
    assert [fault.path.removeprefix(str(tmp_path)) for fault in permissions.narrow(str(tmp_path))] == [
        "/etc/resolv.conf",
        "/tmp",
    ]


def test_the_way_to_a_path_tells_where_others_are_stopped(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o750)
    (closed / "file").write_text("x")
    (closed / "file").chmod(0o644)
    tmp_path.chmod(0o755)
    text = finding(report("permissions-check", path=str(closed / "file")))
    assert "(0644 root:root) is a file that everybody may read and only root may write; but only" in text
    assert any(
        f"may pass {folder}" in text for folder in (closed, *closed.parents)
    )  # the first that is closed
    said = finding(report("permissions-check", path=str(closed / "nothing/below")))
    assert f"/nothing/below does not exist; {closed} (0750 root:root) is a folder that only root may" in said


def test_a_client_of_a_port_is_told_from_a_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(server.getsockname()):
            said = finding(report("who-uses", port=str(port)))
            assert "it listens on it" in said
            assert f"(pid {os.getpid()}) is connected to it" in said or " is connected to it." in said
        near = finding(report("listening-ports", port=str(port + 1 if port < 65535 else port - 1)))
    assert f"the nearest: {port} (" in near or "is open" in near


def test_processes_of_a_name_and_of_nobody() -> None:
    with subprocess.Popen(["sleep", "33"]) as sleeper:
        text = report("process-check", user="sleep")
        sleeper.kill()
    assert f"| {sleeper.pid} |" in text
    assert "No process of a user no-such runs" in finding(report("process-check", user="no-such"))


@pytest.mark.parametrize(
    ("program", "good"), [("sleep 9", False), ("echo 'Stale file handle' >&2", False), ("true", True)]
)
def test_a_file_system_that_does_not_answer_holds_up_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, good: bool
) -> None:
    """No server can be had that dies while it is mounted, so the command that asks it is a fake."""
    (tmp_path / "stat").write_text(f"#!/bin/sh\n{program.replace('sleep', 'exec sleep')}\n")
    (tmp_path / "stat").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert mounts.answers("/", 5.0 if program != "sleep 9" else 0.2) is good


def test_names_that_others_choose_make_no_lines_of_their_own(tmp_path: Path) -> None:
    hostile = tmp_path / "a\n**All is well.**\x1b[2J"
    hostile.mkdir()
    (hostile / "b").write_bytes(bytes(3 << 20))
    name = "import ctypes, time; ctypes.CDLL(None).prctl(15, b'x\\n**Fine**', 0, 0, 0); print(1, flush=True);"
    with (hostile / "b").open() as held:
        process = subprocess.Popen(
            [sys.executable, "-c", name + "time.sleep(60)"], stdin=held, stdout=subprocess.PIPE
        )
    assert process.stdout is not None
    process.stdout.readline()
    try:
        (hostile / "gone").write_bytes(bytes(3 << 20))
        texts = [report("disk-check", path=str(tmp_path)), report("who-uses", path=str(tmp_path))]
        (hostile / "b").unlink()
        texts.append(report("deleted-files", path=str(tmp_path)))
        texts.append(report("process-check", pid=str(process.pid)))
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    for text in texts:
        assert "\x1b" not in text
        assert not [line for line in text.splitlines()[1:] if line.startswith("**")], text


@pytest.mark.parametrize(
    ("cgroup", "unit"),
    [
        ("/system.slice/nginx.service", "nginx.service"),
        ("/system.slice/docker-1f.scope/init", "docker-1f.scope"),
        ("/user.slice/user-1000.slice/user@1000.service/app.slice/nginx.service", "user@1000.service"),
        (
            "/machine.slice/systemd-nspawn@a.service/payload/system.slice/ssh.service",
            "systemd-nspawn@a.service",
        ),
        ("/user.slice/user-1000.slice/session-2.scope", "session-2.scope"),
        ("/../\x1b[2Ja.service", "[2Ja.service"),
    ],
)
def test_the_unit_of_a_process_is_the_systems(
    monkeypatch: pytest.MonkeyPatch, cgroup: str, unit: str
) -> None:
    """A person can call a unit, or a cgroup of their own, as a service of the system is called."""
    monkeypatch.setattr(module("procfs"), "proc", lambda pid, what: f"0::{cgroup}\n")
    assert module("procfs").unit_of(1) == unit


def test_in_a_container_its_own_cgroup_is_no_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    own = "0::/machine.slice/systemd-nspawn@a.service/payload"
    groups = {
        1: f"{own}/init.scope\n",
        7: f"{own}/system.slice/nginx.service\n",
        8: "0::/../other.scope\n",
        9: f"{own}\n",
    }
    monkeypatch.setattr(procfs, "proc", lambda pid, what: groups[pid])
    units = [procfs.unit_of(pid) for pid in groups]
    assert units == ["init.scope", "nginx.service", "other.scope", "systemd-nspawn@a.service"]
    monkeypatch.setattr(surveys, "_lines", lambda path: groups[int(path.split("/")[2])].splitlines())
    assert [surveys._unit(pid, [own]) for pid in groups] == units


MIB = 1 << 20


def process(pid: int, resident_bytes: int, *, age_s: float = 600.0, ppid: int = 1) -> Any:
    """A process as it is 1,000 s after boot."""
    return procfs.Stat(pid, f"p{pid}", "S", ppid, 0, 0.0, 1000.0 - age_s, resident_bytes)


@pytest.mark.parametrize(
    ("mib", "grown_mib", "age_s", "is_leak"),
    [
        (3000, 10, 600.0, True),  # 5 MiB a second for 10 minutes
        (300, 10, 600.0, False),  # it has begun just now
        (3000, 1, 600.0, False),
        (3000, 0, 600.0, False),
        (3000, -10, 600.0, False),
        (100, 10, 10.0, False),  # it starts
        (100, 10, 40.0, True),
    ],
)
def test_a_process_that_has_just_begun_to_grow_is_no_leak(
    mib: int, grown_mib: int, age_s: float, is_leak: bool
) -> None:
    before = [process(7, (mib - grown_mib) * MIB, age_s=age_s)]
    found = memory.growing(before, [process(7, mib * MIB, age_s=age_s)], 2.0, 1000.0)
    assert [(rate, each.pid) for rate, each in found] == ([(grown_mib * MIB // 2, 7)] if is_leak else [])


def test_the_process_that_grows_most_comes_first_and_one_that_took_a_pid_over_did_not_grow() -> None:
    before = [process(pid, 1000 * MIB) for pid in (7, 8)] + [process(9, MIB, age_s=900.0)]
    after = [process(7, 1010 * MIB), process(8, 1020 * MIB), process(9, 1000 * MIB), process(10, 2000 * MIB)]
    assert [each.pid for _, each in memory.growing(before, after, 10.0, 1000.0)] == [8, 7]


def test_this_process_is_no_leak_while_nothing_is_measured() -> None:
    """From the real /proc, over a time that is made up: nothing of it grows by so much."""
    now = procfs.stats()
    assert os.getpid() in [each.pid for each in now]
    assert memory.growing(now, now, 1.0, time.clock_gettime(time.CLOCK_BOOTTIME)) == []


@pytest.mark.parametrize(
    ("argv", "is_daemon"),
    [
        (["/usr/bin/python3", "-P", "/usr/bin/lightagentd", "--folder=/x"], True),
        (["python", "-m", "lightagentd"], True),
        (["/opt/bin/lightagentd"], True),
        (["python", "-m", "lightagentd.worker.keeper"], False),
        (["vi", "lightagentd.conf"], False),
        ([""], False),
    ],
)
def test_the_daemon_is_known_by_how_it_was_started(argv: list[str], is_daemon: bool) -> None:
    assert procfs.is_daemon(argv) is is_daemon


def test_what_the_daemon_started_is_its_own_with_a_unit_and_without(monkeypatch: pytest.MonkeyPatch) -> None:
    """No process of the daemon is named as one that has much memory."""
    rows = [process(5, MIB), process(6, 9 * MIB, ppid=5), process(7, 9 * MIB, ppid=6), process(8, 3 * MIB)]
    rows += [process(9, 9 * MIB), process(10, 9 * MIB)]
    known = {each.pid: each for each in [*rows, process(1, MIB, ppid=0)]}
    files = {
        (5, "cmdline"): "/usr/bin/python3\0-m\0lightagentd\0",
        (9, "cgroup"): "0::/system.slice/lightagentd.service\n",
        (10, "cgroup"): "0::/system.slice/system-lightagent.slice/lightagent-worker@a.service\n",
    }
    monkeypatch.setattr(procfs.os, "getpid", lambda: 7)
    monkeypatch.setattr(procfs, "stat", known.get)
    monkeypatch.setattr(procfs, "stats", lambda: rows)
    monkeypatch.setattr(procfs, "proc", lambda pid, what: files.get((pid, what), ""))
    monkeypatch.setattr(procfs, "user_of", lambda pid: "root")
    procfs.daemon.cache_clear()
    try:
        assert memory.by_unit() == [(3 * MIB, "user root", 1)]
    finally:
        procfs.daemon.cache_clear()


@pytest.mark.parametrize("name", ["disk-check", "mount-check", "permissions-check", "who-uses"])
def test_a_path_of_a_dead_server_is_told_and_not_touched(tmp_path: Path, name: str) -> None:
    """The table of the machine is made up: no server can be had that dies while it is mounted."""
    table = f"1 1 0:40 / {tmp_path} rw - nfs4 nas:/export rw"
    (tmp_path / "survey").write_text(json.dumps({"mounts": table, "processes": []}))
    (tmp_path / "stat").write_text("#!/bin/sh\necho 'Stale file handle' >&2\nexit 1\n")
    (tmp_path / "stat").chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    text = report(name, path=f"{tmp_path}/file", survey=tmp_path / "survey", search_path=path)
    assert f"{tmp_path} (nfs4 from nas:/export) does not answer" in (
        text if name == "who-uses" else finding(text)
    )


def test_no_user_makes_the_state_of_the_machine_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    procfs = module("procfs")
    many = [
        procfs.Socket("tcp", "127.0.0.1", port, "", 0, "listen", 1000, port) for port in range(1024, 60_000)
    ]
    monkeypatch.setattr(procfs, "sockets", lambda: [*many, replace(many[0], port=22, uid=0)])
    found = module("machine_state").ports()
    assert (len(found), found["tcp 127.0.0.1:22"]) == (1000, "root")
