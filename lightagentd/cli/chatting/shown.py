"""Remembers what the screen has shown, so that everything is shown exactly once.

The same thing may come twice: as an event of the watch, and from the history after the watch was broken. A
call and its result have a `call_id`, a prompt and the end of a turn the turn's `trace_id`. A text has no id:
for a running turn, the shown text is kept, and the stored text begins with it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lightagentd.cli.terminal import clean


@dataclass
class Shown:
    """Grows while the conversation is open: some bytes for each turn and call."""

    prompts: set[str] = field(default_factory=set)
    calls: set[str] = field(default_factory=set)
    results: set[str] = field(default_factory=set)
    turns: set[str] = field(default_factory=set)
    """The turns whose end was shown; nothing of them is shown again."""
    questions: set[str] = field(default_factory=set)
    answers: set[str] = field(default_factory=set)
    notes: set[str] = field(default_factory=set)
    last_text: dict[str, str] = field(default_factory=dict)
    """Of each turn that goes on: the newest text that was shown."""
    _texts: dict[str, list[str]] = field(default_factory=dict)
    """Of each turn that goes on: texts from the watch whose messages were not seen in the history yet."""

    @staticmethod
    def first(key: str, seen: set[str]) -> bool:
        """Whether this is the first time; from now on it is not."""
        if key in seen:
            return False
        seen.add(key)
        return True

    def text(self, trace_id: str, text: str) -> None:
        """A text was shown as it streamed, perhaps not to its end."""
        if text.strip():
            self.last_text[trace_id] = text
            self._texts.setdefault(trace_id, []).append(text)

    def rest_of(self, trace_id: str, stored: str) -> str:
        """The part of a stored text that was not shown: all of it, the missed part, or nothing."""
        stored = clean(stored)
        texts = self._texts.get(trace_id, [])
        begin = texts.pop(0) if texts else ""
        self.last_text[trace_id] = stored
        return stored.removeprefix(begin) if stored.startswith(begin) else stored

    def end(self, trace_id: str) -> None:
        """The turn is over."""
        self.turns.add(trace_id)
        self.last_text.pop(trace_id, None)
        self._texts.pop(trace_id, None)
