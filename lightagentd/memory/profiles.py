"""Each user's own USER.md, which every agent of theirs reads; kept in the history.

The stored state `profiles` has it by uid. Only its owner's sessions read it.
"""

from __future__ import annotations

import time

from lightagentd.errors import InvalidArgument, NotFound
from lightagentd.events.history import Change, History
from lightagentd.events.model import within
from lightagentd.events.types.memory import ProfileRemoved, ProfileSet

MAX_CHARS = 20_000
_STATE = "profiles"


class Profiles:
    """Needs an open history; keeps nothing in memory."""

    def __init__(self, history: History) -> None:
        self._history = history

    def get(self, owner: int) -> str:
        """Empty when there is none. Raises StorageError."""
        try:
            return str(self._history.queries.state_of(_STATE, str(owner))["text"])
        except NotFound:
            return ""

    async def set(self, owner: int, text: str) -> None:
        """Replace it; an empty text takes it away. Raises InvalidArgument, StorageError."""
        text = text.strip()
        if len(text) > MAX_CHARS or "\0" in text:
            raise InvalidArgument(
                f"A profile is text of at most {MAX_CHARS} characters.",
                field="text",
                suggestion="Write less.",
            )
        if self._history.redactor.text(text) != text:
            raise InvalidArgument(
                "The profile holds what looks like a key or a password.",
                field="text",
                suggestion="Take it out: every agent's model would read it.",
            )
        value = {"text": text, "updated_us": time.time_ns() // 1000} if text else None
        kind = ProfileSet if text else ProfileRemoved
        with within(owner=owner):
            changed = kind(chars=len(text), by=owner).event()
        await self._history.append(changed, changes=(Change(state=_STATE, key=str(owner), value=value),))
