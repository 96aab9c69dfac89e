"""Starts workers from the daemon where systemd does not, and confines them.

`bwrap` builds the sandbox for observe and reach: the machine's files read-only, `/run` an allow-list, no
capabilities, the system call filter of `seccomp`, and a scratch folder as the only place to write. A Landlock
domain confines signals and tracing. Before Linux 6.12 a PID namespace does it instead, and `Backend.limits`
names the drawbacks. `none` starts the worker without bwrap and enforces nothing; policy then counts shell
commands as `change`. A worker for change never runs in bwrap.

As root, confined workers become the user `nobody`, those for observe with the groups `adm` and
`systemd-journal`. A worker for change, which exists only if an administrator named its agent, keeps the
daemon's user.
"""

from __future__ import annotations

import asyncio
import contextlib
import grp
import os
import pwd
import shutil
import stat
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lightagentd.errors import WorkerUnavailable
from lightagentd.host.paths import PACKAGE_FOLDER, Paths
from lightagentd.host.process import start
from lightagentd.text.reason import reason
from lightagentd.tool import Effect, Place
from lightagentd.worker import landlock, seccomp
from lightagentd.worker.busproxy import BUS_SOCKET
from lightagentd.worker.keeper import AT_ONCE
from lightagentd.worker.leftovers import Ends
from lightagentd.worker.proctree import kill_holders, kill_tree, runs

SCRATCH = Path("/run/lightagent-scratch")
"""Inside bwrap: a tmpfs of its own. /tmp stays the machine's, so that `df` and watches do not lie."""
SCRATCH_BYTES = 256 << 20
EMPTY_BYTES = 1 << 20
"""The size of the empty folders that cover what is not to be seen; they are read-only in the end."""
PROCESSES = 512
"""How many processes and threads the user of the confined workers may have, all of them together."""
OOM_SCORE_ADJ = 800
KILL_PATIENCE_S = 0.3
"""How long a keeper has in an emergency stop before its daemon kills everything from outside."""
END_GRACE_S = 6.0
"""How long a keeper may take to end its worker, which is much longer than it does."""
_POLL_S = 0.01

RUN_ALLOWED = (
    "/run/udev",
    "/run/log/journal",
    "/run/utmp",
    "/run/mount/utab",
    "/run/reboot-required",
    "/run/reboot-required.pkgs",
    "/run/systemd/system",
    "/run/systemd/units",
    "/run/systemd/sessions",
    "/run/systemd/users",
    "/run/systemd/seats",
)
RUN_ALLOWED_REACH = (
    "/run/systemd/resolve/resolv.conf",
    "/run/systemd/resolve/stub-resolv.conf",
    "/run/NetworkManager/resolv.conf",
    "/run/resolvconf",
)
HOME_SECRETS = (
    ".ssh",
    ".gnupg",
    ".aws",
    ".kube",
    ".docker",
    ".config/gh",
    ".netrc",
    ".pgpass",
    ".git-credentials",
)


@dataclass(frozen=True, kw_only=True)
class Backend:
    """The sandbox of a worker. `enforced`: the kernel keeps observe from writing and from the network."""

    name: str
    enforced: bool
    reason: str = ""
    """Why nothing better is in force, as a sentence."""
    ends: Ends = Ends.CHILDREN
    """How confined workers are held together, and what is left of a call is killed."""
    landlock_abi: int = 0
    """The level of Landlock that confined workers use; with 0, /proc shows their own processes alone."""
    limits: tuple[str, ...] = ()
    """What does not work in this sandbox although observe may do it, as sentences."""


async def choose(wanted: str, paths: Paths, *, landlock_abi: int | None = None) -> Backend:
    """The backend for `auto`, `bwrap` or `none`, chosen by trying it.

    `landlock_abi` is the kernel's, unless a test gives an older one.
    """
    level = landlock.abi() if landlock_abi is None else landlock_abi
    if wanted == "none":
        return _bare(level, "The configuration says sandbox = none.")
    if shutil.which("bwrap") is None:
        return _bare(level, "bwrap is not installed (package bubblewrap).")
    if missing := seccomp.missing():
        return _bare(level, missing)
    backend = _with_bwrap(level)
    with Filter(Effect.OBSERVE) as held:
        argv = [
            *bwrap_argv(Effect.OBSERVE, backend, paths, held.fd, Mounts()),
            *switch_user_argv(),
            "/bin/true",
        ]
        try:
            tried = await start(argv, env={}, pass_fds=(held.fd,), stderr=asyncio.subprocess.PIPE)
        except OSError as err:
            return _bare(level, f"bwrap cannot be started: {reason(err)}.")
        _, said = await tried.communicate()
    if tried.returncode == 0:
        return backend
    why = said.decode(errors="replace").strip().splitlines() or ["it gave no reason"]
    return _bare(level, f"bwrap does not work here: {why[-1]}")


async def has_bus_door() -> bool:
    """Whether commands can have a bus door (`busdoor`). A separate program tries it, since a daemon has
    threads.
    """
    try:
        argv = [sys.executable, "-m", "lightagentd.worker.busdoor"]
        tried = await start(argv, env={}, stderr=asyncio.subprocess.DEVNULL)
    except OSError:
        return False
    return await tried.wait() == 0


def _with_bwrap(level: int) -> Backend:
    if level >= landlock.SCOPED_ABI:
        return Backend(name="bwrap", enforced=True, ends=Ends.DOMAIN, landlock_abi=level)
    old = "the kernel cannot scope signals (Landlock ABI 6, Linux 6.12)"
    if level > 0:
        limit = f"ps and top fail in shell commands, because {old}. The tool proc works."
    else:
        limit = f"Only the sandbox's own processes are visible, because {old}, and has no Landlock."
    return Backend(name="bwrap", enforced=True, ends=Ends.NAMESPACE, landlock_abi=level, limits=(limit,))


def _bare(level: int, reason: str) -> Backend:
    ends = Ends.DOMAIN if level >= landlock.SCOPED_ABI else Ends.CHILDREN
    return Backend(name="none", enforced=False, reason=reason, ends=ends, landlock_abi=level)


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A worker to start. It serves on `listen_fd`."""

    where: Effect | Place
    backend: Backend
    paths: Paths
    listen_fd: int
    tools: Sequence[Path]
    extra: Sequence[Path]
    """Further folders that it must be able to read."""
    env: Mapping[str, str]
    bus: Path | None = None
    """A socket to put in the place of the system bus, in bwrap."""

    @property
    def effect(self) -> Effect:
        """The effect whose sandbox is used; observe for a watcher."""
        return self.where if isinstance(self.where, Effect) else Effect.OBSERVE


@dataclass(frozen=True, kw_only=True)
class Mounts:
    """The mounts of bwrap for a worker beside the machine's files."""

    needed: Iterable[Path] = ()
    """Must stay readable for the worker."""
    bus: Path | None = None
    """A socket to put in the place of the system bus. With it, the worker can open Unix sockets; its commands
    still cannot (`busdoor`).
    """
    writable: Iterable[Path] = ()
    """Folders that it may write to."""
    readable: Iterable[tuple[Path, Path]] = ()
    """Files that it finds at another path."""


class Filter:
    """A block with an effect's system call filter in an open memory file.

    `reads_only` as for `seccomp.program`; the key store writes to its folder.
    """

    def __init__(self, effect: Effect, *, bus: bool = False, reads_only: bool = True) -> None:
        families = seccomp.OBSERVE_FAMILIES if effect is Effect.OBSERVE else seccomp.REACH_FAMILIES
        self._families = (*families, seccomp.AF_UNIX) if bus else families
        self._reads_only = reads_only
        self.fd = -1

    def __enter__(self) -> Filter:
        self.fd = os.memfd_create("lightagent-seccomp")
        code = seccomp.program(self._families, reads_only=self._reads_only, serves=True)
        os.write(self.fd, code)
        os.lseek(self.fd, 0, os.SEEK_SET)
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)


def bwrap_argv(effect: Effect, backend: Backend, paths: Paths, filter_fd: int, mounts: Mounts) -> list[str]:
    """The command line of bwrap up to the program to run."""
    argv = ["bwrap", "--ro-bind", "/", "/", "--dev", "/dev"]
    for empty in ("/dev/pts", "/run"):  # all users share the number of pseudo terminals
        argv += ["--perms", "0755", "--size", str(EMPTY_BYTES), "--tmpfs", empty]
    allowed = RUN_ALLOWED if effect is Effect.OBSERVE else RUN_ALLOWED + RUN_ALLOWED_REACH
    # What bwrap makes by itself on the way to a mount would be closed to others.
    for folder in sorted({parent for name in allowed for parent in Path(name).parents}):
        if folder.is_relative_to("/run") and folder != Path("/run"):
            argv += ["--perms", "0755", "--dir", str(folder)]
    for name in allowed:
        argv += ["--ro-bind-try", name, name]
    reachable, opened = _keep_reachable(mounts.needed)
    covered = ["/run", "/dev/pts", "/dev"]
    for path in (paths.state, paths.runtime, *home_secrets()):
        if any(path.is_relative_to(folder) for folder in ("/run", *opened)):
            continue  # an empty folder lies over it already
        if path.is_dir():
            argv += ["--perms", "0755", "--size", str(EMPTY_BYTES), "--tmpfs", str(path)]
            covered.append(str(path))
        elif path.is_file():
            argv += ["--ro-bind", "/dev/null", str(path)]
    argv += reachable
    for one in mounts.needed:  # what is needed of the state, which is covered
        if one.is_relative_to(paths.state):
            argv += ["--ro-bind", str(one), str(one)]
    if mounts.bus is not None:
        argv += ["--perms", "0755", "--dir", str(BUS_SOCKET.parent)]
        argv += ["--ro-bind", str(mounts.bus), str(BUS_SOCKET)]
    argv += ["--perms", "1777", "--size", str(SCRATCH_BYTES), "--tmpfs", str(SCRATCH)]
    for folder in mounts.writable:
        argv += ["--bind", str(folder), str(folder)]
    for path, seen_as in mounts.readable:
        argv += ["--ro-bind", str(path), str(seen_as)]
    for covering in (*covered, *opened):
        argv += ["--remount-ro", covering]
    argv += ["--unshare-ipc", "--new-session", "--chdir", "/"]
    if backend.ends is Ends.NAMESPACE:
        argv += ["--unshare-pid", "--as-pid-1"]
    if not backend.landlock_abi:
        argv += ["--proc", "/proc"]  # or /proc/PID/root of another process of this user would be a way out
    argv += ["--seccomp", str(filter_fd)]
    if os.geteuid() == 0:
        argv += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    else:
        argv += ["--unshare-user"]
    return argv


def home_secrets() -> list[Path]:
    """The files in an ordinary user's home folder that no worker may observe."""
    if os.geteuid() == 0:
        return []
    home = Path(os.environ.get("HOME") or pwd.getpwuid(os.geteuid()).pw_dir)
    return [home / name for name in HOME_SECRETS]


def _keep_reachable(needed: Iterable[Path]) -> tuple[list[str], list[str]]:
    """Mounts that keep paths readable for `nobody` although a parent folder is closed to others.

    The second list has the closed folders, which an empty folder covers.
    """
    argv: list[str] = []
    opened: list[str] = []
    if os.geteuid() != 0:
        return argv, opened
    made: set[Path] = set()
    for path in sorted(set(needed)):
        closed = next((folder for folder in reversed(path.parents) if not _open_to_others(folder)), None)
        if closed is None:
            continue
        if closed not in made:
            argv += ["--perms", "0755", "--size", str(EMPTY_BYTES), "--tmpfs", str(closed)]
            opened.append(str(closed))
        between = [folder for folder in reversed(path.parents) if folder.is_relative_to(closed)]
        for folder in between[1:]:
            if folder not in made:
                argv += ["--perms", "0755", "--dir", str(folder)]
        made.update(between)
        argv += ["--ro-bind", str(path), str(path)]
    return argv, opened


def _open_to_others(folder: Path) -> bool:
    return bool(stat.S_IMODE(folder.stat().st_mode) & stat.S_IXOTH)


def switch_user_argv(*, reads_logs: bool = False) -> list[str]:
    """As root, the command that becomes `nobody` and runs the rest; otherwise empty."""
    if os.geteuid() != 0:
        return []
    groups = ",".join(str(gid) for gid in worker_groups()) if reads_logs else ""
    nobody = pwd.getpwnam("nobody")
    return [
        "setpriv",
        f"--reuid={nobody.pw_uid}",
        f"--regid={nobody.pw_gid}",
        f"--groups={groups}" if groups else "--clear-groups",
        "--no-new-privs",
        "--inh-caps=-all",
        "--ambient-caps=-all",
        "--",
    ]


def worker_groups() -> list[int]:
    """The existing groups that may read logs."""
    found = []
    for name in ("adm", "systemd-journal"):
        try:
            found.append(grp.getgrnam(name).gr_gid)
        except KeyError:
            continue
    return found


def worker_argv(wanted: Wanted, *, filter_fd: int, lifeline_fd: int) -> list[str]:
    """The whole command line of a worker."""
    effect, backend = wanted.effect, wanted.backend
    confined = effect is not Effect.CHANGE
    ends = backend.ends if confined else Ends.CHILDREN
    keeper = [sys.executable, "-m", "lightagentd.worker.keeper"]
    keeper += ["--ends", ends, "--lifeline", str(lifeline_fd), "--listen-fd", str(wanted.listen_fd)]
    if confined:
        keeper += ["--confined", "--landlock", str(backend.landlock_abi)]
    for folder in wanted.tools:
        keeper += ["--tools", str(folder)]
    if not confined:
        return [*_first_to_go(), *keeper]
    switch_user = switch_user_argv(reads_logs=effect is Effect.OBSERVE)
    if backend.name != "bwrap":
        if os.geteuid() == 0:
            keeper += ["--limit-processes", str(PROCESSES)]
        return [*_first_to_go(), *switch_user, *keeper]
    needed = [Path(sys.prefix), Path(sys.base_prefix), PACKAGE_FOLDER, *wanted.tools, *wanted.extra]
    keeper += ["--limit-processes", str(PROCESSES), "--scratch", str(SCRATCH)]
    keeper += ["--bus"] if wanted.bus is not None else []
    return [
        *_first_to_go(),
        *bwrap_argv(effect, backend, wanted.paths, filter_fd, Mounts(needed=needed, bus=wanted.bus)),
        *switch_user,
        *keeper,
    ]


def _first_to_go() -> list[str]:
    """The command that makes the kernel kill the following program first when memory is short (choom(1))."""
    return ["choom", "-n", str(OOM_SCORE_ADJ), "--"] if shutil.which("choom") else []


@dataclass(kw_only=True, eq=False)
class Child:
    """A worker that the daemon started, and its sandbox. Its starter calls `end`."""

    process: asyncio.subprocess.Process
    lifeline: int
    """The daemon's end of a pipe: when it is closed, the keeper ends the worker and all that it runs."""
    backend: Backend
    held_inode: int
    """Of that pipe. Everything of the worker holds its other end until the keeper runs."""

    async def end(self) -> None:
        """End the worker and everything that it runs, and wait for it."""
        if self.lifeline >= 0:
            os.close(self.lifeline)
            self.lifeline = -1
        if self.process.returncode is None:
            try:
                async with asyncio.timeout(END_GRACE_S):
                    await self.process.wait()
            except TimeoutError:
                self.process.kill()
                await self.process.wait()
        if self.process.returncode:  # a bwrap that is killed too early leaves a child that waits for it
            await asyncio.to_thread(kill_holders, f"pipe:[{self.held_inode}]")

    def tell_at_once(self) -> None:
        """Make the keeper kill everything at once, without waiting."""
        if self.lifeline >= 0:
            with contextlib.suppress(OSError):  # nobody is there to read it
                os.write(self.lifeline, AT_ONCE)
            os.close(self.lifeline)
            self.lifeline = -1

    async def kill(self) -> None:
        """As `end`, but without a grace time. Nothing of the worker runs any more when this returns."""
        self.tell_at_once()
        try:
            async with asyncio.timeout(KILL_PATIENCE_S):
                await self.process.wait()
        except TimeoutError:
            killed = kill_tree(self.process.pid)
            with contextlib.suppress(TimeoutError):  # stuck in the kernel; it goes when it comes back
                async with asyncio.timeout(END_GRACE_S):
                    await self.process.wait()
                    while any(map(runs, killed)):  # noqa: ASYNC110 - they are no children of the daemon
                        await asyncio.sleep(_POLL_S)


async def spawn(wanted: Wanted) -> Child:
    """Start a worker of an effect, or a watcher; see `worker_argv` and `bwrap_argv`. Raises OSError."""
    if wanted.where in (Place.KEYS, Place.INSPECT):
        raise WorkerUnavailable(f"There is no {wanted.where} on this machine.")

    def argv(filter_fd: int, lifeline_fd: int) -> list[str]:
        return worker_argv(wanted, filter_fd=filter_fd, lifeline_fd=lifeline_fd)

    return await start_held(argv, wanted, Filter(wanted.effect, bus=wanted.bus is not None))


async def start_held(argv: Callable[[int, int], Sequence[str]], wanted: Wanted, calls: Filter) -> Child:
    """Start a worker with a lifeline and a filter of system calls. Raises OSError.

    `argv` gets the descriptors of the filter and of the worker's end of the lifeline.
    """
    held_end, lifeline = os.pipe()
    try:
        with calls:
            process = await start(
                argv(calls.fd, held_end), env=wanted.env, pass_fds=(calls.fd, wanted.listen_fd, held_end)
            )
    except BaseException:
        os.close(lifeline)
        raise
    finally:
        os.close(held_end)
    inode = os.fstat(lifeline).st_ino
    return Child(process=process, lifeline=lifeline, backend=wanted.backend, held_inode=inode)
