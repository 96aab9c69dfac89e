"""A model server for tests: real HTTP on loopback, chat completions with streaming, scripted answers.

    async with ScriptedModel([say("hello"), call("proc_list", {}), …]) as model:
        … model.base_url … model.requests …

Each request takes the next answer of the script; the last one is repeated. An answer is a list of byte
pieces that are sent one after the other, or a `Fault`. `python -m tests.scripted_model PORT STEPS` serves
the script of the benchmark in a process of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.http_serving import HttpServing


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A broken answer: a status with a body, and whether the connection is cut instead."""

    status: int = 500
    body: bytes = b'{"error": {"message": "scripted failure"}}'
    content_type: str = "application/json"
    cut: bool = False
    """Close the connection after the first `body` bytes of a 200, without an end."""


@dataclass(frozen=True, kw_only=True)
class Stream:
    """A 200 with server-sent events, in pieces; `pause_s` between them, `hang` after the last."""

    pieces: Sequence[bytes]
    pause_s: float = 0.0
    hang: bool = False
    gate: tuple[int, asyncio.Event] | None = None
    """Before which piece it waits, and for what."""


Answer = Fault | Stream
Script = Sequence[Answer] | Callable[[dict[str, Any]], Answer]


def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> bytes:
    """One `data:` line of a chat completion stream."""
    body = {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 0,
        "model": "scripted",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
        **more,
    }
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def usage(prompt: int = 10, completion: int = 5) -> bytes:
    """The last chunk, with usage and no choice."""
    return (
        b"data: "
        + json.dumps(
            {"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": completion}}
        ).encode()
        + b"\n\n"
    )


DONE = b"data: [DONE]\n\n"


def say(*texts: str, pause_s: float = 0.0) -> Stream:
    """An answer of text, one piece for each argument."""
    pieces = [chunk({"role": "assistant", "content": ""}), *(chunk({"content": text}) for text in texts)]
    return Stream(pieces=[*pieces, chunk({}, "stop"), usage(), DONE], pause_s=pause_s)


def call(name: str, arguments: dict[str, Any] | str, *, call_id: str = "call_1", text: str = "") -> Stream:
    """An answer that calls one function; the arguments come in two pieces."""
    return calls((name, arguments, call_id), text=text)


def calls(*wanted: tuple[str, dict[str, Any] | str, str], text: str = "") -> Stream:
    """An answer that calls several functions."""
    pieces = [chunk({"role": "assistant", "content": text or None})]
    for index, (name, arguments, call_id) in enumerate(wanted):
        written = arguments if isinstance(arguments, str) else json.dumps(arguments)
        half = len(written) // 2
        head = {
            "index": index,
            "id": call_id,
            "type": "function",
            "function": {"name": name, "arguments": ""},
        }
        pieces.append(chunk({"tool_calls": [head]}))
        pieces += [
            chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
            for piece in (written[:half], written[half:])
        ]
    return Stream(pieces=[*pieces, chunk({}, "tool_calls"), usage(), DONE])


@dataclass(kw_only=True)
class Recorded:
    """One request as it came."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]


@dataclass
class ScriptedModel(HttpServing):
    """The server. `requests` has what was asked, `connections` how many connections were made.

    `open_connections` counts those that the client has not closed yet, also while an answer hangs.
    """

    script: Script
    port: int = 0
    requests: list[Recorded] = field(default_factory=list)
    connections: int = 0
    open_requests: int = 0
    open_connections: int = 0
    _server: asyncio.Server | None = None
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def _answer_one(
        self,
        path: str,
        headers: dict[str, str],
        body: dict[str, Any],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> bool:
        self.requests.append(Recorded(path=path, headers=headers, body=body))
        answer = self._next(body)
        self.open_requests += 1
        try:
            return await _answer(reader, writer, answer)
        finally:
            self.open_requests -= 1

    def _next(self, body: dict[str, Any]) -> Answer:
        if callable(self.script):
            return self.script(body)
        return self.script[min(len(self.requests), len(self.script)) - 1]


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer: Answer) -> bool:
    """Send an answer; False when the connection is to be closed."""
    if isinstance(answer, Fault) and not answer.cut:
        writer.write(
            f"HTTP/1.1 {answer.status} Scripted\r\ncontent-type: {answer.content_type}\r\n"
            f"content-length: {len(answer.body)}\r\n\r\n".encode()
            + answer.body
        )
        await writer.drain()
        return True
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
    if isinstance(answer, Fault):
        writer.write(b"%x\r\n%b\r\n" % (len(answer.body), answer.body))
        await writer.drain()
        return False
    if not answer.pause_s and answer.gate is None:
        writer.write(b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in answer.pieces))
    else:
        for number, piece in enumerate(answer.pieces):
            if answer.gate is not None and answer.gate[0] == number:
                await answer.gate[1].wait()
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            await writer.drain()
            await asyncio.sleep(answer.pause_s)
    if answer.hang:
        await writer.drain()
        await reader.read(1)  # the client asks nothing meanwhile: this ends when it closes
        return False
    writer.write(b"0\r\n\r\n")
    await writer.drain()
    return True


def bench_script(steps: int) -> Callable[[dict[str, Any]], Answer]:
    """`steps` calls of a small tool, then an answer, counted from the newest prompt on."""

    def answer(body: dict[str, Any]) -> Answer:
        done = 0
        for message in reversed(body["messages"]):
            if message["role"] == "user":
                break
            done += message["role"] == "tool"
        if done < steps:
            return call("file_stat", {"path": "/etc/hostname"}, call_id=f"call_{done}")
        return say("done")

    return answer


async def _main(port: int, steps: int) -> None:
    async with ScriptedModel(bench_script(steps), port) as model:
        print(model.base_url, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_main(int(sys.argv[1]), int(sys.argv[2])))
