"""`/v1/responses`, streamed and not. An id names its session and turn: `previous_response_id` goes on there.

The answers of the last requests are kept in memory to be retrieved; the conversation itself is the daemon's.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack
from typing import Any

from starlette.responses import JSONResponse, Response

from lightagentd.errors import InvalidArgument, LightagentError, NotFound
from lightagentd.gateway.asked import Asked, Endpoint
from lightagentd.gateway.openai.asking import Kind, Parts, Turn, Wanted, begun, running, wanted
from lightagentd.gateway.openai.chat import headers_of, schema_of
from lightagentd.gateway.openai.kept import KEPT_BYTES
from lightagentd.gateway.openai.messages import of_input
from lightagentd.gateway.refusals import error_object
from lightagentd.gateway.streaming import EventStream, event

_ID = re.compile(r"resp_(ses_[0-9a-f]+)_(trace_[0-9a-f]+)")


async def create(asked: Asked) -> Response:
    """POST /v1/responses."""
    body = await asked.json()
    said = of_input(body.get("input"), body.get("instructions"))
    text = body.get("text")
    wanted_format = text.get("format") if isinstance(text, dict) else None
    one = wanted(asked, body, said, schema=_schema(wanted_format), session=_session(body))
    if not body.get("stream"):
        return await asked.while_connected(_whole(asked, body, one))
    stack = AsyncExitStack()
    caller, turn, parts = await begun(asked, one, stack)
    answer = _Answer(body, one, turn)
    pieces = _pieces(asked, answer, parts, caller.key)
    return EventStream(asked, caller.key, pieces, stack, headers_of(turn))


async def retrieve(asked: Asked) -> Response:
    """GET /v1/responses/{response}."""
    async with asked.caller() as caller:
        return JSONResponse(asked.shared.responses.get(caller.key, asked.parameters["response"]))


async def delete(asked: Asked) -> Response:
    """DELETE /v1/responses/{response}: from what is kept here; its session stays."""
    name = asked.parameters["response"]
    async with asked.caller() as caller:
        asked.shared.responses.remove(caller.key, name)
    return JSONResponse({"id": name, "object": "response", "deleted": True})


async def _whole(asked: Asked, body: Mapping[str, Any], one: Wanted) -> Response:
    async with running(asked, one) as (caller, turn, parts):
        answer = _Answer(body, one, turn)
        async for kind, text in parts:
            answer.add(kind, text)
        found = answer.whole("completed")
        answer.keep(asked, caller.key, found)
    return JSONResponse(found, headers=headers_of(turn))


class _Answer:
    """A response while it is made: its items of output, in their order."""

    def __init__(self, body: Mapping[str, Any], one: Wanted, turn: Turn) -> None:
        self._body, self._one, self._turn = body, one, turn
        self._created = int(time.time())
        self._reasoning = ""
        self._id = f"resp_{turn.session}_{turn.trace_id}"
        self.message_id = f"msg_{secrets.token_hex(12)}"

    def add(self, kind: Kind, text: str) -> None:
        if kind == "reasoning":
            self._reasoning += text

    def keep(self, asked: Asked, key: str, found: dict[str, Any]) -> None:
        """Unless the client wants it not to be stored, or it is long."""
        if self._body.get("store") is not False and len(self._turn.text) <= KEPT_BYTES:
            asked.shared.responses.keep(key, found)

    def part(self) -> dict[str, Any]:
        return {"type": "output_text", "text": self._turn.text, "annotations": [], "logprobs": []}

    def message(self, status: str = "completed") -> dict[str, Any]:
        content = [self.part()] if status == "completed" else []
        head = {"id": self.message_id, "type": "message", "status": status, "role": "assistant"}
        return {**head, "content": content}

    def calls(self) -> list[dict[str, Any]]:
        return [
            {
                "id": f"fc_{call['id'].removeprefix('call_')}",
                "type": "function_call",
                "status": "completed",
                "call_id": call["id"],
                "name": call["name"],
                "arguments": call["arguments"],
            }
            for call in self._turn.calls
        ]

    def whole(self, status: str, error: LightagentError | None = None) -> dict[str, Any]:
        """The response object."""
        turn, body = self._turn, self._body
        if turn.session and turn.trace_id:
            self._id = f"resp_{turn.session}_{turn.trace_id}"
        output: list[dict[str, Any]] = []
        if status == "completed":
            if self._reasoning:
                thought = [{"type": "summary_text", "text": self._reasoning}]
                output.append({"id": f"rs_{self.message_id[4:]}", "type": "reasoning", "summary": thought})
            output += [self.message()] if turn.text or not turn.calls else []
            output += self.calls()
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "error": {"code": "server_error", "message": error.message} if error is not None else None,
            "incomplete_details": None,
            "instructions": body.get("instructions"),
            "metadata": {**(body.get("metadata") or {}), "session": turn.session},
            "model": self._one.agent,
            "output": output,
            "parallel_tool_calls": True,
            "previous_response_id": body.get("previous_response_id"),
            "store": body.get("store") is not False,
            "temperature": None,
            "top_p": None,
            "text": body.get("text") or {"format": {"type": "text"}},
            "tool_choice": body.get("tool_choice") or "auto",
            "tools": body.get("tools") or [],
            "truncation": "disabled",
            "usage": self._usage() if status == "completed" else None,
        }

    def _usage(self) -> dict[str, Any]:
        turn = self._turn
        return {
            "input_tokens": turn.prompt_tokens,
            "input_tokens_details": {"cached_tokens": turn.cached_tokens},
            "output_tokens": turn.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": turn.prompt_tokens + turn.completion_tokens,
        }


async def _pieces(
    asked: Asked,
    answer: _Answer,
    parts: Parts,
    key: str,
) -> AsyncGenerator[bytes]:
    """The events of a stream."""
    number = -1

    def told(kind: str, **fields: Any) -> bytes:
        nonlocal number
        number += 1
        return event({"type": kind, "sequence_number": number, **fields}, kind)

    at = {"item_id": answer.message_id, "output_index": 0, "content_index": 0}
    yield told("response.created", response=answer.whole("in_progress"))
    yield told("response.in_progress", response=answer.whole("in_progress"))
    begun = False
    try:
        async for kind, text in parts:
            if kind == "text":
                if not begun:
                    begun = True
                    item = answer.message("in_progress")
                    yield told("response.output_item.added", output_index=0, item=item)
                    empty = {**answer.part(), "text": ""}
                    yield told("response.content_part.added", **at, part=empty)
                yield told("response.output_text.delta", **at, delta=text, logprobs=[])
    except LightagentError as err:
        shown = error_object(err)["error"]
        yield told("error", code=err.code, message=shown["message"], param=shown["param"])
        yield told("response.failed", response=answer.whole("failed", err))
        return
    found = answer.whole("completed")
    if begun:
        part_done = answer.part()
        yield told("response.output_text.done", **at, text=part_done["text"], logprobs=[])
        yield told("response.content_part.done", **at, part=part_done)
        yield told("response.output_item.done", output_index=0, item=answer.message())
    for index, call in enumerate(answer.calls(), int(begun)):
        where = {"item_id": call["id"], "output_index": index}
        begins = {**call, "status": "in_progress", "arguments": ""}
        yield told("response.output_item.added", output_index=index, item=begins)
        yield told("response.function_call_arguments.delta", **where, delta=call["arguments"])
        done = {"arguments": call["arguments"], "name": call["name"]}
        yield told("response.function_call_arguments.done", **where, **done)
        yield told("response.output_item.done", output_index=index, item=call)
    answer.keep(asked, key, found)
    yield told("response.completed", response=found)


def _session(body: Mapping[str, Any]) -> str:
    """The session that `previous_response_id` names. Raises NotFound."""
    previous = body.get("previous_response_id")
    if previous is None:
        return ""
    found = _ID.fullmatch(previous) if isinstance(previous, str) else None
    if found is None:
        raise NotFound("There is no response with this id.", field="previous_response_id")
    return found[1]


def _schema(wanted_format: Any) -> Any:
    """Raises InvalidArgument."""
    if isinstance(wanted_format, dict) and wanted_format.get("type") == "json_schema":
        return schema_of({"type": "json_schema", "json_schema": wanted_format})
    try:
        return schema_of(wanted_format)
    except InvalidArgument as err:
        raise InvalidArgument(err.message, field="text.format") from None


ENDPOINTS = (
    Endpoint(path="/v1/responses", methods={"POST": create}),
    Endpoint(path="/v1/responses/{response}", methods={"GET": retrieve, "DELETE": delete}),
)
