"""Delivers D-Bus signals to subscriptions, each with a bounded queue.

`Bus.signals()` of `bus/connection.py` makes a `Signals`, feeds it and ends it with the connection.
A peer can send any signal to us directly, whatever we subscribed to, so each subscription checks for itself
what it takes, and from whom.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from lightagentd import errors
from lightagentd.errors import LightagentError


@dataclass(frozen=True, kw_only=True)
class Signal:
    """A signal as it arrived; `sender` is a unique name."""

    sender: str
    path: str
    interface: str
    member: str
    signature: str
    args: list[Any]


@dataclass(kw_only=True)
class Signals:
    """One subscription: iterates over the signals that match, in order; `bus.connection` has the policy."""

    sender: str
    path: str
    interface: str
    member: str
    arg0: str
    limit: int
    owner: str | None = None
    """The unique name behind a well-known `sender`; nobody else's signals count."""
    dropped: int = 0
    _queue: deque[Signal] = field(default_factory=deque)
    _arrived: asyncio.Event = field(default_factory=asyncio.Event)
    _ended: LightagentError | None = None

    @property
    def rule(self) -> str:
        """The match rule that makes the bus deliver these signals."""
        return match_rule(
            sender=self.sender, path=self.path, interface=self.interface, member=self.member, arg0=self.arg0
        )

    def fits(self, signal: Signal) -> bool:
        """Whether the signal matches, apart from its arguments, which may not be decoded yet."""
        wanted = (self.path, self.interface, self.member)
        found = (signal.path, signal.interface, signal.member)
        if any(want and want != have for want, have in zip(wanted, found, strict=True)):
            return False
        return not self.sender or signal.sender == (self.sender if self.owner is None else self.owner)

    def offer(self, signal: Signal) -> None:
        """Queue a signal if it matches; a peer may send us any signal directly, whatever we subscribed to."""
        if not self.fits(signal):
            return
        if self.arg0 and (not signal.args or signal.args[0] != self.arg0):
            return
        if self.dropped or len(self._queue) >= self.limit:
            self.dropped += 1
            return
        self._queue.append(signal)
        self._arrived.set()

    def end(self, why: LightagentError) -> None:
        self._ended = why
        self._arrived.set()

    def __aiter__(self) -> Signals:
        return self

    async def __anext__(self) -> Signal:
        while not self._queue:
            if self.dropped:
                count, self.dropped = self.dropped, 0
                raise errors.LimitExceeded(
                    f"{count} D-Bus signals were lost, since they came faster than they were read.",
                    suggestion="Read the state again, then go on.",
                )
            if self._ended is not None:
                raise self._ended
            self._arrived.clear()
            await self._arrived.wait()
        return self._queue.popleft()


def match_rule(**parts: str) -> str:
    """A match rule of the parts that are not empty, quoted as the specification says."""
    quoted = ((key, value.replace("'", "'\\''")) for key, value in parts.items() if value)
    return ",".join(["type='signal'", *(f"{key}='{value}'" for key, value in quoted)])
