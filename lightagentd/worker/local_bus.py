"""The bus filter of workers that the daemon starts itself, where there are no worker units (`busproxy`)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import shutil
import socket
from collections.abc import Sequence
from pathlib import Path

from lightagentd.host.process import start
from lightagentd.text.reason import reason
from lightagentd.worker import busproxy

_START_TIMEOUT_S = 5.0


class BusProxy:
    """One proxy for all confined workers. `path` is its socket while it runs, else None."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: asyncio.subprocess.Process | None = None
        self._lifeline = -1
        self.path: Path | None = None
        self.problem = ""

    async def start(
        self, switch_user: Sequence[str], bus: Path = busproxy.BUS_SOCKET, readable: Sequence[str] = ()
    ) -> None:
        """Start the proxy if there is a bus; `switch_user` is the command that becomes the worker's user,
        `readable` as in `argv_for`.
        """
        if not bus.exists():
            return
        if shutil.which("xdg-dbus-proxy") is None:
            self.problem = "Shell commands and skills cannot ask systemd: xdg-dbus-proxy is not installed."
            return
        path = self._make_folder()
        ours, theirs = socket.socketpair()
        self._lifeline = ours.detach()
        with theirs:
            argv = busproxy.argv_for(bus, path, f"--fd={theirs.fileno()}", readable=readable)
            try:
                self._process = await start([*switch_user, *argv], env={}, pass_fds=(theirs.fileno(),))
            except OSError as err:
                why = f"xdg-dbus-proxy does not start: {reason(err)}"
                self.problem = f"Shell commands and skills cannot ask systemd: {why}."
                return
        if await self._serves():
            self.path = path
        else:
            self.problem = "Shell commands and skills cannot ask systemd: xdg-dbus-proxy ended at once."
            await self.close()

    async def close(self) -> None:
        """End the proxy. It exits when its lifeline closes, even if the daemon is killed."""
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
        """Make the folder for the socket, which only the worker's user can write to."""
        self._folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        path = self._folder / "system_bus_socket"
        path.unlink(missing_ok=True)
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            os.chown(self._folder, nobody.pw_uid, nobody.pw_gid)
        return path

    async def _serves(self) -> bool:
        """Wait for the byte that the proxy writes when it listens."""
        with socket.socket(fileno=os.dup(self._lifeline)) as ours, contextlib.suppress(TimeoutError, OSError):
            ours.setblocking(False)
            async with asyncio.timeout(_START_TIMEOUT_S):
                return bool(await asyncio.get_running_loop().sock_recv(ours, 1))
        return False
