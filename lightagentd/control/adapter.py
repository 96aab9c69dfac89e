"""What every Varlink interface is made of: the service, the caller, and the translation of errors."""

# No `from __future__ import annotations` here: asyncvarlink reads the annotations of each method.
from collections.abc import AsyncGenerator, Awaitable
from typing import TypeVar

from asyncvarlink import LastResult

from lightagentd import api
from lightagentd.control.authz import Caller
from lightagentd.control.service import Service
from lightagentd.errors import LightagentError
from lightagentd.varlink import error_reply

_T = TypeVar("_T")


class Adapter:
    """Holds what each interface needs; one for each connection."""

    def __init__(self, service: Service, caller: Caller) -> None:
        self.service = service
        self.caller = caller


async def answer(operation: Awaitable[_T]) -> _T:
    """The result of an operation; its error becomes the Varlink error of that class."""
    try:
        return await operation
    except LightagentError as err:
        raise error_reply(err) from err


async def relay(events: AsyncGenerator[api.TurnEvent, None]) -> AsyncGenerator[api.TurnEvent, None]:
    """Pass turn events on as they come; the last one, done or error, ends the reply."""
    try:
        async for event in events:
            if event["type"] in api.LAST_EVENTS:
                raise LastResult(event)
            yield event
    except LightagentError as err:
        raise error_reply(err) from err
    finally:
        await events.aclose()
