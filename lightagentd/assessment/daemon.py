"""Calls of the daemon, as a program makes them that has many to make."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from lightagentd.client.aio import AsyncClient
from lightagentd.errors import LimitExceeded

_T = TypeVar("_T")
Connect = Callable[[], AsyncClient]
_PER_MINUTE = "changes_per_minute"
"""The limit of an owner (`[limits.owner]`) that is over after a minute."""
_TRIES, _PAUSE_S = 30, 5.0


async def call(connect: Connect, method: str, /, **parameters: Any) -> dict[str, Any]:
    """One call on a connection of its own, which waits while the user makes too many. Raises its errors."""

    async def once() -> dict[str, Any]:
        async with connect() as client:
            return await client.call(method, **parameters)

    return await patiently(once)


async def patiently(work: Callable[[], Awaitable[_T]], pause_s: float = _PAUSE_S) -> _T:
    """Do something, and again after a pause while the limit for a minute refuses it. Raises its errors."""
    for _ in range(_TRIES):
        try:
            return await work()
        except LimitExceeded as err:
            if type(err) is not LimitExceeded or _PER_MINUTE not in err.message:
                raise
        await asyncio.sleep(pause_s)
    return await work()
