"""`/v1/chat/completions`, streamed and not."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack
from typing import Any

from starlette.responses import JSONResponse, Response

from lightagentd.errors import InvalidArgument, LightagentError
from lightagentd.gateway.asked import Asked, Endpoint
from lightagentd.gateway.openai.asking import Parts, Turn, Wanted, begun, running, wanted
from lightagentd.gateway.openai.messages import of_messages
from lightagentd.gateway.refusals import error_object
from lightagentd.gateway.streaming import EventStream, event

_DONE = b"data: [DONE]\n\n"


async def complete(asked: Asked) -> Response:
    """POST /v1/chat/completions."""
    body = await asked.json()
    schema = schema_of(body.get("response_format"))
    one = wanted(asked, body, of_messages(body.get("messages")), schema=schema)
    if not body.get("stream"):
        return await asked.while_connected(_whole(asked, one))
    options = body.get("stream_options") or {}
    stack = AsyncExitStack()
    caller, turn, parts = await begun(asked, one, stack)
    counted = bool(options.get("include_usage")) if isinstance(options, dict) else False
    pieces = _pieces(one, turn, parts, usage=counted)
    return EventStream(asked, caller.key, pieces, stack, headers_of(turn))


async def _whole(asked: Asked, one: Wanted) -> Response:
    reasoning: list[str] = []
    async with running(asked, one) as (_, turn, parts):
        async for kind, text in parts:
            if kind == "reasoning":
                reasoning.append(text)
    message: dict[str, Any] = {"role": "assistant", "content": turn.text or None, "refusal": None}
    if reasoning:
        message["reasoning_content"] = "".join(reasoning)
    if turn.calls:
        message["tool_calls"] = _tool_calls(turn)
    choice = {"index": 0, "message": message, "finish_reason": turn.finish_reason, "logprobs": None}
    answer = {
        **_head(one, turn, "chat.completion"),
        "choices": [choice],
        "usage": _usage(turn),
        "metadata": {"session": turn.session},
    }
    return JSONResponse(answer, headers=headers_of(turn))


async def _pieces(one: Wanted, turn: Turn, parts: Parts, *, usage: bool) -> AsyncGenerator[bytes]:
    """The chunks of a stream."""
    head = _head(one, turn, "chat.completion.chunk")

    def chunk(delta: Mapping[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
        return event({**head, "choices": [choice], **({"usage": None} if usage else {})})

    try:
        yield chunk({"role": "assistant", "content": ""})
        # Most of a stream is text: only that is made anew for each piece.
        before, after = chunk({"content": "\0"}).split(b'"\\u0000"')
        async for kind, text in parts:
            if kind == "text":
                yield before + json.dumps(text, ensure_ascii=False).encode() + after
            else:
                yield chunk({"reasoning_content": text})
        if turn.calls:
            calls = [{"index": index, **call} for index, call in enumerate(_tool_calls(turn))]
            yield chunk({"tool_calls": calls})
        yield chunk({}, turn.finish_reason)
        if usage:
            yield event({**head, "choices": [], "usage": _usage(turn)})
    except LightagentError as err:
        yield event(error_object(err))
    yield _DONE


def headers_of(turn: Turn) -> dict[str, str]:
    """Which session and turn an answer is of."""
    return {"X-Lightagent-Session": turn.session, "X-Lightagent-Trace": turn.trace_id}


def _head(one: Wanted, turn: Turn, kind: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{turn.trace_id}",
        "object": kind,
        "created": int(time.time()),
        "model": one.agent,
    }


def _usage(turn: Turn) -> dict[str, Any]:
    return {
        "prompt_tokens": turn.prompt_tokens,
        "completion_tokens": turn.completion_tokens,
        "total_tokens": turn.prompt_tokens + turn.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": turn.cached_tokens},
    }


def _tool_calls(turn: Turn) -> list[dict[str, Any]]:
    return [
        {
            "id": call["id"],
            "type": "function",
            "function": {"name": call["name"], "arguments": call["arguments"]},
        }
        for call in turn.calls
    ]


def schema_of(wanted_format: Any, name: str = "response_format") -> Any:
    """The JSON Schema of a format, which a client calls `name`. Raises InvalidArgument."""
    kind = wanted_format.get("type") if isinstance(wanted_format, dict) else None
    if wanted_format is None or kind == "text":
        return None
    if kind == "json_object":
        return {"type": "object"}
    found = wanted_format.get("json_schema") if kind == "json_schema" else None
    schema = found.get("schema") if isinstance(found, dict) else None
    if not isinstance(schema, dict):
        raise InvalidArgument(
            f"{name} must be of the type text, json_object, or json_schema with a schema.", field=name
        )
    return schema


ENDPOINTS = (Endpoint(path="/v1/chat/completions", methods={"POST": complete}),)
