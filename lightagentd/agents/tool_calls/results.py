"""The outcomes of calls, and the results of a turn that are being stored."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lightagentd.agents.stream import TurnStream
from lightagentd.api import turn_events
from lightagentd.errors import LightagentError
from lightagentd.events.history import Change, NewEvent
from lightagentd.events.model import Event
from lightagentd.events.types.agent import Said
from lightagentd.llm.protocol import Message, ToolCall


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a call ended. `result` is `ok` or an error code, `text` is for the model."""

    call: ToolCall
    result: str
    text: str
    metadata: dict[str, Any] = field(default_factory=dict)
    duration_ms: int = 0
    started_us: int = 0
    function: str = ""

    def message(self) -> Message:
        return Message(role="tool", content=self.text, tool_call_id=self.call.id, name=self.function)


Remark = Callable[[ToolCall, str, str, Mapping[str, Any]], str]
"""From a call, its result, the text of that and its metadata: what is said behind the text."""


def no_remark(_call: ToolCall, _result: str, _text: str, _metadata: Mapping[str, Any]) -> str:
    return ""


@dataclass
class Before:
    """Events and changes of state that must be stored with the next append."""

    events: list[NewEvent] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)

    def take(self) -> tuple[tuple[NewEvent, ...], tuple[Change, ...]]:
        """Take everything, and leave nothing."""
        taken = (*self.events,), (*self.changes,)
        self.events.clear()
        self.changes.clear()
        return taken


@dataclass(frozen=True, kw_only=True)
class _Stored:
    """An event for the watchers, and what must be stored before it."""

    done: asyncio.Future[list[Event]] | None
    event: turn_events.Event


class Results:
    """The results of a turn's calls that are being stored.

    The model gets a result while it is still to be written, so that disk and model work at the same time; the
    worker may check the arguments of the next call, whose intent then shares its commit. The model's reaction
    is neither shown, asked about nor run before `settle` has returned.
    """

    def __init__(self, stream: TurnStream, hurry: Callable[[], None]) -> None:
        """`hurry` makes the history store what waits there for others (`History.hurry`)."""
        self.stream = stream
        self._hurry = hurry
        self._waiting: deque[_Stored] = deque()

    def add(self, done: asyncio.Future[list[Event]], event: turn_events.ToolResult) -> None:
        self._waiting.append(_Stored(done=done, event=event))

    def tell(self, event: turn_events.Event) -> None:
        """Tell the watchers, after the results that wait."""
        if self._waiting:
            self._waiting.append(_Stored(done=None, event=event))
        else:
            self.stream.emit(event)

    @property
    def waiting(self) -> bool:
        """Whether `settle` has to wait for anything."""
        return bool(self._waiting)

    async def settle(self) -> None:
        """Wait until each result is on disk, and tell the watchers of it. Raises StorageError."""
        while self._waiting:
            stored = self._waiting[0]
            if stored.done is not None and not stored.done.done():
                self._hurry()
                await asyncio.wait([stored.done])
                continue  # a call that runs at once may have told of it meanwhile
            self._waiting.popleft()
            if stored.done is not None:
                stored.done.result()
            self.stream.emit(stored.event)


def message_event(message: Message, **origin: Any) -> NewEvent:
    """The event for a message of the conversation; `origin` names the source of a copied one."""
    if message.question_chars:
        origin["question_chars"] = message.question_chars
    return Said(**message.to_dict(), **origin).event()


def error_text(err: LightagentError) -> str:
    """The text of a failed call for the model."""
    return f"Error ({err.code}): {err.message}{f' {err.suggestion}' if err.suggestion else ''}"


def cap_text(text: str, limit_bytes: int) -> str:
    """The text cut to a number of UTF-8 bytes; its head and tail stay."""
    raw = text.encode("utf-8", "replace")
    if len(raw) <= limit_bytes:
        return text
    half = limit_bytes // 2
    head, tail = raw[:half].decode(errors="ignore"), raw[-half:].decode(errors="ignore")
    return f"{head}\n[... {len(raw) - 2 * half} bytes left out ...]\n{tail}"
