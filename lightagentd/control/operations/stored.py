"""The read-only operations on stored data, answered from the store itself without a daemon.

They run in a child process with the rights of the store's owner (`events.backup.stored.run_as_owner`), who
sees everything. The methods, their parameters and their replies are those of the Varlink interfaces. The
answers lack what only a running daemon knows: a session is `idle` here, even with turns stored as `queued`.
"""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict
from collections.abc import AsyncGenerator, Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from lightagentd import api
from lightagentd.agents.agent import Agent
from lightagentd.agents.planning.plan import Plan
from lightagentd.agents.sessions.session import Session, SessionRecord, session_not_found
from lightagentd.control.authz import Caller
from lightagentd.control.operations.access import Access
from lightagentd.control.operations.declared import Operations, methods_of
from lightagentd.control.operations.events import Events, stored
from lightagentd.control.operations.history import History
from lightagentd.control.operations.sessions import Sessions, session_info
from lightagentd.control.presentation import as_json
from lightagentd.errors import InvalidArgument, MethodNotFound
from lightagentd.events.backup.backup import open_stored
from lightagentd.events.filter import Filter
from lightagentd.events.history import History as WritingHistory
from lightagentd.events.queries import StoredHistory
from lightagentd.policy.operation import Operation
from lightagentd.redaction.redactor import Redactor

if TYPE_CHECKING:
    from lightagentd.daemon.runtime import Now
    from lightagentd.daemon.upkeep import Upkeep

_PREFIX = "org.lightagent1."
_NEEDS_DAEMON = "Leave --stored out: only the running daemon knows that."


class _StoredAccess(Access):
    """The access of a caller who may see the whole history."""

    def __init__(self, history: WritingHistory) -> None:
        self._history = history

    async def admit(
        self,
        caller: Caller,
        operation: Operation,  # noqa: ARG002
        *,
        agent: str = "",  # noqa: ARG002
        viewing: bool = False,  # noqa: ARG002
    ) -> Caller:
        return caller

    def _defined(self) -> tuple[Collection[str], Collection[str]]:
        return (), ()

    async def readable(self, caller: Caller, agent: str = "") -> frozenset[str] | None:  # noqa: ARG002
        return None

    def session(self, caller: Caller, session: str) -> tuple[Agent, Session]:  # noqa: ARG002
        found = next((one for one in self.sessions() if one.id == session), None)
        if found is None:
            raise session_not_found(session)
        return cast(Agent, None), found  # the operations that are answered here use no agent

    def sessions(self) -> list[Session]:
        """All that are stored."""
        plans = self._history.queries.state("plans")
        current = {str(value["session"]) for value in self._history.queries.state("current").values()}
        sessions = []
        for value in self._history.queries.state("sessions").values():
            session = Session(SessionRecord.from_dict(value), self._history)
            session.plan = Plan.from_dict(plans[session.id]) if session.id in plans else None
            session.is_current = session.id in current
            sessions.append(session)
        return sessions


class _StoredEvents(Events):
    def __init__(self, access: _StoredAccess, history: WritingHistory) -> None:
        self._access, self._history = access, history

    async def subscribe(
        self,
        caller: Caller,  # noqa: ARG002 - as in Events
        wanted: Filter,
        from_seq: int | None = None,
        *,
        follow: bool = True,
        max_lag: int = 0,  # noqa: ARG002
    ) -> AsyncGenerator[api.EventItem, None]:
        if follow:
            raise InvalidArgument("The store itself cannot be followed.", suggestion=_NEEDS_DAEMON)
        await self._access.check_known(wanted)
        head, _ = self._history.queries.stored_head()
        position = max(1, from_seq or 1)
        while 0 < position <= head:
            part = self._history.queries.slice(wanted, position)
            for event, _ in part.events:
                if event.seq <= head:
                    yield {"event": stored(event), "missed": None}
            position = part.next_seq


class _StoredSessions(Sessions):
    def __init__(self, access: _StoredAccess, history: WritingHistory) -> None:
        self._access = self._stored = access
        self._history = history
        self._copying = asyncio.Lock()
        self._copying_of = defaultdict(asyncio.Lock)

    async def _seen(self, caller: Caller, agent: str, parent: str) -> list[Session]:  # noqa: ARG002
        every = [one for one in self._stored.sessions() if agent in ("", one.record.agent)]
        found = [one for one in every if one.record.parent == parent]
        return sorted(found, key=lambda session: session.record.updated_us, reverse=True)

    def _infos(self, found: list[Session]) -> list[api.Session]:
        waiting = self._waiting()
        return [replace(session_info(one), queued=waiting.count(one.id)) for one in found]

    async def get(self, caller: Caller, session: str) -> api.Session:
        _, _, found = await self._access.admit_to(caller, Operation.INSPECT, session)
        return replace(session_info(found), queued=self._waiting().count(session))

    def _waiting(self) -> list[str]:
        """The session of each stored turn that has not ended."""
        return [str(turn["session"]) for turn in self._history.queries.state("turns").values()]


_ANSWERED = (
    "Events.Subscribe",
    "History.Query",
    "History.Page",
    "Sessions.List",
    "Sessions.Get",
    "Sessions.Messages",
    "Sessions.Export",
)
"""The methods that the store can answer, without `org.lightagent1.`."""


def answer(state: str, method: str, parameters: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The replies to a call, for `run_as_owner`. Raises the errors of the daemon's method, and
    MethodNotFound.
    """
    reading = open_stored(Path(state) / "history")
    try:
        if method not in _ANSWERED:
            raise MethodNotFound(f"The store cannot answer {method!r}.", suggestion=_NEEDS_DAEMON)
        caller = Caller(uid=os.geteuid(), gid=os.getegid(), pid=os.getpid())
        yield from _replies(reading, method, caller, parameters)
    finally:
        reading.close()


def _replies(
    reading: StoredHistory, method: str, caller: Caller, parameters: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    history = cast(WritingHistory, reading)  # these operations use only what both classes have
    history.redactor = Redactor()  # nothing is stored here, so there is nothing to be found
    access = _StoredAccess(history)
    of: dict[type[Operations], Operations] = {
        Events: _StoredEvents(access, history),
        History: History(access, history, cast("Upkeep", None), cast("Now", None)),  # no query needs it
        Sessions: _StoredSessions(access, history),
    }
    [declared] = [
        one
        for cls in of
        for one in methods_of(cls)
        if f"{one.interface}.{one.mark.name}".endswith(f"1.{method}")
    ]
    called = declared.call(of[declared.operations], caller, parameters)
    if not declared.mark.streams:
        yield {declared.mark.returns: as_json(asyncio.run(called))}
        return
    with asyncio.Runner() as runner:
        while (item := runner.run(anext(called, None))) is not None:
            yield as_json(item)
    yield declared.mark.end
