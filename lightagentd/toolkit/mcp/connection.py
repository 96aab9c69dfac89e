"""Speaks the Model Context Protocol as a client, with servers of all its published versions.

The version of 2026-07-28 has no sessions: each request says all about itself, and a server that needs an
answer of a person ends the call and says so. Up to 2025-11-25 a server is initialized first, and sends
requests of its own. https://modelcontextprotocol.io/specification/2026-07-28/basic/versioning says how a
client finds out which one it has. What a server sends is bounded: bytes and depth of a message
(`text.jsonrpc`), messages in a second, entries and pages of a list.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from lightagentd import __version__
from lightagentd.text.jsonrpc import (
    MAX_BYTES,
    METHOD_NOT_FOUND,
    Lost,
    Message,
    Peer,
    RpcError,
    decode,
    encode,
    message_of,
)
from lightagentd.text.mcp import ELICIT, LEGACY, MODERN, PREFIX, me
from lightagentd.toolkit.mcp.server_file import told

_log = logging.getLogger(__name__)

MOST_ENTRIES, MOST_PAGES = 1000, 100
"""Of a list. A server that has more is no use to an agent, or means harm."""
MOST_A_SECOND = 5000
PROBE_S, START_S = 10.0, 30.0
_MODERN_ERRORS = range(-32099, -32019)
_CAN: dict[str, Any] = {"elicitation": {"form": {}}}
_ME = me(__version__)
_ABOUT = {
    f"{PREFIX}protocolVersion": MODERN,
    f"{PREFIX}clientInfo": _ME,
    f"{PREFIX}clientCapabilities": _CAN,
}
_REJECTED = -1

Receive = Callable[[bytes], Awaitable[list[Message]]]
"""Takes one line, body or event, and gives the messages in it. Raises Lost."""
Lose = Callable[[str], Awaitable[None]]
"""Hears once why nothing more comes."""


class Transport(ABC):
    """Carries messages to one server and back."""

    version = ""
    """The version that was agreed on; empty before. The connection sets it."""

    def mirror(self, tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Know the tools that will be called. Gives those that can be called this way."""
        return tools

    @abstractmethod
    async def open(self, receive: Receive, lost: Lose) -> None:
        """Begin. Raises ToolError, Lost."""

    @abstractmethod
    async def send(self, message: Message) -> None:
        """Raises OSError, Lost, RpcError."""

    @abstractmethod
    async def close(self) -> None:
        """End the server, or the session with it."""


@dataclass(kw_only=True)
class Running:
    """One request that may take long: how to show its progress, and how to ask a person for it."""

    progress: Callable[[str], None]
    ask: Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]
    """Takes the parameters of an elicitation and gives its result."""


class Connection:
    """One connection. Start it, and close it in the end."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._peer = Peer(transport.send, self._serve, self._hear)
        self._running: dict[int, Running] = {}
        self._last = 0
        self._second, self._messages = 0, 0
        self._listening: asyncio.Task[None] | None = None
        self.alive = False
        self.changed = False
        """The server said that its list of tools has changed."""
        self._capabilities: dict[str, Any] = {}
        self._server: dict[str, Any] = {}

    async def start(self) -> None:
        """Agree on a version. Raises ToolError, Lost, RpcError, TimeoutError, OSError."""
        async with asyncio.timeout(START_S):
            await self._transport.open(self._receive, self._lose)
            self.alive = True
            found = await self._discovered()
            if found is None:
                try:
                    found = await self._initialized()
                except RpcError:  # one of today that was slow to start has heard the question by now
                    if (found := await self._discovered()) is None:
                        raise
        self._capabilities = _object(found.get("capabilities"))
        if self._modern and _object(self._capabilities.get("tools")).get("listChanged"):
            self._listening = asyncio.create_task(self._listen())

    async def close(self) -> None:
        """End the connection, and the server with it. What runs gets Lost."""
        self.alive = False
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)
        await self._peer.close("The connection is closed.")
        await self._transport.close()

    async def offers(self) -> dict[str, Any]:
        """What the server offers now: {version, server, tools, resources, prompts}. `server` is its name and
        version, as it says; of its tools it has what an approval is about. Raises RpcError, Lost, OSError.
        """
        self.changed = False
        tools = await self.listed("tools/list", "tools") if "tools" in self._capabilities else []
        tools = self._transport.mirror(tools) if self._modern else tools
        found = {
            "version": self._transport.version,
            "server": self._server,
            "tools": [told(one) for one in tools],
        }
        return found | {part: part in self._capabilities for part in ("resources", "prompts")}

    async def listed(self, method: str, key: str) -> list[dict[str, Any]]:
        """All pages of a list. Raises RpcError for a list without end, Lost, OSError."""
        found: list[dict[str, Any]] = []
        params: dict[str, Any] = {}
        size_bytes = 0
        for _ in range(MOST_PAGES):
            page = await self.request(method, params)
            entries, cursor = page.get(key), page.get("nextCursor")
            if not isinstance(entries, list) or not all(isinstance(one, dict) for one in entries):
                raise RpcError(_REJECTED, f"its answer to {method} has no list of {key}")
            found += entries
            size_bytes += len(encode(Message(result=entries)))
            if len(found) > MOST_ENTRIES:
                raise RpcError(_REJECTED, f"it lists more than {MOST_ENTRIES} {key}")
            if size_bytes > MAX_BYTES:
                raise RpcError(_REJECTED, f"its {key} have more than {MAX_BYTES} bytes together")
            if not isinstance(cursor, str):
                return found
            params = {"cursor": cursor}
        raise RpcError(_REJECTED, f"its list of {key} has more than {MOST_PAGES} pages")

    async def request(
        self, method: str, params: dict[str, Any], running: Running | None = None
    ) -> dict[str, Any]:
        """The result of one request. A cancel cancels it at the server. Raises RpcError, Lost, OSError."""
        meta = dict[str, Any](_ABOUT) if self._modern else {}
        self._last += 1
        token = self._last
        if running is not None:
            self._running[token] = running
            meta["progressToken"] = token
        try:
            result = await self._peer.ask(method, {**params, "_meta": meta} if meta else params)
        finally:
            self._running.pop(token, None)
        if not isinstance(result, dict):
            raise RpcError(_REJECTED, f"its answer to {method} is no object")
        if result.get("resultType", "complete") not in ("complete", "input_required"):
            raise RpcError(_REJECTED, f"its answer to {method} is of an unknown type")
        return result

    @property
    def _modern(self) -> bool:
        return self._transport.version == MODERN

    async def _discovered(self) -> dict[str, Any] | None:
        """What a server of today says of itself; None for an older one. Raises Lost, RpcError, OSError."""
        try:
            async with asyncio.timeout(PROBE_S):
                found = await self._peer.ask("server/discover", {"_meta": _ABOUT})
        except TimeoutError:
            return None
        except RpcError as err:
            if err.code not in _MODERN_ERRORS:
                return None
            raise RpcError(_REJECTED, f"it does not speak the version {MODERN}: {err.message}") from None
        versions = _object(found).get("supportedVersions")
        if not isinstance(versions, list) or MODERN not in versions:
            return None
        self._server = _object(_object(found.get("_meta")).get(f"{PREFIX}serverInfo"))
        self._transport.version = MODERN
        return dict(found)

    async def _initialized(self) -> dict[str, Any]:
        asked = {"protocolVersion": LEGACY[0], "capabilities": _CAN, "clientInfo": _ME}
        found = _object(await self._peer.ask("initialize", asked))
        version = found.get("protocolVersion")
        if version not in LEGACY:
            raise RpcError(_REJECTED, f"it speaks the version {str(version)[:40]!r}, which is not known here")
        self._server = _object(found.get("serverInfo"))
        self._transport.version = str(version)
        await self._peer.tell("notifications/initialized")
        return found

    async def _listen(self) -> None:
        """Hear of a changed list of tools, from a server of today."""
        with contextlib.suppress(RpcError, Lost, OSError):
            await self.request("subscriptions/listen", {"notifications": {"toolsListChanged": True}})

    async def _receive(self, data: bytes) -> list[Message]:
        """Raises Lost for a flood, and for JSON that is none of this protocol: an answer may be missing."""
        second = int(asyncio.get_running_loop().time())
        if second != self._second:
            self._second, self._messages = second, 0
        self._messages += 1
        if not self._messages % 100:
            await asyncio.sleep(0)  # what is there already is read without a pause
        given: Any = []
        try:
            if data.lstrip()[:1] in (b"{", b"["):  # else it is some word of its own
                given = decode(data)
            batch = given if isinstance(given, list) else [given]  # which 2025-03-26 has
            found = [message_of(one) for one in batch]
        except RpcError as err:
            raise Lost(f"it sent what cannot be taken. {err}") from None
        self._messages += len(found[1:])
        if self._messages > MOST_A_SECOND:
            raise Lost(f"it sent more than {MOST_A_SECOND} messages in a second")
        for one in found:
            await self._peer.receive(one)
        return found

    async def _lose(self, why: str) -> None:
        self.alive = False
        await self._peer.close(why)

    def _hear(self, message: Message) -> None:
        if message.method == "notifications/progress":
            token = message.params.get("progressToken")
            if isinstance(token, int) and (running := self._running.get(token)) is not None:
                running.progress(_progress(message.params))
        elif message.method == "notifications/tools/list_changed":
            self.changed = True
        elif message.method == "notifications/message":
            _log.debug("a server logs: %.2000r", message.params.get("data"))

    async def _serve(self, message: Message) -> Any:
        """Answer a request of an older server."""
        match message.method:
            case "ping":
                return {}
            case "roots/list":
                return {"roots": []}
            case _ if message.method == ELICIT:
                running = [*self._running.values()]  # it does not say for which one
                return await running[0].ask(message.params) if len(running) == 1 else {"action": "decline"}
            case "sampling/createMessage":
                raise RpcError(_REJECTED, "No server gets the model of an agent.")
        raise RpcError(METHOD_NOT_FOUND, f"There is no {message.method[:60]!r} here.")


def _object(found: Any) -> dict[str, Any]:
    """What is an object; an empty one for all else."""
    return found if isinstance(found, dict) else {}


def _progress(params: dict[str, Any]) -> str:
    done, total, said = (params.get(key) for key in ("progress", "total", "message"))
    found = [f"{done:g}"] if _fits_float(done) else []
    found += [f"of {total:g}"] if _fits_float(total) else []
    return " ".join([*found, said[:500] if isinstance(said, str) else ""]).strip()


def _fits_float(value: Any) -> bool:
    return isinstance(value, int | float) and abs(value) <= sys.float_info.max
