"""Answers in the dialect of chat completions, made of the chunks of `tests.scripted_model`."""

from __future__ import annotations

import json

from tests.model_server.said import Said
from tests.scripted_model import DONE, chunk


def pieces(said: Said) -> list[bytes]:
    """The events of an answer, as OpenAI sends them; thinking as DeepSeek does."""
    found = [chunk({"role": "assistant", "content": "" if said.text else None})]
    found += [chunk({"reasoning_content": thought}) for thought in said.thinking]
    found += [chunk({"content": text}) for text in said.text]
    for index, called in enumerate(said.calls):
        function = {"name": called.name, "arguments": ""}
        head = {"index": index, "id": called.id, "type": "function", "function": function}
        found.append(chunk({"tool_calls": [head]}))
        found += [
            chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
            for piece in called.pieces()
        ]
    return [*found, chunk({}, said.finished), _usage(said), DONE]


def _usage(said: Said) -> bytes:
    """The last chunk, with usage and no choice."""
    usage = {
        "prompt_tokens": said.prompt_tokens,
        "completion_tokens": said.completion_tokens,
        "total_tokens": said.prompt_tokens + said.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": said.cached_tokens},
    }
    whole = {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 0,
        "model": "scripted",
        "choices": [],
        "usage": usage,
    }
    return b"data: " + json.dumps(whole).encode() + b"\n\n"


def error_event(message: str, kind: str, code: str) -> bytes:
    """An error in the middle of a stream."""
    return b"data: " + error_body(message, kind, code) + b"\n\n"


def error_body(message: str, kind: str, code: str) -> bytes:
    return json.dumps({"error": {"message": message, "type": kind, "param": None, "code": code}}).encode()
