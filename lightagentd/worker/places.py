"""The workers that a machine has only once, and how the daemon starts them without systemd.

A place (`lightagentd.tool.Place`) of `MACHINE` is a worker with rights that no shell may have: it serves only
the actions declared for it, starts no program, and has no network (`lockdown`). With systemd it has its own
unit (`lightagent-keys.service`, `lightagent-inspect.service`). Otherwise the daemon starts it:

- KEYS as the daemon's own user, without capabilities, in bwrap with its folder as the only place to write,
  and with the daemon's other state covered. Where bwrap does not work it is a plain child of
  root's, which the user of the tools cannot read; an ordinary user has no key store then.
- INSPECT only as root and in bwrap: as `nobody`, with the capabilities to look into processes and folders of
  others and with nothing to write to. Elsewhere there is none, and the worker of the effect answers.
"""

from __future__ import annotations

import os
import pwd
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from lightagentd.errors import WorkerUnavailable
from lightagentd.host.paths import PACKAGE_FOLDER, Paths
from lightagentd.tool import Effect, Place
from lightagentd.toolkit.crypt.wrapping import CREDENTIAL
from lightagentd.worker import sandbox
from lightagentd.worker.leftovers import Ends
from lightagentd.worker.lockdown import MACHINE
from lightagentd.worker.sandbox import Mounts, Wanted

CREDENTIALS = Path("/run/lightagent-credentials")
"""Inside bwrap: where the key store finds the credential that the daemon was given for it."""

INSPECT_CAPABILITIES = ("CAP_SYS_PTRACE", "CAP_DAC_READ_SEARCH")
"""To look into the processes of others, and to enter every folder."""
_INSPECT_NUMBERS = (19, 2, 8)
"""The numbers of those two and of CAP_SETPCAP, which takes all others away (linux/capability.h)."""

KEYS_BARE = (
    "Private keys are kept by a plain process of the daemon's user, because bwrap does not work here: only"
    " file modes protect them."
)
NO_KEYS = (
    "There is no key store, because bwrap does not work here, and tools that run as the same user could read"
    " the private keys."
)


def limits(backend: sandbox.Backend) -> tuple[str, ...]:
    """The promises that places started by the daemon do not keep, as sentences for `Backend.limits`."""
    if backend.name != "none":
        return ()
    return (KEYS_BARE if os.geteuid() == 0 else NO_KEYS,)


async def spawn(wanted: Wanted) -> sandbox.Child:
    """Start a worker: a place of `MACHINE` here, any other with `sandbox.spawn`.

    Raises WorkerUnavailable where the machine cannot have that place, and OSError.
    """
    place, backend, paths = wanted.where, wanted.backend, wanted.paths
    if not isinstance(place, Place) or place not in MACHINE:
        return await sandbox.spawn(wanted)
    if place is Place.INSPECT and not has_inspect(backend):
        raise WorkerUnavailable(f"There is no {place} on this machine.")
    if place is Place.KEYS:
        if backend.name == "none" and os.geteuid() != 0:
            raise WorkerUnavailable(NO_KEYS, suggestion="Install bubblewrap, or run the daemon as a service.")
        paths.keys.mkdir(mode=0o700, parents=True, exist_ok=True)
        wanted = replace(wanted, env=_keys_environment(backend, paths))

    def argv(filter_fd: int, lifeline_fd: int) -> list[str]:
        keeper = _keeper_argv(place, wanted, lifeline_fd)
        if place is Place.KEYS:
            return _keys_argv(wanted, keeper, filter_fd)
        return _inspect_argv(wanted, keeper, filter_fd)

    calls = sandbox.Filter(Effect.OBSERVE, reads_only=place is Place.INSPECT)
    return await sandbox.start_held(argv, wanted, calls)


def _keeper_argv(place: Place, wanted: Wanted, lifeline_fd: int) -> list[str]:
    """The command of a place's worker with its keeper, in its own domain if the kernel supports that."""
    backend = wanted.backend
    ends = backend.ends if place is Place.KEYS else Ends.CHILDREN
    argv = [sys.executable, "-m", "lightagentd.worker.keeper", "--ends", ends]
    argv += ["--lifeline", str(lifeline_fd), "--listen-fd", str(wanted.listen_fd), "--place", place]
    if place is Place.KEYS:
        argv += ["--confined", "--landlock", str(backend.landlock_abi)]
    for folder in wanted.tools:
        argv += ["--tools", str(folder)]
    if backend.name == "bwrap":
        argv += ["--scratch", str(sandbox.SCRATCH)]
    return argv


def _keys_argv(wanted: Wanted, keeper: Sequence[str], filter_fd: int) -> list[str]:
    if wanted.backend.name != "bwrap":
        if os.geteuid() != 0:
            return list(keeper)
        return ["setpriv", "--no-new-privs", "--inh-caps=-all", "--bounding-set=-all", "--", *keeper]
    mounts = Mounts(
        needed=[Path(sys.prefix), Path(sys.base_prefix), PACKAGE_FOLDER, *wanted.tools],
        writable=[wanted.paths.keys],
        readable=[(given, CREDENTIALS / CREDENTIAL)] if (given := _credential()) else [],
    )
    argv = sandbox.bwrap_argv(Effect.OBSERVE, wanted.backend, wanted.paths, filter_fd, mounts)
    # It stays the daemon's user, to whom the folder belongs, so it needs none of root's capabilities.
    return [*argv, "--cap-drop", "ALL", "--", *keeper]


def has_inspect(backend: sandbox.Backend) -> bool:
    """Whether the daemon can start the worker for inspect. Only root can give it the rights, and in some
    containers not even root.
    """
    if backend.name != "bwrap" or os.geteuid() != 0:
        return False
    status = Path("/proc/self/status").read_text("ascii", "replace")
    bounds = int(status.partition("\nCapBnd:")[2].split()[0], 16)
    return all(bounds >> number & 1 for number in _INSPECT_NUMBERS)


def _inspect_argv(wanted: Wanted, keeper: Sequence[str], filter_fd: int) -> list[str]:
    """The command: as `nobody` with two capabilities, in bwrap, without write access and network.

    It has no Landlock domain and no PID namespace, because these would hide other processes. Nothing that a
    model can name starts a program in it.
    """
    backend = wanted.backend
    seeing = replace(backend, ends=Ends.CHILDREN, landlock_abi=max(1, backend.landlock_abi))
    # It may pass closed folders, so nothing has to be kept readable.
    argv = sandbox.bwrap_argv(Effect.OBSERVE, seeing, wanted.paths, filter_fd, Mounts())
    names = [name.removeprefix("CAP_").lower() for name in INSPECT_CAPABILITIES]
    exactly = ",".join(["-all", *(f"+{name}" for name in names)])
    for name in (*INSPECT_CAPABILITIES, "CAP_SETPCAP"):
        argv += ["--cap-add", name]
    nobody = pwd.getpwnam("nobody")
    argv += ["setpriv", f"--reuid={nobody.pw_uid}", f"--regid={nobody.pw_gid}", "--clear-groups"]
    argv += ["--no-new-privs", f"--bounding-set={exactly}"]
    return [*argv, f"--inh-caps={exactly}", f"--ambient-caps={exactly}", "--", *keeper]


def _keys_environment(backend: sandbox.Backend, paths: Paths) -> dict[str, str]:
    env = {"LIGHTAGENT_KEYS": str(paths.keys)}
    if given := _credential():
        folder = CREDENTIALS if backend.name == "bwrap" else given.parent
        env["CREDENTIALS_DIRECTORY"] = str(folder)
    return env


def _credential() -> Path | None:
    """The daemon's credential with the wrapping key of the key store (systemd.exec(5), CREDENTIALS)."""
    folder = os.environ.get("CREDENTIALS_DIRECTORY")
    path = Path(folder, CREDENTIAL) if folder else None
    return path if path is not None and path.is_file() else None
