"""One request, and how its sender wants it served, which differs between the protocol's versions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lightagentd import __version__
from lightagentd.client.aio import AsyncClient
from lightagentd.errors import InvalidArgument, LightagentError, LimitExceeded, NotFound
from lightagentd.text.jsonrpc import BUSY, INTERNAL_ERROR, INVALID_PARAMS, Message, RpcError
from lightagentd.text.mcp import LEGACY, MODERN, PREFIX, me

ME = me(__version__)
SERVED = tuple(one for one in LEGACY if one != "2025-03-26")
"""The versions that begin with `initialize`, but for one: it alone has batches."""
LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
_CACHED_MS = {"server/discover": 60_000, "tools/list": 10_000, "prompts/list": 10_000}
_CACHED_MS |= dict.fromkeys(("resources/list", "resources/templates/list", "resources/read"), 0)

Connect = Callable[[], AsyncClient]
"""Gives a client of the daemon that is not connected yet."""


async def called(connect: Connect, method: str, **parameters: Any) -> dict[str, Any]:
    """The reply to one call of the daemon. Raises LightagentError."""
    async with connect() as client:
        return await client.call(method, **parameters)


@dataclass(frozen=True, kw_only=True)
class Request(Message):
    """A request of a known version."""

    version: str
    capabilities: dict[str, Any]
    """What its sender can do for the server."""
    level: str = ""
    """From which level on it wants to read log messages; empty for none."""

    @property
    def modern(self) -> bool:
        return self.version == MODERN

    @property
    def token(self) -> str | int | None:
        """What names its progress, if its sender wants to hear of that."""
        found = self.object("_meta").get("progressToken")
        return found if isinstance(found, str | int) else None

    @property
    def elicits(self) -> bool:
        """Whether its sender can ask a person with a form."""
        found = self.capabilities.get("elicitation")
        return isinstance(found, dict) and (not found or "form" in found)

    def text(self, name: str) -> str:
        """A parameter that must be there. Raises RpcError."""
        found = self.params.get(name)
        if not isinstance(found, str) or not found:
            raise RpcError(INVALID_PARAMS, f"{self.method} takes the text {name}.")
        return found

    def object(self, name: str) -> dict[str, Any]:
        """An object that may be missing. Raises RpcError."""
        found = self.params.get(name, {})
        if not isinstance(found, dict):
            raise RpcError(INVALID_PARAMS, f"{name} is an object.")
        return found

    def finished(self, result: dict[str, Any]) -> dict[str, Any]:
        """The result with what its version wants in it."""
        if not self.modern:
            return result
        whole: dict[str, Any] = {"resultType": "complete", **result}
        whole["_meta"] = {**result.get("_meta", {}), f"{PREFIX}serverInfo": ME}
        if self.method in _CACHED_MS and whole["resultType"] == "complete":
            whole |= {"ttlMs": _CACHED_MS[self.method], "cacheScope": "private"}
        return whole


def rpc_error(err: LightagentError, code: int | None = None) -> RpcError:
    """An error of the daemon as one of the protocol, with the daemon's own code in its data."""
    if code is None:
        wrong, busy = isinstance(err, InvalidArgument | NotFound), isinstance(err, LimitExceeded)
        code = INVALID_PARAMS if wrong else BUSY if busy else INTERNAL_ERROR
    return RpcError(code, err.message, err.to_dict())
