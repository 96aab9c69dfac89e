"""The protocol: which version is spoken, which methods there are, and who answers them."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

from lightagentd.errors import LightagentError
from lightagentd.mcp_server.calls import Calls
from lightagentd.mcp_server.reading import Reading
from lightagentd.mcp_server.request import LEVELS, ME, SERVED, Connect, Request, rpc_error
from lightagentd.mcp_server.watching import Watching
from lightagentd.text.jsonrpc import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    Message,
    Peer,
    RpcError,
    Send,
)
from lightagentd.text.mcp import MODERN, PREFIX, UNSUPPORTED_VERSION

_log = logging.getLogger(__name__)

_CAPABILITIES: dict[str, Any] = {
    "tools": {},
    "prompts": {},
    "completions": {},
    "logging": {},
}
_INSTRUCTIONS = (
    "The tools of the agent {agent} of lightagentd, on this machine. The prompts are its skills, the"
    " resources its sessions and events. What changes the system waits until a person allows it. If a result"
    " says so, tell the user what it names, and make the same call again afterwards: that gives the result."
)
Method = Callable[[Request], Awaitable[dict[str, Any]]]


class Server:
    """The server for one client: what comes is given to `receive`, and in the end `close` is called.

    Several requests are served at once. What is sent for a request is sent by a task that `receive` made, so
    a transport that has a stream for each request can tell them apart by a context variable.
    """

    def __init__(self, connect: Connect, agent: str, send: Send, *, pushes: bool = True) -> None:
        """`pushes`: whether what belongs to no request can be sent, as a `resources/subscribe` needs."""
        self._peer = Peer(send, self._serve)
        self.receive = self._peer.receive
        """Takes a message. Nothing is raised for its content; its sender hears of it."""
        self._agent = agent
        self._calls = calls = Calls(connect, agent, self._peer)
        self._version = self._level = ""
        self._capabilities: dict[str, Any] = {}
        reading = Reading(connect, agent)
        self._pushes, self._watching = pushes, Watching(connect, self._peer, reading)
        self._methods: dict[str, Method] = {
            "tools/list": calls.listed,
            "tools/call": calls.call,
            "prompts/list": reading.prompts,
            "prompts/get": reading.prompt,
            "resources/list": reading.resources,
            "resources/templates/list": reading.templates,
            "resources/read": reading.read,
            "completion/complete": reading.complete,
        }
        self._legacy: dict[str, Method] = {
            "initialize": self._initialize,
            "ping": _nothing,
            "logging/setLevel": self._set_level,
        }
        if pushes:
            self._legacy["resources/subscribe"] = self._watching.subscribe
            self._legacy["resources/unsubscribe"] = self._watching.unsubscribe
        self._modern: dict[str, Method] = {
            "server/discover": self._discover,
            "subscriptions/listen": self._watching.listen,
        }

    async def close(self, why: str = "The client has gone.") -> None:
        """Cancel what runs. Turns that wait for a person go on in the daemon."""
        await self._peer.close(why)
        await self._watching.close()
        await self._calls.close()

    async def _serve(self, message: Message) -> dict[str, Any]:
        try:
            request = self._request(message)
            methods = self._methods | (self._modern if request.modern else self._legacy)
            if (method := methods.get(request.method)) is None:
                raise RpcError(METHOD_NOT_FOUND, f"There is no method {request.method[:60]!r}.")
            return request.finished(await method(request))
        except RpcError:
            raise
        except LightagentError as err:
            raise rpc_error(err) from err
        except Exception as err:
            _log.exception("a request failed in a way that nobody expected")
            why = "The request failed inside the server, which says why on its standard error."
            raise RpcError(INTERNAL_ERROR, why) from err

    def _request(self, message: Message) -> Request:
        """Raises RpcError for one of a version that is not spoken, or that came too early."""
        meta = message.params.get("_meta", {})
        if not isinstance(meta, dict):
            raise RpcError(INVALID_PARAMS, "_meta is an object.")
        version, level = meta.get(f"{PREFIX}protocolVersion"), self._level
        capabilities: Any = self._capabilities
        if version is None:
            version = self._version
            if message.method not in ("initialize", "ping") and not version:
                why = f"Send initialize first, or {PREFIX}protocolVersion in _meta."
                raise RpcError(INVALID_PARAMS, why, {"supported": [MODERN, *SERVED]})
        elif version != MODERN:
            data = {"supported": [MODERN], "requested": version}
            raise RpcError(UNSUPPORTED_VERSION, "This protocol version is not spoken.", data)
        else:
            capabilities, level = meta.get(f"{PREFIX}clientCapabilities"), meta.get(f"{PREFIX}logLevel", "")
            if not isinstance(capabilities, dict) or (level and level not in LEVELS):
                why = f"{PREFIX}clientCapabilities or logLevel is missing or wrong."
                raise RpcError(INVALID_PARAMS, why, {"supported": [MODERN]})
        return Request(**vars(message), version=version, capabilities=capabilities, level=level)

    # Nothing is awaited here, so that a request behind it finds what it says.
    async def _initialize(self, request: Request) -> dict[str, Any]:
        asked = request.text("protocolVersion")
        self._capabilities = request.object("capabilities")
        self._version = next((one for one in SERVED if one <= asked), SERVED[-1])
        return {"protocolVersion": self._version, "serverInfo": ME, **self._about(pushes=self._pushes)}

    async def _discover(self, request: Request) -> dict[str, Any]:  # noqa: ARG002
        return {"supportedVersions": [MODERN], **self._about()}

    def _about(self, *, pushes: bool = True) -> dict[str, Any]:
        capabilities = {**_CAPABILITIES, "resources": {"subscribe": pushes}}
        return {"capabilities": capabilities, "instructions": _INSTRUCTIONS.format(agent=self._agent)}

    async def _set_level(self, request: Request) -> dict[str, Any]:
        level = request.text("level")
        if level not in LEVELS:
            raise RpcError(INVALID_PARAMS, f"level is one of {', '.join(LEVELS)}.")
        self._level = level
        return {}


async def _nothing(_request: Request) -> dict[str, Any]:
    return {}
