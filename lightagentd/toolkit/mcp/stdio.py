"""Runs an MCP server as a program, and speaks with it over its standard streams, one line a message."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

from lightagentd.host.kept_process import KeptProcess
from lightagentd.text.jsonrpc import MAX_BYTES, Lost, Message, encode, lines
from lightagentd.text.visible import visible
from lightagentd.toolkit.mcp.connection import Lose, Receive, Transport

_SAID_BYTES = 2000
"""How much of its standard error is kept, to say why it ended."""


class Program(Transport):
    """A server as a program. It has a home of its own, which goes with it."""

    def __init__(
        self, argv: Sequence[str], environment: Mapping[str, str], above: Path, *, apart: str = ""
    ) -> None:
        """`above` is the folder for its home; with the name `apart` it outlives the call that starts it."""
        self._argv, self._environment, self._above, self._apart = argv, environment, above, apart
        self._process: KeptProcess | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._said: deque[bytes] = deque(maxlen=4)

    async def open(self, receive: Receive, lost: Lose) -> None:
        home = Path(tempfile.mkdtemp(prefix="lightagent-server-", dir=self._above))
        own = {"HOME": str(home), "TMPDIR": str(home), **self._environment}
        try:
            self._process = await KeptProcess.start(
                self._argv, env=own, home=home, limit_bytes=MAX_BYTES, apart=self._apart
            )
        except BaseException:
            shutil.rmtree(home, ignore_errors=True)
            raise
        self._tasks = [
            asyncio.create_task(self._read(self._process, receive, lost)),
            asyncio.create_task(self._listen(self._process)),
        ]

    async def send(self, message: Message) -> None:
        if self._process is None or self._process.status is not None:
            raise Lost(self._ended())
        self._process.stdin.write(encode(message) + b"\n")
        await self._process.stdin.drain()

    async def close(self) -> None:
        if self._process is None:
            return
        process, self._process = self._process, None
        await process.end()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.to_thread(shutil.rmtree, process.home, ignore_errors=True)

    async def _read(self, process: KeptProcess, receive: Receive, lost: Lose) -> None:
        why = ""
        try:
            async for line in lines(process.stdout, blank=True):  # each counts
                if not line.endswith(b"\n"):
                    why = "" if line else f"a line is longer than {MAX_BYTES} bytes"
                    break  # half a line at the end is no message
                await receive(line)
        except OSError:
            why = ""
        except Lost as err:
            why = str(err)
        if not why:
            await asyncio.sleep(0.05)  # its last words are on another pipe
        await lost(why or self._ended())
        await process.end()

    async def _listen(self, process: KeptProcess) -> None:
        while data := await process.stderr.read(_SAID_BYTES):
            self._said.append(data)

    def _ended(self) -> str:
        said = b"".join(self._said)[-_SAID_BYTES:].strip().splitlines()
        status = self._process.status if self._process is not None else None
        how = f"it ended with the status {status}" if status is not None else "it closed its output"
        return f"{how}: {visible(said[-1][-300:], keep=' ')}" if said else how
