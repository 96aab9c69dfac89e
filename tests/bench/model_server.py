"""A model server that costs next to nothing: answers are rendered once, and sent as they are.

    GET  /counts                               {"connections": …, "requests": …} since the start
    GET  /bodies                               the requests of the newest conversation, in their order
    POST /steps/N/v1/chat/completions          N calls of `file_stat` for each prompt, then an answer
    POST /chunks/N/v1/chat/completions         an answer of N chunks of text, each an HTTP chunk of its own
    POST /paced/N/v1/chat/completions          the same, one of them each PACE_S

`python -m tests.bench.model_server` prints its address. What step a conversation is at is counted by the
results in it, without reading it as JSON, so each prompt must begin a new conversation.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

REPOSITORY = Path(__file__).parents[2]

PACE_S = 0.05
CHUNK = "a chunk of 20 chars "
PATH = "/etc/hostname"
_RESULT = re.compile(rb'"role": ?"tool"')
_TARGET = re.compile(
    rb"(?:GET|POST) (?:/(steps|chunks|paced)/(\d+)/v1/chat/completions|/(counts|bodies)) HTTP/1\.1\r\n"
)
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)
_BETWEEN = b"\n\n\r\n"
"""Where an event ends, and its HTTP chunk."""
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def _chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    return {
        "id": "chatcmpl-BkZcQ1p8v5XQmUo2h3xJ",
        "object": "chat.completion.chunk",
        "created": 1_760_000_000,
        "model": "scripted",
        "service_tier": "default",
        "system_fingerprint": "fp_0123456789",
        "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}],
    }


def _stream(deltas: list[dict[str, Any]], finish: str) -> bytes:
    chunks = [*map(_chunk, deltas), _chunk({}, finish)]
    usage = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}
    chunks.append({**_chunk({}), "choices": [], "usage": usage})
    events = [f"data: {json.dumps(chunk, separators=(',', ':'))}\n\n" for chunk in chunks]
    events.append("data: [DONE]\n\n")
    return _HEAD + b"".join(b"%x\r\n%b\r\n" % (len(event), event.encode()) for event in events) + b"0\r\n\r\n"


@functools.cache
def _call(number: int) -> bytes:
    """The answer that makes a call."""
    head = {"name": "file_stat", "arguments": ""}
    pieces = [{"arguments": piece} for piece in ('{"path"', f': "{PATH}"}}')]
    return _stream(
        [
            {"role": "assistant", "content": None},
            {"tool_calls": [{"index": 0, "id": f"call_{number}", "type": "function", "function": head}]},
            *({"tool_calls": [{"index": 0, "function": piece}]} for piece in pieces),
        ],
        "tool_calls",
    )


@functools.cache
def _text(chunks: int) -> bytes:
    """The answer of so many chunks."""
    return _stream([{"role": "assistant", "content": ""}, *[{"content": CHUNK}] * chunks], "stop")


class _Connection(asyncio.Protocol):
    """One client; its requests come one after the other."""

    connections = 0
    requests = 0
    bodies: ClassVar[list[bytes]] = []
    """Those of the newest conversation."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._waiting = b""
        _Connection.connections += 1

    def data_received(self, data: bytes) -> None:
        self._waiting += data
        while (end := self._waiting.find(b"\r\n\r\n")) >= 0:
            head = self._waiting[: end + 4]
            length = _LENGTH.search(head)
            whole = len(head) + (int(length[1]) if length else 0)
            if len(self._waiting) < whole:
                return
            body, self._waiting = self._waiting[len(head) : whole], self._waiting[whole:]
            answer = self._answer(head, body)
            if head.startswith(b"POST /paced/"):
                self._write_paced(answer.split(_BETWEEN))
            else:
                self._transport.write(answer)

    def _write_paced(self, pieces: list[bytes]) -> None:
        """The head with the first chunk of text at once, then one chunk each time."""
        first = 2  # behind the one with the role
        self._transport.write(_BETWEEN.join(pieces[:first]) + _BETWEEN)
        pieces = pieces[first:]

        def next_piece() -> None:
            if not self._transport.is_closing():
                last = len(pieces) == 1
                self._transport.write(pieces.pop(0) + (b"" if last else _BETWEEN))
                if not last:
                    loop.call_later(PACE_S, next_piece)

        loop = asyncio.get_running_loop()
        loop.call_later(PACE_S, next_piece)

    def _answer(self, head: bytes, body: bytes) -> bytes:
        target = _TARGET.match(head)
        if target is None:
            return b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"
        if target[3] == b"counts":
            return _json({"connections": self.connections, "requests": self.requests})
        if target[3] == b"bodies":
            return _json([json.loads(each) for each in self.bodies])
        _Connection.requests += 1
        wanted, done = int(target[2]), len(_RESULT.findall(body))
        if not done:
            self.bodies.clear()
        self.bodies.append(body)
        if target[1] != b"steps":
            return _text(wanted)
        return _call(done) if done < wanted else _text(1)


def _json(value: Any) -> bytes:
    body = json.dumps(value).encode()
    return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


@dataclass(frozen=True, kw_only=True)
class ModelServer:
    """The server, in a process of its own."""

    address: str
    pid: int

    def steps(self, count: int) -> str:
        """The base URL behind which each prompt takes so many calls."""
        return f"{self.address}/steps/{count}/v1"

    def chunks(self, count: int) -> str:
        """The base URL behind which each answer has so many chunks."""
        return f"{self.address}/chunks/{count}/v1"

    def paced(self, count: int) -> str:
        """The base URL behind which each answer has so many chunks, one each `PACE_S`."""
        return f"{self.address}/paced/{count}/v1"

    def counts(self) -> dict[str, int]:
        """How many connections and requests for answers there were; asking makes one connection."""
        counts: dict[str, int] = self._told("counts")
        return counts

    def bodies(self) -> list[dict[str, Any]]:
        """The requests of the newest conversation, as they were sent."""
        bodies: list[dict[str, Any]] = self._told("bodies")
        return bodies

    def _told(self, what: str) -> Any:
        with urllib.request.urlopen(f"{self.address}/{what}") as answer:
            return json.load(answer)


@contextlib.contextmanager
def model_server() -> Iterator[ModelServer]:
    """A running server."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.bench.model_server"], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        yield ModelServer(address=process.stdout.readline().strip(), pid=process.pid)
    finally:
        process.terminate()
        process.wait(10)


async def _main() -> None:
    server = await asyncio.get_running_loop().create_server(_Connection, "127.0.0.1", 0, backlog=1024)
    host, port = server.sockets[0].getsockname()
    print(f"http://{host}:{port}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_main())
