"""Fixtures for every test: folders of its own, a daemon in this process, a daemon as a process.

Nothing may be left after a test: no task, no child process, no open descriptor. A test that
waits for what never comes fails after `TEST_LIMIT_S`, and the others run.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import grp
import inspect
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from lightagentd.client.blocking import Client
from lightagentd.daemon.daemon import Daemon
from lightagentd.errors import LightagentError
from lightagentd.host.paths import Paths
from lightagentd.llm.environment import VARIABLES
from lightagentd.worker import sandbox
from lightagentd.worker.pool import Pool
from tests.attacks.counted import pytest_terminal_summary as pytest_terminal_summary
from tests.declared import undeclared
from tests.described import chosen_once, folder_of, kept_in
from tests.distribution import order
from tests.distribution import pytest_runtest_protocol as pytest_runtest_protocol  # pytest calls these three
from tests.distribution import pytest_xdist_make_scheduler as pytest_xdist_make_scheduler
from tests.distribution import pytest_xdist_setupnodes as pytest_xdist_setupnodes
from tests.left import Left
from tests.other_user import OUTSIDERS_GID
from tests.prepared import DAEMON, LACTL, SHIM_CONTROL, Forked, prepared, run
from tests.prepared import REPOSITORY as REPOSITORY
from tests.prepared import close as close_prepared
from tests.prepared_workers import KEEP_REAL, keeps_real, starting
from tests.shipped import read_once

for _bus in ("SYSTEM", "SESSION"):  # the buses of this machine are nothing to test with
    os.environ[f"DBUS_{_bus}_BUS_ADDRESS"] = "unix:path=/nonexistent/bus"
for _variable in VARIABLES:  # and neither are the models that its user has
    os.environ.pop(_variable, None)
TEST_LIMIT_S = 240.0
"""How long an async test may take: many times what the slowest needs on a loaded machine."""


_NEEDS_LOOP = pytest.StashKey[bool]()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if isinstance(item, pytest.Function):
            item.stash[_NEEDS_LOOP] = _needs_loop(item)
            if inspect.iscoroutinefunction(item.obj):
                item.obj = _bounded(item.obj)
    items.sort(key=order)


def _needs_loop(item: pytest.Function) -> bool:
    fixtures = (definitions[-1].func for definitions in item._fixtureinfo.name2fixturedefs.values())
    functions = [item.obj, *fixtures]
    return any(inspect.iscoroutinefunction(one) or inspect.isasyncgenfunction(one) for one in functions)


_describe = Pool.describe


def pytest_sessionstart() -> None:
    read_once()
    DaemonProcess.forks = True
    shutil.rmtree(folder_of(os.getpid()), ignore_errors=True)  # of a run that was killed, with this number
    folder_of(os.getpid()).mkdir(mode=0o700)
    sandbox.start = starting(os.getpid(), sandbox.start, prepared)  # type: ignore[attr-defined,assignment]


def pytest_sessionfinish() -> None:
    close_prepared()
    shutil.rmtree(folder_of(os.getpid()))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Do not look for garbage among what stays: while it is made, that is a quarter of the time, and some
    fixtures look after each test.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.fixture(autouse=True)
def tools_described_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon in this process asks a worker of its own for the tools, and tries the sandbox: in most tests
    what an earlier one said of the same files, and found, will do. `describes_tools` marks those that need it
    anew.
    """
    if request.node.get_closest_marker("describes_tools") or request.path.is_relative_to(
        REPOSITORY / "tests/worker"
    ):
        return
    monkeypatch.setattr(Pool, "describe", kept_in(folder_of(os.getpid()), _describe))
    monkeypatch.setattr(sandbox, "choose", chosen_once)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Have workers forked (tests/prepared_workers.py), but not for a test that `real_workers` marks, nor for
    the fixtures of its module.
    """
    real = keeps_real(os.getpid())
    folder = str(item.path.relative_to(REPOSITORY))
    if item.get_closest_marker("real_workers") or folder.startswith(KEEP_REAL):
        real.touch()
    else:
        real.unlink(missing_ok=True)


def _bounded(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., Coroutine[Any, Any, None]]:
    @functools.wraps(test)
    async def bounded(*args: Any, **kwargs: Any) -> None:
        async with asyncio.timeout(TEST_LIMIT_S):
            await test(*args, **kwargs)

    return bounded


@pytest.fixture
def paths(tmp_path_factory: pytest.TempPathFactory) -> Paths:
    """Folders of a daemon of this test's own. The runtime folder's path is short, as sockets need."""
    base = tmp_path_factory.mktemp("la")
    drop_ins = base / "etc" / "lightagentd.toml.d"
    drop_ins.mkdir(parents=True)
    (drop_ins / "00-test.toml").write_text(
        f'[daemon]\nsocket_group = "{grp.getgrgid(OUTSIDERS_GID).gr_name}"\n'
        "[history]\ncheckpoint_s = 86400\n"  # a slow run must not have events that a quick one has not
    )
    return Paths(config=base / "etc", state=base / "state", runtime=base / "run")


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can look into; pytest's own are for one user alone."""
    with tempfile.TemporaryDirectory(prefix="la-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


@pytest.fixture(scope="session")
def sandboxed(tmp_path_factory: pytest.TempPathFactory) -> None:
    """For tests that run shell commands to observe, which policy refuses where no sandbox works."""
    base = tmp_path_factory.mktemp("sandbox")
    paths = Paths(config=base / "etc", state=base / "state", runtime=base / "run")
    backend = asyncio.run(sandbox.choose("auto", paths))
    if not backend.enforced:
        if os.environ.get("CI") and os.geteuid() == 0:
            pytest.fail(f"no sandbox works here: {backend.reason}")
        pytest.skip(f"no sandbox works here: {backend.reason}")


def write(path: Path, text: str) -> Path:
    """Write a file and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.fixture
async def daemon(paths: Paths) -> AsyncIterator[Daemon]:
    """A daemon in this process's event loop, with the shipped agents, tools and skills."""
    async with Daemon(paths) as running:
        yield running


@pytest.fixture(autouse=True)
def only_declared_events(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fails a test whose daemon, in this process, stored an event of no declared kind, or with other data."""
    found: list[str] = []
    close = Daemon.close

    async def checked(daemon: Daemon) -> None:
        found.extend(undeclared(daemon))
        await close(daemon)

    monkeypatch.setattr(Daemon, "close", checked)
    yield
    assert not found, "events are not as declared in lightagentd/events/types:\n" + "\n".join(found)


def _is_read_late(variable: str) -> bool:
    """Whether nothing looks at a variable while the daemon's modules are imported: the shim's, and keys."""
    return variable in ("LD_PRELOAD", SHIM_CONTROL) or variable.endswith("_KEY")


class DaemonProcess:
    """A daemon as a process of its own, for tests that kill it or talk to it as a user would."""

    forks = False
    """Whether daemons are forked (tests/prepared.py), as in all tests, if only `_is_read_late` is set."""

    def __init__(
        self,
        paths: Paths,
        env: dict[str, str] | None = None,
        prefix: Sequence[str] = (),
        *,
        mounts_of: int | None = None,
    ) -> None:
        """`prefix` is a command that runs the daemon's, such as setpriv(1). With `mounts_of`, it runs in the
        mount namespace of the process with that pid.
        """
        self.paths = paths
        self.log = paths.state.parent / "daemon.log"
        self._prefix = prefix
        self._mounts_of = mounts_of
        self.cwd = REPOSITORY
        """Where the daemon is started."""
        self._env = env or {}
        self._process: subprocess.Popen[bytes] | Forked | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def env(self) -> dict[str, str]:
        """The environment in which lactl finds this daemon."""
        return {
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
            "HOME": os.environ.get("HOME", "/"),
            "LIGHTAGENT_SOCKET": str(self.paths.socket),
            **self._env,
        }

    def set_variable(self, name: str, value: str) -> None:
        """For the next start."""
        self._env[name] = value

    def start(self, timeout_s: float = 60.0) -> None:
        """Start it and wait until it serves."""
        self.spawn()
        self.until_serving(timeout_s)

    def spawn(self) -> None:
        """Start it, without waiting for anything."""
        folders = [
            f"--config-dir={self.paths.config}",
            f"--state-dir={self.paths.state}",
            f"--runtime-dir={self.paths.runtime}",
        ]
        with self.log.open("ab") as log:
            if self.forks and not self._prefix and all(map(_is_read_late, self._env)):
                env = self.env
                maker = prepared(env.pop("LD_PRELOAD", ""))
                with Path(os.devnull).open() as nothing:
                    streams = (nothing.fileno(), log.fileno(), log.fileno())
                    self._process = maker.fork(
                        DAEMON, folders, env, self.cwd, streams, mounts_of=self._mounts_of
                    )
                return
            assert self._mounts_of is None
            self._process = subprocess.Popen(
                [*self._prefix, sys.executable, "-m", "lightagentd.daemon", *folders],
                cwd=self.cwd,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def until_serving(self, timeout_s: float = 60.0) -> None:
        """Wait until it serves."""
        assert self._process is not None
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                with Client(self.paths.socket) as client:
                    client.call("org.lightagent1.Manager.GetStatus")
                return
            except LightagentError:
                time.sleep(0.01)
        raise AssertionError(f"the daemon did not start:\n{self.log.read_text()}")

    def kill(self) -> None:
        """As `kill -9` does."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(10)
        self._process = None

    def stop(self) -> int:
        """SIGTERM, and wait; gives the exit status."""
        assert self._process is not None
        self._process.terminate()
        status = self._process.wait(60)
        self._process = None
        return status

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(60)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(10)
        self._process = None

    def lactl(
        self, *args: str, stdin: bytes = b"", timeout_s: float = 60.0
    ) -> subprocess.CompletedProcess[str]:
        """Run lactl against this daemon."""
        done = run(LACTL, args, env=self.env, stdin=stdin, timeout_s=timeout_s)
        return subprocess.CompletedProcess(
            done.args, done.returncode, done.stdout.decode(), done.stderr.decode()
        )

    def client(self) -> Client:
        return Client(self.paths.socket)


@pytest.fixture
def daemon_process(paths: Paths) -> Iterator[DaemonProcess]:
    """A daemon process, not started yet; stopped at the end."""
    paths.state.parent.mkdir(parents=True, exist_ok=True)
    process = DaemonProcess(paths)
    yield process
    process.close()


@pytest.fixture
async def nothing_of_a_loop_is_left() -> AsyncIterator[None]:
    """Fails an async test that leaves a task, a child process or a descriptor behind."""
    left = Left()
    yield
    await asyncio.sleep(0)
    while left.wait():
        await asyncio.sleep(0.02)
    left.check()


@pytest.fixture(autouse=True)
def nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails a test that leaves anything behind. Most tests are not async, and do without an event loop."""
    if request.node.get_closest_marker("e2e"):
        yield  # the session's container is a child, and its fixture checks that it goes
        return
    if request.node.stash[_NEEDS_LOOP]:
        request.getfixturevalue("nothing_of_a_loop_is_left")
        yield
        return
    left = Left()
    yield
    while left.wait():
        time.sleep(0.02)
    left.check()
