"""The pause before a next attempt, for everything here that waits for somebody to come back."""

from __future__ import annotations

import asyncio
import time

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
        """The attempt that followed the last pause is over."""
        calm = time.monotonic() - self._begun > CALM_S
        self._next_s = FIRST_S if calm or not self._next_s else min(self._next_s * 2, LONGEST_S)


def first_of(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """One of the errors in a group of groups: what is told of an attempt that failed."""
    inner = group.exceptions[0]
    return first_of(inner) if isinstance(inner, BaseExceptionGroup) else inner
