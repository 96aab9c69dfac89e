"""The pause between attempts to connect."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

from lightagentd.errors import LightagentError

_T = TypeVar("_T")
_log = logging.getLogger(__name__)

FIRST_S, LONGEST_S = 0.25, 30.0
CALM_S = 60.0
"""What lasted that long has not failed at once again."""


class Pause:
    """A pause that doubles with each failure in a row; there is none before the first attempt."""

    def __init__(self) -> None:
        self._next_s = 0.0
        self._begun = time.monotonic()

    async def wait(self) -> None:
        await asyncio.sleep(self._next_s)
        self._begun = time.monotonic()

    def failed(self) -> None:
        """The attempt after the last pause failed."""
        calm = time.monotonic() - self._begun > CALM_S
        self._next_s = FIRST_S if calm or not self._next_s else min(self._next_s * 2, LONGEST_S)


async def keep_trying(
    connect: Callable[[], AbstractAsyncContextManager[_T]],
    use: Callable[[_T], Awaitable[None]],
    missing: str,
    failed: Callable[[], None] = lambda: None,
) -> None:
    """Connect and use the connection, again and again; never returns. `missing` is logged once for each
    reason, and `failed` is called for every failed attempt.
    """
    pause, said = Pause(), ""
    while True:
        await pause.wait()
        try:
            async with connect() as connection:
                said = ""
                await use(connection)
        except* LightagentError as err:
            failed()
            pause.failed()
            if (text := str(_first_of(err))) != said:
                said = text
                _log.warning("no %s, trying again: %s", missing, text)


def _first_of(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """One of the errors in a nested group, as the reason of a failed attempt."""
    inner = group.exceptions[0]
    return _first_of(inner) if isinstance(inner, BaseExceptionGroup) else inner
