"""Checks that each event without data has a reason: a later deletion of its session that removed the data.

The deletion (`session.deleted`) gives the number of events whose data it removed. If all of them are still
there, the numbers must agree. The check holds a few numbers for each deleted session.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lightagentd.events.audit.record_check import BadRecord
from lightagentd.events.model import Event

TOPIC = "session.deleted"


@dataclass
class _Session:
    """What is known about the missing data of one session."""

    open: int = 0
    """Events without data for which the walk has seen no deletion yet."""
    first_open: int = 0
    first: int = 0
    explained: int = 0
    said: int = 0
    """How many events the deletions say."""
    known: bool = True
    """Whether each deletion still says it: a later one may have taken its data, too."""
    tombstone: int = 0
    """The newest deletion."""
    kept: list[int] = field(default_factory=list)
    """Events without data before the anchor."""


class ErasureCheck:
    """Receives each event without data and each deletion, and compares them at the end."""

    def __init__(self, newest: int) -> None:
        """`newest` is the newest event now; later deletions may affect events that were read before."""
        self._newest = newest
        self._sessions: dict[str, _Session] = {}
        self.erased = 0
        """How many events have no data for a good reason."""

    def without_data(self, seq: int, session: str) -> None:
        """An event of the chain has no data. Raises BadRecord when no deletion can explain it."""
        found = self._of(seq, session)
        found.first_open = found.first_open or seq
        found.first = found.first or seq
        found.open += 1

    def kept_without_data(self, seq: int, session: str) -> None:
        """Like `without_data`, for an event before the anchor. Call it after the events of the chain."""
        self._of(seq, session).kept.append(seq)

    def forget_kept(self) -> None:
        """The events before the anchor are read again."""
        for found in self._sessions.values():
            found.kept.clear()

    def deletion(self, event: Event) -> None:
        """A session was deleted. If the deletion's own data is missing too, it was reported first."""
        found = self._of(event.seq, event.session)
        own = 1 if event.data is None else 0
        found.explained += found.open - own
        found.open, found.first_open = own, event.seq if own else 0
        self._said(found, event)

    def kept_deletion(self, event: Event) -> None:
        """Like `deletion`, for an event before the anchor."""
        found = self._of(event.seq, event.session)
        if event.seq > found.tombstone or not found.tombstone:
            self._said(found, event)
        else:
            found.known = False  # an earlier read may have counted it

    def settle(self, *, whole: bool) -> None:
        """Whether a deletion explains each event without data; in a `whole` history the numbers must agree.

        Raises BadRecord for the first that does not fit.
        """
        self.erased = 0
        bad: list[BadRecord] = []
        for session, found in self._sessions.items():
            explained = found.explained + len(found.kept)
            self.erased += explained
            lost = [seq for seq in found.kept if seq > found.tombstone]
            if found.open:
                lost.append(found.first_open)
            counted = found.known and found.tombstone <= self._newest
            who = session[:60]
            if lost:
                seq, why = min(lost), f"was altered: its data is missing, and {who} was not deleted after it"
                bad.append(BadRecord(seq, f"event {seq} {why}"))
            elif found.known and explained > found.said:
                seq = min([*found.kept, found.first or found.tombstone])
                took = f"the session's deletion took the data of {found.said} events away"
                why = f"{took}, and {explained} have none"
                bad.append(BadRecord(seq, f"event {seq} or a later one of {who} was altered: {why}"))
            elif whole and counted and explained < found.said:
                seq, took = found.tombstone, f"took the data of {found.said} events of {who} away"
                why = f"the deletion at event {seq} {took}, and only {explained} have none"
                bad.append(BadRecord(seq, why))
        if bad:
            raise min(bad, key=lambda one: one.seq)

    def _of(self, seq: int, session: str) -> _Session:
        if not session:
            raise BadRecord(
                seq, f"event {seq} was altered: its data is missing, and it belongs to no session"
            )
        return self._sessions.setdefault(session, _Session())

    def _said(self, found: _Session, event: Event) -> None:
        count = (event.data or {}).get("erased_events")
        if type(count) is int:
            found.said += count
        else:
            found.known = False
        found.tombstone = max(found.tombstone, event.seq)
