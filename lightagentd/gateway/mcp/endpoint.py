"""POST and DELETE of `/mcp`, and what it says of itself to clients that look for a way to log in.

https://modelcontextprotocol.io/specification/2026-07-28/basic/transports/streamable-http, and that of
2025-11-25 for clients with sessions. An answer is JSON, unless something is sent before it, or it takes a
while: then it is a stream. There is no stream for what belongs to no request (GET is 405): nothing is sent
there.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any
from uuid import uuid4

from starlette.responses import JSONResponse, Response

from lightagentd.errors import InvalidArgument, LightagentError
from lightagentd.gateway.asked import Asked, Endpoint
from lightagentd.gateway.callers import Caller
from lightagentd.gateway.mcp.sessions import REPLY, Reply, Session
from lightagentd.gateway.streaming import EventStream
from lightagentd.mcp_server.request import SERVED, rpc_error
from lightagentd.text.jsonrpc import INVALID_PARAMS, MAX_BYTES, Message, RpcError, encode, message_of
from lightagentd.text.mcp import (
    EVENTS,
    HEADER_MISMATCH,
    MODERN,
    NAMED,
    PREFIX,
    UNSUPPORTED_VERSION,
    plain,
)

AGENT = "ops"
_JSON_S = 2.0
"""An answer that takes longer is a stream, which is kept alive."""
_LONG = ("tools/call", "subscriptions/listen")
"""These are counted as turns."""
_STATUS = {-32601: 404, -32020: 400, -32021: 400, -32022: 400, -32600: 400, -32700: 400}
"""The status of errors, as the versions since 2026-07-28 want it."""


async def post(asked: Asked) -> Response:
    """POST /mcp: one message."""
    body = await asked.json()
    async with asked.caller() as caller:
        pass  # for its key and its limits
    try:
        message = message_of(body)
        modern = _is_modern(asked, message)
    except RpcError as err:
        number = body.get("id")
        refusal = Message.refusal(err, number if isinstance(number, int | str) else None)
        return _json(encode(refusal), 400)
    session = _session(asked, caller, message, modern=modern)
    if message.method and message.id is not None:
        return await _answer(asked, caller, session, message, modern=modern)
    if not modern:
        await session.server.receive(message)
    return Response(status_code=202)


async def end(asked: Asked) -> Response:
    """DELETE /mcp: end a session."""
    async with asked.caller() as caller:
        asked.shared.mcp.forget(asked.shared.mcp.find(caller.key, asked.header("mcp-session-id")))
    return Response(status_code=204)


async def about(asked: Asked) -> Response:
    """GET /.well-known/oauth-protected-resource (RFC 9728): a token is needed, and nobody here gives one."""
    url = asked.request.url
    resource = f"{url.scheme}://{url.netloc}/mcp"
    return JSONResponse({"resource": resource, "bearer_methods_supported": ["header"]})


def _is_modern(asked: Asked, message: Message) -> bool:
    """Whether a message belongs to no session. Raises RpcError for headers that say something else."""
    meta = message.params.get("_meta")
    version = meta.get(f"{PREFIX}protocolVersion") if isinstance(meta, dict) else None
    said = asked.header("mcp-protocol-version")
    if version is None and said != MODERN:
        if said and said not in SERVED:
            data = {"supported": [MODERN, *SERVED], "requested": said}
            raise RpcError(UNSUPPORTED_VERSION, "This protocol version is not spoken.", data)
        return False
    if message.method and message.id is not None:
        if version is None:
            why = f"_meta has no {PREFIX}protocolVersion, and the header names one."
            raise RpcError(INVALID_PARAMS, why, {"supported": [MODERN]})
        name = message.params.get(NAMED.get(message.method, ""))
        named = plain(asked.header("mcp-name"))
        if said != version or asked.header("mcp-method") != message.method or (name and named != name):
            why = "MCP-Protocol-Version, Mcp-Method or Mcp-Name is missing, or says something else."
            raise RpcError(HEADER_MISMATCH, why)
    return True


def _session(asked: Asked, caller: Caller, message: Message, *, modern: bool) -> Session:
    """Raises TooMany, NotFound, InvalidArgument."""
    sessions, name = asked.shared.mcp, asked.header("mcp-session-id")
    agent = asked.parameters.get("agent") or asked.request.query_params.get("agent") or AGENT
    if modern:
        return sessions.shared(caller.key, agent)
    if message.method == "initialize":
        return sessions.begin(caller.key, agent)
    if not name:
        raise InvalidArgument("The request has no Mcp-Session-Id.", suggestion="Begin with initialize.")
    return sessions.find(caller.key, name)


async def _answer(
    asked: Asked, caller: Caller, session: Session, message: Message, *, modern: bool
) -> Response:
    given = message.id
    assert given is not None
    streams = EVENTS in asked.header("accept")
    # Ids of clients that share a server may be the same.
    reply = Reply(asked.who(), uuid4().hex if modern else given, given, streams=streams)
    begins = message.method == "initialize" and not modern
    async with AsyncExitStack() as stack:
        if message.method in _LONG:
            stack.enter_context(asked.turn(caller))
            if asked.connection.is_local:  # to cancel with, once the client has hung up
                await stack.enter_async_context(asked.caller())
        cancel = asked.shared.gateway.on_disconnect == "cancel"
        await stack.enter_async_context(session.replying(reply, cancel=cancel))
        REPLY.set(reply)
        await session.server.receive(replace(message, id=reply.number))
        first = await asked.while_connected(_first(reply, streams=streams))
        if first is None or first.method:
            return EventStream(asked, caller.key, _pieces(reply, first), stack.pop_all())
    body, error = reply.encoded(first), first.error
    asked.shared.limits.sent(caller.key, len(body))
    if error is None:
        return _json(body, headers={"Mcp-Session-Id": session.id} if begins else None)
    if begins:
        asked.shared.mcp.forget(session)
    wrong_version = isinstance(error.data, dict) and "supported" in error.data
    status = 400 if wrong_version else _STATUS.get(error.code, 200)
    return _json(body, status if modern else 200)


async def _first(reply: Reply, *, streams: bool) -> Message | None:
    """The answer, or where it may be a stream its first message, None for none yet."""
    try:
        async with asyncio.timeout(_JSON_S if streams else None):
            return await reply.take()
    except TimeoutError:
        return None


async def _pieces(reply: Reply, first: Message | None) -> AsyncGenerator[bytes]:
    message = first or await reply.take()
    while True:
        yield b"event: message\ndata: " + reply.encoded(message) + b"\n\n"
        if not message.method:
            return
        message = await reply.take()


def _json(body: bytes, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(body, status, headers, "application/json")


def _refusal(err: LightagentError) -> dict[str, Any]:
    refused: dict[str, Any] = json.loads(encode(Message.refusal(rpc_error(err))))
    return refused


_METHODS = {"POST": post, "DELETE": end}
_ABOUT = "/.well-known/oauth-protected-resource"
ENDPOINTS = (
    Endpoint(path="/mcp", methods=_METHODS, refusal=_refusal, max_body_bytes=MAX_BYTES),
    Endpoint(path="/mcp/{agent}", methods=_METHODS, refusal=_refusal, max_body_bytes=MAX_BYTES),
    Endpoint(path=_ABOUT, methods={"GET": about}),
    Endpoint(path=f"{_ABOUT}/mcp", methods={"GET": about}),
)
