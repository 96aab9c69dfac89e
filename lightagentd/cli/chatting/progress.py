"""The live region: the unfinished text, running calls, and waiting prompts."""

from __future__ import annotations

import codecs
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from lightagentd.cli.layout import cut
from lightagentd.cli.output import cell
from lightagentd.cli.terminal import DIM, Cleaner, style
from lightagentd.cli.turn_lines import arguments_words, call_name
from lightagentd.cli.when import duration, size

_OUTPUT_LINES = 5
"""How much of the output of a running command is seen."""
_LINE_CHARS = 1000
_REST_CHARS = 4000
"""Of a longer unfinished text only the end is laid out."""
_QUEUED_SHOWN = 3
_SIGN_S = 5.0
"""After so long a line says what runs, where there is no live region; each next one comes twice as late."""
UNKNOWN = "?"
"""In place of the trace id of a turn that runs, until an event of it names it."""


THOUGHT = "thought"
"""Stands for the id of a call while the model thinks."""


@dataclass
class Running:
    """A running call, or a model that thinks, with the last lines of its output."""

    name: str
    started_s: float
    arguments: str = ""
    chars: int = 0
    """How much it wrote."""
    lines: deque[str] = field(default_factory=lambda: deque([""], maxlen=_OUTPUT_LINES + 1))
    cleaner: Cleaner = field(default_factory=Cleaner)

    def output(self, text: str) -> None:
        self.chars += len(text)
        # A carriage return begins the line of a progress bar again.
        first, *rest = self.cleaner.feed(text.replace("\r", "\n")).split("\n")
        self.lines[-1] = (self.lines[-1] + first)[-_LINE_CHARS:]
        self.lines.extend(line[-_LINE_CHARS:] for line in rest)

    def shown(self) -> list[str]:
        """The last lines that are not empty."""
        return [line for line in self.lines if line.strip()][-_OUTPUT_LINES:]


class Progress:
    """The unfinished output. The transcript owns it and updates it."""

    def __init__(self) -> None:
        self.trace = ""
        """The turn that runs, or waits for a person."""
        self.queued: dict[str, str] = {}
        """The prompts that wait for their turn, by its trace id."""
        self.waiting = False
        self.own: Running | None = None
        """The command that the person runs."""
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self.shows_thoughts = False
        """Show what the model thinks while it does, and not only how much that is."""
        self._started_s = 0.0
        self._sign_s = _SIGN_S
        self._calls: dict[str, Running] = {}
        self._laid_out: tuple[tuple[str, int], list[str]] = (("", 0), [])

    def begin(self, trace_id: str) -> None:
        if self.trace != trace_id:
            self.trace, self._started_s, self._sign_s = trace_id, time.monotonic(), _SIGN_S

    @property
    def took_s(self) -> float:
        """How long the turn has run."""
        return time.monotonic() - self._started_s if self.trace else 0.0

    def end(self, trace_id: str) -> None:
        self.queued.pop(trace_id, None)
        if self.trace in (trace_id, UNKNOWN):
            self.idle()

    def idle(self) -> None:
        """Nothing runs."""
        self.trace, self.waiting = "", False
        self._calls.clear()

    def call(self, event: dict[str, Any]) -> None:
        if self.trace in ("", UNKNOWN):
            self.begin(event["trace_id"])
        self._calls[event["call_id"]] = Running(
            call_name(event), time.monotonic(), arguments=arguments_words(event)
        )

    def think(self, trace_id: str, text: str) -> None:
        """The model thinks, until `result` of `THOUGHT`."""
        self.begin(trace_id)
        self._calls.setdefault(THOUGHT, Running("thinking", time.monotonic())).output(text)

    def output(self, call_id: str, text: str) -> None:
        if (call := self._calls.get(call_id)) is not None:
            call.output(text)

    def result(self, call_id: str) -> None:
        self._calls.pop(call_id, None)

    def begin_own(self, command: str) -> None:
        self.own = Running(f"!{command}", time.monotonic())

    def output_own(self, data: bytes) -> None:
        if self.own is not None:
            self.own.output(self._decode(data))

    def end_own(self) -> None:
        self.own = None
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode

    def lines(self, rest: str, columns: int, rows: int, *, colours: bool) -> list[str]:
        """The lines of the live region, at most so many; the newest are the last."""
        found = self._text(rest, columns, colours=colours)
        now_s = time.monotonic()
        running = [] if self.waiting else [*self._calls.items()]
        for key, call in [*running, *([("", self.own)] if self.own is not None else [])]:
            more = size(call.chars) if key == THOUGHT else call.arguments
            took = _whole(now_s - call.started_s)
            found.append(style(cut(f"· {call.name} {took}  {more}".rstrip(), columns), DIM))
            if key == THOUGHT and not self.shows_thoughts:
                continue
            found += [style(cut(f"  {line.expandtabs()}", columns), DIM) for line in call.shown()]
        if self.trace and not found and not self.waiting:
            found.append(style(cut(self._working(now_s), columns), DIM))
        for text in list(self.queued.values())[:_QUEUED_SHOWN]:
            found.append(style(cut(f"· queued: {cell(text)}", columns), DIM))
        if len(self.queued) > _QUEUED_SHOWN:
            found.append(style(f"· and {len(self.queued) - _QUEUED_SHOWN} more", DIM))
        return found[-rows:] if rows > 0 else []

    def sign(self) -> str:
        """What runs, when it is time for a line about it."""
        now_s = time.monotonic()
        if not self.trace or self.waiting or now_s - self._started_s < self._sign_s:
            return ""
        self._sign_s = 2 * (now_s - self._started_s)
        calls = [f"· {call.name} {_whole(now_s - call.started_s)}" for call in self._calls.values()]
        return calls[-1] if calls else self._working(now_s)

    def _working(self, now_s: float) -> str:
        return f"· working {_whole(now_s - self._started_s)}, Ctrl-C cancels"

    def _text(self, rest: str, columns: int, *, colours: bool) -> list[str]:
        if not rest.strip():
            return []
        if self._laid_out[0] != (rest, columns):
            from lightagentd.cli.markdown import render  # not before there is something to show

            self._laid_out = ((rest, columns), render(rest[-_REST_CHARS:], columns, colours=colours))
        return [*self._laid_out[1]]


def _whole(seconds_s: float) -> str:
    """A duration in whole seconds."""
    return f"{int(seconds_s)}s" if seconds_s < 60 else duration(seconds_s * 1000)
