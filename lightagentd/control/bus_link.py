"""Keeps one connection to the bus, for the D-Bus plane and for polkit, and reconnects when it is lost.

The daemon owns the `BusLink`. While there is no bus, `bus` is None and `problem` says why. No other part of
the daemon waits for the bus.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

from lightagentd.bus.connection import Bus, connect
from lightagentd.errors import LightagentError

_log = logging.getLogger(__name__)

RETRY_S, RETRY_MAX_S = 0.25, 15.0
"""How long to wait before the first new attempt, and at most; each time twice as long, with some chance."""

OnConnect = Callable[[Bus], Awaitable[None]]
"""Called with each new connection before anybody else gets it; what it raises ends the connection."""


class BusLink:
    """Start with `start()`, end with `close()`."""

    def __init__(self, kind: str) -> None:
        """`kind` as `lightagentd.bus.connection.connect` takes it; empty for no bus at all."""
        self.kind = kind
        self.bus: Bus | None = None
        self.problem = ""
        """Why there is no bus now, as a sentence; empty when there is one, or when none is wanted."""
        self._on_connect: list[OnConnect] = []
        self._keeping: asyncio.Task[None] | None = None
        self._settled = asyncio.Event()
        """Not set while an attempt to connect is under way."""

    def on_connect(self, prepare: OnConnect) -> None:
        """Register a callback that prepares each new connection. They run in the order of registration. Call
        before `start`.
        """
        self._on_connect.append(prepare)

    async def start(self, patience_s: float = 2.0) -> None:
        """Begin, and wait for the first attempt, but not for long."""
        if not self.kind:
            return
        self._keeping = asyncio.create_task(self._keep(), name="bus-link")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                await self._settled.wait()

    async def settled(self, patience_s: float) -> Bus | None:
        """The connection. Waits a short time for one that is being made."""
        if self.bus is None and self.kind:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(patience_s):
                    await self._settled.wait()
        return self.bus

    @property
    def expected(self) -> bool:
        """Whether a bus should exist: a machine without systemd, or a test, often has none."""
        if self.kind in ("system", "session"):
            return Path("/run/systemd/system").is_dir()
        return bool(self.kind)

    async def close(self) -> None:
        self._settled.set()
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.wait([self._keeping])
            self._keeping = None

    async def _keep(self) -> None:
        wait_s = RETRY_S
        while True:
            self._settled.clear()
            try:
                async with connect(self.kind) as bus:
                    for prepare in self._on_connect:
                        await prepare(bus)
                    self.bus, self.problem, wait_s = bus, "", RETRY_S
                    self._settled.set()
                    lost = await bus.wait_lost()
                raise lost
            except LightagentError as err:
                if self.problem != err.message and self.expected:
                    _log.warning("the bus is not there: %s", err.message)
                self.problem = err.message if self.expected else ""
            finally:
                self.bus = None
            self._settled.set()
            await asyncio.sleep(wait_s * random.uniform(0.5, 1.0))  # noqa: S311 - no secret
            wait_s = min(2 * wait_s, RETRY_MAX_S)
