"""Streams a turn's events to its watchers, one stream for each.

Text that arrives within 20 ms goes out as one event. A slow watcher delays nobody and costs a bounded amount
of memory: its waiting text is joined, and beyond `_MAX_WAITING` events or `_MAX_OUTPUT_CHARS` its live output
is dropped (the result still has it). No other event is dropped. A watcher of a whole session that falls too
far behind gets an error and its stream ends.

A late watcher gets the latest event first: after the prompt was queued, after the turn started, while it
waits for an approval, or after its end.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable
from typing import Any, cast

from lightagentd.agents.guard_stages import AnswerGuard, OutputGuard
from lightagentd.api import LAST_EVENTS, TurnEvent, turn_events
from lightagentd.errors import LimitExceeded
from lightagentd.events.model import dump_json
from lightagentd.redaction import Redactor, Stream

COALESCE_S = 0.02
_PAUSE_S = 0.25
"""After so long without a piece, a short word that is not finished is shown (see `redaction.stream`)."""
_ASKED = turn_events.ApprovalRequested.type
_TEXT = turn_events.TextDelta.type
_THOUGHT = turn_events.ReasoningDelta.type
_SPOKEN = (_TEXT, _THOUGHT)
_OUTPUT = turn_events.ToolOutput.type
REQUESTS = (_ASKED, turn_events.InputRequested.type)
"""The types of event with which a turn waits for a person."""
_TOLD_AGAIN = (turn_events.Queued.type, turn_events.Started.type, *REQUESTS, *LAST_EVENTS)
"""The types of event that a watcher still hears of who comes right after them."""
_MAX_WAITING = 1000
_MAX_OUTPUT_CHARS = 4 << 20
_MAX_BEHIND_CHARS = 32 << 20
"""How far the watcher of a session may be behind: more than the largest prompt and its answer."""
_EVENT_CHARS = 500
"""What an event costs beside its texts, about."""
_VALUE_CHARS = 8
"""What a number in an event costs, about."""


class Watcher:
    """One reader of a turn. `leave` is called when the reader stops."""

    def __init__(self, leave: Callable[[Watcher], None], *, most_chars: int = 0) -> None:
        """`most_chars` bounds the waiting text of an endless stream; beyond it the stream ends."""
        self._leave = leave
        self._most_chars = most_chars
        self._chars = 0
        self._too_slow = False
        self._waiting: deque[TurnEvent] = deque()
        self._output_chars = 0
        self._ready = asyncio.Event()
        self._ended = False

    def end(self) -> None:
        """End the stream."""
        self._ended = True
        self._ready.set()

    def put(self, event: TurnEvent) -> None:
        if self._ended:
            return
        last = self._waiting[-1] if self._waiting else None
        if last is not None and event["type"] == last["type"] and event["type"] in _SPOKEN:
            last["text"] += event["text"]
            self._chars += len(event["text"])
        elif event["type"] != _OUTPUT or self._has_room(event):
            self._waiting.append(dict(event))
            self._chars += _chars_of(event)
        if self._most_chars and self._chars > self._most_chars:
            self._too_slow = True
            self._waiting.clear()
            self.end()
        self._ready.set()

    def _has_room(self, output: TurnEvent) -> bool:
        if len(self._waiting) >= _MAX_WAITING or self._output_chars + len(output["text"]) > _MAX_OUTPUT_CHARS:
            return False
        self._output_chars += len(output["text"])
        return True

    async def events(self, *, of_session: bool = False) -> AsyncGenerator[TurnEvent, None]:
        """The events from now on; ends after the turn's last one, or, `of_session`, after `end`.

        Raises LimitExceeded when too much waited.
        """
        try:
            while True:
                while self._waiting:
                    event = self._waiting.popleft()
                    self._chars -= _chars_of(event)
                    if event["type"] == _OUTPUT:
                        self._output_chars -= len(event["text"])
                    yield event
                    if event["type"] in LAST_EVENTS and not of_session:
                        return
                if self._too_slow:
                    raise LimitExceeded(
                        f"More than {self._most_chars} characters of events waited to be read.",
                        suggestion="Watch the session anew, and read what comes.",
                    )
                if self._ended:
                    return
                self._ready.clear()
                await self._ready.wait()
        finally:
            self._leave(self)


def _chars_of(event: TurnEvent) -> int:
    """The approximate size of an event in memory; a plan can have a hundred tasks with long texts."""
    return _EVENT_CHARS + _chars_in(event)


def _chars_in(value: Any) -> int:
    if isinstance(value, dict):
        return sum(map(_chars_in, value.values()))
    if isinstance(value, list):
        return sum(map(_chars_in, value))
    return len(value) if isinstance(value, str) else _VALUE_CHARS


def _without_secrets(redactor: Redactor, event: turn_events.Event) -> dict[str, Any]:
    """The fields of an event without secrets. A request for a decision on a call stays whole: a part that
    looks like a secret could be the reason to refuse the call.
    """
    fields = event.fields()
    if event.type == _ASKED or not redactor.suspects(dump_json(fields)):
        return fields
    return cast(dict[str, Any], redactor.value(fields))


class SessionStream:
    """The events of all turns of a session, which owns it."""

    def __init__(self, session: str, redactor: Redactor) -> None:
        self.session = session
        self.redactor = redactor
        self.watchers: list[Watcher] = []
        self.ended = False
        """Whether the session is gone, or the daemon stops."""
        self._bell: asyncio.Event | None = None

    async def changed(self) -> None:
        """Wait for a change in the session that is not an event of a turn."""
        if self._bell is None:
            self._bell = asyncio.Event()
        await self._bell.wait()

    def ring(self) -> None:
        """Wake those who wait for a change."""
        bell, self._bell = self._bell, None
        if bell is not None:
            bell.set()

    def watch(self) -> Watcher:
        """A new watcher; the caller must read its `events(of_session=True)`."""
        watcher = Watcher(self._unwatch, most_chars=_MAX_BEHIND_CHARS)
        self.watchers.append(watcher)
        return watcher

    def _unwatch(self, watcher: Watcher) -> None:
        if watcher in self.watchers:
            self.watchers.remove(watcher)

    def emit(self, event: turn_events.Event, *, trace_id: str = "") -> None:
        """Send an event about the session, or about a turn that is not running."""
        cleaned = _without_secrets(self.redactor, event)
        for watcher in self.watchers:
            watcher.put({"type": event.type, "session": self.session, "trace_id": trace_id, **cleaned})
        self.ring()

    def end(self) -> None:
        """End all streams: the session is gone, or the daemon stops."""
        self.ended = True
        for watcher in self.watchers:
            watcher.end()
        self.ring()


class TurnStream:
    """The sending end of one turn, which owns it. `also` gets every event too."""

    def __init__(self, trace_id: str, also: SessionStream) -> None:
        self._session = also.session
        self._trace_id = trace_id
        self._also = also
        self._said = Stream(also.redactor)
        self.guard: AnswerGuard | None = None
        """What looks at the model's words before anybody sees them; None where no guard does."""
        self.output_guard: OutputGuard | None = None
        """What looks at what commands say."""
        self._kind = _TEXT
        """What the model says now: its answer, or its thoughts."""
        self._outputs: dict[tuple[str, str], Stream] = {}
        """What commands that run say, by call and stream."""
        self._watchers: list[Watcher] = []
        self._pieces: list[str] = []
        """What the model said since the last flush. Secrets are taken out of all of it at once, since to look
        at each piece by itself costs more than all else that is done with it.
        """
        self._text: list[str] = []
        """What goes out with the next flush, without secrets."""
        self._flush: asyncio.TimerHandle | None = None
        self._pause: asyncio.TimerHandle | None = None
        self._latest: TurnEvent | None = None

    @property
    def latest(self) -> TurnEvent | None:
        """The last event that was sent."""
        return self._latest

    def watch(self) -> Watcher:
        """A new watcher; the caller must read its `events()`."""
        watcher = Watcher(self._unwatch)
        self._watchers.append(watcher)
        if self._latest is not None and self._latest["type"] in _TOLD_AGAIN:
            watcher.put(self._latest)
        return watcher

    def _unwatch(self, watcher: Watcher) -> None:
        if watcher in self._watchers:
            self._watchers.remove(watcher)

    def text(self, text: str, *, thought: bool = False) -> None:
        """Send a piece of the answer, or of the thoughts before it, joined with those that follow within
        COALESCE_S. Call `end_text` after the last one: until then a possible part of a secret is held back.
        """
        if (kind := _THOUGHT if thought else _TEXT) != self._kind:
            self._turn_to(kind)
        self._pieces.append(text)
        self._end_pause()
        self._flush_soon()

    def end_text(self) -> None:
        """Send the held-back text: the answer is complete, or broke off."""
        self._clean()
        if self.guard is not None:
            self._end_guarded(self.guard)
        self._end_pause()
        self._put_text(self._said.finish())

    def _end_guarded(self, guard: AnswerGuard) -> None:
        for kind in (_THOUGHT, _TEXT):
            if rest := guard.finish(thought=kind == _THOUGHT):
                if kind != self._kind:
                    self._turn_to(kind)
                self._put_text(self._said.feed(rest))

    def _turn_to(self, kind: str) -> None:
        """Send what was said of another kind, but for what a guard holds back: that goes on later."""
        self._clean()
        self._end_pause()
        self._put_text(self._said.finish())
        self.flush()
        self._kind = kind

    def _paused(self) -> None:
        self._pause = None
        self._put_text(self._said.pause())

    def _end_pause(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None

    def _clean(self) -> None:
        """Remove secrets from the pieces; a possible part of one is held back until more text arrives."""
        if not self._pieces:
            return
        said = "".join(self._pieces)
        self._pieces.clear()
        if self.guard is not None:
            said = self.guard.feed(said, thought=self._kind == _THOUGHT)
        self._put_text(self._said.feed(said))
        self._end_pause()
        if self._said.holds:
            self._pause = asyncio.get_running_loop().call_later(_PAUSE_S, self._paused)

    def _put_text(self, text: str) -> None:
        if text and (self._watchers or self._also.watchers):
            self._text.append(text)
            self._flush_soon()

    def _flush_soon(self) -> None:
        if self._flush is None:
            self._flush = asyncio.get_running_loop().call_later(COALESCE_S, self.flush)

    def output(self, call_id: str, stream: str, text: str) -> None:
        """Send a piece of a running command's output. Call `end_output` when the command has ended."""
        said = self._outputs.get((call_id, stream))
        if said is None:
            said = self._outputs[call_id, stream] = Stream(self._also.redactor)
        if self.output_guard is not None:
            text = self.output_guard.feed((call_id, stream), text)
        self._put_output(call_id, stream, said.feed(text))

    def end_output(self, call_id: str) -> None:
        """Send the held-back output: a call has ended in any way."""
        for key in [key for key in self._outputs if key[0] == call_id]:
            said = self._outputs.pop(key)
            rest = said.feed(self.output_guard.finish(key)) if self.output_guard is not None else ""
            self._put_output(*key, rest + said.finish())

    def _put_output(self, call_id: str, stream: str, text: str) -> None:
        if text:
            self.flush()
            piece = turn_events.ToolOutput(call_id=call_id, stream=stream, text=text)
            self._send(piece.type, piece.fields())

    def flush(self) -> None:
        self._clean()
        if self._flush is not None:
            self._flush.cancel()
            self._flush = None
        if self._text:
            text = "".join(self._text)
            self._text.clear()
            self._send(self._kind, {"text": text})

    def emit(self, event: turn_events.Event) -> None:
        """Send any other event, after the text before it."""
        if event.type in LAST_EVENTS:
            self.end_text()
        self.flush()
        self._send(event.type, _without_secrets(self._also.redactor, event))

    def _send(self, event_type: str, fields: dict[str, Any]) -> None:
        event = {"type": event_type, "session": self._session, "trace_id": self._trace_id, **fields}
        self._latest = event
        for watcher in (*self._watchers, *self._also.watchers):
            watcher.put(event)
