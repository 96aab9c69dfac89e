"""One request of an OpenAI client as a turn: which parameters are taken, which session, and what is said.

A `Turn` yields its parts: text, reasoning, calls of the client's own tools. It ends with its `end`, or
raises the turn's error. Parameters that would change what comes back (`n`, `logprobs`, audio) are refused;
those that only tune a model (`temperature`, `max_tokens` and so on) belong to the agent, and are ignored.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from lightagentd.errors import InvalidArgument, LightagentError, Refused, SessionNotFound, from_dict
from lightagentd.gateway.asked import Asked
from lightagentd.gateway.callers import Caller
from lightagentd.gateway.conversations import imported
from lightagentd.gateway.openai import client_tools
from lightagentd.gateway.openai.messages import Said, assistant_text
from lightagentd.gateway.turns import FIRST_S, WAITS, Event, Message, exchange, waiting_text

Kind = Literal["begun", "text", "reasoning"]
"""`begun` comes first, without a text, once the session and the turn are known."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What a request asks for. `schema` is a JSON Schema for the answer, `tools` are the client's own."""

    agent: str
    said: Said
    session: str
    correlation_id: str
    schema: Any = None
    tools: client_tools.Tools | None = None
    background: bool = False
    """Whether it goes on without its client."""
    instructs: bool = False
    """Whether the system messages are told in a session that goes on, too."""


@dataclass(kw_only=True)
class Turn:
    """A turn while it is answered, and what is known of it at its end."""

    session: str = ""
    trace_id: str = ""
    text: str = ""
    """All text that was told."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    finish_reason: str = "stop"
    calls: list[dict[str, Any]] = field(default_factory=list)
    """Of the client's tools: `{id, name, arguments}`."""


Part = tuple[Kind, str]
Parts = AsyncGenerator[Part]


@contextlib.asynccontextmanager
async def running(asked: Asked, wanted: Wanted) -> AsyncIterator[tuple[Caller, Turn, Parts]]:
    """A turn and its parts; leaving early ends it as configured. Raises what the daemon refuses."""
    async with asked.caller() as caller:
        found = Turn()
        try:
            async with contextlib.aclosing(_parts(asked, caller, wanted, found)) as parts:
                yield caller, found, parts
        except LightagentError as err:
            err.field = _NAMES.get(err.field, err.field)
            raise


async def begun(asked: Asked, wanted: Wanted, stack: contextlib.AsyncExitStack) -> tuple[Caller, Turn, Parts]:
    """A turn that has begun, in a stack that holds it. Raises the error of one that fails soon."""
    try:
        caller, found, parts = await stack.enter_async_context(running(asked, wanted))
        await anext(parts, None)
        first = asyncio.create_task(_first(parts))
        stack.push_async_callback(_ended_task, first)
        await asyncio.wait([first], timeout=FIRST_S)
        if first.done():
            first.result()
    except BaseException:
        await stack.aclose()
        raise
    return caller, found, _since(first, parts)


async def _first(parts: Parts) -> Part | None:
    return await anext(parts, None)


async def _since(first: asyncio.Task[Part | None], parts: Parts) -> Parts:
    part = await first
    while part is not None:
        yield part
        part = await anext(parts, None)


async def _ended_task(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def _parts(asked: Asked, caller: Caller, wanted: Wanted, found: Turn) -> Parts:
    """The parts of a turn. Raises the error it ends with."""
    said, memory, tools = wanted.said, asked.shared.conversations, wanted.tools
    goes_on = wanted.session or memory.take(caller, said.mark(wanted.agent))
    session = goes_on or (await imported(caller, wanted.agent, said.before) if said.before else "")
    text = said.text(begins=wanted.instructs or not goes_on)
    message = Message(
        session=session,
        agent=wanted.agent,
        text=text if tools is None else tools.asked(text),
        answer=said.prompt,
        prompt={
            "correlation_id": wanted.correlation_id or None,
            "outside": said.outside or None,
            "schema": wanted.schema if tools is None else tools.schema,
        },
        goes_on=wanted.background,
    )
    begins, early, whole = True, list[Part](), message.prompt["schema"] is not None
    async with contextlib.aclosing(exchange(asked, caller, message)) as events:
        async for event in events:
            found.session, found.trace_id = event["session"], event["trace_id"] or found.trace_id
            if (part := _part(event, found, tools, whole=whole)) is not None:
                early.append(part)
            if begins and (found.trace_id or event["type"] == "session"):
                begins = False
                yield "begun", ""
            while early and not begins:
                yield early.pop(0)
    answer = assistant_text(found.text, [{"function": call} for call in found.calls])
    memory.put(caller, said.mark(wanted.agent, answer), found.session)


def _text(found: Turn, text: str) -> Part:
    found.text += text
    return "text", text


def _part(event: Event, found: Turn, tools: client_tools.Tools | None, *, whole: bool) -> Part | None:
    """What a client is told of an event, of a `whole` text only its end: it is JSON, and the agent may try
    more than once. Raises the error of a turn that ended with one.
    """
    match event["type"]:
        case "missed":
            return _text(found, f"{event['text']}\n\n")
        case "text_delta" if not whole:
            return _text(found, event["text"])
        case "reasoning_delta":
            return "reasoning", event["text"]
        case "usage":
            found.prompt_tokens += event["prompt_tokens"]
            found.completion_tokens += event["completion_tokens"]
            found.cached_tokens += event["cached_tokens"]
        case "error":
            raise from_dict(event)
        case "done":
            return _ended(event, found, tools)
        case kind if kind in WAITS:
            text = waiting_text(event)
            return _text(found, f"\n\n{text}" if found.text else text)
    return None


def _ended(event: Event, found: Turn, tools: client_tools.Tools | None) -> Part | None:
    found.finish_reason = event["finish_reason"] or "stop"
    if tools is not None:
        found.calls = tools.calls(event["data"])
        if found.calls:
            found.finish_reason = "tool_calls"
            return None
        event = {**event, "text": tools.text(event["data"])}
    if found.text.endswith(event["text"]):
        return None
    # Nothing of it came as deltas, as from the embedded model.
    return _text(found, event["text"] if not found.text else f"\n\n{event['text']}")


# Parameters


_NAMES = {"agent": "model", "session": "metadata.session", "schema": "response_format"}
"""How OpenAI's clients call what the daemon calls so."""
_BOOLEANS = ("stream", "background", "store", "logprobs")


def wanted(asked: Asked, body: Mapping[str, Any], said: Said, *, schema: Any) -> Wanted:
    """What a request asks for. Raises InvalidArgument, Refused, SessionNotFound."""
    agent = body.get("model")
    if not isinstance(agent, str) or not agent:
        raise InvalidArgument("model must name an agent (GET /v1/models lists them).", field="model")
    metadata = body.get("metadata") or {}
    if not isinstance(metadata, dict) or not all(isinstance(one, str) for one in metadata.values()):
        raise InvalidArgument("metadata must be an object of texts.", field="metadata")
    for name in _BOOLEANS:
        if not isinstance(body.get(name), bool | None):
            raise InvalidArgument(f"{name} must be true or false.", field=name)
    user = body.get("user") or body.get("safety_identifier") or ""
    lists = (body.get(name) for name in ("modalities", "include"))
    listed = [str(one) for found in lists if isinstance(found, list) for one in found]
    for name in ("logprobs", "top_logprobs", "audio"):
        if body.get(name) or any(one.endswith(name) for one in listed):
            raise InvalidArgument(f"Agents have no {name}.", suggestion=f"Leave {name} out.", field=name)
    if body.get("n") not in (None, 1):
        why = "n must be 1: an agent gives one answer."
        raise InvalidArgument(why, suggestion="Ask again for another.", field="n")
    named = metadata.get("session") or ""
    if named and not named.isprintable():
        raise SessionNotFound("There is no such session.", field="metadata")
    return Wanted(
        agent=agent,
        said=said,
        session=named,
        correlation_id=_correlation(user, metadata),
        schema=schema,
        tools=_tools(asked, body, schema),
    )


def _tools(asked: Asked, body: Mapping[str, Any], schema: Any) -> client_tools.Tools | None:
    """Raises Refused, InvalidArgument."""
    given = body.get("tools") or body.get("functions")
    if not given or body.get("tool_choice") == "none":
        return None
    if not asked.shared.gateway.client_tools:
        raise Refused(
            "Agents have tools of their own, and take none of a client.",
            suggestion="Send no tools, or have an administrator set [gateway] client_tools = true.",
            field="tools",
        )
    if schema is not None:
        raise InvalidArgument(
            "tools and a schema for the answer cannot be asked for together.", field="tools"
        )
    return client_tools.Tools.of(given, body.get("tool_choice"))


def _correlation(user: Any, metadata: Mapping[str, str]) -> str:
    """What the history says of who asked: the field that is for that, else all of `user` and `metadata`."""
    if metadata.get("correlation_id"):
        return metadata["correlation_id"][:256]
    rest = {name: text for name, text in metadata.items() if name != "session"}
    if user and isinstance(user, str) and not rest:
        return user[:256]
    if not rest:
        return ""
    return json.dumps({**({"user": user} if user else {}), **rest}, ensure_ascii=False)[:256]
