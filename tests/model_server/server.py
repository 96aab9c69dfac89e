"""The server: takes a request, asks the script, and sends the answer in the dialect of the request's path."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.model_server import dialects, wire
from tests.model_server.dialects import Dialect
from tests.model_server.said import Said
from tests.model_server.wire import Answer, Wire


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One request as it came. `dialect` is empty for a path that no dialect has."""

    number: int
    """The first is 0."""
    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    dialect: Dialect | None


Scripted = Answer | Said
Script = Sequence[Scripted] | Callable[[Asked], Scripted]
_NO_SUCH_PATH = Answer(
    body=(b'{"error": {"message": "no such path", "type": "invalid_request_error"}}',),
    wire=Wire(status=404, content_type="application/json", chunked=False),
)


@dataclass
class ModelServer:
    """Each request takes the next answer of the script, and the last one is repeated."""

    script: Script
    port: int = 0
    tls: ssl.SSLContext | None = None
    keep_asked: bool = True
    """Whether `asked` has the requests; a long run does without."""
    asked: list[Asked] = field(default_factory=list)
    requests: int = 0
    connections: int = 0
    """How many were made."""
    open_connections: int = 0
    """Those that the client has not closed yet, also while an answer hangs."""
    _server: asyncio.Server | None = None
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def url(self) -> str:
        """Without a path: for Anthropic's SDK."""
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"

    @property
    def base_url(self) -> str:
        """With `/v1`: for everybody else."""
        return f"{self.url}/v1"

    async def __aenter__(self) -> ModelServer:
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
                while await self._one_request(reader, writer):
                    pass
        except asyncio.CancelledError:
            pass  # the server is closing; this task has no other owner
        finally:
            self.open_connections -= 1
            writer.close()

    async def _one_request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {
            name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:]) if name
        }
        body = json.loads(await reader.readexactly(int(headers.get("content-length", "0"))) or b"{}")
        path = head[0].split(" ")[1]
        asked = Asked(
            number=self.requests, path=path, headers=headers, body=body, dialect=dialects.of_path(path)
        )
        self.requests += 1
        if self.keep_asked:
            self.asked.append(asked)
        answer = self._next(asked) if asked.dialect else _NO_SUCH_PATH
        return await wire.send(reader, writer, answer.wire, dialects.pieces(answer, asked.dialect))

    def _next(self, asked: Asked) -> Answer:
        if callable(self.script):
            found = self.script(asked)
        else:
            found = self.script[min(asked.number, len(self.script) - 1)]
        return Answer(said=found) if isinstance(found, Said) else found
