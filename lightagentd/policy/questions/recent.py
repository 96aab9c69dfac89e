"""The questions of the last hour, which a person may still have in mind when they write the start of an id.

A question that was read must not be replaced by another whose id begins alike. So no new id begins with the
digits of a recent one, and a user whose questions lapse, or who refuses their own, cannot ask for ever. Each
store of questions owns one.
"""

from __future__ import annotations

from collections.abc import Callable

from lightagentd.errors import LimitExceeded
from lightagentd.events.model import new_id
from lightagentd.host.users import called
from lightagentd.policy.questions.question import Question, State, now_us

HOUR_US = 3_600_000_000
DIGITS = 4
"""So many digits tell all questions of an hour apart."""
LAPSED_OF_OWNER = 100
"""Questions of one owner that may lapse in an hour, or be refused by that owner."""
_DRAWS = 100


class Recent:
    """`draw` makes an id with a prefix. Times are UTC in microseconds."""

    def __init__(self, prefix: str, draw: Callable[[str], str] = new_id) -> None:
        self._prefix, self._draw = prefix, draw
        self._size = len(prefix) + 1 + DIGITS
        self._until_us: dict[str, int] = {}
        """Until when no other id may begin so."""
        self._lapsed_us: dict[int, list[int]] = {}
        """By owner, when their questions lapsed."""

    def new_id(self, owner: int, *, expires_us: int, now_us: int) -> str:
        """An id for a question of this owner. Raises LimitExceeded."""
        lapsed = [at_us for at_us in self._lapsed_us.pop(owner, []) if at_us > now_us - HOUR_US]
        if lapsed:
            self._lapsed_us[owner] = lapsed
        if len(lapsed) >= LAPSED_OF_OWNER:
            raise LimitExceeded(
                f"In the last hour {len(lapsed)} questions of {called(owner)} lapsed, or were refused.",
                suggestion="Wait, and ask only what somebody answers.",
            )
        self._until_us = {begin: until for begin, until in self._until_us.items() if until > now_us}
        for _ in range(_DRAWS):
            drawn = self._draw(self._prefix)
            if drawn[: self._size] not in self._until_us:
                self._until_us[drawn[: self._size]] = expires_us + HOUR_US
                return drawn
        raise LimitExceeded("Too many questions were asked in the last hour.", suggestion="Try again later.")

    def found(self, question: Question) -> None:
        """Take a question of an earlier run into account, as if it had closed when it was asked."""
        until_us = question.expires_us if question.open else question.created_us
        self._until_us[question.id[: self._size]] = until_us + HOUR_US
        self._count(question, question.created_us)

    def closed(self, question: Question) -> None:
        """Take the end of a question into account."""
        if question.id[: self._size] in self._until_us:
            self._until_us[question.id[: self._size]] = now_us() + HOUR_US
            self._count(question, now_us())

    def _count(self, question: Question, at_us: int) -> None:
        by_owner = question.state is State.DENIED and question.answered_by == question.owner
        if question.state is State.LAPSED or by_owner:
            self._lapsed_us.setdefault(question.owner, []).append(at_us)
