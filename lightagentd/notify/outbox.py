"""What each destination is still to be told, and how far the history was read: one file, written as a whole.

A notice enters the file together with the position behind its event, so that none is lost and none comes
twice, whenever the service is killed. What is sent next is stored as a message with an id before the first
attempt, and the same id goes with each attempt: a destination that knows ids takes it once.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lightagentd.config.notify import About, Destination, Notify
from lightagentd.notify.notices import Notice
from lightagentd.unattended.following import damaged, read_state, store_state

WAITING_MOST = 500
"""So many notices wait for one destination; one more takes the place of the oldest, which is counted."""
_MESSAGE_MOST = 50
"""So many notices are one message."""
_BUDGETS_MOST = 1000
"""So many budgets are remembered as told."""


@dataclass(kw_only=True)
class Sending:
    """A message that was begun. `tried_s` is for how long it was tried, whatever clocks were set to."""

    id: str
    notices: list[Notice]
    tried_s: float = 0.0


@dataclass(kw_only=True)
class Outlet:
    """One destination. `wake` is set when there may be something to send."""

    name: str
    destination: Destination
    events: frozenset[str]
    quiet: str
    waiting: list[Notice] = field(default_factory=list)
    sending: Sending | None = None
    left_out: int = 0
    """How many notices gave way to newer ones since the last message."""
    sent_us: int = 0
    failed_us: int = 0
    problem: str = ""
    wake: asyncio.Event = field(default_factory=asyncio.Event)

    def wants(self, notice: Notice) -> bool:
        agents = self.destination.agents
        return notice.about in self.events and (
            not agents or notice.agent in agents or notice.about == "panic"
        )

    def add(self, notice: Notice) -> None:
        self.waiting.append(notice)
        if len(self.waiting) > WAITING_MOST:
            self.left_out += 1
            del self.waiting[0]
        self.wake.set()

    def keep(self, wanted: Callable[[Notice], bool]) -> None:
        """Drop what is not wanted any more."""
        self.waiting = [one for one in self.waiting if wanted(one)]
        if self.sending is not None:
            self.sending.notices = [one for one in self.sending.notices if wanted(one)]
            if not self.sending.notices:
                self.sending = None

    def begin(self, notices: list[Notice]) -> None:
        """Make one message of notices that wait."""
        chosen = notices[:_MESSAGE_MOST]
        ids = "\n".join([self.name, *(one.id for one in chosen)])
        number = hashlib.sha256(ids.encode()).hexdigest()[:32]
        self.sending = Sending(id=f"lan-{number}", notices=chosen)
        begun = {one.id for one in chosen}
        self.waiting = [one for one in self.waiting if one.id not in begun]

    def to_dict(self) -> dict[str, Any]:
        sending = self.sending
        return {
            "waiting": [one.to_dict() for one in self.waiting],
            "sending": sending
            and {
                "id": sending.id,
                "notices": [one.to_dict() for one in sending.notices],
                "tried_s": sending.tried_s,
            },
            "left_out": self.left_out,
            "sent_us": self.sent_us,
            "failed_us": self.failed_us,
            "problem": self.problem,
        }

    def restore(self, value: dict[str, Any]) -> None:
        """Raises KeyError, TypeError, ValueError."""
        self.waiting = [Notice.from_dict(one) for one in value["waiting"]]
        if (begun := value["sending"]) is not None:
            notices = [Notice.from_dict(one) for one in begun["notices"]]
            self.sending = Sending(id=str(begun["id"]), notices=notices, tried_s=float(begun["tried_s"]))
        self.left_out, self.problem = int(value["left_out"]), str(value["problem"])
        self.sent_us, self.failed_us = int(value["sent_us"]), int(value["failed_us"])


class Outbox:
    """All of it. `load` reads the file, and each change is stored by `store`."""

    def __init__(self, notify: Notify, path: Path) -> None:
        self._path = path
        self._writing = asyncio.Lock()
        self.seq: int | None = None
        """The newest event that was read; None before the first start."""
        self.told: dict[str, Any] = {}
        """What is known of health and budgets, so that nothing is told again."""
        self.outlets = {
            name: Outlet(
                name=name,
                destination=one,
                events=frozenset(notify.events if one.events is None else one.events),
                quiet=notify.quiet if one.quiet is None else one.quiet,
            )
            for name, one in notify.to.items()
        }

    def load(self) -> None:
        """Raises StorageError. What a destination that is gone was to be told goes with it."""
        found = read_state(self._path)
        if found is None:
            return
        try:
            self.seq, self.told = int(found["seq"]), dict(found["told"])
            if not all(isinstance(one, list) for one in self.told.values()):
                raise TypeError
            for name, outlet in self.outlets.items():
                if name in found["to"]:
                    outlet.restore(found["to"][name])
        except (KeyError, TypeError, ValueError, AttributeError) as err:
            raise damaged(self._path) from err

    async def store(self) -> None:
        """Raises StorageError."""
        async with self._writing:
            to = {name: outlet.to_dict() for name, outlet in self.outlets.items()}
            state = {"seq": self.seq, "told": self.told, "to": to}
            await asyncio.to_thread(store_state, self._path, state)

    def add(self, notice: Notice) -> bool:
        """A notice for all who want it; False for one of a budget that was told already."""
        if notice.about == "budget":
            once = self.told.setdefault("budgets", [])
            if notice.id in once:
                return False
            once[:] = [*once[1 - _BUDGETS_MOST :], notice.id]
        if notice.key:
            self.settle(notice.key)
        for outlet in self.outlets.values():
            if outlet.wants(notice):
                outlet.add(notice)
        return True

    def settle(self, key: str) -> None:
        """A question is over: nobody is told of it any more."""
        for outlet in self.outlets.values():
            outlet.keep(lambda one: one.key != key)

    def wants(self, about: About) -> bool:
        """Whether any destination is told of this."""
        return any(about in outlet.events for outlet in self.outlets.values())


def quiet_left_s(quiet: str, now: float) -> float:
    """How long the quiet hours (`22:00-07:00`, local time) go on; 0 outside of them. The change of the clock
    in summer and winter may make that an hour more or less, and then it is asked again.
    """
    if not quiet:
        return 0.0
    begins, ends = (int(part[:2]) * 60 + int(part[3:]) for part in quiet.split("-"))
    local = time.localtime(now)
    minute = local.tm_hour * 60 + local.tm_min
    within = begins <= minute < ends if begins < ends else minute >= begins or minute < ends
    return ((ends - minute) % 1440) * 60 - local.tm_sec if within else 0.0
