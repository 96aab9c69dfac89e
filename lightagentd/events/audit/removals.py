"""What was removed from the history, when and by whom, as the events about that say.

An event `pruned` says it of events that retention removed, and `session.deleted` of the data of a session's
events and of the rows of state that went with it. So an event that is not there is explained, not missing.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from lightagentd.events.audit.record_check import text_in
from lightagentd.events.model import Event
from lightagentd.host.users import called

_MOST = 100


@dataclass(frozen=True, kw_only=True)
class Removal:
    """One removal. `by` is a uid, or None for the daemon, which applied the limits of its configuration."""

    seq: int
    """The event about it."""
    time_us: int
    by: int | None
    reason: str
    """`age`, `size` or `sessions` of retention, or what was given for a session's deletion."""
    session: str = ""
    first_seq: int = 0
    last_seq: int = 0
    """The removed events, where it was no session; some of them may have been kept."""
    events: int = 0
    """How many events were removed, or lost their data."""
    rows: int = 0
    """How many rows of state were removed."""
    states: tuple[str, ...] = ()
    """Of which states."""

    @property
    def sentence(self) -> str:
        """By whom and when, as the end of a sentence."""
        who = "the daemon" if self.by is None else called(self.by)
        return f"by {who} at {datetime.fromtimestamp(self.time_us / 1e6, UTC).isoformat(timespec='seconds')}"


class Removals:
    """Receives the events about removals."""

    def __init__(self) -> None:
        self.count = 0
        self._newest: deque[Removal] = deque(maxlen=_MOST)
        self._pruned: list[Removal] = []

    @property
    def newest(self) -> tuple[Removal, ...]:
        """The newest 100."""
        return tuple(self._newest)

    def pruned(self, event: Event) -> None:
        """Retention removed events."""
        data = event.data or {}
        removal = Removal(
            seq=event.seq,
            time_us=event.time_us,
            by=_number(data, "by"),
            reason=text_in(data, "reason"),
            first_seq=_number(data, "first_seq") or 0,
            last_seq=_number(data, "last_seq") or 0,
            events=_number(data, "removed") or 0,
        )
        self._pruned.append(removal)
        self._add(removal)

    def deletion(self, event: Event) -> None:
        """A session was deleted."""
        data = event.data or {}
        erased = data.get("erased_rows")
        counts = erased if isinstance(erased, dict) else {}
        self._add(
            Removal(
                seq=event.seq,
                time_us=event.time_us,
                by=None if text_in(data, "reason") else _number(data, "by"),
                reason=text_in(data, "reason")[:200],
                session=event.session,
                events=_number(data, "erased_events") or 0,
                rows=sum(count for count in counts.values() if type(count) is int),
                states=tuple(map(str, counts)),
            )
        )

    def of_event(self, seq: int) -> Removal | None:
        """The removal of an event by its number, as far as the history still has the note about it."""
        return next((one for one in self._pruned if one.first_seq <= seq <= one.last_seq), None)

    def _add(self, removal: Removal) -> None:
        self.count += 1
        self._newest.append(removal)


def _number(data: dict[str, Any], name: str) -> int | None:
    value = data.get(name)
    return value if type(value) is int else None
