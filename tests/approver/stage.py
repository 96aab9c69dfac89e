"""The approver's program on real sockets and a bus of its own, beside a scripted polkit and systemd."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from lightagentd.approver import program
from lightagentd.bus.connection import Call, Reply, connect
from lightagentd.signed.statement import Statement
from lightagentd.varlink.server import VarlinkConnection
from tests.fake_systemd import private_bus
from tests.scripted_polkit import NO, Answer, Check, ScriptedPolkit

NOBODY = 65534
CALL = Statement(
    agent="ops",
    tool="systemd",
    action="restart",
    effect="change",
    args={"unit": "nginx.service"},
    tool_sha256="ab" * 32,
    call_id="call_1",
    session="ses_1",
    owner=1000,
    trigger="person",
)
SAID = {"tainted": False, "preview": "It restarts.", "rule": "ask"}


class Stage:
    """`unit` is where systemd says that callers run; `verdicts` polkit's answers by action."""

    def __init__(self, folder: Path, address: str) -> None:
        self.folder, self.address = folder, address
        self.unit = "session-1.scope"
        self.verdicts: dict[str, Answer] = {}
        self.polkit = ScriptedPolkit(self._decide)

    async def _decide(self, check: Check) -> Answer:
        return self.verdicts.get(check.action.removeprefix("org.lightagent1."), NO)

    async def systemd(self, call: Call) -> Reply:
        if call.member == "GetUnitByPIDFD":
            return Reply(signature="osay", args=["/unit", self.unit, b""])
        return Reply(error="org.freedesktop.DBus.Error.Failed", args=["No such thing."])

    async def start(self) -> None:
        people, daemon = (bound(self.folder / f"{name}.sock") for name in ("approve", "daemon"))
        serving = program.serve(self.folder, people, daemon, self.address)
        self._task = asyncio.create_task(serving)
        await self.person("GetStatus")

    async def stop(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(self._task, 10)

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    async def call(self, name: str, method: str, **parameters: Any) -> Any:
        """Of the socket with that name. Raises the error of the answer."""
        connection = await VarlinkConnection.connect(self.folder / f"{name}.sock")
        try:
            reply = await connection.call(method, **parameters)
        finally:
            connection.close()
        return next(iter(reply.values()), None)

    async def daemon(self, method: str, **parameters: Any) -> Any:
        return await self.call("daemon", f"org.lightagent1.ApproverRequests.{method}", **parameters)

    async def person(self, method: str, **parameters: Any) -> Any:
        return await self.call("approve", f"org.lightagent1.Approver.{method}", **parameters)

    async def asked(self, statement: Statement = CALL, name: str = "apr_1", **said: Any) -> str:
        """Register a call; gives its digest."""
        until_us = time.time_ns() // 1000 + 3_600_000_000
        given = {"statement": statement.to_dict(), "said": SAID | said, "expires_us": until_us}
        return str(await self.daemon("Register", approval=name, **given))


def bound(path: Path) -> socket.socket:
    """A socket as systemd makes it."""
    made = socket.socket(socket.AF_UNIX)
    path.unlink(missing_ok=True)
    made.bind(str(path))
    made.listen()
    path.chmod(0o666)
    return made


@contextlib.asynccontextmanager
async def staged(folder: Path) -> AsyncIterator[Stage]:
    """The approver, for the length of the block."""
    with private_bus() as address:
        Path(address.removeprefix("unix:path=").partition(",")[0]).parent.chmod(0o755)
        stage = Stage(folder, address)
        async with connect(address) as system, stage.polkit.on(address):
            system.serve(stage.systemd)
            await system.request_name("org.freedesktop.systemd1")
            await stage.start()
            try:
                yield stage
            finally:
                await stage.stop()
