"""The approver as a process of its own, for tests: its two sockets, and what a daemon says to it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lightagentd.bus.connection import Call, Reply, connect
from lightagentd.client.blocking import Client
from lightagentd.signed.statement import Statement
from tests.fake_systemd import SYSTEMD, private_bus
from tests.prepared import REPOSITORY

_START = "exec 3<&{approve} 4<&{daemon}; LISTEN_PID=$$ exec {python} -m lightagentd.approver.program"
_DAEMON = "org.lightagent1.ApproverRequests"


class ApproverProgram:
    """Runs from `start` to `stop`, on a bus without polkit: root may answer, and nobody else."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.approve, self.daemon = folder / "approve.sock", folder / "daemon.sock"
        self.state = folder / "state"
        self._process: subprocess.Popen[bytes] | None = None
        self._bus = contextlib.ExitStack()

    def start(self) -> None:
        address = self._bus.enter_context(_bus())
        self.state.mkdir(mode=0o700, exist_ok=True)
        sockets = {}
        for name in ("approve", "daemon"):
            sockets[name] = socket.socket(socket.AF_UNIX)
            sockets[name].bind(str(self.folder / f"{name}.sock"))
            sockets[name].listen(16)
        fds = {name: one.fileno() for name, one in sockets.items()}
        self._process = subprocess.Popen(
            ["/bin/bash", "-c", _START.format(**fds, python=sys.executable)],
            cwd=REPOSITORY,
            pass_fds=[*fds.values()],
            env={
                "PATH": os.environ["PATH"],
                "LISTEN_FDS": "2",
                "LISTEN_FDNAMES": "approve:daemon",
                "STATE_DIRECTORY": str(self.state),
                "DBUS_SYSTEM_BUS_ADDRESS": address,
            },
        )
        for one in sockets.values():
            one.close()

    def stop(self) -> None:
        assert self._process is not None
        self._process.terminate()
        self._process.wait(10)
        self._bus.close()

    def register(self, approval: str, statement: Statement, **said: Any) -> str:
        """As the daemon does it; gives the digest."""
        expires_us = time.time_ns() // 1000 + 600_000_000
        with Client(self.daemon, timeout_s=10) as client:
            given = {"approval": approval, "statement": statement.to_dict(), "said": said}
            return str(client.call(f"{_DAEMON}.Register", expires_us=expires_us, **given)["digest"])

    def lapse(self, approval: str) -> None:
        with Client(self.daemon, timeout_s=10) as client:
            client.call(f"{_DAEMON}.Lapse", approval=approval)

    def get(self, approval: str) -> dict[str, Any]:
        """The request, as a person gets it."""
        with Client(self.approve, timeout_s=10) as client:
            return dict(client.call("Approver.Get", approval=approval)["request"])


@contextlib.contextmanager
def _bus() -> Iterator[str]:
    """A private bus on which systemd says of every process that no unit has it."""

    async def serve(address: str, stop: asyncio.Event, began: threading.Event) -> None:
        async with connect(address) as bus:
            bus.serve(_answer)
            await bus.request_name(SYSTEMD)
            began.set()
            await stop.wait()

    with private_bus() as address, asyncio.Runner() as runner:
        stop, began = asyncio.Event(), threading.Event()
        thread = threading.Thread(target=lambda: runner.run(serve(address, stop, began)))
        loop = runner.get_loop()
        thread.start()
        assert began.wait(10)
        try:
            yield address
        finally:
            loop.call_soon_threadsafe(stop.set)
            thread.join()


async def _answer(call: Call) -> Reply:
    return Reply(error=f"{SYSTEMD}.NoUnitForPID", args=[f"{call.member}: no unit has it."])
