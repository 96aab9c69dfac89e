"""The origin of a call: a turn of a session, or a person who calls a tool directly.

It knows for whom the call runs, whether a person can be asked, and what the session has seen so far.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from lightagentd.agents.definition import AgentDefinition
from lightagentd.api import turn_events
from lightagentd.config.terms import Terms
from lightagentd.events.history import Change, NewEvent
from lightagentd.host.seat import Seat
from lightagentd.policy.decide import PERSON

if TYPE_CHECKING:
    from lightagentd.agents.sessions.session import Session
    from lightagentd.agents.tool_calls.results import Outcome
    from lightagentd.agents.turn import Turn

UNATTENDED = "unattended"
"""The trigger of a turn whose caller said that nobody is there to be asked."""

_STRICTER: tuple[Literal["", "observe", "none"], ...] = ("", "observe", "none")

_HOST = re.compile(r"[a-z0-9_](?:[a-z0-9_.-]{0,253}[a-z0-9_])?|[0-9a-f:.]{2,45}")


@dataclass(frozen=True, kw_only=True)
class Origin:
    """The origin of calls. `turn` is None for a person's own call, which belongs to no session."""

    definition: Callable[[], AgentDefinition]
    """Gives the agent as it may be used now: a choice takes something from it, and a reload may."""
    owner: int
    turn: Turn | None = None
    approver: Seat | None = None
    """Where the process runs of the owner who made the call, if they may approve: it counts as approved."""
    outside: bool = False
    """Whether text from outside may have chosen a call that belongs to no turn, such as another's model."""
    for_owner: int | None = None
    """The uid that the worker takes the calls to be for, where that is not `owner`; no model chooses it."""
    own: Literal["", "check", "context", "confirm"] = ""
    """Whether it is the daemon's own call, and no part of a conversation: the check of a plan's task, the
    agent's context skill, or the check of a change that has to be confirmed. Nobody is asked about it: it
    could not be taken up again after a restart."""
    on_end: Callable[[Outcome], tuple[Sequence[NewEvent], Sequence[Change]]] | None = None
    """Gives what to store with the end of a call that belongs to no turn."""
    takes_back: str = ""
    """The call whose change this one takes back, since nobody confirmed that in time."""
    terms: Terms | None = None
    """Those that a person, who may approve, sets for the change of a call of their own."""
    above: Origin | None = None
    """The turn that had this one made. What it may not do now, its child may not do either."""

    @property
    def agent(self) -> AgentDefinition:
        """The agent as policy has to see it now."""
        return self.definition()

    @property
    def line(self) -> tuple[Origin, ...]:
        """This origin, and all above it up to the one that a person prompted."""
        return (self, *(self.above.line if self.above is not None else ()))

    @property
    def chain(self) -> str:
        """The agents from the one that a person prompted down to this one: `ops → dba`."""
        return " → ".join(one.agent.name for one in reversed(self.line))

    @property
    def agents_above(self) -> list[str]:
        """The agents above this one, the nearest first."""
        return [one.agent.name for one in self.line[1:]]

    @property
    def worker_owner(self) -> int:
        return self.owner if self.for_owner is None else self.for_owner

    @property
    def session(self) -> Session | None:
        return self.turn.session if self.turn is not None else None

    @property
    def session_id(self) -> str:
        return self.session.id if self.session is not None else ""

    @property
    def trigger(self) -> str:
        """What began the turn, as rules of policy name it."""
        if self.own:
            return self.own
        if self.turn is None or not self.turn.unattended:
            return PERSON
        return self.turn.trigger or UNATTENDED

    @property
    def apart(self) -> bool:
        """Whether the results of its calls are no part of a conversation."""
        return bool(self.own) or (self.turn is not None and not self.turn.in_conversation)

    @property
    def can_ask(self) -> bool:
        """Whether a person can be asked about its calls."""
        return self.trigger == PERSON or (self.turn is not None and self.turn.can_wait and not self.own)

    @property
    def needs_approval(self) -> bool:
        """Whether a person has to approve its calls, whatever policy says."""
        return self.turn is not None and self.turn.needs_approval and not self.own

    @property
    def tainted(self) -> bool:
        """Whether text from outside is in the session, or in one above it."""
        return self.outside or any(one.session and one.session.record.tainted for one in self.line)

    @property
    def plan(self) -> Literal["", "observe", "none"]:
        """The limit on calls while a plan is drafted in the session or above it; empty when none is."""
        gates = [one.session.plan_gate(one.agent) for one in self.line if one.session is not None]
        return max(gates, key=_STRICTER.index, default="")

    def knows(self, host: str) -> bool:
        """Whether the session and all above it know a host: they went there before they were tainted, or a
        person allowed it.
        """
        return bool(host) and all(
            one.session is not None and host in one.session.record.hosts for one in self.line
        )

    def after_call(self, call_id: str, *, taints: bool, host: str) -> tuple[Change, ...]:
        """As `Session.after_call`; those above learn the host, too. Without a session there is nothing to
        remember.
        """
        sessions = [one.session for one in self.line if one.session is not None]
        return tuple(
            change
            for session in sessions
            for change in session.after_call(call_id, taints=taints and session is self.session, host=host)
        )

    def asking(self, question_id: str) -> tuple[NewEvent, ...]:
        """As `Turn.asking`."""
        return () if self.turn is None else self.turn.asking(question_id)

    def ended(self, outcome: Outcome) -> tuple[Sequence[NewEvent], Sequence[Change]]:
        """As `Turn.call_ended`; the daemon's own calls end nothing."""
        if self.turn is None:
            return ((), ()) if self.on_end is None else self.on_end(outcome)
        return ((), ()) if self.own else self.turn.call_ended(outcome)

    def asks(self, question_id: str) -> tuple[Change, ...]:
        """The change of state with which a turn begins to wait for a person."""
        return () if self.turn is None else tuple(self.turn.waits(question_id))

    def running(self) -> tuple[Change, ...]:
        """The change of state with which a turn stops waiting for a person."""
        return () if self.turn is None else tuple(self.turn.waits(""))

    def settled(self) -> list[Change]:
        """As `Turn.settled`; the daemon's own calls settle nothing."""
        return [] if self.turn is None or self.own else self.turn.settled()

    def note_call(self, ended: Mapping[str, Any]) -> None:
        """As `Turn.note_call`, unless it is the daemon's own call."""
        if self.turn is not None and not self.own:
            self.turn.note_call(ended)

    def tell_above(self, event: turn_events.Event) -> None:
        """Tell those who watch the turns above of a question: they wait for it, too."""
        for one in self.line[1:]:
            if one.turn is not None and one.turn is not self.turn:
                one.turn.stream.emit(event)

    @contextlib.contextmanager
    def waiting(self, waits_for: str) -> Iterator[None]:
        """A block while a person is asked: the turn shows as waiting, and its clock stops."""
        if self.turn is None:
            yield
            return
        with self.turn.waiting(waits_for):
            yield


def host_of(value: Any) -> str:
    """The host in an argument that is a host or a URL, in lower case, without port; empty in doubt.

    An argument that a URL library and a tool could read differently gives no host.
    """
    if not isinstance(value, str) or not value.isascii() or re.search(r"[\s\\@%\x00-\x1f\x7f]", value):
        return ""
    if value.count(":") > 1 and "/" not in value and "[" not in value:
        return value.lower() if _HOST.fullmatch(value.lower()) else ""
    try:
        found = urlsplit(value if "://" in value else f"//{value}").hostname or ""
    except ValueError:
        return ""
    found = found.lower().removesuffix(".")
    return found if _HOST.fullmatch(found) else ""
