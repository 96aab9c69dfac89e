"""Connections to the daemon that act for the gateway's clients.

A client proves who it is by a token, or on the Unix socket by its accepted connection, of which the daemon
asks the kernel itself: the gateway can forge nobody. `Manager.Authenticate` comes first on each connection,
and from then on the daemon holds it to that. Connections are kept for a moment, for the next request with the
same token. Nothing is kept of a token but its digest.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lightagentd.client.aio import AsyncClient
from lightagentd.config.gateway import Gateway
from lightagentd.errors import LightagentError, LimitExceeded, PermissionDenied
from lightagentd.gateway.http import Connection
from lightagentd.gateway.limits import Allowed, Guesses
from lightagentd.gateway.refusals import NoToken, TooMany

TIMEOUT_S = 20.0
"""How long connecting and each call with one answer may take."""
KEPT_S = 15.0
"""How long a connection is kept for the next request, and a proof of who somebody is believed without one."""
KEPT_OF_ONE, KEPT_MOST = 8, 128
_KNOWN_MOST = 10_000
LOCAL = "local"
"""On the Unix socket, what a client may send as its token that must send one: its user counts."""


@dataclass(frozen=True, kw_only=True)
class Who:
    """How a client proves who it is: a token, or its connection to the Unix socket (an empty token)."""

    token: str = field(repr=False)
    connection: Connection
    key: str
    """Stands for the token, or for the user of a local process, in counts."""
    kept_as: str
    """Stands for the token, or for the local connection: a daemon's connection acts for one process."""


@dataclass(kw_only=True, eq=False)
class Caller:
    """A connection that the daemon has authenticated."""

    client: AsyncClient
    key: str
    kept_as: str
    said: dict[str, Any]
    """The answer of `Manager.Authenticate`."""
    allowed: Allowed
    is_local: bool
    """Whether it is who connected to the Unix socket, without a token."""
    idle: asyncio.TimerHandle | None = None


class Callers:
    """Makes and keeps the connections; `close` ends those that wait."""

    def __init__(self, gateway: Gateway, control: Path | None) -> None:
        self._gateway, self.control = gateway, control
        self._kept: OrderedDict[Caller, None] = OrderedDict()
        self._known: OrderedDict[str, Allowed] = OrderedDict()
        """Keys that were right lately, with their limits."""
        self.guesses = Guesses()
        self.wrong_tokens = 0

    async def close(self) -> None:
        """Close what is kept."""
        for one in list(self._kept):
            await self._drop(one)

    @contextlib.asynccontextmanager
    async def connected(self, who: Who) -> AsyncIterator[Caller]:
        """A connection that acts for a client. Raises NoToken, TooMany and what connecting does."""
        caller = self.take(who.kept_as) or await self._made(who)
        try:
            yield caller
        except PermissionDenied:  # what it proved may hold no more
            await caller.client.close()
            raise
        finally:
            await self._give_back(caller)

    async def answers(self) -> bool:
        """Whether the daemon answers at all, whoever asks."""
        try:
            async with AsyncClient(self.control, timeout_s=2.0) as client:
                await client.call("org.varlink.service.GetInfo")
        except (LightagentError, OSError):
            return False
        return True

    def take(self, kept_as: str) -> Caller | None:
        """A connection that was kept, if one is; whoever takes it owns it."""
        found = next((one for one in reversed(self._kept) if one.kept_as == kept_as), None)
        if found is not None:
            del self._kept[found]
            assert found.idle is not None
            found.idle.cancel()
        return found

    async def _made(self, who: Who) -> Caller:
        address = who.connection.address
        if who.key not in self._known:
            self.guesses.check(address)
        client = AsyncClient(self.control, timeout_s=TIMEOUT_S)
        try:
            await client.__aenter__()
            said = await self.authenticate(client, who)
        except BaseException as err:
            await client.close()
            if isinstance(err, PermissionDenied):
                self._known.pop(who.key, None)
                self.wrong_tokens += 1
                self.guesses.wrong(address)
                raise NoToken(err.message, suggestion=err.suggestion) from err
            if type(err) is LimitExceeded:
                raise TooMany(err.message, retry_after_s=1, suggestion=err.suggestion) from err
            raise
        allowed = Allowed.of(self._gateway, said.get("limits") or {})
        self._known[who.key] = allowed
        if len(self._known) > _KNOWN_MOST:
            self._known.popitem(last=False)
        return Caller(
            client=client,
            key=who.key,
            kept_as=who.kept_as,
            said=said,
            allowed=allowed,
            is_local=not who.token,
        )

    async def authenticate(self, client: AsyncClient, who: Who) -> dict[str, Any]:
        """Have a new connection act for a client. Raises PermissionDenied."""
        if who.token:
            said = await client.call("Manager.Authenticate", token=who.token)
        else:
            said = await client.call_with(who.connection.socket.fileno(), "Manager.Authenticate")
        return dict(said["identity"])

    async def _give_back(self, caller: Caller) -> None:
        if (
            not caller.client.is_free
            or sum(one.kept_as == caller.kept_as for one in self._kept) >= KEPT_OF_ONE
        ):
            await caller.client.close()
            return
        loop = asyncio.get_running_loop()
        caller.idle = loop.call_later(KEPT_S, self._forget, caller)
        self._kept[caller] = None
        if len(self._kept) > KEPT_MOST:
            await self._drop(next(iter(self._kept)))

    def _forget(self, caller: Caller) -> None:
        self._kept.pop(caller, None)
        caller.client.hang_up()

    async def _drop(self, caller: Caller) -> None:
        assert caller.idle is not None
        caller.idle.cancel()
        del self._kept[caller]
        await caller.client.close()


def key_of(token: str) -> str:
    """What stands for a token: its digest."""
    return hashlib.sha256(token.encode()).hexdigest()


def who_is(token: str, connection: Connection) -> Who:
    """The client of a request. Raises NoToken for one that proves nothing."""
    if token and not (connection.is_local and token == LOCAL):
        return Who(token=token, connection=connection, key=key_of(token), kept_as=key_of(token))
    if not connection.is_local:
        raise NoToken(
            "The request has no token.",
            suggestion="Send the header Authorization: Bearer TOKEN. Make one with: lactl tokens create",
        )
    user = connection.address
    return Who(token="", connection=connection, key=user, kept_as=f"connection {connection.number}")


async def replies(caller: Caller, method: str, **parameters: Any) -> AsyncGenerator[dict[str, Any]]:
    """The replies of a streaming call; leaving early ends the call, and the connection with it."""
    async with contextlib.aclosing(caller.client.stream(method, **parameters)) as found:
        async for reply in found:
            yield reply
