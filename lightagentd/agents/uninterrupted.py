"""Runs work that a cancel must not interrupt, such as storing the end of a call."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

_T = TypeVar("_T")


async def uninterrupted(work: Awaitable[_T]) -> _T:
    """Run `work` to its end even if the caller is cancelled; the cancel is raised afterwards.

    Unlike `asyncio.shield` alone, it leaves no task behind that nobody awaits.
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
