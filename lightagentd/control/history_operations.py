"""The operations on what was stored, a part of `Service`: the event stream, queries, verification."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import asdict, replace

from lightagentd import api
from lightagentd.control.authz import Caller, Operation
from lightagentd.control.operations import Operations, check_limit
from lightagentd.control.presentation import stored_event
from lightagentd.control.sight import Sight
from lightagentd.errors import InvalidArgument
from lightagentd.events.feed import Feed
from lightagentd.events.queries import Filter
from lightagentd.limits import MAX_MESSAGE_BYTES


class HistoryOperations(Operations):
    """Events and history."""

    _feed: Feed

    async def subscribe(
        self, caller: Caller, wanted: Filter, from_seq: int | None, *, follow: bool
    ) -> AsyncGenerator[api.StoredEvent, None]:
        caller = await self._admit(caller, Operation.INSPECT, agent=wanted.agent)
        sight = Sight(self._daemon.authority, caller, wanted.agent)
        if from_seq is not None and from_seq < 0:
            raise InvalidArgument("from_seq must not be negative.", field="from_seq")
        wanted = replace(wanted, viewer=caller.viewer)
        first = self._history.head_seq + 1 if from_seq is None else max(1, from_seq)
        last = None if follow else self._history.head_seq
        async with aclosing(self._feed.follow(self._history, wanted, first, last)) as events:
            async for event in events:
                if await sight.sees(event):
                    yield stored_event(event)

    async def query(self, caller: Caller, wanted: Filter, limit: int) -> list[api.StoredEvent]:
        caller = await self._admit(caller, Operation.INSPECT, agent=wanted.agent)
        check_limit(limit)
        agents = await self._readable(caller, wanted.agent)
        wanted = replace(wanted, viewer=caller.viewer, agents=agents)
        found = await asyncio.to_thread(self._history.newest, wanted, limit, most_bytes=4 * MAX_MESSAGE_BYTES)
        return [stored_event(event) for event in found]

    async def verify(self, caller: Caller) -> api.Verification:
        await self._admit(caller, Operation.INSPECT)
        found = await asyncio.to_thread(self._history.verify)
        return api.Verification(**asdict(found))
