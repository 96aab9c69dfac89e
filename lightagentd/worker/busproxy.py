"""The system bus as confined workers see it: through xdg-dbus-proxy, which lets only questions through.

A worker that could talk to the whole bus could have others act for it: systemd-resolved would look names up,
systemd would start units. So the sandbox gets a proxy's socket in the bus's place. The proxy forwards the
calls listed here and nothing else; every other name is as if it were not there. It runs as the worker's user,
since the bus believes only the kernel about who calls. Where xdg-dbus-proxy is missing, there is no bus in
the sandbox, and `problem` says so. See xdg-dbus-proxy(1).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import shutil
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from lightagentd.worker.process import start

BUS_SOCKET = Path("/run/dbus/system_bus_socket")
_START_TIMEOUT_S = 5.0

_READ_PROPERTIES = ("org.freedesktop.DBus.Properties.Get", "org.freedesktop.DBus.Properties.GetAll")
_COMMON = (
    *_READ_PROPERTIES,
    "org.freedesktop.DBus.Introspectable.Introspect",
    "org.freedesktop.DBus.Peer.Ping",
)
_SYSTEMD = "org.freedesktop.systemd1.Manager"
_LOGIND = "org.freedesktop.login1.Manager"

ALLOWED: dict[str, tuple[str, ...]] = {
    "org.freedesktop.systemd1": tuple(
        f"{_SYSTEMD}.{name}"
        for name in (
            "GetUnit",
            "GetUnitByPID",
            "LoadUnit",
            "GetUnitProcesses",
            "GetUnitFileState",
            "GetUnitFileLinks",
            "GetDefaultTarget",
            "GetJob",
            "ListJobs",
            "ListUnits",
            "ListUnitsFiltered",
            "ListUnitsByPatterns",
            "ListUnitsByNames",
            "ListUnitFiles",
            "ListUnitFilesByPatterns",
        )
    ),
    "org.freedesktop.login1": tuple(
        f"{_LOGIND}.{name}"
        for name in (
            "ListSessions",
            "ListSessionsEx",
            "ListUsers",
            "ListSeats",
            "ListInhibitors",
            "GetSession",
            "GetUser",
        )
    ),
    "org.freedesktop.hostname1": (),
    "org.freedesktop.timedate1": (),
    "org.freedesktop.locale1": (),
    "org.freedesktop.network1": (),
    "org.freedesktop.NetworkManager": (),
    "org.freedesktop.UDisks2": (),
    "org.freedesktop.UPower": (),
}
"""Bus name → the methods that may be called on it, beside reading properties and introspection."""


class BusProxy:
    """One proxy for all confined workers. `path` is its socket while it runs, else None."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: asyncio.subprocess.Process | None = None
        self._lifeline = -1
        self.path: Path | None = None
        self.problem = ""

    async def start(self, switch_user: Sequence[str], bus: Path = BUS_SOCKET) -> None:
        """Start it where there is a bus; `switch_user` is the command that becomes the worker's user."""
        if not bus.exists():
            return
        if shutil.which("xdg-dbus-proxy") is None:
            self.problem = "Shell commands and skills cannot ask systemd: xdg-dbus-proxy is not installed."
            return
        path = self._make_folder()
        ours, theirs = socket.socketpair()
        self._lifeline = ours.detach()
        with theirs:
            argv = _proxy_argv(bus, path, f"--fd={theirs.fileno()}")
            try:
                self._process = await start([*switch_user, *argv], env={}, pass_fds=(theirs.fileno(),))
            except OSError as err:
                self.problem = (
                    f"Shell commands and skills cannot ask systemd: xdg-dbus-proxy does not start: {err}."
                )
                return
        if await self._serves():
            self.path = path
        else:
            self.problem = "Shell commands and skills cannot ask systemd: xdg-dbus-proxy ended at once."
            await self.close()

    async def close(self) -> None:
        """End the proxy: it ends itself when its lifeline closes, also when the daemon is killed."""
        self.path = None
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()
            await self._process.wait()
            self._process = None

    def _make_folder(self) -> Path:
        """The folder for the socket, which the worker's user must be able to write to, and nobody else."""
        self._folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        path = self._folder / "system_bus_socket"
        path.unlink(missing_ok=True)
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            os.chown(self._folder, nobody.pw_uid, nobody.pw_gid)
        return path

    async def _serves(self) -> bool:
        """Wait for the byte that it writes when it listens."""
        with socket.socket(fileno=os.dup(self._lifeline)) as ours, contextlib.suppress(TimeoutError, OSError):
            ours.setblocking(False)
            async with asyncio.timeout(_START_TIMEOUT_S):
                return bool(await asyncio.get_running_loop().sock_recv(ours, 1))
        return False


def _proxy_argv(bus: Path, path: Path, *options: str) -> list[str]:
    argv = ["xdg-dbus-proxy", *options, f"unix:path={bus}", str(path), "--filter"]
    for name, methods in ALLOWED.items():
        argv += [f"--call={name}={method}" for method in (*_COMMON, *methods)]
    return argv


def main() -> None:
    """Become the proxy that listens at the path that is the one argument (`lightagent-bus@.service`)."""
    _, path = sys.argv
    Path(path).unlink(missing_ok=True)
    argv = _proxy_argv(BUS_SOCKET, Path(path))
    try:
        os.execvp(argv[0], argv)  # noqa: S606 - it becomes the proxy
    except OSError as err:
        sys.exit(f"xdg-dbus-proxy cannot be started (package xdg-dbus-proxy): {err}")


if __name__ == "__main__":
    main()
