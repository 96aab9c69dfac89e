"""What text goes through on its way to the watchers of a turn, where guards look at it.

A guard that redacts holds back what may be the beginning of a match. Where a guard may block, all of the
answer, or of a command's output, is held back until its end: nothing of a blocked text is seen.
"""

from __future__ import annotations

from lightagentd.policy.guard_stream import GuardStream
from lightagentd.policy.guards import GuardAction, Guards, LoadedGuard
from lightagentd.policy.looking import judge
from lightagentd.policy.text_classes import SECRET
from lightagentd.redaction import Redactor


class AnswerGuard:
    """For one answer of a model, and its thoughts."""

    def __init__(self, guards: Guards, redactor: Redactor) -> None:
        self.guards = guards
        self._redactor = redactor
        self._blocks = any(one.guard.action is GuardAction.BLOCK for one in guards)
        self._redacting = redacting(guards)
        self._streams: dict[bool, GuardStream] = {}
        self._held: dict[bool, list[str]] = {}

    def feed(self, piece: str, *, thought: bool) -> str:
        """The text that can go out now."""
        if self._blocks:
            self._held.setdefault(thought, []).append(piece)
            return ""
        if not self._redacting:
            return piece
        stream = self._streams.get(thought)
        if stream is None:
            stream = self._streams[thought] = GuardStream(self._redacting)
        return stream.feed(piece)

    def finish(self, *, thought: bool) -> str:
        """The text that was held back: the answer is complete, or broke off."""
        if held := self._held.pop(thought, None):
            return self.whole("".join(held))
        stream = self._streams.pop(thought, None)
        return "" if stream is None else stream.finish()

    def whole(self, text: str) -> str:
        """A whole text as it can be seen."""
        verdict = judge(self.guards, text, self._redactor)
        guard = verdict.first(GuardAction.BLOCK)
        return verdict.text if guard is None else instead(guard)


class OutputGuard:
    """For what the commands of a turn say, by call and stream. Their results say it again in any case."""

    def __init__(self, guards: Guards) -> None:
        self._shown = not any(one.guard.action in (GuardAction.BLOCK, GuardAction.ASK) for one in guards)
        self._redacting = redacting(guards)
        self._streams: dict[tuple[str, str], GuardStream] = {}

    def feed(self, key: tuple[str, str], piece: str) -> str:
        """The text that can go out now."""
        if not self._shown:
            return ""
        if not self._redacting:
            return piece
        stream = self._streams.get(key)
        if stream is None:
            stream = self._streams[key] = GuardStream(self._redacting)
        return stream.feed(piece)

    def finish(self, key: tuple[str, str]) -> str:
        """The text that was held back."""
        stream = self._streams.pop(key, None)
        return "" if stream is None else stream.finish()


def redacting(guards: Guards) -> Guards:
    """Those that take something out of a text which the redactor leaves there."""
    return tuple(
        one
        for one in guards
        if one.guard.action is GuardAction.REDACT and (one.patterns or {*(one.guard.match or ())} - {SECRET})
    )


def instead(guard: LoadedGuard) -> str:
    """What stands in place of a blocked answer."""
    reason = f": {guard.guard.reason}" if guard.guard.reason else "."
    return f"[The guard {guard.name} blocked this answer{reason}]"
