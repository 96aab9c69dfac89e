"""How those who watch a turn hear of it: a stream for each watcher, fed by the turn.

Text that arrives within 20 ms goes out as one event. A watcher that reads slowly delays nobody and costs a
bounded amount of memory: its waiting text is joined, and beyond `_MAX_WAITING` events or `_MAX_OUTPUT_CHARS`
its live output is left out (the result has it all the same). No other event is ever left out. A watcher that
comes right after the prompt was queued or the turn was started, while it waits for an approval, or after its
end, still hears of that.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable
from typing import Any, cast

from lightagentd.api import LAST_EVENTS, TurnEvent

COALESCE_S = 0.02
_TOLD_AGAIN = ("queued", "started", "approval_requested", *LAST_EVENTS)
"""The types of event that a watcher still hears of who comes right after them."""
_MAX_WAITING = 1000
_MAX_OUTPUT_CHARS = 4 << 20


class Watcher:
    """One reader of a turn. `leave` is called when it stops reading."""

    def __init__(self, leave: Callable[[Watcher], None]) -> None:
        self._leave = leave
        self._waiting: deque[TurnEvent] = deque()
        self._output_chars = 0
        self._ready = asyncio.Event()

    def put(self, event: TurnEvent) -> None:
        last = self._waiting[-1] if self._waiting else None
        if last is not None and event["type"] == "text_delta" and last["type"] == "text_delta":
            last["text"] += event["text"]
        elif event["type"] != "tool_output" or self._has_room(event):
            self._waiting.append(cast(TurnEvent, dict(event)))
        self._ready.set()

    def _has_room(self, output: TurnEvent) -> bool:
        if len(self._waiting) >= _MAX_WAITING or self._output_chars + len(output["text"]) > _MAX_OUTPUT_CHARS:
            return False
        self._output_chars += len(output["text"])
        return True

    async def events(self) -> AsyncGenerator[TurnEvent, None]:
        """The events from now on; ends after the turn's last one."""
        try:
            while True:
                while self._waiting:
                    event = self._waiting.popleft()
                    if event["type"] == "tool_output":
                        self._output_chars -= len(event["text"])
                    yield event
                    if event["type"] in LAST_EVENTS:
                        return
                self._ready.clear()
                await self._ready.wait()
        finally:
            self._leave(self)


class TurnStream:
    """The sending end: one for each turn, owned by it."""

    def __init__(self, session: str, trace_id: str) -> None:
        self._session = session
        self._trace_id = trace_id
        self._watchers: list[Watcher] = []
        self._text: list[str] = []
        self._flush: asyncio.TimerHandle | None = None
        self._latest: TurnEvent | None = None

    def watch(self) -> Watcher:
        """A new watcher; whoever makes it must read its `events()`."""
        watcher = Watcher(self._unwatch)
        self._watchers.append(watcher)
        if self._latest is not None and self._latest["type"] in _TOLD_AGAIN:
            watcher.put(self._latest)
        return watcher

    def _unwatch(self, watcher: Watcher) -> None:
        if watcher in self._watchers:
            self._watchers.remove(watcher)

    def text(self, text: str) -> None:
        """A piece of the answer, sent together with what follows within COALESCE_S."""
        if self._watchers:
            self._text.append(text)
            if self._flush is None:
                self._flush = asyncio.get_running_loop().call_later(COALESCE_S, self.flush)

    def flush(self) -> None:
        if self._flush is not None:
            self._flush.cancel()
            self._flush = None
        if self._text:
            text = "".join(self._text)
            self._text.clear()
            self._send({"type": "text_delta", "text": text})

    def event(self, event_type: str, **fields: Any) -> None:
        """Any other event, after the text that came before it."""
        self.flush()
        self._send({"type": event_type, **fields})

    def _send(self, fields: dict[str, Any]) -> None:
        event = cast(TurnEvent, {"session": self._session, "trace_id": self._trace_id, **fields})
        self._latest = event
        for watcher in self._watchers:
            watcher.put(event)
