"""A client of the server, by hand: messages are written and read as they are."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from lightagentd.client.aio import AsyncClient
from lightagentd.mcp_server.server import Server
from lightagentd.text.jsonrpc import Message, decode, encode, message_of
from lightagentd.text.mcp import LEGACY, MODERN, PREFIX

FORM: dict[str, Any] = {"elicitation": {}}


class Talk:
    """Talks with a server in this process; `capabilities` are the client's. Leave it to close the server."""

    def __init__(
        self,
        socket: str,
        *,
        agent: str = "ops",
        modern: bool = False,
        capabilities: dict[str, Any] | None = None,
    ) -> None:
        self.modern, self._capabilities = modern, capabilities or {}
        self.sent: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.notices: list[dict[str, Any]] = []
        self._last = 0

        async def send(message: Message) -> None:
            self.sent.put_nowait(json.loads(encode(message)))

        self.server = Server(lambda: AsyncClient(socket, timeout_s=60), agent, send)

    async def __aenter__(self) -> Talk:
        if not self.modern:
            asked = {"protocolVersion": LEGACY[0], "capabilities": self._capabilities, "clientInfo": {}}
            await self.result("initialize", **asked)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.server.close()

    async def begin(self, method: str, **params: Any) -> int:
        """Send a request; gives its id."""
        self._last += 1
        if self.modern:
            meta = {f"{PREFIX}protocolVersion": MODERN, f"{PREFIX}clientCapabilities": self._capabilities}
            params["_meta"] = meta | params.get("_meta", {})
        await self.give({"id": self._last, "method": method, "params": params})
        return self._last

    async def give(self, message: dict[str, Any]) -> None:
        whole = json.dumps({"jsonrpc": "2.0", **message}).encode()
        await self.server.receive(message_of(decode(whole)))

    async def read(self) -> dict[str, Any]:
        """The next answer, or request of the server; notifications are kept."""
        while "id" not in (message := await self.sent.get()):
            self.notices.append(message)
        return message

    async def answer(self, method: str, **params: Any) -> dict[str, Any]:
        """The answer to a request, before which the server asks nothing."""
        number = await self.begin(method, **params)
        found = await self.read()
        assert found["id"] == number, found
        return found

    async def result(self, method: str, **params: Any) -> dict[str, Any]:
        found = await self.answer(method, **params)
        assert "result" in found, found
        return dict(found["result"])

    async def error(self, method: str, **params: Any) -> dict[str, Any]:
        return dict((await self.answer(method, **params))["error"])

    async def call(self, name: str, /, **arguments: Any) -> dict[str, Any]:
        return await self.result("tools/call", name=name, arguments=arguments)


def text_of(result: dict[str, Any]) -> str:
    return str(result["content"][0]["text"])
