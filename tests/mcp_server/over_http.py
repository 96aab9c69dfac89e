"""The server over streamable HTTP, as small as it can be, for clients that speak nothing else.

    python -m tests.mcp_server.over_http SOCKET [AGENT]

It listens on a free port of 127.0.0.1 and prints its URL. Each session has a `Server`, and the requests that
bring their version share one. What belongs to a request goes out on its own stream: its tasks know that by a
context variable. What a gateway has to check (origins, headers, tokens, limits) is not here.
"""

from __future__ import annotations

import asyncio
import json
import sys
from contextvars import ContextVar
from typing import Any
from uuid import uuid4

from aiohttp import web

from lightagentd.client.aio import AsyncClient
from lightagentd.mcp_server.server import Server
from lightagentd.text.jsonrpc import Message, RpcError, decode, encode, message_of

_OUT: ContextVar[asyncio.Queue[bytes]] = ContextVar("_OUT")


class OverHttp:
    def __init__(self, socket: str, agent: str) -> None:
        self._socket, self._agent = socket, agent
        self._servers: dict[str, Server] = {"": self._made()}

    def _made(self) -> Server:
        async def send(message: Message) -> None:
            await _OUT.get().put(encode(message))

        return Server(lambda: AsyncClient(self._socket, timeout_s=60), self._agent, send)

    async def post(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        message = _read(body)
        session = request.headers.get("Mcp-Session-Id", "")
        headers = {"Content-Type": "text/event-stream"}
        if message.get("method") == "initialize":
            session = headers["Mcp-Session-Id"] = uuid4().hex
            self._servers[session] = self._made()
        if session not in self._servers:
            return web.Response(status=404)
        queue: asyncio.Queue[bytes] = asyncio.Queue()
        _OUT.set(queue)
        asked = "method" in message and "id" in message
        try:
            await self._servers[session].receive(message_of(decode(body)))
        except RpcError as err:
            queue.put_nowait(encode(Message.refusal(err)))
        if not asked and queue.empty():
            return web.Response(status=202)
        first = await queue.get()
        if (status := _status(first)) != 200:
            return web.Response(status=status, body=first, content_type="application/json")
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        while True:
            await response.write(b"event: message\ndata: " + first + b"\n\n")
            if "method" not in (sent := json.loads(first)) and sent.get("id") == message.get("id"):
                return response
            first = await queue.get()


def _read(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _status(answer: bytes) -> int:
    """As the versions since 2026-07-28 want it."""
    error = json.loads(answer).get("error", {})
    if "supported" in (error.get("data") or {}):
        return 400
    code = error.get("code")
    return {-32601: 404, -32022: 400, -32021: 400, -32700: 400, -32600: 400}.get(code, 200)


async def serve(socket: str, agent: str) -> None:
    app = web.Application(client_max_size=8 << 20)
    app.router.add_post("/mcp", OverHttp(socket, agent).post)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    address = runner.addresses[0]
    print(f"http://{address[0]}:{address[1]}/mcp", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], *(sys.argv[2:] or ["ops"])))
