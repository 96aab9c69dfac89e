"""Answers on their way to where the files of triggers say; lightagent-triggers.service takes them there.

One follower at a time takes them. It may get one twice, when it did not say what became of it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator

from lightagentd.agents.triggers.records import Firing
from lightagentd.errors import LightagentError, NotFound
from lightagentd.events.context import own_task, within
from lightagentd.events.history import History
from lightagentd.events.types import trigger as types

MOST = 1000
"""So many answers wait for a follower; of more, the oldest are not delivered."""
_UNIT, _PROGRAM = "lightagent-triggers", "lightagentd.unattended.triggers"
_NOBODY = "lightagent-triggers.service does not run, and too many answers wait for it."


def how_to_follow() -> str:
    """The command that has triggers followed, and their answers delivered."""
    is_unit = bool(os.environ.get("STATE_DIRECTORY"))  # systemd.exec(5)
    return f"systemctl start {_UNIT}" if is_unit else f"python3 -m {_PROGRAM}"


class Outbox:
    """The answers that wait for delivery, oldest first."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._waiting: dict[str, Firing] = {}
        self.problems: dict[str, str] = {}
        """Why the source of a trigger cannot be followed, by its name."""
        self._changed = asyncio.Event()
        self._version = 0
        """Counts how often the triggers may have changed."""
        self._follower: object | None = None
        self._closed = False

    @property
    def followed(self) -> bool:
        """Whether somebody follows sources and takes answers."""
        return self._follower is not None

    def add(self, firing: Firing) -> None:
        self._waiting[firing.id] = firing
        self._changed.set()
        if len(self._waiting) > MOST:
            oldest = next(iter(self._waiting))
            own_task(self.delivered(oldest, _NOBODY), name=f"undelivered-{oldest}")

    def ring(self) -> None:
        """Have the follower look at the triggers again."""
        self._version += 1
        self._changed.set()

    def close(self) -> None:
        """End the follower."""
        self._closed = True
        self.ring()

    async def follow(self) -> AsyncGenerator[Firing | None, None]:
        """Each answer once, and None each time that the triggers may have changed, also at the beginning.
        Ends when another follower comes or the daemon stops.
        """
        me = self._follower = object()
        self._changed.set()  # the one before ends
        sent, seen = set[str](), -1
        try:
            while self._follower is me and not self._closed:
                self._changed.clear()
                if seen != self._version:
                    seen = self._version
                    yield None
                for firing in [one for one in self._waiting.values() if one.id not in sent]:
                    sent.add(firing.id)
                    yield firing
                sent &= self._waiting.keys()
                if self._follower is me and not self._closed:
                    await self._changed.wait()
        finally:
            if self._follower is me:
                self._follower = None

    async def delivered(self, firing_id: str, problem: str = "") -> None:
        """Store that an answer was delivered, or why it cannot be. Raises NotFound, StorageError."""
        firing = self._waiting.pop(firing_id, None)
        if firing is None:
            raise NotFound(f"No answer of the firing {firing_id[:60]!r} waits.", field="firing")
        about = {"trigger": firing.trigger, "firing": firing.id}
        about_turn = {"agent": firing.agent, "session": firing.session, "trace_id": firing.trace_id}
        with within(owner=firing.owner, **about_turn):
            if problem:
                message = f"{firing.trigger}: {problem}"
                event = types.TriggerUndelivered(message=message, **about).event()
            else:
                event = types.TriggerDelivered(message=f"{firing.trigger}: delivered", **about).event()
        try:
            await self._history.append(event, changes=[firing.change(there=False)])
        except LightagentError:
            self._waiting[firing_id] = firing
            raise
