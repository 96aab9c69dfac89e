"""What is stored of a change that takes itself back: its terms, its deadline, and how it stands.

The deadline is kept twice, as wall time and as CLOCK_BOOTTIME (clock_gettime(2)) of one boot, and is over
when either says so: a clock that is set back does not put it off, nor does a machine that sleeps.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from lightagentd.config.terms import Terms
from lightagentd.events.history import Change
from lightagentd.events.queries import Filter, Queries
from lightagentd.events.store.states import checked, decoding

STATE = "confirmations"
STATES = ("running", "waiting", "confirmed", "taking_back", "taken_back", "failed", "unchanged")
OPEN = frozenset({"running", "waiting", "taking_back"})
_TEXTS = ("id", "agent", "session", "tool", "action", "what", "approval", "state", "check", "inverse")
_NUMBERS = ("owner", "within_s", "begun_us", "due_us", "boot_due_us", "tries", "ended_us")


def wall_us() -> int:
    return time.time_ns() // 1000


def boot_us() -> int:
    """The time since the machine was booted, with that in which it slept."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000


@cache
def boot_id() -> str:
    """The kernel's name of this boot (proc_sys_kernel(5)); empty where it cannot be read."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


@dataclass(frozen=True, kw_only=True)
class Confirmation:
    """One change. `id` is its call, `owner` the uid it ran for, `back` the call that takes it back."""

    id: str
    agent: str
    session: str
    owner: int
    tool: str
    action: str
    what: str
    approval: str
    approved_by: int | None
    seat: dict[str, Any]
    """Where that person approved it from, as `host.seat.Seat`."""
    within_s: int
    check: str
    inverse: str
    back: dict[str, Any]
    """`tool`, `action`, `args`."""
    begun_us: int
    due_us: int
    boot: str
    boot_due_us: int
    state: str = "running"
    tries: int = 0
    """How often it was begun to take it back."""
    by: int | None = None
    """The uid of who confirmed it; None for its check."""
    ended_us: int = 0
    why: str = ""
    cut: bool = False
    """Whether the daemon ended in the middle of its call, which may have changed nothing."""

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> Confirmation:
        """Raises HistoryDamaged."""
        with decoding(STATE, str(value.get("id"))):
            checked(
                value,
                **dict.fromkeys(_TEXTS, str),
                **dict.fromkeys(_NUMBERS, int),
                boot=str,
                why=str,
                cut=bool,
            )
            checked(value, seat=dict, back=dict, approved_by=(int, type(None)), by=(int, type(None)))
            found = cls(**value)
            if found.state not in STATES or {*found.back} != {"tool", "action", "args"}:
                raise ValueError(f"its state is {found.state[:40]!r}")
            return found

    @property
    def name(self) -> str:
        return f"{self.tool}.{self.action}"

    @property
    def open(self) -> bool:
        return self.state in OPEN

    @property
    def taken_back_by(self) -> int:
        """In whose name it is taken back: that of who approved it, or else of whom it ran for."""
        return self.owner if self.approved_by is None else self.approved_by

    def change(self, *, there: bool = True) -> Change:
        """The change of state that keeps it, or forgets it."""
        return Change(state=STATE, key=self.id, value=asdict(self) if there else None)

    def armed(self) -> Confirmation:
        """With the deadline counted from now."""
        span_us = self.within_s * 1_000_000
        now = wall_us()
        return replace(
            self, begun_us=now, due_us=now + span_us, boot=boot_id(), boot_due_us=boot_us() + span_us
        )

    def of_this_boot(self) -> Confirmation:
        """With the deadline on the clock of this boot. Where the wall clock is behind the time of the change,
        nobody knows how long ago that was, and the deadline is over.
        """
        if self.boot == boot_id() and self.boot:
            return self
        now = wall_us()
        left_us = self.due_us - now if self.begun_us <= now else 0
        return replace(self, boot=boot_id(), boot_due_us=boot_us() + max(0, left_us))

    @property
    def left_s(self) -> float:
        """The seconds until the deadline; 0 when it is over."""
        return max(0.0, min(self.due_us - wall_us(), self.boot_due_us - boot_us()) / 1_000_000)


def of_another_store(queries: Queries, ids: Sequence[str]) -> set[str]:
    """Those that began before an administrator put this store in place, which must not act in it."""
    installed = queries.find_in_topic("daemon.history", lambda event: event.type == "installed")
    if installed is None:
        return set()
    begun_ = queries.of_topic("confirmation.pending", Filter(), len(ids) + 200)
    own = [one.data or {} for one in begun_ if one.seq > installed.seq]
    return {*ids} - {str(data.get("call_id")) for data in own}


def begun(terms: Terms, back: dict[str, Any], **about: Any) -> Confirmation:
    """A change whose call is about to run."""
    none: dict[str, Any] = {"begun_us": 0, "due_us": 0, "boot": "", "boot_due_us": 0}
    made = Confirmation(
        within_s=terms.within_s, check=terms.check, inverse=terms.inverse, back=back, **none, **about
    )
    return made.armed()
