"""The server: takes a request, asks the script, and sends the answer in the dialect of the request's path."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.http_serving import HttpServing
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
class ModelServer(HttpServing):
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

    async def _answer_one(
        self,
        path: str,
        headers: dict[str, str],
        body: dict[str, Any],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> bool:
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
