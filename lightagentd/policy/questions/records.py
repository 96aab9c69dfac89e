"""The stored records of one kind of questions, in the state named after it (`approvals`, `inputs`).

`Questions` owns one. The open questions are stored, and about KEPT closed ones.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections import deque
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

from lightagentd.errors import NotFound
from lightagentd.events.history import Change, History
from lightagentd.policy.questions.question import Question
from lightagentd.policy.questions.recent import Recent

_log = logging.getLogger(__name__)

KEPT = 1000
"""Closed questions of a kind that are kept beside their events, which stay as long as the history does."""
_INVALID = (TypeError, KeyError, ValueError)
"""What the decoding of an invalid record raises."""

T = TypeVar("T", bound=Question)


class Records(Generic[T]):
    """Begin with `load()` when the history is open; there is nothing to close."""

    def __init__(self, history: History, kind: type[T]) -> None:
        self._history = history
        self._kind = kind
        self._name = f"{kind.NOUN}s"
        self._id = re.compile(rf"{kind.PREFIX}_[0-9a-f]{{16}}")
        self.recent = Recent(kind.PREFIX)
        self._kept: deque[str] = deque()
        """The closed ones, the oldest first."""

    async def load(self) -> list[T]:
        """What the last run left. Drops invalid records and closed ones that are too many. Raises
        StorageError.
        """
        loaded: list[T] = []
        for key, value in self._history.queries.state(self._name).items():
            try:
                loaded.append(self._read(key, value))
            except _INVALID as err:
                _log.error("the stored %s %s cannot be read and is dropped: %s", self._kind.NOUN, key, err)
                await self._history.append(changes=[self._drop(key)])
        for one in loaded:
            self.recent.found(one)
        closed = sorted((one for one in loaded if not one.open), key=lambda one: one.created_us)
        self._kept.extend(one.id for one in closed)
        if old := self._too_old():
            await self._history.append(changes=old)
        return loaded

    def all(self) -> Iterator[T]:
        """Every valid record."""
        for key, value in self._history.queries.state(self._name).items():
            with contextlib.suppress(*_INVALID):  # told by the next `load`
                yield self._read(key, value)

    def get(self, question_id: str) -> T:
        """Raises the kind's NotFound, also for an invalid record."""
        if not self._id.fullmatch(question_id):
            raise self._kind.not_found(question_id)
        try:
            return self._read(question_id, self._history.queries.state_of(self._name, question_id))
        except (NotFound, *_INVALID) as err:
            raise self._kind.not_found(question_id) from err

    def changes(self, found: T) -> list[Change]:
        """The changes to store a question; when one closes, they also drop an old one."""
        change = Change(state=self._name, key=found.id, value=found.to_dict())
        if found.open:
            return [change]
        self.recent.closed(found)
        self._kept.append(found.id)
        return [change, *self._too_old()]

    def _read(self, key: str, value: dict[str, Any]) -> T:
        """Raises TypeError, KeyError or ValueError for an invalid record."""
        found = self._kind.from_dict(value)
        if found.id != key or not self._id.fullmatch(key):
            raise ValueError("its id is invalid")
        return found

    def _too_old(self) -> list[Change]:
        return [self._drop(self._kept.popleft()) for _ in range(len(self._kept) - KEPT)]

    def _drop(self, key: str) -> Change:
        return Change(state=self._name, key=key, value=None)
