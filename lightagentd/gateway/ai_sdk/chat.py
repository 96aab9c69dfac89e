"""`/api/chat`: an agent for `useChat` of the AI SDK, as its DefaultChatTransport asks.

A response that ends because a person is asked has the question in it; the client's answer, or its next
message, goes on with the turn. `/api/chat/ID/stream` is for a client that comes back: it gets all of the
response that is being made, and waits with it for answers that others give.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable

from starlette.responses import Response

from lightagentd.errors import InvalidArgument, LightagentError, LimitExceeded, PermissionDenied, from_dict
from lightagentd.gateway.ai_sdk.asking import Asking, asking, chat_id, protocol
from lightagentd.gateway.ai_sdk.parts import DONE, Parts, Protocol, data_stream, ui
from lightagentd.gateway.asked import Asked, Endpoint
from lightagentd.gateway.callers import Caller
from lightagentd.gateway.conversations import imported
from lightagentd.gateway.live import Chunk, Live
from lightagentd.gateway.streaming import EventStream
from lightagentd.gateway.turns import FIRST_S, WAITS, Event, Message, exchange, followed, newest, state

SESSION = "ses_"
"""How the ids of sessions begin."""
_LOOKED_THROUGH = 200
"""Of so many prompts, the newest, the gateway looks for a chat that it does not know."""


async def prompt(asked: Asked) -> Response:
    """POST /api/chat."""
    one = asking(await asked.json(), asked.request.query_params)
    async with asked.caller() as caller:
        key = caller.key
    earlier = asked.shared.chats.get(key, one.chat)
    goes_on = asked.shared.gateway.on_disconnect == "continue"
    same = earlier is not None and not one.text
    live = Live(goes_on=goes_on, before=earlier.replay if earlier is not None and same else ())
    work = _answer(asked, one, live, earlier)
    asked.shared.chats.begin(live, _newest(asked, key, one.chat, live, work))
    return await _response(asked, key, live, live.first, one.protocol)


async def resume(asked: Asked) -> Response:
    """GET /api/chat/{chat}/stream."""
    chat, kind = chat_id(asked.parameters["chat"]), protocol(asked.request.query_params)
    async with asked.caller() as caller:
        live = asked.shared.chats.get(caller.key, chat)
        if live is not None and not live.ended:
            live.enter()
            return await _response(asked, caller.key, live, 0, kind)
        session = live.session if live is not None else await _looked_up(caller, chat)
        if not session or (await state(caller, session))["state"] == "idle":
            return Response(status_code=204)
        again = Live(goes_on=False, before=live.replay if live is not None else ())
        again.session = session
        work = _newest(asked, caller.key, chat, again, _rest(asked, again))
        asked.shared.chats.begin(again, work)
        return await _response(asked, caller.key, again, 0, kind)


async def cancel(asked: Asked) -> Response:
    """DELETE /api/chat/{chat}/stream: end the turn that runs, for where a client that hangs up does not."""
    chat = chat_id(asked.parameters["chat"])
    async with asked.caller() as caller:
        live = asked.shared.chats.get(caller.key, chat)
        session = live.session if live is not None else await _looked_up(caller, chat)
        if session:
            await caller.client.call("Sessions.Cancel", session=session)
    return Response(status_code=204)


async def _response(asked: Asked, key: str, live: Live, at: int, kind: Protocol) -> Response:
    held = contextlib.AsyncExitStack()
    held.callback(live.leave)
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIRST_S):
                await live.begun()
    except BaseException:
        await held.aclose()
        raise
    headers = {"X-Lightagent-Session": live.session, "X-Lightagent-Trace": live.trace_id}
    pieces = _pieces(live, at, kind)
    if kind == "data":
        headers |= {"Content-Type": "text/plain; charset=utf-8", "X-Vercel-AI-Data-Stream": "v1"}
        return EventStream(asked, key, pieces, held, headers, alive=b"2:[]\n")
    headers |= {"Content-Type": "text/event-stream", "X-Vercel-AI-UI-Message-Stream": "v1"}
    return EventStream(asked, key, pieces, held, headers)


async def _pieces(live: Live, at: int, kind: Protocol) -> AsyncGenerator[bytes]:
    written = data_stream() if kind == "data" else ui
    async with contextlib.aclosing(live.read(at)) as chunks:
        async for chunk in chunks:
            yield written(chunk)
    if kind != "data":
        yield DONE


# A response


async def _newest(asked: Asked, key: str, chat: str, live: Live, work: Awaitable[None]) -> None:
    """Fill the newest response of a chat; where there is none, the one before is that again."""
    before = asked.shared.chats.get(key, chat)
    asked.shared.chats.put(key, chat, live)
    try:
        await work
    except LightagentError:
        asked.shared.chats.put(key, chat, before)
        raise


async def _answer(asked: Asked, one: Asking, live: Live, earlier: Live | None) -> None:
    """Fill a response. Raises why there is none."""
    async with asked.caller() as caller:
        live.session = await _session(caller, one, earlier)
        said = Message(
            session=live.session,
            agent=one.agent or _only_agent(caller),
            text=one.text,
            prompt={"correlation_id": one.chat},
            approvals=one.approvals,
            outputs=one.outputs,
        )
        parts = Parts(known=one.known, approvals=one.protocol == "ui")
        await _filled(caller, live, parts, exchange(asked, caller, said), message=one.message)


async def _rest(asked: Asked, live: Live) -> None:
    """Fill a response with what is left of the turn that runs, whatever it waits for."""
    async with asked.caller() as caller:
        events = followed(asked, caller, live.session, through=True)
        calls = frozenset(str(one["toolCallId"]) for one in live.chunks if "toolCallId" in one)
        message = next((one["messageId"] for one in live.chunks if one["type"] == "start"), "")
        await _filled(caller, live, Parts(known=calls), events, message=message)


async def _filled(
    caller: Caller, live: Live, parts: Parts, events: AsyncGenerator[Event], *, message: str
) -> None:
    """The chunks of a turn's events; its error, too, once it has begun."""
    reason, metadata = "stop", {"session": live.session}

    def begin() -> None:
        if len(live.chunks) == live.first:
            name = message or f"msg_{live.trace_id or live.session}"
            live.add({"type": "start", "messageId": name, "messageMetadata": metadata})

    try:
        async with contextlib.aclosing(events):
            async for event in events:
                if not live.trace_id and event["trace_id"]:
                    live.session, live.trace_id = event["session"], event["trace_id"]
                    metadata = {"session": live.session, "trace": live.trace_id}
                if event["type"] != "session":
                    begin()
                for chunk in parts.of(event):
                    live.add(chunk)
                if live.full:
                    how = "Look at the session."
                    raise LimitExceeded("The turn said more than the gateway keeps.", suggestion=how)
                live.waits = event["type"] in WAITS
                if event["type"] == "error":
                    raise from_dict(event)
                if event["type"] == "done":
                    reason = event["finish_reason"] or "stop"
                    metadata |= await _facts(caller, event)
    except LightagentError as err:
        if len(live.chunks) == live.first:
            raise
        reason, text = "error", f"{err.message} {err.suggestion}".rstrip()
        cancelled = err.code == "cancelled"
        live.add({"type": "abort", "reason": text} if cancelled else {"type": "error", "errorText": text})
    begin()
    for chunk in parts.end("tool-calls" if live.waits else reason, metadata):
        live.add(chunk)


async def _facts(caller: Caller, done: Event) -> Chunk:
    """What the metadata of a message say of its turn; with `seq` it can be answered otherwise later."""
    found = {"usage": done["usage"], "durationMs": done["duration_ms"], "steps": done["steps"]}
    last = await newest(caller, done["session"])
    return {**found, "seq": last["seq"]} if last else found


# Which session


async def _session(caller: Caller, one: Asking, earlier: Live | None) -> str:
    """The session that a request goes on in; empty for a new one. Raises InvalidArgument."""
    if one.branches:
        if one.session and one.seq:
            fork = {"session": one.session, "up_to_seq": one.seq}
            return str((await caller.client.call("Sessions.Fork", **fork))["session"]["id"])
        return await imported(caller, one.agent, one.before) if one.before and one.agent else ""
    if earlier is not None and earlier.session:
        return earlier.session
    if one.session or one.chat.startswith(SESSION):
        return one.session or one.chat
    if not one.text or one.before:
        found = await _looked_up(caller, one.chat)
        if found or one.text:
            return found
        raise InvalidArgument("The last message must be the user's.", field="messages")
    return ""


async def _looked_up(caller: Caller, chat: str) -> str:
    """The session of a chat that this process does not know, as the history has it."""
    if chat.startswith(SESSION):
        return chat
    wanted = {"topic": "agent.prompt", "caller": caller.said["uid"], "limit": _LOOKED_THROUGH}
    try:
        events = (await caller.client.call("History.Query", **wanted))["events"]
    except PermissionDenied:  # a token that may only prompt
        return ""
    # The name of the token comes first.
    return next(
        (one["session"] for one in reversed(events) if one["correlation_id"].partition(" ")[2] == chat), ""
    )


def _only_agent(caller: Caller) -> str | None:
    """The agent of a token that is for one alone."""
    agents = caller.said.get("agents") or []
    return str(agents[0]) if len(agents) == 1 else None


ENDPOINTS = (
    Endpoint(path="/api/chat", methods={"POST": prompt}),
    Endpoint(path="/api/chat/{chat}/stream", methods={"GET": resume, "DELETE": cancel}),
)
