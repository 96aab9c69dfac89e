"""Answers of the Responses API: the events that make one, and whole ones.

[*begin(), *reasoning(0, "hm"), *text(1, "hel", "lo"), *call(2, "proc_list", "{}"), *end()]
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tests.model_server.said import Said

CIPHER = "gAAAAABcipher-of_what-was-thought=="


def event(kind: str, **fields: Any) -> bytes:
    """One server-sent event, with its name as the API gives it."""
    data = {"type": kind, "sequence_number": 0, **fields}
    return f"event: {kind}\ndata: {json.dumps(data)}\n\n".encode()


def response(status: str, **fields: Any) -> dict[str, Any]:
    """The response as a whole, as some events have it."""
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 0,
        "model": "scripted",
        "status": status,
        "output": [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": None,
        "error": None,
        "incomplete_details": None,
        **fields,
    }


def usage(prompt: int = 10, completion: int = 5, cached: int = 0) -> dict[str, Any]:
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": completion,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": prompt + completion,
    }


def begin() -> list[bytes]:
    return [
        event("response.created", response=response("in_progress")),
        event("response.in_progress", response=response("in_progress")),
    ]


def added(index: int, **item: Any) -> bytes:
    return event("response.output_item.added", output_index=index, item=item)


def done(index: int, **item: Any) -> bytes:
    return event("response.output_item.done", output_index=index, item=item)


def text_delta(index: int, piece: str) -> bytes:
    place = {"item_id": f"msg_{index}", "output_index": index, "content_index": 0}
    return event("response.output_text.delta", **place, delta=piece, logprobs=[])


def text(index: int, *pieces: str) -> list[bytes]:
    item = {"id": f"msg_{index}", "type": "message", "role": "assistant"}
    place = {"item_id": item["id"], "output_index": index, "content_index": 0}
    whole = {"type": "output_text", "text": "".join(pieces), "annotations": []}
    return [
        added(index, **item, status="in_progress", content=[]),
        event("response.content_part.added", **place, part={**whole, "text": ""}),
        *(text_delta(index, piece) for piece in pieces),
        event("response.output_text.done", **place, text=whole["text"], logprobs=[]),
        event("response.content_part.done", **place, part=whole),
        done(index, **item, status="completed", content=[whole]),
    ]


def refusal(index: int, *pieces: str) -> list[bytes]:
    item = {"id": f"msg_{index}", "type": "message", "role": "assistant"}
    place = {"item_id": item["id"], "output_index": index, "content_index": 0}
    whole = {"type": "refusal", "refusal": "".join(pieces)}
    return [
        added(index, **item, status="in_progress", content=[]),
        *(event("response.refusal.delta", **place, delta=piece) for piece in pieces),
        event("response.refusal.done", **place, refusal=whole["refusal"]),
        done(index, **item, status="completed", content=[whole]),
    ]


def reasoning(index: int, *pieces: str, cipher: str = CIPHER) -> list[bytes]:
    """An item of reasoning, with a summary in pieces."""
    item = {"id": f"rs_{index}", "type": "reasoning"}
    place = {"item_id": item["id"], "output_index": index, "summary_index": 0}
    whole = {"type": "summary_text", "text": "".join(pieces)}
    return [
        added(index, **item, summary=[], encrypted_content=cipher[:8]),
        event("response.reasoning_summary_part.added", **place, part={**whole, "text": ""}),
        *(event("response.reasoning_summary_text.delta", **place, delta=piece) for piece in pieces),
        event("response.reasoning_summary_text.done", **place, text=whole["text"]),
        event("response.reasoning_summary_part.done", **place, part=whole),
        done(index, **item, summary=[whole] if pieces else [], encrypted_content=cipher),
    ]


def arguments_delta(index: int, piece: str) -> bytes:
    return event(
        "response.function_call_arguments.delta", item_id=f"fc_{index}", output_index=index, delta=piece
    )


def call(index: int, name: str, *pieces: str, call_id: str = "call_1") -> list[bytes]:
    """A call, with its arguments in pieces."""
    item = {"id": f"fc_{index}", "type": "function_call", "call_id": call_id, "name": name}
    whole = "".join(pieces)
    return [
        added(index, **item, status="in_progress", arguments=""),
        *(arguments_delta(index, piece) for piece in pieces),
        event(
            "response.function_call_arguments.done",
            item_id=item["id"],
            output_index=index,
            name=name,
            arguments=whole,
        ),
        done(index, **item, status="completed", arguments=whole),
    ]


def end(**counted: int) -> list[bytes]:
    return [event("response.completed", response=response("completed", usage=usage(**counted)))]


def cut_short(reason: str, output: Sequence[dict[str, Any]] = (), **counted: int) -> list[bytes]:
    """The end of an answer that is not whole."""
    more = {"incomplete_details": {"reason": reason}, "usage": usage(**counted), "output": list(output)}
    return [event("response.incomplete", response=response("incomplete", **more))]


def failed(message: str, code: str) -> bytes:
    return event("response.failed", response=response("failed", error={"code": code, "message": message}))


def pieces(said: Said) -> list[bytes]:
    """The events of an answer."""
    found = begin()
    index = 0
    if said.thinking:
        found += reasoning(index, *said.thinking)
        index += 1
    if said.text:
        found += text(index, *said.text)
        index += 1
    for called in said.calls:
        found += call(index, called.name, *called.pieces(), call_id=called.id)
        index += 1
    counted = {
        "prompt": said.prompt_tokens,
        "completion": said.completion_tokens,
        "cached": said.cached_tokens,
    }
    match said.finished:
        case "length":
            return [*found, *cut_short("max_output_tokens", (), **counted)]
        case "content_filter":
            return [*found, *cut_short("content_filter", (), **counted)]
    return [*found, *end(**counted)]


def error_event(message: str, kind: str, code: str) -> bytes:
    """An error in the middle of a stream."""
    return event("error", message=message, code=code, param=None)


def error_body(message: str, kind: str, code: str) -> bytes:
    return json.dumps({"error": {"message": message, "type": kind, "param": None, "code": code}}).encode()
