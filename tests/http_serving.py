"""The connections of the test servers that play a model: HTTP/1.1 on loopback, kept alive."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from abc import ABC, abstractmethod
from typing import Any, Self


class HttpServing(ABC):
    """Enter it to serve. Its subclasses are dataclasses, which have the fields that are declared here."""

    port: int
    """0 for a free one; then the one that was taken."""
    connections: int
    """How many were made."""
    open_connections: int
    """Those that the client has not closed yet, also while an answer hangs."""
    tls: ssl.SSLContext | None = None
    _server: asyncio.Server | None
    _tasks: set[asyncio.Task[None]]

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(
            self._serve, "127.0.0.1", self.port, limit=32 << 20, ssl=self.tls
        )
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self.connections += 1
        self.open_connections += 1
        try:
            with contextlib.suppress(OSError, EOFError):
                while await self._answer_one(*await self._request(reader), reader, writer):
                    pass
        except asyncio.CancelledError:
            pass  # the server is closing; this task has no other owner
        finally:
            self.open_connections -= 1
            writer.close()

    async def _request(self, reader: asyncio.StreamReader) -> tuple[str, dict[str, str], dict[str, Any]]:
        """The next request: its path, its headers with names in lower case, and its JSON."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {
            name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:]) if name
        }
        body = json.loads(await reader.readexactly(int(headers.get("content-length", "0"))) or b"{}")
        return head[0].split(" ")[1], headers, body

    @abstractmethod
    async def _answer_one(
        self,
        path: str,
        headers: dict[str, str],
        body: dict[str, Any],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> bool:
        """Answer a request; False when the connection is to be closed."""
