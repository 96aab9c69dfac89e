"""What every interface is made of: the service and the caller.

Errors of the service pass through as they are; each plane makes its own of them.
"""

# No `from __future__ import annotations` here: asyncvarlink reads the annotations of each method.
from collections.abc import AsyncGenerator

from asyncvarlink import LastResult

from lightagentd import api
from lightagentd.control.authz import Caller
from lightagentd.control.operations.service import Service


class Adapter:
    """Holds what each interface needs; one for each connection."""

    def __init__(self, service: Service, caller: Caller) -> None:
        self.service = service
        self.caller = caller


async def relay(events: AsyncGenerator[api.TurnEvent, None]) -> AsyncGenerator[api.TurnEvent, None]:
    """Pass turn events on as they come; the last one, done or error, ends the reply."""
    try:
        async for event in events:
            if event["type"] in api.LAST_EVENTS:
                raise LastResult(event)
            yield event
    finally:
        await events.aclose()
