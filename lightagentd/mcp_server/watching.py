"""Tells a client of resources that change, each followed by the daemon's events on a connection of its own.

https://modelcontextprotocol.io/specification/2026-07-28/basic/patterns/subscriptions; versions before have
`resources/subscribe`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import aclosing
from typing import Any

from lightagentd.errors import LightagentError, NotFound
from lightagentd.mcp_server.reading import Reading
from lightagentd.mcp_server.request import Connect, Request
from lightagentd.text.jsonrpc import BUSY, INVALID_PARAMS, Lost, Peer, RpcError
from lightagentd.text.mcp import PREFIX

MOST = 16
"""So many resources are followed for one client."""
_APART_S = 0.5
"""How long no more is told of a resource that was told of."""


class Watching:
    def __init__(self, connect: Connect, peer: Peer, reading: Reading) -> None:
        self._connect, self._peer, self._reading = connect, peer, reading
        self._subscribed: dict[str, asyncio.Task[None]] = {}
        self._listened = 0

    async def subscribe(self, request: Request) -> dict[str, Any]:
        """Raises RpcError, LightagentError."""
        uri = request.text("uri")
        newest = await self._newest(uri)
        await self.unsubscribe(request)
        self._check_room(1)
        self._subscribed[uri] = asyncio.create_task(self._follow(uri, {}, newest))
        return {}

    async def unsubscribe(self, request: Request) -> dict[str, Any]:
        await _end(self._subscribed.pop(one) for one in [request.text("uri")] if one in self._subscribed)
        return {}

    async def listen(self, request: Request) -> dict[str, Any]:
        """Those of the wanted resources that there are. Ends with the daemon. Raises RpcError."""
        wanted = request.object("notifications").get("resourceSubscriptions", [])
        if not isinstance(wanted, list) or not all(isinstance(uri, str) for uri in wanted):
            raise RpcError(INVALID_PARAMS, "resourceSubscriptions is a list of texts.")
        self._check_room(len(wanted))
        self._listened += len(wanted)
        meta, tasks = {"_meta": {f"{PREFIX}subscriptionId": request.id}}, list[asyncio.Task[None]]()
        try:
            newest = {uri: seq for uri in wanted if (seq := await self._newest_or_none(uri)) is not None}
            taken = {"resourceSubscriptions": [*newest]} if newest else {}
            await self._peer.tell(
                "notifications/subscriptions/acknowledged", {**meta, "notifications": taken}
            )
            tasks += [asyncio.create_task(self._follow(uri, meta, seq)) for uri, seq in newest.items()]
            await (
                asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED) if tasks else asyncio.Event().wait()
            )
        finally:
            self._listened -= len(wanted)
            await _end(tasks)
        return meta

    async def close(self) -> None:
        await _end(self._subscribed.values())

    def _check_room(self, more: int) -> None:
        if len(self._subscribed) + self._listened + more > MOST:
            raise RpcError(BUSY, f"At most {MOST} resources are followed for one client.")

    async def _newest(self, uri: str) -> int:
        """The number of a resource's newest event. Raises RpcError, LightagentError."""
        events = self._reading.events_of(uri)
        async with self._connect() as client:
            if "session" in events:
                await client.call("Sessions.Get", **events)
            found = (await client.call("History.Query", limit=1, **events))["events"]
        return max((event["seq"] for event in found), default=0)

    async def _newest_or_none(self, uri: str) -> int | None:
        try:
            return await self._newest(uri)
        except (NotFound, RpcError):
            return None

    async def _follow(self, uri: str, meta: dict[str, Any], newest: int) -> None:
        """Tell of each change until the daemon stops, or does not let the client look any more."""
        changed = asyncio.Event()
        telling = asyncio.create_task(self._tell(uri, meta, changed))
        events = {"from_seq": newest + 1, **self._reading.events_of(uri)}
        try:
            async with (
                self._connect() as client,
                aclosing(client.stream("Events.Subscribe", **events)) as items,
            ):
                async for item in items:
                    if item["event"] or item["missed"]:
                        changed.set()
        except LightagentError:
            return
        finally:
            await _end([telling])

    async def _tell(self, uri: str, meta: dict[str, Any], changed: asyncio.Event) -> None:
        while True:
            await changed.wait()
            changed.clear()
            try:
                await self._peer.tell("notifications/resources/updated", {**meta, "uri": uri})
            except (OSError, Lost):
                return  # nobody is there to hear it
            await asyncio.sleep(_APART_S)


async def _end(tasks: Iterable[asyncio.Task[None]]) -> None:
    ended = [*tasks]
    for task in ended:
        task.cancel()
    await asyncio.gather(*ended, return_exceptions=True)
