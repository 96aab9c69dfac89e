"""A desktop for tests: a private session bus, a notification server as a process, and the program's parts."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from tests.conftest import REPOSITORY
from tests.fake_systemd import private_bus

ALL = ("actions", "body", "body-markup", "persistence")


class Server:
    """A notification server, and what it was asked for; `notes` are the notifications, `closed` their ids."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._reading: asyncio.Task[None] | None = None
        self._done = asyncio.Event()
        self._said = asyncio.Condition()
        self.notes: list[dict[str, Any]] = []
        self.closed: list[int] = []

    async def start(self) -> None:
        assert self._process.stdout is not None
        first = await self._process.stdout.readline()
        assert json.loads(first)["what"] == "ready"
        self._reading = asyncio.create_task(self._read())

    async def stop(self) -> None:
        if self._reading is None:
            return
        self._process.kill()
        await self._process.wait()
        await self._reading
        self._reading = None

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            said = json.loads(line)
            if said["what"] == "notify":
                self.notes.append(said)
            elif said["what"] == "closed":
                self.closed.append(said["id"])
            else:
                self._done.set()
            async with self._said:
                self._said.notify_all()

    async def has(self, count: int) -> dict[str, Any]:
        """Wait until so many notifications have come in all; gives the newest."""
        await self.until(lambda: len(self.notes) >= count)
        assert len(self.notes) == count, self.notes[count:]
        return self.notes[-1]

    async def until(self, condition: Any) -> None:
        """Wait until something that the server was asked for makes the condition true."""
        async with asyncio.timeout(60), self._said:
            await self._said.wait_for(condition)

    async def order(self, *words: Any) -> None:
        """Give an order, and wait until it is carried out."""
        assert self._process.stdin is not None
        self._done.clear()
        self._process.stdin.write(json.dumps(words).encode() + b"\n")
        await self._process.stdin.drain()
        async with asyncio.timeout(60):
            await self._done.wait()

    async def click(self, note: dict[str, Any], key: str) -> None:
        await self.order("click", note["id"], key)


@contextlib.asynccontextmanager
async def notification_server(address: str, *capabilities: str) -> AsyncIterator[Server]:
    """A server of that bus, for the length of the block; without capabilities named it has them all."""
    pipe = asyncio.subprocess.PIPE
    argv = [sys.executable, "-m", "tests.desktop.notification_server", address, *(capabilities or ALL)]
    process = await asyncio.create_subprocess_exec(*argv, cwd=REPOSITORY, stdin=pipe, stdout=pipe)
    server = Server(process)
    try:
        await server.start()
        yield server
    finally:
        await server.stop()


@pytest.fixture
def session_bus(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a session bus of this test's own, which the environment names, too."""
    with private_bus() as address:
        monkeypatch.setenv("DBUS_SESSION_BUS_ADDRESS", address)
        yield address
