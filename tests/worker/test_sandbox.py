"""The sandbox, with the model as the attacker: what the system looks like after commands that misbehave.

The file runs as whoever runs the tests. As root, its last test runs it again as an ordinary user.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from lightagentd.errors import TimedOut
from lightagentd.host.paths import Paths
from lightagentd.tool import Effect
from lightagentd.worker import sandbox
from lightagentd.worker.leftovers import Ends
from lightagentd.worker.pool import Pool, WorkerProcess
from tests.worker.attacks import (
    FAMILIES,
    INTERFERE,
    KILL_ALL,
    LEAVERS,
    SEND,
    SYSCALLS,
    THROWAWAY_USER,
    UNIX,
    WRITES,
    arrived,
    bystander,
    listeners,
    look,
    send_command,
)
from tests.worker.conftest import CONFINED
from tests.worker.running import events, marked, marker, shell, until

REPOSITORY = Path(__file__).resolve().parents[2]
ROOT = os.geteuid() == 0
in_module_loop = pytest.mark.asyncio(loop_scope="module")
here = pytest.mark.parametrize("pool", ["this_kernel"], indirect=True)
"""For what an older kernel does in the same way."""


@here
@pytest.mark.parametrize("effect", CONFINED)
@pytest.mark.parametrize("attack", WRITES)
@in_module_loop
async def test_nothing_can_be_written(
    pool: Pool, pool_paths: Paths, victims: Path, attack: str, effect: Effect
) -> None:
    places = [victims, pool_paths.config, pool_paths.state, pool_paths.runtime]
    (pool_paths.state / "file").write_text("history")
    kept = pool_paths.runtime / "kept"  # the daemon's own, which keeps the output of these commands there
    before = [look(place, apart_from=kept) for place in places]
    public = [Path(name) for name in ("/tmp", "/var/tmp", "/dev/shm", "/run", str(Path.home()))]
    await shell(pool, ";".join(f"T={place}; {WRITES[attack]}" for place in places), effect)
    name = f"la-{os.urandom(6).hex()}"
    for place in public:
        command = WRITES[attack].replace("$T/", f"$T/{name}-")
        if "$T " not in command and "$T;" not in command:  # not the shared folder itself
            await shell(pool, f"T={place}; {command}", effect)
    assert [look(place, apart_from=kept) for place in places] == before
    for place in public:
        with contextlib.suppress(PermissionError, FileNotFoundError):
            assert list(place.glob(f"{name}*")) == []


@in_module_loop
async def test_only_the_scratch_folder_is_writable(pool: Pool, pool_paths: Paths) -> None:
    places = [pool_paths.state, pool_paths.runtime, pool_paths.config, Path.home(), sandbox.SCRATCH]
    names = [
        "/",
        "/run",
        "/run/systemd",
        "/dev",
        "/dev/shm",
        "/tmp",
        "/var/tmp",
        "/proc",
        "/sys",
        *map(str, places),
    ]
    said = await shell(pool, f"for p in {' '.join(names)}; do test -w $p && echo $p; done; true")
    assert said.split() == [str(sandbox.SCRATCH)]


@here
@pytest.mark.parametrize("effect", CONFINED)
@in_module_loop
async def test_the_scratch_folder_can_be_written_and_is_empty_for_the_next_call(
    pool: Pool, effect: Effect
) -> None:
    above = sandbox.SCRATCH
    said = await shell(
        pool,
        f"echo kept >$TMPDIR/a && mkdir -p $HOME/d/e && mv $TMPDIR/a $HOME/d/e && cat $HOME/d/e/a;"
        f" chmod 0 $HOME/d; echo x >{above}/beside; ln -s /etc {above}/link",
        effect,
    )
    assert said == "kept\n"
    said = await shell(pool, f"ls -A $TMPDIR; ls -A {above} | wc -l", effect)
    assert said == "1\n"


@here
@in_module_loop
async def test_observe_sends_nothing_over_the_network(pool: Pool) -> None:
    with listeners() as sockets:
        ports = [sock.getsockname()[1] for sock in sockets]
        await shell(pool, send_command(*ports))
        assert [arrived(sock) for sock in sockets] == [False, False, False]


@here
@in_module_loop
async def test_reach_has_the_network(pool: Pool) -> None:
    with listeners() as sockets:
        ports = [sock.getsockname()[1] for sock in sockets]
        await shell(pool, f"python3 -c '{SEND}' {ports[0]} {ports[1]} {ports[2]}", Effect.REACH)
        assert [arrived(sock) for sock in sockets] == [True, True, True]


@here
@pytest.mark.parametrize(
    ("effect", "families"), [(Effect.OBSERVE, ["NETLINK"]), (Effect.REACH, ["INET", "INET6", "NETLINK"])]
)
@in_module_loop
async def test_an_effect_has_only_its_socket_families(
    pool: Pool, effect: Effect, families: list[str]
) -> None:
    assert (await shell(pool, f"python3 -c '{FAMILIES}'", effect)).split() == families


@pytest.mark.parametrize("effect", CONFINED)
@in_module_loop
async def test_no_socket_of_another_service_can_be_reached(pool: Pool, victims: Path, effect: Effect) -> None:
    folder = Path(tempfile.mkdtemp(prefix="la-", dir="/run")) if ROOT else victims
    folder.chmod(0o777)
    name = f"la-{os.urandom(6).hex()}"
    with (
        socket.socket(socket.AF_UNIX) as stream,
        socket.socket(socket.AF_UNIX) as beside,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagram,
        socket.socket(socket.AF_UNIX) as abstract,
    ):
        stream.bind(str(folder / "stream"))
        beside.bind(str(victims / "beside"))
        datagram.bind(str(victims / "datagram"))
        abstract.bind(f"\0{name}")
        for path in (folder / "stream", victims / "beside", victims / "datagram"):
            path.chmod(0o777)
        for sock in (stream, beside, abstract):
            sock.listen()
        for sock in (stream, beside, datagram, abstract):
            sock.setblocking(False)
        for path in (folder / "stream", victims / "beside"):
            await shell(pool, f"python3 -c '{UNIX}' {path} {victims / 'datagram'} {name}", effect)
        assert [arrived(sock) for sock in (stream, beside, datagram, abstract)] == [False] * 4
    if ROOT:
        shutil.rmtree(folder)


@here
@pytest.mark.parametrize("effect", CONFINED)
@in_module_loop
async def test_calls_with_a_history_of_holes_are_refused(pool: Pool, effect: Effect) -> None:
    said = await shell(pool, f"python3 -c '{SYSCALLS}'", effect)
    assert [line.split()[1:] for line in said.splitlines()] == [["-1", "EPERM"]] * 11, said


@pytest.mark.parametrize("effect", CONFINED)
@pytest.mark.parametrize("nobody", [False, True] if ROOT else [False])
@in_module_loop
async def test_a_process_outside_is_out_of_reach(pool: Pool, nobody: bool, effect: Effect) -> None:
    with bystander(nobody=nobody) as victim:

        def state() -> tuple[object, ...]:
            limits = Path(f"/proc/{victim.pid}/limits").read_text()
            oom = Path(f"/proc/{victim.pid}/oom_score_adj").read_text()
            traced = "TracerPid:\t0" in Path(f"/proc/{victim.pid}/status").read_text()
            return victim.nice(), tuple(victim.cpu_affinity()), limits, oom, traced

        before = state()
        said = await shell(
            pool,
            f"python3 -c '{INTERFERE}' {victim.pid}; kill -9 {victim.pid}; kill -9 -{victim.pid};"
            f" renice 19 -p {victim.pid}; renice 19 -u nobody; ionice -c 3 -p {victim.pid};"
            f" chrt -i -p 0 {victim.pid}; cat /proc/{victim.pid}/environ; {KILL_ALL}",
            effect,
        )
        assert "s3cr3t" not in said
        assert victim.is_running()
        assert victim.status() == psutil.STATUS_SLEEPING
        assert state() == before


@pytest.mark.parametrize("effect", CONFINED)
@in_module_loop
async def test_a_command_cannot_harm_its_worker(pool: Pool, effect: Effect) -> None:
    worker = _worker(pool, effect)
    processes = [worker.pid, *(one.pid for one in psutil.Process(worker.pid).children(True))]
    attack = f"python3 -c '{INTERFERE}'"
    said = await shell(
        pool,
        f"{attack} $PPID; {attack} $(cut -d' ' -f4 /proc/$PPID/stat); kill -STOP $PPID; kill -9 $PPID;"
        f" echo x >/proc/$PPID/mem; cat /proc/$PPID/environ; ls /proc/$PPID/fd/; {KILL_ALL}",
        effect,
    )
    assert "LIGHTAGENT_SKILLS" not in said
    assert all(psutil.pid_exists(pid) for pid in processes)
    assert await shell(pool, "echo alive", effect) == "alive\n"
    assert _worker(pool, effect).pid == processes[0]


@pytest.mark.parametrize("effect", CONFINED)
@in_module_loop
async def test_secrets_cannot_be_read(pool: Pool, pool_paths: Paths, victims: Path, effect: Effect) -> None:
    key = victims / "key"
    key.write_text("s3cr3t-key\n")
    key.chmod(0o600)
    (pool_paths.state / "history").write_text("s3cr3t-history\n")
    (pool_paths.state / "history").chmod(0o644)
    daemon = os.getpid()
    said = await shell(
        pool,
        f"cat /etc/shadow /etc/gshadow; cat {pool_paths.state}/history; cat /proc/*/environ | tr '\\0' '\\n';"
        f" cat /proc/{daemon}/root{pool_paths.state}/history; ls {pool_paths.runtime} {pool_paths.state};"
        + (f" cat {key};" if ROOT else "")
        + f" cat /proc/{daemon}/environ /proc/{daemon}/maps",
        effect,
    )
    assert "s3cr3t" not in said
    assert "root:" not in said
    assert "PYTEST_CURRENT_TEST" not in said
    assert "history\n" not in said.partition("stderr:")[0]
    assert "heap" not in said


def _worker(pool: Pool, effect: Effect) -> WorkerProcess:
    (found,) = [one for one in pool.workers() if one.where is effect]
    return found


@here
@in_module_loop
async def test_a_worker_is_never_the_daemons_user_when_that_is_root(pool: Pool) -> None:
    said = await shell(pool, "id -u; grep -E '^(CapEff|CapPrm|NoNewPrivs)' /proc/self/status")
    uid = pwd.getpwnam("nobody").pw_uid if ROOT else os.geteuid()
    assert said.split() == [str(uid), "CapPrm:", "0" * 16, "CapEff:", "0" * 16, "NoNewPrivs:", "1"]
    for worker in pool.workers():
        for process in psutil.Process(worker.pid).children(recursive=True):
            if process.name() != "bwrap":
                assert process.uids().real == uid


@in_module_loop
async def test_ps_shows_the_machines_processes_or_the_backend_says_that_it_does_not(pool: Pool) -> None:
    with bystander(nobody=False) as other:
        # These two alone: a busy machine has more processes than an output of this tool may have lines.
        rows = f"ps u -p {os.getpid()},{other.pid}"
        said = await shell(pool, f"{rows} && top -b -n 1 >/dev/null && echo top works")
        if pool.backend.limits:
            assert "ps" in pool.backend.limits[0] or "processes" in pool.backend.limits[0]
            return
        lines = {line.split()[1]: line for line in said.splitlines() if len(line.split()) > 10}
        assert lines[str(other.pid)].endswith(other.cmdline()[1])
        assert str(os.getpid()) in lines
        assert "\ntop works\n" in said


@pytest.mark.parametrize("effect", CONFINED)
@pytest.mark.parametrize("way", LEAVERS)
@in_module_loop
async def test_nothing_that_a_call_started_outlives_it(pool: Pool, way: str, effect: Effect) -> None:
    mark = marker()
    await shell(pool, LEAVERS[way].format(mark, mark), effect)
    assert marked(mark) == []


@in_module_loop
async def test_what_hangs_on_term_and_its_children_are_gone_after_the_timeout(pool: Pool) -> None:
    mark = marker()
    command = f"trap '' TERM; setsid sh -c \"trap '' TERM; sleep {mark}\" & sleep {mark}; sleep {mark}"
    with pytest.raises(TimedOut):
        await events(pool, "bash", "exec", command=command, timeout_s=1.0)
    assert marked(mark) == []


@here
@in_module_loop
async def test_endless_output_is_capped_while_it_is_read(pool: Pool) -> None:
    worker = psutil.Process(pool.workers()[0].pid)
    found = await events(pool, "bash", "exec", command="head -c 30M /dev/zero | tr '\\0' x; echo; echo end")
    result = found[-1]
    assert len(result["output"]) < 200_000
    assert "\nend\n" in result["output"]
    assert result["metadata"]["stdout_bytes"] == (30 << 20) + 5
    for process in worker.children(recursive=True):
        assert process.memory_info().rss < 90 << 20
    with pytest.raises(TimedOut):
        await events(pool, "bash", "exec", command="yes", timeout_s=1.0)
    assert await shell(pool, "echo alive") == "alive\n"


@here
@in_module_loop
@pytest.mark.uses_up_processes
async def test_a_fork_bomb_is_bounded_and_ends_with_its_call(pool: Pool) -> None:
    mark, enough = marker(), pool._paths.config / "enough"
    bomb = f"f() {{ sleep {mark} & f | f & f; }}; f & until [ -e {enough} ]; do :; done"
    call = asyncio.create_task(events(pool, "bash", "exec", command=bomb, timeout_s=60.0))
    try:
        while len(marked(mark)) < 50:
            assert not call.done()
            await asyncio.sleep(0.05)
        # Another worker answers in the middle of it, and so does this event loop.
        found = await events(pool, "file", "stat", path="/etc/passwd", effect=Effect.REACH)
        assert found[-1]["kind"] == "result"
        assert not call.done()
        assert len(marked(mark)) < sandbox.PROCESSES
    finally:
        enough.touch()
        await call
        enough.unlink()
    assert marked(mark) == []
    assert await shell(pool, "echo alive") == "alive\n"


@here
@in_module_loop
async def test_a_command_has_limits(pool: Pool) -> None:
    said = await shell(
        pool,
        "ulimit -c; ulimit -u; nice; python3 -c 'bytearray(200 << 30)' 2>&1 | tail -1;"
        " cat /proc/self/oom_score_adj",
    )
    core, processes, nice, memory, oom = said.split()
    assert (core, int(processes), memory) == ("0", sandbox.PROCESSES * 3 // 4, "MemoryError")
    assert int(nice) == min(os.nice(0) + 10, 19)
    assert int(oom) == (sandbox.OOM_SCORE_ADJ if shutil.which("choom") else 0)


@in_module_loop
async def test_a_backend_that_cannot_enforce_says_why(
    pool_paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = await sandbox.choose("none", pool_paths)
    assert (asked.name, asked.enforced) == ("none", False)
    assert "sandbox = none" in asked.reason
    monkeypatch.setenv("PATH", str(tmp_path))
    missing = await sandbox.choose("auto", pool_paths)
    assert not missing.enforced
    assert "bubblewrap" in missing.reason


@pytest.mark.skipif(not ROOT, reason="only root gives workers a user and groups")
@pytest.mark.parametrize("name", ["bwrap", "none"])
def test_only_a_worker_for_observe_may_read_logs(pool_paths: Paths, name: str) -> None:
    backend = sandbox.Backend(name=name, enforced=name == "bwrap", ends=Ends.DOMAIN, landlock_abi=6)
    for effect in (Effect.OBSERVE, Effect.REACH):
        wanted = sandbox.Wanted(
            where=effect, backend=backend, paths=pool_paths, listen_fd=4, tools=[], extra=[], env={}
        )
        argv = sandbox.worker_argv(wanted, filter_fd=3, lifeline_fd=5)
        assert ("--clear-groups" in argv) is (effect is Effect.REACH)
    assert "--clear-groups" in sandbox.switch_user_argv()


def test_a_worker_for_change_is_not_confined_and_stays_the_daemons_user(pool_paths: Paths) -> None:
    backend = sandbox.Backend(name="bwrap", enforced=True, ends=Ends.DOMAIN, landlock_abi=6)
    wanted = sandbox.Wanted(
        where=Effect.CHANGE, backend=backend, paths=pool_paths, listen_fd=4, tools=[], extra=[], env={}
    )
    argv = sandbox.worker_argv(wanted, filter_fd=3, lifeline_fd=5)
    assert "bwrap" not in argv
    assert "--confined" not in argv
    assert argv[argv.index("--ends") + 1] == "children"
    assert "setpriv" not in argv


async def test_a_starter_that_is_killed_too_early_leaves_no_waiting_child(
    pool_paths: Paths,
) -> None:
    """As bwrap's does, before anything watches the lifeline."""
    backend = sandbox.Backend(name="bwrap", enforced=True, ends=Ends.DOMAIN, landlock_abi=6)
    with Path(os.devnull).open("rb") as nothing:
        wanted = sandbox.Wanted(
            where=Effect.OBSERVE,
            backend=backend,
            paths=pool_paths,
            listen_fd=nothing.fileno(),
            tools=[],
            extra=[],
            env={},
        )
        mark = marker()
        script = f"/usr/bin/setsid /usr/bin/sleep {mark} & kill -9 $$"
        calls = sandbox.Filter(Effect.OBSERVE)
        child = await sandbox.start_held(lambda *_: ["/bin/sh", "-c", script], wanted, calls)
    await child.process.wait()
    await until(lambda: marked(mark), "it waits")
    await child.end()
    await until(lambda: not marked(mark), "it is gone")


@pytest.mark.skipif(
    not ROOT, reason="only root can become another user; as one, this file ran as that already"
)
def test_all_of_this_holds_for_the_daemon_of_an_ordinary_user(tmp_path: Path) -> None:
    base = Path(tempfile.mkdtemp(prefix="la-user-"))
    base.chmod(0o755)
    try:
        python = _interpreter_for_everybody(base)
        home = base / "home"
        home.mkdir()
        uid = 61234
        os.chown(home, uid, uid)
        done = subprocess.run(
            [
                *("setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--"),
                *(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--basetemp={home}/tmp"),
                *("-k", "this_kernel", str(Path(__file__))),
            ],
            cwd=REPOSITORY,
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(home),
                "LANG": "C.UTF-8",
                "PYTHONDONTWRITEBYTECODE": "1",
                THROWAWAY_USER: "1",
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert " passed" in done.stdout
    finally:
        shutil.rmtree(base)


def _interpreter_for_everybody(base: Path) -> str:
    """A Python with this one's packages that lies where every user can run it."""
    candidates = [sys.executable, f"/usr/bin/python3.{sys.version_info.minor}"]
    for candidate in candidates:
        if not Path(candidate).exists():
            continue
        real = Path(candidate).resolve()
        if all(folder.stat().st_mode & stat.S_IXOTH for folder in real.parents):
            subprocess.run([candidate, "-m", "venv", "--without-pip", str(base / "venv")], check=True)
            packages = next((base / "venv/lib").glob("python*/site-packages"))
            own = [name for name in sys.path if name.endswith("-packages")]
            (packages / "own.pth").write_text("\n".join([*own, str(REPOSITORY)]))
            return str(base / "venv/bin/python")
    pytest.skip("no Python of this version can be run by an ordinary user")
