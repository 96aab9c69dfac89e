"""Limits the connections of one server, for each user and in total: their number and waiting bytes.

A `Ledger` belongs to its `varlink.VarlinkServer` and lives as long. Each connection has an `Account` in it,
which the server opens at accept and closes when the connection is gone. Privileged users (root and the
server's own user) are limited only by the total, and have a reserve that nobody else can use. So a flood of
the socket cannot keep them from inspecting or stopping the daemon.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from lightagentd.errors import LimitExceeded
from lightagentd.varlink.turns import Turns

FREE_BYTES = 64 << 10
"""What a connection may have waiting without being charged, so that small calls pass however full it is."""


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Bytes are those of messages that are unfinished, wait to be decoded, or wait to be read by the peer."""

    connections_per_user: int = 64
    reserved_connections: int = 32
    """Beyond what the server takes from everybody."""
    waiting_bytes: int = 128 << 20
    waiting_bytes_per_user: int = 32 << 20
    reserved_bytes: int = 32 << 20
    privileged: frozenset[int] = field(default_factory=lambda: frozenset({0, os.geteuid()}))
    """Users with no bound of their own, who may use the reserves."""


@dataclass(eq=False)
class _User:
    uid: int
    through: bool = False
    """Whether these are connections of somebody who speaks for the user; they have bounds of their own."""
    connections: int = 0
    waiting_bytes: int = 0
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


class Ledger:
    """The sums over all connections of a server."""

    def __init__(self, max_connections: int, bounds: Bounds) -> None:
        self._max_connections = max_connections
        self._bounds = bounds
        self._users: dict[tuple[int, bool], _User] = {}
        self._turn = asyncio.Lock()
        self._turns = Turns()
        self.connections = 0
        self.waiting_bytes = 0

    def open(self, uid: int) -> Account:
        """Count a new connection. Raises LimitExceeded."""
        bounds = self._bounds
        room = self._max_connections
        if uid in bounds.privileged:
            room += bounds.reserved_connections
            user = self._users.get((uid, False)) or _User(uid)
        else:
            user = self._with_room(uid)
        if self.connections >= room:
            raise LimitExceeded(
                f"{self.connections} programs are connected already.",
                suggestion="Close some, or raise max_connections in the configuration.",
            )
        self._count(user)
        return Account(self, user)

    def _with_room(self, uid: int, *, through: bool = False) -> _User:
        """Raises LimitExceeded."""
        user = self._users.get((uid, through)) or _User(uid, through)
        if user.connections >= self._bounds.connections_per_user:
            raise LimitExceeded(
                f"User {uid} has {user.connections} connections already, the most for one user.",
                suggestion="Close some: each running call, attached session and watch holds one. "
                "The limit of a user is [limits.owner] connections.",
            )
        return user

    def _count(self, user: _User) -> None:
        self._users[user.uid, user.through] = user
        user.connections += 1
        self.connections += 1

    def move(self, user: _User, uid: int, size: int) -> _User:
        """Count a connection with so many bytes for whom it speaks from now on. Raises LimitExceeded, which
        changes nothing.
        """
        found = self._with_room(uid, through=True)
        user.waiting_bytes -= size
        found.waiting_bytes += size
        self.close(user)
        self._count(found)
        return found

    def close(self, user: _User) -> None:
        self.connections -= 1
        user.connections -= 1
        if not user.connections:
            del self._users[user.uid, user.through]

    def charge(self, user: _User, size: int) -> None:
        """Count more bytes, or fewer where the size is negative. Raises LimitExceeded, which counts none."""
        bounds = self._bounds
        privileged = self._is_privileged(user)
        room = bounds.waiting_bytes + (bounds.reserved_bytes if privileged else 0)
        if size > 0 and not privileged and user.waiting_bytes + size > bounds.waiting_bytes_per_user:
            raise _too_much(f"user {user.uid}", bounds.waiting_bytes_per_user)
        if size > 0 and self.waiting_bytes + size > room:
            raise _too_much("all users together", room)
        user.waiting_bytes += size
        self.waiting_bytes += size

    def _is_privileged(self, user: _User) -> bool:
        return user.uid in self._bounds.privileged and not user.through

    def working(self, user: _User) -> contextlib.AbstractAsyncContextManager[None]:
        """A few calls of each user are answered at a time; privileged ones need not wait."""
        if self._is_privileged(user):
            return contextlib.nullcontext()
        return self._turns.working(user.uid)

    @contextlib.asynccontextmanager
    async def turn(self, user: _User) -> AsyncIterator[None]:
        """One large message at a time: each user waits for its own ones, so that others come in between."""
        async with user.turn, self._turn:
            yield
            await asyncio.sleep(0)


class Account:
    """The usage of one connection."""

    def __init__(self, ledger: Ledger, user: _User) -> None:
        self._ledger = ledger
        self._user = user
        self._taken = 0
        self._closed = False

    def take(self, size: int) -> None:
        """Count bytes that wait from now on. Raises LimitExceeded, which counts none."""
        if not self._closed:
            self._ledger.charge(self._user, _charged(self._taken + size) - _charged(self._taken))
            self._taken += size

    def give(self, size: int) -> None:
        """Release bytes of `take`. After the account is closed, this does nothing."""
        if not self._closed:
            self._ledger.charge(self._user, _charged(self._taken - size) - _charged(self._taken))
            self._taken -= size

    def move(self, uid: int) -> None:
        """Count for this user from now on, for whom the connection speaks. Raises LimitExceeded."""
        self._user = self._ledger.move(self._user, uid, _charged(self._taken))

    def turn(self) -> contextlib.AbstractAsyncContextManager[None]:
        """Wait for this user's turn to decode a large message."""
        return self._ledger.turn(self._user)

    def working(self) -> contextlib.AbstractAsyncContextManager[None]:
        """Wait for this user's turn to have a call answered."""
        return self._ledger.working(self._user)

    def close(self) -> None:
        self.give(self._taken)
        self._closed = True
        self._ledger.close(self._user)


def _charged(size: int) -> int:
    return max(0, size - FREE_BYTES)


def _too_much(whose: str, limit: int) -> LimitExceeded:
    return LimitExceeded(
        f"What waits of {whose} to be received, decoded or read is more than {limit >> 10} KiB.",
        suggestion="Read the answers, send less at once, or wait a moment; then connect again. "
        "The limit of a user is [limits.owner] waiting_bytes.",
    )
