"""The origin of a call: a turn of a session, or a person who calls a tool directly.

It knows for whom the call runs, whether a person can be asked, and what the session has seen so far.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from lightagentd.agents.definition import AgentDefinition
from lightagentd.events.history import Change
from lightagentd.host.seat import Seat
from lightagentd.policy.decide import PERSON

if TYPE_CHECKING:
    from lightagentd.agents.sessions.session import Session
    from lightagentd.agents.turn import Turn

UNATTENDED = "unattended"
"""The trigger of a turn whose caller said that nobody is there to be asked."""

_HOST = re.compile(r"[a-z0-9_](?:[a-z0-9_.-]{0,253}[a-z0-9_])?|[0-9a-f:.]{2,45}")


@dataclass(frozen=True, kw_only=True)
class Origin:
    """The origin of calls. `turn` is None for a person's own call, which belongs to no session."""

    agent: AgentDefinition
    owner: int
    turn: Turn | None = None
    at_present: Callable[[], AgentDefinition] | None = None
    """What the turn may use now; a reload or a choice may have taken something from `agent` since."""
    approver: Seat | None = None
    """Where the process runs of the owner who made the call, if they may approve: it counts as approved."""
    for_owner: int | None = None
    """The uid that the worker takes the calls to be for, where that is not `owner`; no model chooses it."""
    own: Literal["", "check", "context"] = ""
    """Whether it is the daemon's own call in a turn, and no part of the conversation: the check of a plan's
    task, or the agent's context skill. Nobody is asked about it: it could not be taken up again after a
    restart."""

    @property
    def definition(self) -> AgentDefinition:
        """The agent as policy has to see it now."""
        return self.agent if self.at_present is None else self.at_present()

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
        if self.own:
            return self.own
        return UNATTENDED if self.turn is not None and self.turn.unattended else PERSON

    @property
    def tainted(self) -> bool:
        return self.session is not None and self.session.record.tainted

    @property
    def plan(self) -> Literal["", "observe", "none"]:
        """The limit on calls while a plan is drafted in the session; empty when none is."""
        return "" if self.session is None else self.session.plan_gate(self.agent)

    def knows(self, host: str) -> bool:
        """Whether the session knows a host: it went there before it was tainted, or a person allowed it."""
        return bool(host) and self.session is not None and host in self.session.record.hosts

    def after_call(self, call_id: str, *, taints: bool, host: str) -> tuple[Change, ...]:
        """As `Session.after_call`; without a session there is nothing to remember."""
        return () if self.session is None else self.session.after_call(call_id, taints=taints, host=host)

    def asks(self, question_id: str) -> tuple[Change, ...]:
        """The change of state with which a turn begins to wait for a person."""
        if self.turn is None:
            return ()
        self.turn.waits_for = question_id
        return (self.turn.change("waiting", question_id),)

    def running(self) -> tuple[Change, ...]:
        """The change of state with which a turn stops waiting for a person."""
        return () if self.turn is None else (self.turn.change("running"),)

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
