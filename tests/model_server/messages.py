"""Answers of the Messages API: the events that make one, and whole ones.

[*begin(), *thinking(0, "hm"), *text(1, "hel", "lo"), *call(2, "proc_list", "{}"), *end("tool_use")]
"""

from __future__ import annotations

import json
from typing import Any

from tests.model_server.said import Said

_REASONS = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "content_filter": "refusal",
}
SIGNATURE = "EqQBCkYIBxgCKkA/signature+of=="


def event(kind: str, **fields: Any) -> bytes:
    """One server-sent event, with its name as the API gives it."""
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


PING = event("ping")


def begin(new: int = 10, *, read: int = 0, made: int = 0, said: int = 1) -> list[bytes]:
    """The start, with the tokens of the prompt: new ones, ones read from the cache and ones written to it."""
    usage = {
        "input_tokens": new,
        "cache_read_input_tokens": read,
        "cache_creation_input_tokens": made,
        "output_tokens": said,
    }
    message: dict[str, Any] = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "scripted",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage,
    }
    return [event("message_start", message=message)]


def opened(index: int, **block: Any) -> bytes:
    return event("content_block_start", index=index, content_block=block)


def delta(index: int, kind: str, **fields: Any) -> bytes:
    return event("content_block_delta", index=index, delta={"type": kind, **fields})


def closed(index: int) -> bytes:
    return event("content_block_stop", index=index)


def text(index: int, *pieces: str) -> list[bytes]:
    found = [delta(index, "text_delta", text=piece) for piece in pieces]
    return [opened(index, type="text", text=""), *found, closed(index)]


def thinking(index: int, *pieces: str, signature: str = SIGNATURE) -> list[bytes]:
    found = [delta(index, "thinking_delta", thinking=piece) for piece in pieces]
    if signature:
        found.append(delta(index, "signature_delta", signature=signature))
    return [opened(index, type="thinking", thinking="", signature=""), *found, closed(index)]


def redacted(index: int, data: str) -> list[bytes]:
    return [opened(index, type="redacted_thinking", data=data), closed(index)]


def call(index: int, name: str, *pieces: str, call_id: str = "toolu_1") -> list[bytes]:
    """A call, with its arguments in pieces."""
    found = [delta(index, "input_json_delta", partial_json=piece) for piece in pieces]
    return [opened(index, type="tool_use", id=call_id, name=name, input={}), *found, closed(index)]


def end(reason: str = "end_turn", *, said: int = 5, **usage: int) -> list[bytes]:
    """Why it ended, with all tokens of the answer until then."""
    delta = {"stop_reason": reason, "stop_sequence": None}
    return [
        event("message_delta", delta=delta, usage={"output_tokens": said, **usage}),
        event("message_stop"),
    ]


def pieces(said: Said) -> list[bytes]:
    """The events of an answer."""
    found = begin(said.prompt_tokens - said.cached_tokens, read=said.cached_tokens)
    index = 0
    if said.thinking:
        found += thinking(index, *said.thinking)
        index += 1
    if said.text:
        found += [PING, *text(index, *said.text)]
        index += 1
    for called in said.calls:
        found += call(index, called.name, "", *called.pieces(), call_id=called.id)
        index += 1
    return [*found, *end(_REASONS[said.finished], said=said.completion_tokens)]


def error_event(message: str, kind: str, code: str = "") -> bytes:
    """An error in the middle of a stream."""
    return event("error", error={"type": kind, "message": message}, request_id="req_1")


def error_body(message: str, kind: str, code: str = "") -> bytes:
    error = {"type": kind, "message": message}
    return json.dumps({"type": "error", "error": error, "request_id": "req_1"}).encode()
