"""A thread with an event loop of its own, in which the code of somebody else's store runs.

Nothing that it does holds up the daemon: a call that takes too long counts as failed, and an exit of the
program ends only the call. The thread ends when it is closed, or with the daemon.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

END_TIMEOUT_S = 2.0
"""How long the daemon waits for the thread when it stops."""


class StoreThread:
    """Start with `start()`, end with `close()`."""

    def __init__(self, name: str) -> None:
        """`name` is what the log calls the store."""
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=_run, args=(self._loop,), name="memory-store", daemon=True)
        self._thread.start()

    @property
    def running(self) -> bool:
        return self._loop is not None

    async def call(self, make: Callable[[], Coroutine[Any, Any, _T]], timeout_s: float) -> _T:
        """Run something in the thread's loop; raises what it raises, TimeoutError, and RuntimeError for what
        ends the program, or when the thread is closed meanwhile.
        """
        assert self._loop is not None
        running = asyncio.run_coroutine_threadsafe(_guarded(make), self._loop)
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.wrap_future(running)
        except asyncio.CancelledError:
            own = asyncio.current_task()
            if own is None or own.cancelling():
                raise
            raise RuntimeError("it was closed meanwhile") from None

    async def close(self) -> None:
        if self._loop is None or self._thread is None:
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        await asyncio.to_thread(self._thread.join, END_TIMEOUT_S)
        if self._thread.is_alive():
            _log.error("the memory store %s hangs; its thread ends with the daemon", self._name)
        self._loop = self._thread = None


async def _guarded(make: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
    """Call and await in the store's own thread; an exit of the program ends only the call."""
    own = asyncio.current_task()
    try:
        return await make()
    except (SystemExit, KeyboardInterrupt) as err:
        raise RuntimeError(f"it raised {type(err).__name__}") from err
    except asyncio.CancelledError:
        if own is not None and own.cancelling():
            raise
        raise RuntimeError("it cancelled itself") from None


def _run(loop: asyncio.AbstractEventLoop) -> None:
    """The store's thread, until its loop is stopped."""
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
    finally:
        loop.close()
