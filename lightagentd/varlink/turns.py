"""Chooses the next call to answer: a few of each user at a time, users in turn. Administrators need no turn.

A call that takes longer than `WORKS_S` is taken to be waiting, and frees its turn. `Turns` belongs to the
ledger of a Varlink server, or to the door of a connection to the bus.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import AsyncIterator

AT_ONCE_OF_UID, AT_ONCE_IN_ALL = 4, 16
"""How many calls work at the same time, of one user and of all; how many wait is for the owner to bound."""
WORKS_S = 0.5


class Turns:
    """Each `take` that returned must be followed by one `give_back`."""

    def __init__(self) -> None:
        self._working: Counter[int] = Counter()
        self._waiting: dict[int, deque[asyncio.Future[None]]] = {}
        """By uid, in the order in which the users are served next."""

    async def take(self, uid: int) -> None:
        if uid not in self._waiting and self._has_room(uid):
            self._working[uid] += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(uid, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # the turn came in the same moment
                self.give_back(uid)
            raise

    @contextlib.asynccontextmanager
    async def working(self, uid: int) -> AsyncIterator[None]:
        """A block that begins with a turn."""
        await self.take(uid)
        turn = Turn(self, uid)
        turn.works()
        try:
            yield
        finally:
            turn.end()

    def give_back(self, uid: int) -> None:
        self._working[uid] -= 1
        if not self._working[uid]:
            del self._working[uid]
        for other in list(self._waiting):
            while other in self._waiting and self._has_room(other):
                if self._call_next(other):
                    break

    def _has_room(self, uid: int) -> bool:
        return self._working[uid] < AT_ONCE_OF_UID and self._working.total() < AT_ONCE_IN_ALL

    def _call_next(self, uid: int) -> bool:
        """Wake the user's first waiting call, and move the user to the end; False if that call is gone."""
        waiting = self._waiting.pop(uid)
        turn = waiting.popleft()
        if waiting:
            self._waiting[uid] = waiting
        if turn.done():
            return False
        turn.set_result(None)
        self._working[uid] += 1
        return True


class Turn:
    """A turn that was taken."""

    def __init__(self, turns: Turns, uid: int) -> None:
        self._turns, self._uid = turns, uid
        self._ended = False
        self._timer: asyncio.TimerHandle | None = None

    def works(self) -> None:
        """From now on the call works, and has so much time for that."""
        self._timer = asyncio.get_running_loop().call_later(WORKS_S, self.end)

    def end(self) -> None:
        """Give it back, once."""
        if self._timer is not None:
            self._timer.cancel()
        if not self._ended:
            self._ended = True
            self._turns.give_back(self._uid)
