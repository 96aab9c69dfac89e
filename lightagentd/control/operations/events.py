"""The event stream: stored events, then new ones."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

from lightagentd import api
from lightagentd.control.authz import Caller
from lightagentd.control.operations.access import Access
from lightagentd.control.operations.declared import Operations, stream
from lightagentd.control.presentation import shown
from lightagentd.errors import InvalidArgument
from lightagentd.events.feed import Feed, Missed
from lightagentd.events.filter import Filter
from lightagentd.events.history import History
from lightagentd.events.model import Event
from lightagentd.policy.operation import Operation


class Events(Operations, interface="org.lightagent1.Events"):
    """The event stream.

    Every parameter that says which events are meant narrows it: topic is an exact topic or what it begins
    with before a dot, or several with commas between them; tool, effect and decision are about calls; caller
    is the uid on whose word it happened; text stands somewhere in the event's data, in any case of letters;
    times are UTC microseconds.
    """

    def __init__(self, access: Access, history: History, feed: Feed) -> None:
        self._access, self._history, self._feed = access, history, feed

    @stream(
        "Subscribe", first="from_seq topic agent session follow", end=api.EventItem(event=None, missed=None)
    )
    async def subscribe(
        self,
        caller: Caller,
        wanted: Filter,
        from_seq: int | None = None,
        *,
        follow: bool = True,
        max_lag: int = 0,
    ) -> AsyncGenerator[api.EventItem, None]:
        """Stored events from a sequence number on (without it: from now on, or from since_us on), then each
        new one. No event is missed or sent twice, however slow the reader, with two exceptions, of which a
        reply tells with missed instead of event: retention has removed what the number points at; or the
        reader gave max_lag and is more than so many events behind, and then it goes on half as many before
        the newest. Ends with a null event: at once when follow is false, else when the daemon stops.
        """
        caller = await self._access.admit(caller, Operation.INSPECT, agent=wanted.agent, viewing=True)
        await self._access.check_known(wanted, later=follow)
        sight = self._access.sight(caller, wanted.agent)
        for name, value in (("from_seq", from_seq or 0), ("max_lag", max_lag)):
            if value < 0:
                raise InvalidArgument(f"{name} must not be negative.", field=name)
        wanted = replace(wanted, viewer=caller.viewer)
        now = 1 if wanted.since_us else self._history.head_seq + 1
        first = now if from_seq is None else max(1, from_seq)
        last = None if follow else self._history.head_seq
        follower = self._feed.follow(self._history, wanted, first, last, max_lag=max_lag)
        async with aclosing(follower) as items:
            async for item in items:
                if isinstance(item, Missed):
                    yield {"event": None, "missed": shown(api.Missed, item)}
                elif await sight.sees(item):
                    yield {"event": stored(item), "missed": None}


def stored(event: Event) -> api.StoredEvent:
    """A stored event in the form that callers get."""
    return api.StoredEvent(**event.to_dict())
