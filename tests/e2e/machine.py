"""A booted Debian 13 system for tests: systemd, D-Bus, journald and polkit, in systemd-nspawn.

`Machine` owns everything that it makes: the container, its mounts and its cgroup. The root below it is
only read: the container writes to an overlay on a tmpfs. Container and mounts are in a mount and a PID
namespace of their own, so the kernel removes both when the first process of that namespace ends; this
process asks for that with PR_SET_PDEATHSIG, and so a test run that is killed leaves no container behind.
The container has a network namespace with nothing but `lo`.

Commands enter with nsenter(1), each in a cgroup of its own, so a command that takes too long ends with all
its children. See systemd-nspawn(1), namespaces(7), cgroups(7), https://systemd.io/CONTAINER_INTERFACE.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import pwd
import re
import signal
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Any

from tests.prepared import Prepared

from .cgroup import make_cgroup, remove_cgroup

PROGRAMS = ("systemd-nspawn", "nsenter", "unshare", "setpriv", "mount", "cp")
"""What the host must have, besides root and a cgroup v2 hierarchy."""
BOOT_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 20.0
"""How long the container has to power off before it is killed."""
CONSOLE_LINES = 40
"""How much of the console an error shows."""
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

TESTS = Path(__file__).parents[1]
PREPARED = "/usr/lib/lightagentd-prepared"
"""Where what forks programs is in the container."""
_POLL_S = 0.05
_POWEROFF = signal.SIGRTMIN + 4  # systemd(1), SIGNALS
# The last two: the root and the working folder of the leader, not those of this process.
_NSENTER_OPTIONS = ("--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup", "--root", "--wd")
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[78c]|\r")
_commands = itertools.count(1)

# Runs as the first process of the namespaces; $1 is the root, $2 the machine's cgroup. /run is covered, so
# systemd-nspawn leaves no file in the host's, and it does not look for a systemd of the host there.
# systemd-nspawn wants cgroup v2 at /sys/fs/cgroup, which a host with cgroup v1 has elsewhere.
_BOOT = """
set -eu
echo 0 > "$2/cgroup.procs"
if [ "$(stat -f -c %T /sys/fs/cgroup)" != cgroup2fs ]; then mount -t cgroup2 cgroup2 /sys/fs/cgroup; fi
cd "$1"
mount -t tmpfs -o mode=0755 tmpfs /run
mkdir /run/upper /run/work /run/root
mount -t overlay -o lowerdir=.,upperdir=/run/upper,workdir=/run/work overlay /run/root ||
    cp -a --reflink=auto . /run/root
cd /
systemd-nspawn -D /run/root --boot --machine=debian13 --register=no --keep-unit --console=read-only \
    --system-call-filter='landlock_create_ruleset landlock_add_rule landlock_restrict_self' \
    --private-network --resolv-conf=off --timezone=off --link-journal=no || exit $?
"""


class MachineError(Exception):
    """The container did not boot, or a command in it failed or took too long."""


@dataclass(frozen=True, kw_only=True)
class Completed:
    """How a command in the machine ended and what it printed."""

    argv: tuple[str, ...]
    status: int
    """The exit status, or minus the number of the signal that ended it."""
    stdout: str
    stderr: str

    def explain(self) -> str:
        """Command, status and the ends of both streams, for an error message."""
        return (
            f"{' '.join(self.argv)}: status {self.status}\nstdout: {self.stdout[-4000:].strip()}\n"
            f"stderr: {self.stderr[-4000:].strip()}"
        )


class Machine:
    """One container, booted from a copy of `root`: a context manager, or call `start` and `stop`."""

    def __init__(self, root: Path, *, boot_timeout_s: float = BOOT_TIMEOUT_S) -> None:
        self.root = root
        self._boot_timeout_s = boot_timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._cgroup: Path | None = None
        self._console: io.BufferedRandom | None = None
        self._leader: int | None = None
        self._booted = False
        self._prepared: Prepared | None = None
        self._prepared_cgroup = Path()
        self._forked: dict[str, str] = {}

    def __enter__(self) -> Machine:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def leader(self) -> int:
        """The PID, on the host, of the container's first process."""
        if self._leader is None:
            raise MachineError("the machine is not running: call start() first")
        return self._leader

    @property
    def cgroup(self) -> Path:
        """The cgroup, on the host, that holds every process of the container."""
        if self._cgroup is None:
            raise MachineError("the machine is not running: call start() first")
        return self._cgroup

    def console(self) -> str:
        """The last lines that the container printed to its console, without colours."""
        if self._console is None:
            return ""
        text = os.pread(self._console.fileno(), 1 << 20, 0).decode("utf-8", "replace")
        lines = [line.rstrip() for line in _ANSI.sub("", text).split("\n")]
        return "\n".join([line for line in lines if line][-CONSOLE_LINES:])

    def start(self) -> None:
        """Boot until systemd says `running` or `degraded`; raises MachineError with the console's tail."""
        if self._process is not None:
            raise MachineError("the machine is running already: call stop() first")
        self._console = tempfile.TemporaryFile()  # noqa: SIM115 (closed by stop)
        self._cgroup = make_cgroup()
        namespaces = ["--mount", "--propagation=private", "--pid", "--fork", "--mount-proc"]
        argv = ["setpriv", "--pdeathsig=KILL", "unshare", *namespaces, "--kill-child=KILL"]
        argv += ["sh", "-c", _BOOT, "boot", str(self.root), str(self._cgroup)]
        self._process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=self._console,
            stderr=self._console,
            env={"PATH": SYSTEM_PATH},
            start_new_session=True,  # Ctrl-C ends the tests, and they end the container
        )
        try:
            self._wait_until_booted()
        except MachineError as error:
            raise MachineError(f"{error}; the console of {self.root}:\n{self.console()}") from None
        finally:
            if not self._booted:
                self.stop()

    def _wait_until_booted(self) -> None:
        """Ask systemd for its state until it is up, the container has ended, or the time is over."""
        assert self._process is not None
        deadline = time.monotonic() + self._boot_timeout_s
        state = "not started"
        while state not in ("running", "degraded"):
            if self._process.poll() is not None:
                raise MachineError(
                    f"the container ended with status {self._process.returncode} while it booted"
                )
            left_s = deadline - time.monotonic()
            if left_s < 0:
                raise MachineError(
                    f"not booted after {self._boot_timeout_s:g} s, systemd's state is {state!r}"
                )
            time.sleep(_POLL_S)
            self._leader = _find_leader(self.cgroup)
            if self._leader is not None:
                # It waits once systemd can be asked, and ends at once before that.
                wait = ["timeout", f"{left_s + 0.1:.1f}", "systemctl", "is-system-running", "--wait"]
                done = self.run(wait, check=False, timeout_s=left_s + 10)
                state = done.stdout.strip() or state
        self._booted = True

    def stop(self) -> None:
        """Power off, kill what is left after `STOP_TIMEOUT_S`, and remove the cgroup. Does nothing twice."""
        process, cgroup = self._process, self._cgroup
        if self._prepared is not None:
            self._prepared.close()
            self._prepared = None
        if process is not None and cgroup is not None:
            if self._leader is not None and process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._leader, _POWEROFF)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(STOP_TIMEOUT_S)
            # The first process of the namespaces is in the cgroup: with it the kernel ends all the others.
            (cgroup / "cgroup.kill").write_text("1")
            process.wait(STOP_TIMEOUT_S)
        self._process = self._leader = self._cgroup = None
        self._booted = False
        if cgroup is not None:
            remove_cgroup(cgroup)
        if self._console is not None:
            self._console.close()
            self._console = None

    def run(
        self,
        argv: Sequence[str],
        *,
        user: str | None = None,
        input: str | bytes | None = None,  # noqa: A002 (the name that subprocess uses)
        env: Mapping[str, str] | None = None,
        timeout_s: float = 30.0,
        check: bool = True,
    ) -> Completed:
        """Run a command in `/` of the container, as root or as `user`; its environment is built from nothing.

        Raises MachineError when the command fails and `check` is set, and always when it is not done after
        `timeout_s`; it and its children are dead then. A child that holds the output open counts as not done.
        """
        home = "/root"
        switch: list[str] = []
        if user is not None:
            account = self.account(user)
            home = account.pw_dir
            switch = ["setpriv", f"--reuid={user}", f"--regid={account.pw_gid}", "--init-groups", "--"]
        name = user or "root"
        environment = {"PATH": SYSTEM_PATH, "LANG": "C.UTF-8", "HOME": home, "USER": name, "LOGNAME": name}
        environment |= env or {}
        data = input.encode() if isinstance(input, str) else input
        if self._prepared is not None and argv[0] in self._forked:
            status, out, err, in_time = self._fork(argv, data, environment, timeout_s, user)
        else:
            status, out, err, in_time = self._communicate([*switch, *argv], data, environment, timeout_s)
        done = Completed(
            argv=tuple(argv),
            status=status,
            stdout=out.decode("utf-8", "replace"),
            stderr=err.decode("utf-8", "replace"),
        )
        if not in_time:
            raise MachineError(f"a command in the machine took over {timeout_s:g} s: {done.explain()}")
        if check and done.status != 0:
            raise MachineError(f"a command in the machine failed: {done.explain()}")
        return done

    def prepare(self, programs: Mapping[str, str]) -> None:
        """From now on `run` has these programs, by the name of a module, forked: see tests/prepared.py."""
        for name in ("__init__.py", "described.py", "left.py", "prepared.py", "prepared_workers.py"):
            self.copy_in(TESTS / name, f"{PREPARED}/tests/{name}")
        self._forked = dict(programs)
        self._prepared_cgroup = self._cgroup_of_command()
        python = ("env", f"PYTHONPATH={PREPARED}", "/usr/bin/python3")
        self._prepared = Prepared(interpreter=[*self._enter(self._prepared_cgroup), *python])

    def _fork(
        self,
        argv: Sequence[str],
        data: bytes | None,
        env: Mapping[str, str],
        timeout_s: float,
        user: str | None,
    ) -> tuple[int, bytes, bytes, bool]:
        """As `_communicate`, by the prepared process."""
        assert self._prepared is not None
        try:
            done = self._prepared.run(
                self._forked[argv[0]],
                argv[1:],
                env=env,
                stdin=data or b"",
                cwd=Path("/"),
                timeout_s=timeout_s,
                user=user,
                kill=lambda: (self._prepared_cgroup / "cgroup.kill").write_text("1"),
            )
        except subprocess.TimeoutExpired as late:
            self._prepared.close()
            self._prepared = None
            return -signal.SIGKILL, late.stdout or b"", late.stderr or b"", False
        return done.returncode, done.stdout, done.stderr, True

    def _enter(self, cgroup: Path) -> list[str]:
        """What runs a command in the container and in `cgroup`."""
        enter = ["sh", "-c", 'echo 0 > "$0" && exec "$@"', str(cgroup / "cgroup.procs")]
        return [*enter, "nsenter", f"--target={self.leader}", *_NSENTER_OPTIONS, "--"]

    def _communicate(
        self, argv: Sequence[str], data: bytes | None, env: Mapping[str, str], timeout_s: float
    ) -> tuple[int, bytes, bytes, bool]:
        """Enter the container and run argv there; status, output, errors, and whether it ended in time."""
        with self._command_cgroup() as cgroup:
            with subprocess.Popen(
                [*self._enter(cgroup), *argv],
                stdin=subprocess.DEVNULL if data is None else subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=env,
                cwd="/",
                start_new_session=True,
            ) as process:
                in_time = True
                try:
                    out, err = process.communicate(data, timeout_s)
                except subprocess.TimeoutExpired:
                    in_time = False
                    (cgroup / "cgroup.kill").write_text("1")
                    out, err = process.communicate()
                except BaseException:
                    (cgroup / "cgroup.kill").write_text("1")
                    raise
            return process.returncode, out, err, in_time

    def _cgroup_of_command(self) -> Path:
        """A new cgroup, which systemd in the container knows nothing of."""
        cgroup = self.cgroup / "payload" / "e2e-commands" / str(next(_commands))
        cgroup.mkdir(parents=True)
        return cgroup

    @contextlib.contextmanager
    def _command_cgroup(self) -> Iterator[Path]:
        """A cgroup for one command."""
        cgroup = self._cgroup_of_command()
        try:
            yield cgroup
        finally:
            with contextlib.suppress(OSError):  # a process left behind on purpose: stop() removes it
                cgroup.rmdir()

    def account(self, user: str) -> pwd.struct_passwd:
        """The container's passwd entry of `user`; raises MachineError when there is none."""
        known = Path(f"/proc/{self.leader}/root/etc/passwd").read_text().splitlines()
        found = next((line for line in known if line.startswith(f"{user}:")), "")
        fields: list[Any] = (found or self.run(["getent", "passwd", user]).stdout.strip()).split(":")
        return pwd.struct_passwd((*fields[:2], int(fields[2]), int(fields[3]), *fields[4:]))

    def write(self, path: str, text: str, mode: int = 0o644) -> None:
        """Write a file of root's, and the folders above it; it is there at once, whole and with its mode.

        Programs that watch its folder, as polkit does, read it when it is made and not when its mode changes.
        """
        whole = PurePosixPath(path)
        new = str(whole.with_name(f".{whole.name}.new"))
        self.run(["install", "-D", f"--mode={mode:o}", "/dev/stdin", new], input=text)
        self.run(["mv", new, path])

    def copy_in(self, host_path: Path, guest_path: str) -> None:
        """Copy a file, or a folder without its `__pycache__`, to `guest_path`; the folders above are made.

        All becomes root's; every user can read it, and execute what its owner on the host can execute.
        """
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w") as tar:
            tar.add(host_path, arcname=str(PurePosixPath(guest_path).relative_to("/")), filter=_as_installed)
        self.run(["tar", "-x", "-C", "/", "--keep-directory-symlink"], input=archive.getvalue())

    def journal(self, *args: str) -> list[dict[str, Any]]:
        """The entries that `journalctl ARGS` selects, oldest first, with all that was logged until now.

        A value is text; one that is not UTF-8 is a list of its bytes, and a repeated field a list.
        """
        self.run(["journalctl", "--sync"])
        out = self.run(["journalctl", "--output=json", "--all", "--no-pager", *args], check=False)
        if out.status != 0 and out.stderr:  # with --grep, status 1 and silence mean: nothing found
            raise MachineError(f"the journal could not be read: {out.explain()}")
        return [json.loads(line) for line in out.stdout.splitlines() if line.startswith("{")]


def _find_leader(cgroup: Path) -> int | None:
    """The host's PID of the container's systemd, once it has moved itself to its `init.scope`.

    Before that the process may still have the host's root, and entering its namespaces would ask the host.
    """
    members = cgroup / "payload" / "init.scope" / "cgroup.procs"
    with contextlib.suppress(OSError):
        for pid in members.read_text().split():
            status = Path("/proc", pid, "status").read_text()
            ids = re.search(r"^NSpid:\s*(.*)$", status, re.MULTILINE)  # outermost namespace first
            if ids is not None and ids[1].split()[-1] == "1":
                return int(pid)
    return None


def _as_installed(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """The member as a package would install it, or None to leave it out."""
    if PurePosixPath(member.name).name == "__pycache__":
        return None
    member.uid = member.gid = 0
    member.uname = member.gname = "root"
    member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
    return member
