"""Where the events of turns go in a program that embeds the agents: functions, queues, files, SSE lines.

Each sink has a thread of its own, because a function or a disk may block. What it has not taken yet is
bounded by MOST_EVENTS and MOST_CHARS. When it is full, pieces of text and output are left out, since the
events that end an answer and a call repeat them; any other event takes the place of the oldest ones. The
sink is told how many it did not get by an event of the type `dropped`, before the next one. A sink that
raises is told to `on_error`, and gets nothing more. `Agents` owns its sinks and closes them.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import queue
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lightagentd.api import TurnEvent, turn_events
from lightagentd.errors import CallbackFailed, InvalidArgument
from lightagentd.events.model import dump_json

MOST_EVENTS = 1000
MOST_CHARS = 8 << 20
"""How much waits for one sink, as JSON."""
CLOSE_S = 5.0
"""How long the end waits for a sink to take what is left."""
DROPPED = "dropped"
_PIECES = (turn_events.TextDelta.type, turn_events.ReasoningDelta.type, turn_events.ToolOutput.type)


class Sink:
    """One sink. `write` is called in its thread with one event after the other, `end` after the last."""

    def __init__(
        self, name: str, write: Callable[[TurnEvent], object], end: Callable[[], object] | None = None
    ) -> None:
        self.name = name
        self.dropped = 0
        """How many events it never got."""
        self._write, self._end = write, end
        self._on_error: Callable[[CallbackFailed], None] = lambda _: None
        self._changed = threading.Condition()
        self._waiting: deque[tuple[TurnEvent, int]] = deque()
        self._chars = self._untold = 0
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=f"sink-{name}", daemon=True)

    def start(self, on_error: Callable[[CallbackFailed], None]) -> None:
        """Begin to take events. `on_error` is called in the sink's thread."""
        self._on_error = on_error
        self._thread.start()

    def put(self, event: TurnEvent) -> None:
        """Take an event; never waits."""
        chars = len(dump_json(event))
        with self._changed:
            if self._closed:
                return
            if event["type"] in _PIECES and self._is_full(chars):
                self._drop()
                return
            while self._waiting and self._is_full(chars):
                self._chars -= self._waiting.popleft()[1]
                self._drop()
            self._waiting.append((dict(event), chars))
            self._chars += chars
            self._changed.notify()

    async def close(self, timeout_s: float = CLOSE_S) -> bool:
        """End the sink; whether it took all that was left within the time. A thread that is blocked stays
        behind, and does not keep the program from its end.
        """
        with self._changed:
            self._closed = True
            self._changed.notify()
        await asyncio.to_thread(self._thread.join, timeout_s)
        return not self._thread.is_alive()

    def _is_full(self, chars: int) -> bool:
        return len(self._waiting) >= MOST_EVENTS or self._chars + chars > MOST_CHARS

    def _drop(self) -> None:
        self.dropped += 1
        self._untold += 1

    def _run(self) -> None:
        try:
            while (event := self._next()) is not None:
                self._write(event)
            if self._end is not None:
                self._end()
        except Exception as err:  # noqa: BLE001 - the boundary to the program's function: it is told
            with self._changed:
                self._closed = True
                self._waiting.clear()
            failed = CallbackFailed(f"The sink {self.name} failed: {type(err).__name__}: {err}")
            failed.__cause__ = err
            self._on_error(failed)

    def _next(self) -> TurnEvent | None:
        """The next event, and first of all how many were left out; None at the end."""
        with self._changed:
            while not self._waiting and not self._untold and not self._closed:
                self._changed.wait()
            if self._untold:
                count, self._untold = self._untold, 0
                return {"type": DROPPED, "count": count}
            if not self._waiting:
                return None
            event, chars = self._waiting.popleft()
            self._chars -= chars
            return event


def to_function(function: Callable[[TurnEvent], object], name: str = "") -> Sink:
    """Each event is an argument of the function, which is called in a thread of the sink's."""
    return Sink(name or getattr(function, "__name__", "function"), function)


def to_queue(into: queue.Queue[TurnEvent] | asyncio.Queue[TurnEvent], name: str = "queue") -> Sink:
    """Each event goes into the queue, once there is room in it. Make one for asyncio in its loop."""
    if isinstance(into, queue.Queue):
        return Sink(name, into.put)
    loop = asyncio.get_running_loop()
    return Sink(name, lambda event: asyncio.run_coroutine_threadsafe(into.put(event), loop).result())


def to_file(path: str | os.PathLike[str]) -> Sink:
    """Each event is a line of JSON at the end of the file, which is made for its owner alone."""
    whole = Path(path)

    def write(event: TurnEvent) -> None:
        with open(whole, "a", encoding="utf-8", opener=functools.partial(os.open, mode=0o600)) as file:
            file.write(json.dumps(event, ensure_ascii=False) + "\n")

    return Sink(str(whole), write)


def to_sse(write: Callable[[str], object], name: str = "sse") -> Sink:
    """Each event is a text of server-sent events, with `event:` and `data:` (https://html.spec.whatwg.org)."""

    def written(event: TurnEvent) -> None:
        write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n")

    return Sink(name, written)


def sink_of(given: Any) -> Sink:
    """The sink for a function, a queue, or the path of a file. Raises InvalidArgument."""
    if isinstance(given, Sink):
        return given
    if isinstance(given, queue.Queue | asyncio.Queue):
        return to_queue(given)
    if isinstance(given, str | os.PathLike):
        return to_file(given)
    if callable(given):
        return to_function(given)
    raise InvalidArgument(
        f"A sink is a function, a queue or the path of a file, and not {type(given).__name__}.", field="sinks"
    )
