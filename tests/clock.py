"""The time of an event loop, which a test moves on: a time-out comes when the test wants it.

A time-out of a fraction of a second comes on a loaded machine before what the test wants to see in it. So the
test takes one of a minute, waits until all is as it should be, and lets that minute pass at once.
"""

from __future__ import annotations

import asyncio
from typing import Any


def pass_time(seconds: float) -> None:
    """Let the clock of the running loop show so much more. What was due until then is done in its next round.

    Only what asks the loop for the time notices: `asyncio.timeout` and `asyncio.sleep`, not `time.monotonic`.
    """
    loop = asyncio.get_running_loop()
    before = loop.time
    loop.time = lambda: before() + seconds  # type: ignore[method-assign]


async def passing(seconds: float, task: asyncio.Task[Any]) -> None:
    """Let so much time pass, again and again until a task is over: its own time may not have begun yet."""
    while not task.done():
        pass_time(seconds)
        await asyncio.sleep(0.05)
