"""Work that a cancel must not cut in two, such as storing how something ended."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

_T = TypeVar("_T")


async def uninterrupted(work: Awaitable[_T]) -> _T:
    """Run `work` to its end, however often the caller is cancelled; the cancel is raised afterwards.

    Unlike `asyncio.shield` alone, it does not leave the work behind as a task that nobody waits for.
    """
    task = asyncio.ensure_future(work)
    cancel: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as err:
            cancel = err
    if cancel is not None:
        if not task.cancelled():
            task.exception()  # seen, so that the loop does not report it; the cancel goes first
        raise cancel
    return task.result()
