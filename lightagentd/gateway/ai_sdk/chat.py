"""`/api/chat`: an agent for `useChat` of the AI SDK, as its DefaultChatTransport asks.

A response that ends because a person is asked has the question in it; the client's answer, or its next
message, goes on with the turn. `/api/chat/ID/stream` is for a client that comes back: it gets all of the
response that is being made, and waits with it for answers that others give.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import partial
from typing import Any

from starlette.responses import Response

from lightagentd.errors import InvalidArgument, LightagentError, PermissionDenied, from_dict
from lightagentd.gateway.ai_sdk.asking import Asking, asking, chat_id, protocol
from lightagentd.gateway.ai_sdk.parts import DONE, Parts, Protocol, data_stream, ui
from lightagentd.gateway.asked import Asked, Endpoint
from lightagentd.gateway.callers import Caller
from lightagentd.gateway.conversations import imported
from lightagentd.gateway.live import Chunk, Live
from lightagentd.gateway.streaming import EventStream
from lightagentd.gateway.turns import WAITS, Event, turn

FIRST_S = 5.0
"""How long a turn may have nothing to say before its response begins. An error until then has a status."""
SESSION, INPUT = "ses_", "inp_"
"""How the ids of sessions and of questions begin."""
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
    asked.shared.chats.begin(key, one.chat, live, _answer(asked, one, live, earlier))
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
        if not session or (await _state(caller, session))["state"] == "idle":
            return Response(status_code=204)
        again = Live(goes_on=False, before=live.replay if live is not None else ())
        again.session = session
        asked.shared.chats.begin(caller.key, chat, again, _rest(asked, again, late=not again.first))
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


async def _answer(asked: Asked, one: Asking, live: Live, earlier: Live | None) -> None:
    """Fill a response. Raises why there is none."""
    async with asked.caller() as caller, asked.caller() as spare:
        session = await _session(caller, one, earlier)
        left = earlier is not None and earlier.waits
        info = await _state(caller, session) if session and (left or not one.text) else {"state": "idle"}
        waits, said = info["state"] == "waiting", ""
        if (left or not one.text) and info["state"] == "idle":
            said = await _missed(caller, session)
        if waits or (not one.text and info["state"] == "running"):
            answer = await _answering(asked, caller, one, info["waits_for"]) if waits else None
            done = info["waits_for"] if answer is not None else ""
            events = _watched(asked, caller, session, answer, answered=done)
        elif not one.text:
            events = _nothing()
        else:
            wanted = {
                "text": one.text,
                "session": session or None,
                "agent": None if session else one.agent or _only_agent(caller),
                "new": None if session else True,
                "correlation_id": one.chat,
            }
            events = turn(asked, caller, **wanted)
        live.session = session
        late = not one.text and info["state"] == "running"
        parts = Parts(known=one.known, approvals=one.protocol == "ui", late=late)
        await _filled(spare, live, parts, events, message=one.message, said=said)


async def _rest(asked: Asked, live: Live, *, late: bool) -> None:
    """Fill a response with what is left of the turn that runs, whatever it waits for."""
    async with asked.caller() as caller, asked.caller() as spare:
        events = _watched(asked, caller, live.session, None, through=True)
        calls = frozenset(str(one["toolCallId"]) for one in live.chunks if "toolCallId" in one)
        message = next((one["messageId"] for one in live.chunks if one["type"] == "start"), "")
        await _filled(spare, live, Parts(known=calls, late=late), events, message=message)


async def _filled(
    spare: Caller, live: Live, parts: Parts, events: AsyncGenerator[Event], *, message: str, said: str = ""
) -> None:
    """The chunks of a turn's events, after what was `said` before; its error, too, once it has begun.
    `spare` is a connection that no events come on; the client's own may be gone by then.
    """
    reason, metadata = "stop", {"session": live.session}
    if said:
        _begin(live, parts, message or f"msg_{live.session}", said)
    try:
        async with contextlib.aclosing(events):
            async for event in events:
                if not live.trace_id and event["trace_id"]:
                    live.session, live.trace_id = event["session"], event["trace_id"]
                    metadata = {"session": live.session, "trace": live.trace_id}
                    if not said:
                        _begin(live, parts, message or f"msg_{live.trace_id}")
                for chunk in parts.of(event):
                    live.add(chunk)
                live.waits = event["type"] in WAITS
                if event["type"] == "error":
                    raise from_dict(event)
                if event["type"] == "done":
                    reason = event["finish_reason"] or "stop"
                    metadata = {**metadata, **await _facts(spare, event)}
    except LightagentError as err:
        if len(live.chunks) == live.first:
            raise
        reason, text = "error", f"{err.message} {err.suggestion}".rstrip()
        cancelled = err.code == "cancelled"
        live.add({"type": "abort", "reason": text} if cancelled else {"type": "error", "errorText": text})
    if len(live.chunks) == live.first:
        _begin(live, parts, message or f"msg_{live.session}")
    for chunk in parts.end("tool-calls" if live.waits else reason, metadata):
        live.add(chunk)


def _begin(live: Live, parts: Parts, message: str, said: str = "") -> None:
    metadata = {"session": live.session, **({"trace": live.trace_id} if live.trace_id else {})}
    live.add({"type": "start", "messageId": message, "messageMetadata": metadata})
    for chunk in parts.text(said) if said else ():
        live.add(chunk)


async def _nothing() -> AsyncGenerator[Event]:
    """No events: the turn has ended."""
    no_events: tuple[Event, ...] = ()
    for one in no_events:
        yield one


async def _facts(spare: Caller, done: Event) -> Chunk:
    """What the metadata of a message say of its turn; with `seq` it can be answered otherwise later."""
    found = {"usage": done["usage"], "durationMs": done["duration_ms"], "steps": done["steps"]}
    with contextlib.suppress(PermissionDenied):  # a token that may only prompt
        found["seq"] = (await _newest(spare, done["session"], 1))[0]["seq"]
    return found


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
    return next((one["session"] for one in reversed(events) if one["correlation_id"] == chat), "")


def _only_agent(caller: Caller) -> str | None:
    """The agent of a token that is for one alone."""
    agents = caller.said.get("agents") or []
    return str(agents[0]) if len(agents) == 1 else None


async def _state(caller: Caller, session: str) -> dict[str, Any]:
    try:
        return dict((await caller.client.call("Sessions.Get", session=session))["session"])
    except PermissionDenied:  # a token that may only prompt
        return {"state": "idle", "waits_for": ""}


async def _newest(caller: Caller, session: str, limit: int) -> list[dict[str, Any]]:
    return list((await caller.client.call("Sessions.Messages", session=session, limit=limit))["messages"])


# What a turn waits for


async def _answering(
    asked: Asked, caller: Caller, one: Asking, question: str
) -> Callable[[], Awaitable[None]] | None:
    """What gives the client's answer to a question; None when it has none."""
    if question.startswith(INPUT):
        call = (await caller.client.call("Inputs.Get", input=question))["input"]["call_id"]
        text = one.text.strip() or one.outputs.get(call, "")
        return partial(_call, asked, "Inputs.Answer", input=question, text=text) if text else None
    answer = one.approvals.get(question)
    if answer is None:
        return None
    if not answer.approved:
        return partial(_call, asked, "Approvals.Deny", approval=question, note=answer.reason)
    given = {"approval": question, "note": answer.reason, "digest": answer.digest}
    return partial(_call, asked, "Approvals.Approve", **given)


async def _call(asked: Asked, method: str, **parameters: Any) -> None:
    """Raises what the daemon refuses, and who else may do it."""
    async with asked.caller() as caller:
        try:
            await caller.client.call(method, **parameters)
        except PermissionDenied as err:
            how = f"An administrator allows it with: lactl approve {parameters.get('approval')}"
            raise PermissionDenied(err.message, suggestion=how) from err


async def _watched(
    asked: Asked,
    caller: Caller,
    session: str,
    answer: Callable[[], Awaitable[None]] | None,
    *,
    answered: str = "",
    through: bool = False,
) -> AsyncGenerator[Event]:
    """The events of the turn that runs in a session, from now on; the answer is given once they are watched.
    Ends with what the turn waits for, unless it goes `through` that. Leaving early cancels nothing.
    """
    first = True
    with asked.turn(caller):
        async with contextlib.aclosing(caller.client.stream("Sessions.Watch", session=session)) as found:
            async for reply in found:
                event = reply["event"]
                if event is None:
                    return
                if first and answer is not None:
                    await answer()
                if event["type"] == "session":
                    if (event["session_info"] or {}).get("state", "idle") == "idle":
                        return
                elif event["type"] not in WAITS or not answered or answered not in _questions(event):
                    yield event
                    if event["type"] in ("done", "error") or (event["type"] in WAITS and not through):
                        return
                first = False


def _questions(event: Event) -> tuple[str | None, str | None]:
    return event.get("approval"), event.get("input")


async def _missed(caller: Caller, session: str) -> str:
    """What came of a turn that waited, and went on when its question was answered elsewhere."""
    with contextlib.suppress(PermissionDenied):
        for message in await _newest(caller, session, 1):
            if message["role"] == "assistant":
                return str(message["content"])
    return ""


ENDPOINTS = (
    Endpoint(path="/api/chat", methods={"POST": prompt}),
    Endpoint(path="/api/chat/{chat}/stream", methods={"GET": resume, "DELETE": cancel}),
)
