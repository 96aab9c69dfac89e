"""`/v1/responses`, streamed, in the background, and not. An id names its session and turn, so that
`previous_response_id` goes on there; where the session has gone on since, it goes on in a fork of it.

The last responses are kept in memory to be retrieved; the conversation itself is the daemon's. One in the
background keeps its events, so that a stream of them can be taken up again.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AsyncExitStack, aclosing, suppress
from dataclasses import replace
from functools import partial
from typing import Any

from starlette.responses import JSONResponse, Response

from lightagentd.errors import InvalidArgument, LightagentError, NotFound, SessionNotFound
from lightagentd.gateway.asked import Asked, Endpoint
from lightagentd.gateway.callers import Caller
from lightagentd.gateway.live import STORED_CHARS, Chunk, Live
from lightagentd.gateway.openai.asking import Kind, Parts, Turn, Wanted, begun, running, wanted
from lightagentd.gateway.openai.chat import headers_of, schema_of
from lightagentd.gateway.openai.messages import of_input
from lightagentd.gateway.refusals import error_object
from lightagentd.gateway.streaming import EventStream, event
from lightagentd.gateway.turns import newest

_ID = re.compile(r"resp_(ses_[0-9a-f]+)_(trace_[0-9a-f]+)")
_DELTA = "response.output_text.delta"
_CANCEL_S = 10.0
_REFUSED = {
    "conversation": "Go on by previous_response_id, or name a session: metadata.session.",
    "prompt": "Send its text as input.",
}


async def create(asked: Asked) -> Response:
    """POST /v1/responses."""
    body = await asked.json()
    said = of_input(body.get("input"), body.get("instructions"))
    for name, instead in _REFUSED.items():
        if body.get(name):
            raise InvalidArgument(f"Agents take no {name}.", suggestion=instead, field=name)
    one = wanted(asked, body, said, schema=_schema(body.get("text")))
    previous = body.get("previous_response_id")
    session = one.session or await _session(asked, previous)
    one = replace(one, session=session, background=bool(body.get("background")))
    if previous is not None and one.said.system:  # they hold for one response
        async with asked.caller() as caller:
            earlier = asked.shared.responses.get(caller.key, previous)
        same = earlier is not None and _current(earlier)["instructions"] == body.get("instructions")
        one = replace(one, instructs=not same)
    if one.background:
        return await _in_background(asked, body, one)
    if not body.get("stream"):
        return await asked.while_connected(_whole(asked, body, one))
    stack = AsyncExitStack()
    caller, turn, parts = await begun(asked, one, stack)
    answer = _Answer(body, one, turn)
    pieces = _pieces(answer.events(parts), kept=partial(answer.keep, asked, caller.key))
    return EventStream(asked, caller.key, pieces, stack, headers_of(turn))


async def retrieve(asked: Asked) -> Response:
    """GET /v1/responses/{response}, or with `stream=true` its events, those after `starting_after`."""
    query = asked.request.query_params
    async with asked.caller() as caller:
        live = _kept(asked, caller)
        if query.get("stream") not in ("true", "True", "1"):
            return JSONResponse(_current(live))
        after = query.get("starting_after", "-1")
        if not re.fullmatch(r"-1|\d{1,9}", after):
            raise InvalidArgument("starting_after must be the number of an event.", field="starting_after")
        live.enter()
        return _stream(asked, caller.key, live, int(after))


async def cancel(asked: Asked) -> Response:
    """POST /v1/responses/{response}/cancel: one that has ended already stays as it is."""
    async with asked.caller() as caller:
        live = _kept(asked, caller)
        if live.task is None:
            raise InvalidArgument(
                "Only a response that was made with background: true can be cancelled.",
                suggestion="To end another one, end its connection.",
                field="response_id",
            )
        if not live.ended:
            await caller.client.call("Sessions.Cancel", session=live.session)
            with suppress(TimeoutError):
                async with asyncio.timeout(_CANCEL_S):
                    await live.over()
        return JSONResponse(_current(live))


async def delete(asked: Asked) -> Response:
    """DELETE /v1/responses/{response}: from what is kept here; its session stays."""
    name = asked.parameters["response"]
    async with asked.caller() as caller:
        _kept(asked, caller)
        asked.shared.responses.put(caller.key, name, None)
    return JSONResponse({"id": name, "object": "response", "deleted": True})


def _kept(asked: Asked, caller: Caller) -> Live:
    """Raises NotFound."""
    live = asked.shared.responses.get(caller.key, asked.parameters["response"])
    if live is None:
        raise NotFound("The gateway keeps no response with this id.", field="response_id")
    return live


def _current(live: Live) -> dict[str, Any]:
    """The response as its events have it so far."""
    return next(dict(one["response"]) for one in reversed(live.chunks) if "response" in one)


def _stream(asked: Asked, key: str, live: Live, after: int) -> EventStream:
    """The events of a response that somebody has entered."""
    held = AsyncExitStack()
    held.callback(live.leave)
    headers = {"X-Lightagent-Session": live.session, "X-Lightagent-Trace": live.trace_id}
    return EventStream(asked, key, _pieces(live.read(0), after=after), held, headers)


async def _pieces(
    chunks: AsyncGenerator[Chunk], *, after: int = -1, kept: Callable[[Chunk], None] | None = None
) -> AsyncGenerator[bytes]:
    """The events after a number as bytes; `kept` is called with the last one of a whole response."""
    async with aclosing(chunks):
        async for one in chunks:
            if kept is not None and one["type"] == "response.completed":
                kept(one)
            if one["sequence_number"] > after:
                yield event(one, one["type"])


async def _whole(asked: Asked, body: Mapping[str, Any], one: Wanted) -> Response:
    async with running(asked, one) as (caller, turn, parts):
        await anext(parts, None)
        answer = _Answer(body, one, turn)
        async for kind, text in parts:
            answer.add(kind, text)
        found = answer.whole("completed")
        answer.keep(
            asked, caller.key, {"type": "response.completed", "sequence_number": 0, "response": found}
        )
    return JSONResponse(found, headers=headers_of(turn))


async def _in_background(asked: Asked, body: Mapping[str, Any], one: Wanted) -> Response:
    """A response that is made without its client; errors until its turn has begun have a status."""
    if body.get("store") is False:
        raise InvalidArgument("background needs a response that is stored: leave store out.", field="store")
    live = Live(goes_on=True, stored=True)
    asked.shared.responses.begin(live, _filled(asked, body, one, live))
    try:
        await live.begun()
        async with asked.caller() as caller:
            if body.get("stream"):
                live.enter()
                return _stream(asked, caller.key, live, -1)
        return JSONResponse(_current(live))
    finally:
        live.leave()


async def _filled(asked: Asked, body: Mapping[str, Any], one: Wanted, live: Live) -> None:
    """Raises the error of a turn that does not begin."""
    async with running(asked, one) as (caller, turn, parts):
        await anext(parts, None)
        answer = _Answer(body, one, turn)
        live.session, live.trace_id = turn.session, turn.trace_id
        asked.shared.responses.put(caller.key, answer.id, live)
        async with aclosing(answer.events(parts)) as events:
            async for found in events:
                if not live.full or found["type"] != _DELTA:
                    live.add(found)


class _Answer:
    """A response while it is made: its items of output, in their order."""

    def __init__(self, body: Mapping[str, Any], one: Wanted, turn: Turn) -> None:
        """Of a turn that has begun."""
        self._body, self._one, self._turn = body, one, turn
        self._created = int(time.time())
        self._reasoning, self._number = "", -1
        self.id = f"resp_{turn.session}_{turn.trace_id or f'trace_{secrets.token_hex(8)}'}"
        self.message_id = f"msg_{secrets.token_hex(12)}"

    def add(self, kind: Kind, text: str) -> None:
        if kind == "reasoning":
            self._reasoning += text

    def keep(self, asked: Asked, key: str, last: Chunk) -> None:
        """Keep the last event, which has the response, unless it is large or not to be stored."""
        if self._body.get("store") is not False:
            live = Live(goes_on=False, stored=True)
            live.session, live.trace_id = self._turn.session, self._turn.trace_id
            live.add(last)
            live.end()
            if live.chars <= STORED_CHARS:
                asked.shared.responses.put(key, self.id, live)

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
        output: list[dict[str, Any]] = []
        if status == "completed":
            if self._reasoning:
                thought = [{"type": "summary_text", "text": self._reasoning}]
                output.append({"id": f"rs_{self.message_id[4:]}", "type": "reasoning", "summary": thought})
            output += [self.message()] if turn.text or not turn.calls else []
            output += self.calls()
        return {
            "id": self.id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "error": {"code": "server_error", "message": error.message} if error is not None else None,
            "incomplete_details": None,
            "instructions": body.get("instructions"),
            "metadata": {**(body.get("metadata") or {}), "session": turn.session},
            "model": self._one.agent,
            "output": output,
            "background": self._one.background,
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

    def _told(self, kind: str, **fields: Any) -> Chunk:
        self._number += 1
        return {"type": kind, "sequence_number": self._number, **fields}

    async def events(self, parts: Parts) -> AsyncGenerator[Chunk]:
        """The events of its stream."""
        at = {"item_id": self.message_id, "output_index": 0, "content_index": 0}
        if self._one.background:
            yield self._told("response.created", response=self.whole("queued"))
            yield self._told("response.queued", response=self.whole("queued"))
        else:
            yield self._told("response.created", response=self.whole("in_progress"))
        yield self._told("response.in_progress", response=self.whole("in_progress"))
        begun = False
        try:
            async for kind, text in parts:
                if kind == "text":
                    if not begun:
                        begun = True
                        item = self.message("in_progress")
                        yield self._told("response.output_item.added", output_index=0, item=item)
                        empty = {**self.part(), "text": ""}
                        yield self._told("response.content_part.added", **at, part=empty)
                    yield self._told(_DELTA, **at, delta=text, logprobs=[])
        except LightagentError as err:
            if err.code == "cancelled":  # for which there is no event
                yield self._told("response.failed", response=self.whole("cancelled"))
                return
            shown = error_object(err)["error"]
            yield self._told("error", code=err.code, message=shown["message"], param=shown["param"])
            yield self._told("response.failed", response=self.whole("failed", err))
            return
        if begun:
            part_done = self.part()
            yield self._told("response.output_text.done", **at, text=part_done["text"], logprobs=[])
            yield self._told("response.content_part.done", **at, part=part_done)
            yield self._told("response.output_item.done", output_index=0, item=self.message())
        for index, call in enumerate(self.calls(), int(begun)):
            where = {"item_id": call["id"], "output_index": index}
            begins = {**call, "status": "in_progress", "arguments": ""}
            yield self._told("response.output_item.added", output_index=index, item=begins)
            yield self._told("response.function_call_arguments.delta", **where, delta=call["arguments"])
            done = {"arguments": call["arguments"], "name": call["name"]}
            yield self._told("response.function_call_arguments.done", **where, **done)
            yield self._told("response.output_item.done", output_index=index, item=call)
        yield self._told("response.completed", response=self.whole("completed"))


async def _session(asked: Asked, previous: Any) -> str:
    """The session that `previous_response_id` names, or a fork of it that ends with that response, where more
    was said since. Raises NotFound and what the daemon refuses. A token that may only prompt cannot fork.
    """
    if previous is None:
        return ""
    found = _ID.fullmatch(previous) if isinstance(previous, str) else None
    if found is None:
        raise NotFound("There is no response with this id.", field="previous_response_id")
    session, trace = found.groups()
    async with asked.caller() as caller:
        try:
            last = await newest(caller, session)
        except SessionNotFound:
            raise NotFound(
                "There is no response with this id any more.", field="previous_response_id"
            ) from None
        if not last:
            return session
        wanted_events = {"session": session, "topic": "agent.message", "trace": trace, "limit": 1}
        told = (await caller.client.call("History.Query", **wanted_events))["events"]
        if not told or told[0]["seq"] >= last["seq"]:
            return session
        made = await caller.client.call("Sessions.Fork", session=session, up_to_seq=told[0]["seq"])
    return str(made["session"]["id"])


def _schema(text: Any) -> Any:
    """The JSON Schema in `text`. Raises InvalidArgument."""
    if not isinstance(text, dict | None):
        raise InvalidArgument("text must be an object with a format.", field="text")
    found = (text or {}).get("format")
    if isinstance(found, dict) and found.get("type") == "json_schema":
        found = {"type": "json_schema", "json_schema": found}
    return schema_of(found, "text.format")


ENDPOINTS = (
    Endpoint(path="/v1/responses", methods={"POST": create}),
    Endpoint(path="/v1/responses/{response}", methods={"GET": retrieve, "DELETE": delete}),
    Endpoint(path="/v1/responses/{response}/cancel", methods={"POST": cancel}),
)
