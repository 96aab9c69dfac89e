"""The Varlink interfaces `org.lightagent1.Events` and `org.lightagent1.History`.

What says which events are meant is the same in all methods; `Filter` has it.
"""

# No `from __future__ import annotations` here: asyncvarlink reads the annotations of each method.
from collections.abc import AsyncIterator
from contextlib import aclosing

from asyncvarlink import LastResult, VarlinkInterface, varlinkmethod

from lightagentd import api
from lightagentd.control.varlink.adapter import Adapter
from lightagentd.events.filter import Filter


def _filter(
    agent: str | None,
    session: str | None,
    topic: str | None,
    type_: str | None,
    tool: str | None,
    effect: str | None,
    decision: str | None,
    caller: int | None,
    trace: str | None,
    request: str | None,
    text: str | None,
    since_us: int | None,
    until_us: int | None,
) -> Filter:
    return Filter(
        agent=agent or "",
        session=session or "",
        topic=topic or "",
        type=type_ or "",
        tool=tool or "",
        effect=effect or "",
        decision=decision or "",
        caller=caller,
        trace=trace or "",
        request=request or "",
        text=text or "",
        since_us=since_us or 0,
        until_us=until_us or 0,
    )


class Events(Adapter, VarlinkInterface, name="org.lightagent1.Events"):
    """The event stream.

    Every parameter that says which events are meant narrows it: topic is an exact topic or what it begins
    with before a dot, or several with commas between them; tool, effect and decision are about calls; caller
    is the uid on whose word it happened; text stands somewhere in the event's data, in any case of letters;
    times are UTC microseconds.
    """

    @varlinkmethod(delay_generator=False, allow_foreign=True)
    async def Subscribe(
        self,
        *,
        from_seq: int | None = None,
        topic: str | None = None,
        agent: str | None = None,
        session: str | None = None,
        follow: bool = True,
        type: str | None = None,  # noqa: A002 - as the event calls it
        tool: str | None = None,
        effect: str | None = None,
        decision: str | None = None,
        caller: int | None = None,
        trace: str | None = None,
        request: str | None = None,
        text: str | None = None,
        since_us: int | None = None,
        until_us: int | None = None,
        max_lag: int | None = None,
    ) -> AsyncIterator[api.EventItem]:
        """Stored events from a sequence number on (without it: from now on, or from since_us on), then each
        new one. No event is missed or sent twice, however slow the reader, with two exceptions, of which a
        reply tells with missed instead of event: retention has removed what the number points at; or the
        reader gave max_lag and is more than so many events behind, and then it goes on half as many before
        the newest. Ends with a null event: at once when follow is false, else when the daemon stops.
        """
        wanted = _filter(
            agent,
            session,
            topic,
            type,
            tool,
            effect,
            decision,
            caller,
            trace,
            request,
            text,
            since_us,
            until_us,
        )
        found = self.service.subscribe(self.caller, wanted, from_seq, follow=follow, max_lag=max_lag or 0)
        async with aclosing(found) as items:
            async for item in items:
                if isinstance(item, api.Missed):
                    yield {"event": None, "missed": item}
                else:
                    yield {"event": item, "missed": None}
        raise LastResult({"event": None, "missed": None})


class History(Adapter, VarlinkInterface, name="org.lightagent1.History"):
    """What was stored. The parameters that say which events are meant are those of Events."""

    @varlinkmethod(return_parameter="pruned")
    async def Prune(self, *, dry_run: bool = False) -> api.Pruned:
        """Remove what the limits of the configuration ([history]) do not let stay, now; for administrators.
        With dry_run say what would go, about, and remove nothing.
        """
        return await self.service.prune(self.caller, dry_run=dry_run)

    @varlinkmethod(return_parameter="compacted")
    async def Compact(self) -> api.Compacted:
        """Write the file of the history anew, without its free pages; for administrators."""
        return await self.service.compact(self.caller)

    @varlinkmethod(return_parameter="events", allow_foreign=True)
    async def Query(
        self,
        *,
        agent: str | None = None,
        session: str | None = None,
        topic: str | None = None,
        trace: str | None = None,
        since_us: int | None = None,
        limit: int | None = None,
        type: str | None = None,  # noqa: A002 - as the event calls it
        tool: str | None = None,
        effect: str | None = None,
        decision: str | None = None,
        caller: int | None = None,
        request: str | None = None,
        text: str | None = None,
        until_us: int | None = None,
    ) -> list[api.StoredEvent]:
        """The newest events that fit, oldest of them first; 50 unless limit says otherwise. Fails with
        TimedOut when they cannot be found soon: Page gives what was found so far, and goes on.
        """
        wanted = _filter(
            agent,
            session,
            topic,
            type,
            tool,
            effect,
            decision,
            caller,
            trace,
            request,
            text,
            since_us,
            until_us,
        )
        return await self.service.query(self.caller, wanted, 50 if limit is None else limit)

    @varlinkmethod(return_parameter="page", allow_foreign=True)
    async def Page(
        self,
        *,
        agent: str | None = None,
        session: str | None = None,
        topic: str | None = None,
        type: str | None = None,  # noqa: A002 - as the event calls it
        tool: str | None = None,
        effect: str | None = None,
        decision: str | None = None,
        caller: int | None = None,
        trace: str | None = None,
        request: str | None = None,
        text: str | None = None,
        since_us: int | None = None,
        until_us: int | None = None,
        from_seq: int | None = None,
        to_seq: int | None = None,
        oldest_first: bool = False,
        limit: int | None = None,
    ) -> api.EventPage:
        """The newest events that fit and have numbers from from_seq to to_seq, or with oldest_first the
        oldest; 50 unless limit says otherwise, fewer when they are large or hard to find. next_seq is where
        to go on, as to_seq, or with oldest_first as from_seq; it is 0 when there is no more.
        """
        wanted = _filter(
            agent,
            session,
            topic,
            type,
            tool,
            effect,
            decision,
            caller,
            trace,
            request,
            text,
            since_us,
            until_us,
        )
        return await self.service.page(
            self.caller,
            wanted,
            from_seq=from_seq,
            to_seq=to_seq,
            oldest_first=oldest_first,
            limit=50 if limit is None else limit,
        )

    @varlinkmethod(return_parameter="verification")
    async def Verify(
        self,
        *,
        since_seq: int | None = None,
        since_us: int | None = None,
        indexes: bool = False,
        public_keys: list[str] | None = None,
        expect: list[str] | None = None,
    ) -> api.Verification:
        """Walk the hash chain, or with since_seq or since_us the part of it from the newest checkpoint before
        that event or time on. With indexes each entry of each index is looked at, too. public_keys (PEM or
        Base64) are trusted in place of the daemon's own; expect has the hashes of events that were kept
        elsewhere, each as SEQ:HASH.
        """
        return await self.service.verify(
            self.caller,
            since_seq=since_seq or 0,
            since_us=since_us or 0,
            indexes=indexes,
            public_keys=public_keys or [],
            expect=expect or [],
        )
