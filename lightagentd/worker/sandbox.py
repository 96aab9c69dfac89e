"""How the daemon starts a worker where systemd does not do it, and what then holds the worker.

`bwrap` builds the sandbox: the machine's files read-only, `/run` an allow-list, a PID namespace of its
own (nothing outside can be signalled, and killing its init kills everything in it), no capabilities, the
system call filter of `seccomp`, and a scratch folder as the only place to write. `none` starts the worker
bare: it enforces nothing, says so, and policy then counts shell commands as `change`.

As root, the worker becomes the user `nobody` with the groups `adm` and `systemd-journal`.
"""

from __future__ import annotations

import asyncio
import grp
import os
import pwd
import shutil
import stat
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lightagentd.paths import PACKAGE_FOLDER, Paths
from lightagentd.tool import Effect
from lightagentd.worker import seccomp
from lightagentd.worker.process import start

SCRATCH = Path("/run/lightagent-scratch")
"""Inside bwrap: a tmpfs of its own. /tmp stays the machine's, so that `df` and watches do not lie."""
SCRATCH_BYTES = 256 << 20

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
    """What holds a worker. `enforced`: the kernel keeps observe from writing and from the network."""

    name: str
    enforced: bool
    reason: str = ""
    """Why nothing better is in force, as a sentence."""


async def choose(wanted: str, paths: Paths) -> Backend:
    """The backend to use for `auto`, `bwrap` or `none`; it is tried out, not assumed."""
    if wanted == "none":
        return Backend(name="none", enforced=False, reason="The configuration says sandbox = none.")
    if shutil.which("bwrap") is None:
        return Backend(name="none", enforced=False, reason="bwrap is not installed (package bubblewrap).")
    if not seccomp.supported():
        return Backend(
            name="none", enforced=False, reason="The system call filter does not know this machine."
        )
    with Filter(Effect.OBSERVE) as held:
        argv = [*bwrap_argv(Effect.OBSERVE, paths, held.fd, ()), *switch_user_argv(), "/bin/true"]
        tried = await start(argv, env={}, pass_fds=(held.fd,), stderr=asyncio.subprocess.PIPE)
        _, said = await tried.communicate()
    if tried.returncode == 0:
        return Backend(name="bwrap", enforced=True)
    why = said.decode(errors="replace").strip().splitlines() or ["it gave no reason"]
    return Backend(name="none", enforced=False, reason=f"bwrap does not work here: {why[-1]}")


class Filter:
    """The system call filter of an effect in a memory file, open while the block runs."""

    def __init__(self, effect: Effect) -> None:
        self._families = (seccomp.AF_UNIX, seccomp.AF_NETLINK) if effect is Effect.OBSERVE else None
        self.fd = -1

    def __enter__(self) -> Filter:
        self.fd = os.memfd_create("lightagent-seccomp")
        os.write(self.fd, seccomp.program(self._families))
        os.lseek(self.fd, 0, os.SEEK_SET)
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)


def bwrap_argv(effect: Effect, paths: Paths, filter_fd: int, needed: Iterable[Path]) -> list[str]:
    """The command line of bwrap up to the program to run. `needed` must stay readable for the worker."""
    argv = [
        "bwrap",
        *("--ro-bind", "/", "/"),
        *("--dev", "/dev"),
        *("--tmpfs", "/run"),
    ]
    allowed = RUN_ALLOWED if effect is Effect.OBSERVE else RUN_ALLOWED + RUN_ALLOWED_REACH
    for name in allowed:
        argv += ["--ro-bind-try", name, name]
    for path in (paths.state, paths.runtime, *_home_secrets()):
        if path.is_dir() and not path.is_relative_to("/run"):
            argv += ["--tmpfs", str(path)]
        elif path.is_file():
            argv += ["--ro-bind", "/dev/null", str(path)]
    argv += _keep_reachable(needed)
    argv += ["--perms", "1777", "--size", str(SCRATCH_BYTES), "--tmpfs", str(SCRATCH)]
    argv += ["--remount-ro", "/run", "--remount-ro", "/dev"]
    argv += ["--unshare-pid", "--unshare-ipc", "--die-with-parent", "--new-session", "--chdir", "/"]
    argv += ["--seccomp", str(filter_fd)]
    if os.geteuid() == 0:
        argv += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    else:
        argv += ["--unshare-user"]
    return argv


def _home_secrets() -> list[Path]:
    """What lies in the home folder of an ordinary user's own daemon and is nobody's to observe."""
    if os.geteuid() == 0:
        return []
    home = Path(os.environ.get("HOME") or pwd.getpwuid(os.geteuid()).pw_dir)
    return [home / name for name in HOME_SECRETS]


def _keep_reachable(needed: Iterable[Path]) -> list[str]:
    """Mounts that keep paths readable for `nobody` although a folder above them is closed to others."""
    if os.geteuid() != 0:
        return []
    argv: list[str] = []
    made: set[Path] = set()
    for path in sorted(set(needed)):
        closed = next((folder for folder in reversed(path.parents) if not _open_to_others(folder)), None)
        if closed is None:
            continue
        if closed not in made:
            argv += ["--perms", "0755", "--tmpfs", str(closed)]
        # What bwrap makes by itself on the way to a mount would be closed to others too.
        between = [folder for folder in reversed(path.parents) if folder.is_relative_to(closed)]
        for folder in between[1:]:
            if folder not in made:
                argv += ["--perms", "0755", "--dir", str(folder)]
        made.update(between)
        argv += ["--ro-bind", str(path), str(path)]
    return argv


def _open_to_others(folder: Path) -> bool:
    return bool(stat.S_IMODE(folder.stat().st_mode) & stat.S_IXOTH)


def switch_user_argv() -> list[str]:
    """As root: the command that becomes `nobody` and then runs the rest; else nothing."""
    if os.geteuid() != 0:
        return []
    groups = ",".join(str(gid) for gid in worker_groups())
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
    """The groups that may read logs, where they exist."""
    found = []
    for name in ("adm", "systemd-journal"):
        try:
            found.append(grp.getgrnam(name).gr_gid)
        except KeyError:
            continue
    return found


def worker_argv(
    effect: Effect,
    backend: Backend,
    paths: Paths,
    *,
    filter_fd: int,
    listen_fd: int,
    tools: Sequence[Path],
    extra: Sequence[Path],
) -> list[str]:
    """The whole command line of a worker. `extra` are further folders that it must be able to read."""
    program = [sys.executable, "-m", "lightagentd.worker.program", "--listen-fd", str(listen_fd)]
    for folder in tools:
        program += ["--tools", str(folder)]
    if backend.name == "bwrap":
        needed = [Path(sys.prefix), Path(sys.base_prefix), PACKAGE_FOLDER, *tools, *extra]
        program += ["--own-pid-namespace", "--scratch", str(SCRATCH)]
        return [*bwrap_argv(effect, paths, filter_fd, needed), *switch_user_argv(), *program]
    program += ["--parent", str(os.getpid())]
    return [*switch_user_argv(), *program]


async def terminate(process: asyncio.subprocess.Process, grace_s: float = 2.0) -> None:
    """End a worker and, through its namespace or its own sweep, everything that it runs."""
    if process.returncode is None:
        process.terminate()
        try:
            async with asyncio.timeout(grace_s):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
