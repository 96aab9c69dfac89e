"""What tools publish outside of calls, until the daemon takes it. A worker owns one `Published`."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

_LIMIT = 4096
"""Events that may wait for the daemon."""


class Published:
    """Events that wait."""

    def __init__(self) -> None:
        self._waiting: deque[dict[str, Any]] = deque()
        self._news = asyncio.Event()
        self._lost = 0

    def publish(self, topic: str, event_type: str, data: dict[str, Any]) -> None:
        """Keep an event of a tool for the daemon; beyond the limit it is dropped and counted."""
        json.dumps(data, allow_nan=False)
        if len(self._waiting) >= _LIMIT:
            self._lost += 1
        else:
            self._waiting.append({"kind": "event", "topic": topic, "type": event_type, "data": data})
        self._news.set()

    async def follow(self) -> AsyncIterator[dict[str, Any]]:
        """The published events as they arrive."""
        while True:
            self._news.clear()
            while self._waiting:
                yield self._waiting.popleft()
            if self._lost:
                lost, self._lost = self._lost, 0
                yield {"kind": "lost", "count": lost}
            if not self._waiting:
                await self._news.wait()
