"""The turns that ended lately, with their answers, for clients that look after the end.

`SharedParts` has the one `EndedTurns`, which keeps each for `KEPT_S`, or less long where an owner ends many.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lightagentd.agents.sessions.session import Session
    from lightagentd.agents.turn import Turn

KEPT_S = 60.0
PER_OWNER = 16
OWNER_CHARS, ALL_CHARS = 512 << 10, 2 << 20
"""How long the answers of one owner's turns may be together, and those of all."""


@dataclass(frozen=True, kw_only=True)
class EndedTurn:
    """How a turn ended: with an answer, or with an error's code and sentence."""

    trace_id: str
    session: Session
    answer: str
    error: str
    message: str
    until_s: float

    @property
    def owner(self) -> int:
        return self.session.record.owner


class EndedTurns:
    """Only in memory."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kept: dict[str, EndedTurn] = {}
        """By trace, in the order of their ends."""

    def add(self, turn: Turn) -> None:
        """Keep a turn that has told its watchers of its end."""
        last = turn.stream.latest or {}
        answer, error, message = (str(last.get(name) or "") for name in ("text", "code", "message"))
        if len(answer) > OWNER_CHARS:
            answer = ""
            message = (
                f"The answer is longer than {OWNER_CHARS} characters: the messages of the session have it."
            )
        ended = EndedTurn(
            trace_id=turn.trace_id,
            session=turn.session,
            answer=answer,
            error=error,
            message=message,
            until_s=self._clock() + KEPT_S,
        )
        self._kept.pop(ended.trace_id, None)
        self._kept[ended.trace_id] = ended
        self._drop()

    def all(self) -> list[EndedTurn]:
        """Those that are kept, the oldest first."""
        self._drop()
        return list(self._kept.values())

    def find(self, trace_id: str) -> EndedTurn | None:
        self._drop()
        return self._kept.get(trace_id)

    def _drop(self) -> None:
        """Drop what is too old, of a deleted session, or more than there is room for."""
        now_s = self._clock()
        numbers: dict[int, int] = {}
        chars: dict[int, int] = {}
        for ended in [*reversed(self._kept.values())]:
            owner = ended.owner
            numbers[owner] = numbers.get(owner, 0) + 1
            chars[owner] = chars.get(owner, 0) + len(ended.answer)
            too_many = (
                numbers[owner] > PER_OWNER or chars[owner] > OWNER_CHARS or sum(chars.values()) > ALL_CHARS
            )
            if too_many or ended.session.deleted or now_s >= ended.until_s:
                del self._kept[ended.trace_id]
                numbers[owner] -= 1
                chars[owner] -= len(ended.answer)
