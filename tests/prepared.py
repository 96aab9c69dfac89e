"""Python programs for tests, as processes that a prepared one forks: it has imported their modules once.

Importing them is most of what a program's start takes, and tests start a thousand. A forked program is a
process as any other, with standard streams, working folder and signals of its own. It differs in two things:
it is a grandchild, so its end is told through a socket, and /proc shows the environment and the arguments of
the prepared process. `serve` is that process, one for each process that runs tests. `Forked` is what a test
holds of a program, with the methods of `subprocess.Popen`; `run` is as `subprocess.run`.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import fcntl
import functools
import gc
import importlib
import json
import os
import pwd
import select
import signal
import socket
import subprocess
import sys
import tempfile
import termios
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn

from lightagentd.host.paths import Paths
from tests import prepared_workers
from tests.left import keep

REPOSITORY = Path(__file__).resolve().parent.parent
DAEMON, LACTL = "lightagentd.daemon.serving", "lightagentd.cli.main"
BUS_CLIENT, ANSWERS, EMBEDDING = "tests.dbus_client", "tests.kill.answers", "tests.embed.program"
"""The programs: modules with a function `main`."""
_USED_LATER = ("lightagentd.llm.runbook.matching", "lightagentd.llm.endpoint.connections")
"""What a daemon imports with the first call that needs it."""
_OF_ROOT = (
    "concurrent.futures.thread",
    "importlib.metadata",
    "lightagentd.control.operations.stored",
    "lightagentd.events.backup.importing",
)
"""What lactl imports as root no more, who may not be able to read the tests' Python."""
_OF_SETUP = ("anyio", "httpcore", "httpx", "lightagentd.cli.setup_model")
"""What lactl imports to look for model servers."""
_OF_CHAT = tuple(
    f"lightagentd.cli.chatting.{name}"
    for name in ("conversation", "daemon", "line_screen", "prompt_screen", "startup")
)
"""What lactl imports for a chat, prompt-toolkit above all."""
SHIM_CONTROL = "LA_SHIM_CONTROL"
"""Names the control page of tests/faults/shim.c, which is preloaded."""
_REQUEST_BYTES = 1 << 17


class Forked:
    """A program that the prepared process has forked."""

    def __init__(self, pid: int, ended: socket.socket, argv: Sequence[str]) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._ended = ended
        self._argv = argv

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._ended], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self._argv, timeout or 0)
            self.returncode = int(self._ended.recv(64) or b"-9")
            self._ended.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Prepared:
    """The prepared process, which begins with this object and ends with it or with this process."""

    def __init__(
        self,
        preload: str = "",
        interpreter: Sequence[str] = (sys.executable,),
        workers: socket.socket | None = None,
    ) -> None:
        """With `workers`, a socket that listens, it forks workers for whoever connects there."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            passed = [theirs.fileno(), *([] if workers is None else [workers.fileno()])]
            self._process = subprocess.Popen(
                [*interpreter, "-m", "tests.prepared", *map(str, passed)],
                cwd=REPOSITORY,
                env={
                    "PATH": os.environ["PATH"],
                    "LANG": "C.UTF-8",
                    "HOME": os.environ.get("HOME", "/"),
                    "LD_PRELOAD": preload,
                },
                stdin=subprocess.DEVNULL,
                pass_fds=passed,
            )
        self._socket = ours
        keep(self._process.pid, ours.fileno())

    def fork(
        self,
        program: str,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: Path,
        streams: Iterable[int],
        user: str | None = None,
        *,
        on_terminal: bool = False,
        mounts_of: int | None = None,
    ) -> Forked:
        """Start a program with these arguments, this environment, and these three standard streams; with
        `on_terminal`, the first is its controlling terminal. With `mounts_of`, it enters the mount namespace
        of that process.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            request = {
                "program": program,
                "argv": list(argv),
                "env": dict(env),
                "cwd": str(cwd),
                "user": user,
                "on_terminal": on_terminal,
                "mounts_of": mounts_of,
            }
            socket.send_fds(self._socket, [json.dumps(request).encode()], [*streams, theirs.fileno()])
        return Forked(int(ours.recv(64)), ours, argv)

    def run(
        self,
        program: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        stdin: bytes = b"",
        cwd: Path = REPOSITORY,
        timeout_s: float = 60.0,
        user: str | None = None,
        kill: Callable[[], object] | None = None,
    ) -> subprocess.CompletedProcess[bytes]:
        """Run a program between pipes. `kill` ends one that takes too long and has its pid elsewhere."""
        (their_in, our_in), (our_out, their_out), (our_err, their_err) = os.pipe(), os.pipe(), os.pipe()
        theirs = (their_in, their_out, their_err)
        try:
            process = self.fork(program, argv, env, cwd, theirs, user)
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        late = threading.Timer(timeout_s, kill or process.kill)
        late.start()
        with (
            ThreadPoolExecutor(2) as threads,
            os.fdopen(our_out, "rb") as out,
            os.fdopen(our_err, "rb") as err,
        ):
            threads.submit(_feed, our_in, stdin)
            read = threads.submit(err.read)
            done = subprocess.CompletedProcess([program, *argv], 0, out.read(), read.result())
        done.returncode = process.wait()
        if late.finished.is_set():
            raise subprocess.TimeoutExpired(done.args, timeout_s, done.stdout, done.stderr)
        late.cancel()
        late.join()
        return done

    def close(self) -> None:
        keep(self._process.pid, self._socket.fileno(), kept=False)
        self._socket.close()
        self._process.wait(10)


_made: dict[str, Prepared] = {}


def prepared(preload: str = "") -> Prepared:
    """The prepared process of this one, made at the first call; one more for each library to preload."""
    if "" not in _made:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            address = prepared_workers.address_of(os.getpid())
            address.parent.mkdir(mode=0o700, exist_ok=True)
            listener.bind(str(address))
            listener.listen(64)
            _made[""] = Prepared(workers=listener)
    if preload not in _made:
        _made[preload] = Prepared(preload)
    return _made[preload]


def forkable(env: Mapping[str, str]) -> bool:
    """Whether a forked program is as a started one: its interpreter does not read this environment."""
    return env.get("LANG") == "C.UTF-8" and not any(name.startswith(("PYTHON", "LC_", "LD_")) for name in env)


def run(
    program: str,
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    stdin: bytes = b"",
    cwd: Path = REPOSITORY,
    timeout_s: float = 60.0,
) -> subprocess.CompletedProcess[bytes]:
    """Run a program between pipes."""
    if not forkable(env):
        command = [sys.executable, "-m", program, *argv]
        return subprocess.run(command, env=env, input=stdin, cwd=cwd, capture_output=True, timeout=timeout_s)
    return prepared().run(program, argv, env=env, stdin=stdin, cwd=cwd, timeout_s=timeout_s)


def _feed(pipe: int, data: bytes) -> None:
    with contextlib.suppress(BrokenPipeError), os.fdopen(pipe, "wb", buffering=0) as file:
        left = memoryview(data)
        while left:
            left = left[file.write(left) :]


def close() -> None:
    """End the prepared processes."""
    while _made:
        _made.popitem()[1].close()


def serve(requests: socket.socket, workers: socket.socket | None = None) -> None:
    """Fork a program for each request, and tell of its end, until the other side is closed. Who connects to
    `workers` asks for one worker and is told there.
    """
    if workers is not None:
        _load(prepared_workers.KEEPER)  # now, or the first one that asks waits for it
    running: dict[int, socket.socket] = {}
    wake, woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends with the tests, after its daemons
    watched: list[Any] = [requests, wake, *([workers] if workers is not None else [])]
    while True:
        ready, _, _ = select.select(watched, [], [])
        if wake in ready:
            os.read(wake, 4096)
            for pid, status in _ended():
                with running.pop(pid) as ended, contextlib.suppress(OSError):
                    ended.send(str(status).encode())
        if workers is not None and workers in ready:
            asking, _ = workers.accept()
            data, descriptors, _, _ = socket.recv_fds(asking, _REQUEST_BYTES, 16)
            if data:
                running[_fork(json.loads(data), descriptors, prepared_workers.become, asking)] = asking
        if requests in ready:
            data, descriptors, _, _ = socket.recv_fds(requests, _REQUEST_BYTES, 4)
            if not data:
                return
            *streams, told = descriptors
            request = json.loads(data)
            _load(request["program"])
            telling = socket.socket(fileno=told)
            running[_fork(request, streams, _become, telling)] = telling


def _fork(
    request: dict[str, Any],
    descriptors: Sequence[int],
    become: Callable[[dict[str, Any], Sequence[int]], None],
    telling: socket.socket,
) -> int:
    pid = os.fork()
    if pid == 0:
        _be(request, descriptors, become)
    for descriptor in descriptors:
        os.close(descriptor)
    with contextlib.suppress(OSError):  # who asked is gone
        telling.send(str(pid).encode())
    return pid


def _ended() -> list[tuple[int, int]]:
    found = []
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            found.append((ended[0], os.waitstatus_to_exitcode(ended[1])))
    return found


@functools.cache
def _load(program: str) -> None:
    module = importlib.import_module(program)
    if program == LACTL:
        for command in module.COMMANDS.values():
            importlib.import_module(f"lightagentd.cli.{command.partition(':')[0]}")
        for name in (*_OF_ROOT, *_OF_SETUP, *_OF_CHAT):
            importlib.import_module(name)
    if program == prepared_workers.KEEPER:
        for name in prepared_workers.USED_LATER:
            importlib.import_module(name)
    if program in (DAEMON, EMBEDDING):
        for name in _USED_LATER:
            importlib.import_module(name)
        _know_content()
    gc.collect()
    gc.freeze()  # so that a collection in a child does not copy what it shares


@functools.cache
def _know_content() -> None:
    """Start a daemon once: what it reads and works out is the same for each that is forked."""
    from lightagentd.daemon.daemon import Daemon
    from lightagentd.skills import load_skills
    from lightagentd.worker import sandbox
    from lightagentd.worker.pool import Pool
    from tests.described import chosen_once, folder_of, kept_in
    from tests.shipped import read_once

    read_once()
    load_skills([REPOSITORY / "skills"])
    sandbox.choose = chosen_once  # type: ignore[assignment]
    Pool.describe = kept_in(folder_of(os.getppid()), Pool.describe)  # type: ignore[method-assign,assignment]

    async def start() -> None:
        with tempfile.TemporaryDirectory() as base:
            paths = Paths(config=Path(base, "etc"), state=Path(base, "state"), runtime=Path(base, "run"))
            async with Daemon(paths) as daemon:
                for function in daemon.registry.shared.content.toolbox.functions.values():
                    assert function.offer

    asyncio.run(start())  # with workers that are not forked, for this process would have to fork them
    sandbox.start = prepared_workers.starting(os.getppid(), sandbox.start)  # type: ignore[attr-defined,assignment]


def _be(
    request: dict[str, Any],
    descriptors: Sequence[int],
    become: Callable[[dict[str, Any], Sequence[int]], None],
) -> NoReturn:
    """Be the program that was asked for; never returns."""
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.environ.clear()
        os.environ.update(request["env"])
        time.tzset()
        become(request, descriptors)
        status = 0
    except SystemExit as err:
        status = err.code if isinstance(err.code, int) else int(err.code is not None)
    except BaseException:  # noqa: BLE001 - told as the interpreter tells it
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status & 255)


def _become(request: dict[str, Any], streams: Sequence[int]) -> None:
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.closerange(3, 4096)
    if request["on_terminal"]:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    sys.stdin = os.fdopen(0, errors=sys.stdin.errors, closefd=False)
    sys.stdout = os.fdopen(1, "w", errors=sys.stdout.errors, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors=sys.stderr.errors, closefd=False)
    if SHIM_CONTROL in os.environ:
        ctypes.CDLL(None).begin_shim()
    if request["user"] is not None:
        _become_user(request["user"])
    if request["mounts_of"] is not None:
        _enter_mounts(request["mounts_of"])
    os.chdir(request["cwd"])
    sys.argv = [request["program"], *request["argv"]]
    sys.modules[request["program"]].main()


def _enter_mounts(pid: int) -> None:
    """Its workers are started as they are from then on: the prepared process would fork them outside."""
    from lightagentd.host import process
    from lightagentd.worker import sandbox

    libc = ctypes.CDLL(None, use_errno=True)
    with Path(f"/proc/{pid}/ns/mnt").open() as namespace:
        if libc.setns(namespace.fileno(), 0x20000) < 0:  # CLONE_NEWNS
            raise OSError(ctypes.get_errno(), "setns")
    sandbox.start = process.start  # type: ignore[attr-defined]


def _become_user(name: str) -> None:
    account = pwd.getpwnam(name)
    os.initgroups(name, account.pw_gid)
    os.setgid(account.pw_gid)
    os.setuid(account.pw_uid)
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE, as execve(2) does


if __name__ == "__main__":
    serve(*(socket.socket(fileno=int(number)) for number in sys.argv[1:]))
