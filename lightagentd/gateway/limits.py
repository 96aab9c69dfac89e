"""Counts what each token uses of the gateway, and refuses more: requests and bytes in a minute, and turns at
once.

The counts live in this process, so a restart forgets them; the daemon counts what must hold for longer, such
as the tokens of models. A key stands for a token or for a local user, and the number of keys is bounded.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from lightagentd.config.gateway import Gateway
from lightagentd.gateway.refusals import TooMany

MAX_KEYS = 10_000
HELD_BYTES = 64 << 20
"""So large may all requests together be that are not answered yet: as objects they take some times that."""
UNPROVED_BYTES = 16 << 20
"""The same, of clients that have not proved who they are: they take no room of those that have."""
_MINUTE_S = 60


@dataclass
class _Used:
    minute_ends: float = 0.0
    """Monotonic; a minute begins with the first request after the last one."""
    requests: int = 0
    bytes: int = 0
    streams: int = 0

    @property
    def minute_left_s(self) -> float:
        return self.minute_ends - time.monotonic()


@dataclass(frozen=True, kw_only=True)
class Allowed:
    """What one token may use."""

    requests_per_minute: int
    streams: int
    request_bytes: int

    @staticmethod
    def of(gateway: Gateway, said: Mapping[str, Any]) -> Allowed:
        """The limits of the configuration, or those that a token has itself where they are less."""

        def least(name: str) -> int:
            default, own = int(getattr(gateway, name)), said.get(name)
            return min(own, default) if isinstance(own, int) and own > 0 else default

        return Allowed(
            requests_per_minute=least("requests_per_minute"),
            streams=least("streams"),
            request_bytes=least("request_bytes"),
        )


class Limits:
    """What was used, by key."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._used: OrderedDict[str, _Used] = OrderedDict()
        self._held_bytes = Counter[bool]()
        """By whether their clients have proved who they are."""
        self.streams = 0
        """Turns that run now."""

    def request(self, key: str, allowed: Allowed) -> None:
        """Count a request. Raises TooMany."""
        used = self._of(key)
        if used.requests >= allowed.requests_per_minute:
            raise _too_many(f"{allowed.requests_per_minute} requests a minute", used.minute_left_s)
        if used.bytes >= self._gateway.bytes_per_minute:
            raise _too_many(f"{self._gateway.bytes_per_minute} bytes a minute", used.minute_left_s)
        used.requests += 1

    def sent(self, key: str, size_bytes: int) -> None:
        """Count bytes of a request or of an answer."""
        self._of(key).bytes += size_bytes

    def hold(self, size_bytes: int, *, proved: bool) -> None:
        """Count bytes of requests that are not answered yet. Raises TooMany, which counts none."""
        if self._held_bytes[proved] + size_bytes > (HELD_BYTES if proved else UNPROVED_BYTES):
            raise TooMany("The gateway holds as many requests as it may.", retry_after_s=1)
        self._held_bytes[proved] += size_bytes

    def release(self, size_bytes: int, *, proved: bool) -> None:
        """Count them no more."""
        self._held_bytes[proved] -= size_bytes

    @contextlib.contextmanager
    def turn(self, key: str, allowed: Allowed) -> Iterator[None]:
        """A turn that runs. Raises TooMany."""
        used = self._of(key)
        if used.streams >= allowed.streams:
            raise TooMany(
                f"{used.streams} turns of this token run already, the most at once.",
                retry_after_s=1,
                suggestion="Wait until one ends.",
            )
        if self.streams >= self._gateway.max_streams:
            raise TooMany("The gateway runs as many turns as it may.", retry_after_s=1)
        used.streams += 1
        self.streams += 1
        try:
            yield
        finally:
            used.streams -= 1
            self.streams -= 1

    def _of(self, key: str) -> _Used:
        used = self._used.setdefault(key, _Used())
        self._used.move_to_end(key)
        if len(self._used) > MAX_KEYS:
            oldest = next((name for name, one in self._used.items() if not one.streams), key)
            if oldest != key:
                del self._used[oldest]
        if used.minute_left_s <= 0:
            used.minute_ends, used.requests, used.bytes = time.monotonic() + _MINUTE_S, 0, 0
        return used


def _too_many(what: str, left_s: float) -> TooMany:
    return TooMany(
        f"This token has reached its limit of {what}.",
        retry_after_s=left_s,
        suggestion="Wait, or have an administrator raise it.",
    )


class Guesses:
    """Slows down who tries tokens: after some wrong ones from an address, others are refused unseen for a
    time that doubles. Tokens that were right lately are not held to it, so that nobody locks out others.
    """

    FREE, FIRST_S, LONGEST_S = 10, 1.0, 60.0

    def __init__(self) -> None:
        self._wrong: OrderedDict[str, tuple[int, float]] = OrderedDict()
        """By address: how many there were, and until when others are refused."""

    def check(self, address: str) -> None:
        """Raises TooMany."""
        until = self._wrong.get(address, (0, 0.0))[1]
        if (left_s := until - time.monotonic()) > 0:
            raise TooMany("Too many wrong tokens came from this address.", retry_after_s=left_s)

    def wrong(self, address: str) -> None:
        """Count a wrong token."""
        count, until = self._wrong.pop(address, (0, 0.0))
        if time.monotonic() - until > self.LONGEST_S and count > self.FREE:
            count = 0
        count += 1
        over = count - self.FREE
        pause_s = min(self.FIRST_S * 2 ** min(over, 20), self.LONGEST_S) if over > 0 else 0.0
        self._wrong[address] = count, time.monotonic() + pause_s
        while len(self._wrong) > MAX_KEYS:
            self._wrong.popitem(last=False)
