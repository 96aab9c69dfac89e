"""POST and DELETE of `/mcp`, and what it says of itself to clients that look for a way to log in.

https://modelcontextprotocol.io/specification/2026-07-28/basic/transports/streamable-http, and that of
2025-11-25 for clients with sessions. An answer is JSON, unless something is sent before it, or it takes a
while: then it is a stream. There is no stream for what belongs to no request (GET is 405): nothing is sent
there.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from typing import Any
from uuid import uuid4

from starlette.responses import JSONResponse, Response

from lightagentd.errors import InvalidArgument, LightagentError
from lightagentd.gateway.asked import Asked, Endpoint
from lightagentd.gateway.callers import Caller
from lightagentd.gateway.mcp.sessions import REPLY, Reply, Session
from lightagentd.gateway.streaming import EventStream
from lightagentd.mcp_server.request import LEGACY, MODERN, PREFIX, UNSUPPORTED_VERSION, rpc_error
from lightagentd.text.jsonrpc import INVALID_PARAMS, Message, RpcError, decode, encode, error_of

AGENT = "ops"
_HEADER_MISMATCH = -32020
_JSON_S = 2.0
"""An answer that takes longer is a stream, which is kept alive."""
_NAMED = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
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
        (message,) = decode(encode({"jsonrpc": "", **body}))
        modern = _is_modern(asked, message)
    except RpcError as err:
        number = body.get("id")
        error = error_of(err, number if isinstance(number, int | str) else None)
        return JSONResponse({"jsonrpc": "2.0", **error}, status_code=400)
    session = _session(asked, caller, message, modern=modern)
    if message.method and message.id is not None:
        return await _answer(asked, caller, session, message, body, modern=modern)
    if not modern:
        await session.server.receive(encode(body))
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
        if said and said not in LEGACY:
            data = {"supported": [MODERN, *LEGACY], "requested": said}
            raise RpcError(UNSUPPORTED_VERSION, "This protocol version is not spoken.", data)
        return False
    if message.method and message.id is not None:
        if version is None:
            why = f"_meta has no {PREFIX}protocolVersion, and the header names one."
            raise RpcError(INVALID_PARAMS, why, {"supported": [MODERN]})
        name = message.params.get(_NAMED.get(message.method, ""))
        named = _plain(asked.header("mcp-name"))
        if said != version or asked.header("mcp-method") != message.method or (name and named != name):
            why = "MCP-Protocol-Version, Mcp-Method or Mcp-Name is missing, or says something else."
            raise RpcError(_HEADER_MISMATCH, why)
    return True


def _plain(header: str) -> str:
    if not (header.startswith("=?base64?") and header.endswith("?=")):
        return header
    try:
        return base64.b64decode(header[9:-2], validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return ""


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
    asked: Asked, caller: Caller, session: Session, message: Message, body: dict[str, Any], *, modern: bool
) -> Response:
    given = message.id
    assert given is not None
    streams = "text/event-stream" in asked.header("accept")
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
        await session.server.receive(encode({**body, "id": reply.number}))
        first, last = await asked.while_connected(_first(reply, streams=streams))
        if not last:
            return EventStream(asked, caller.key, _pieces(reply, first), stack.pop_all())
    asked.shared.limits.sent(caller.key, len(first))
    error = json.loads(first).get("error")
    if error is None:
        headers = {"Mcp-Session-Id": session.id} if begins else {}
        return Response(first, 200, headers, "application/json")
    if begins:
        asked.shared.mcp.forget(session)
    wrong_version = isinstance(error.get("data"), dict) and "supported" in error["data"]
    status = 400 if wrong_version else _STATUS.get(error["code"], 200)
    return Response(first, status if modern else 200, None, "application/json")


async def _first(reply: Reply, *, streams: bool) -> tuple[bytes, bool]:
    """The answer, or where it may be a stream its first message, empty for none yet."""
    try:
        async with asyncio.timeout(_JSON_S if streams else None):
            return await reply.take()
    except TimeoutError:
        return b"", False


async def _pieces(reply: Reply, first: bytes) -> AsyncGenerator[bytes]:
    data, last = first, False
    while True:
        if data:
            yield b"event: message\ndata: " + data + b"\n\n"
        if last:
            return
        data, last = await reply.take()


def _refusal(err: LightagentError) -> dict[str, Any]:
    return {"jsonrpc": "2.0", **error_of(rpc_error(err))}


_METHODS = {"POST": post, "DELETE": end}
_ABOUT = "/.well-known/oauth-protected-resource"
ENDPOINTS = (
    Endpoint(path="/mcp", methods=_METHODS, refusal=_refusal),
    Endpoint(path="/mcp/{agent}", methods=_METHODS, refusal=_refusal),
    Endpoint(path=_ABOUT, methods={"GET": about}),
    Endpoint(path=f"{_ABOUT}/mcp", methods={"GET": about}),
)
