"""The operations that only read what is stored, answered from the store itself: no daemon takes part.

They run in a child process with the rights of the store's owner (`events.stored.run_as_owner`), who sees all.
The methods, their parameters and their replies are those of the Varlink interfaces. What only a running
daemon knows is not in the answers: a session is `idle` here, however many turns are stored as `queued`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from dataclasses import asdict, is_dataclass, replace
from pathlib import Path
from typing import Any, cast

from lightagentd import api
from lightagentd.agents.agent import Agent
from lightagentd.agents.planning.plan import Plan
from lightagentd.agents.sessions.session import Session, SessionRecord, session_not_found
from lightagentd.control.authz import Caller, Operation
from lightagentd.control.operations.history import HistoryOperations
from lightagentd.control.operations.service import Service
from lightagentd.control.operations.session_care import SessionCareOperations
from lightagentd.control.presentation import stored_event
from lightagentd.control.varlink.history import Events, History
from lightagentd.errors import InvalidArgument, MethodNotFound
from lightagentd.events.backup.backup import head_of, open_stored
from lightagentd.events.filter import Filter
from lightagentd.events.history import History as WritingHistory
from lightagentd.events.queries import StoredHistory
from lightagentd.redaction.redactor import Redactor

_NEEDS_DAEMON = "Leave --stored out: only the running daemon knows that."


class StoredService(HistoryOperations, SessionCareOperations):
    """The part of `Service` that needs no more than a history to read. Its caller may see all of it."""

    def __init__(self, stored: StoredHistory) -> None:
        super().__init__()
        self._history = cast(WritingHistory, stored)  # what these operations use of it is what both have
        self._history.redactor = Redactor()  # nothing is stored here, so there is nothing to be found

    async def _admit(self, caller: Caller, operation: Operation, *, agent: str = "") -> Caller:  # noqa: ARG002
        return caller

    async def _readable(self, caller: Caller, agent: str = "") -> frozenset[str] | None:  # noqa: ARG002
        return None

    async def subscribe(
        self,
        caller: Caller,  # noqa: ARG002 - as in HistoryOperations
        wanted: Filter,
        from_seq: int | None,
        *,
        follow: bool,
        max_lag: int = 0,  # noqa: ARG002
    ) -> AsyncGenerator[api.StoredEvent | api.Missed, None]:
        if follow:
            raise InvalidArgument("The store itself cannot be followed.", suggestion=_NEEDS_DAEMON)
        head, _ = head_of(self._history)
        position = max(1, from_seq or 1)
        while 0 < position <= head:
            part = self._history.slice(wanted, position)
            for event, _ in part.events:
                if event.seq <= head:
                    yield stored_event(event)
            position = part.next_seq

    async def list_sessions(self, caller: Caller, agent: str) -> list[api.Session]:  # noqa: ARG002
        found = [one for one in self._stored_sessions() if agent in ("", one.record.agent)]
        found.sort(key=lambda session: session.record.updated_us, reverse=True)
        waiting = self._waiting()
        return [replace(self._session_info(one), queued=waiting.count(one.id)) for one in found]

    async def get_session(self, caller: Caller, session: str) -> api.Session:
        _, _, found = await self._admit_to(caller, Operation.INSPECT, session)
        return replace(self._session_info(found), queued=self._waiting().count(session))

    async def _admit_to(
        self,
        caller: Caller,
        operation: Operation,  # noqa: ARG002
        session: str,
    ) -> tuple[Caller, Agent, Session]:
        found = next((one for one in self._stored_sessions() if one.id == session), None)
        if found is None:
            raise session_not_found(session)
        return caller, cast(Agent, None), found  # the operations that are answered here use no agent

    def _stored_sessions(self) -> list[Session]:
        plans = self._history.state("plans")
        current = {str(value["session"]) for value in self._history.state("current").values()}
        sessions = []
        for value in self._history.state("sessions").values():
            session = Session(SessionRecord.from_dict(value), self._history)
            session.plan = Plan.from_dict(plans[session.id]) if session.id in plans else None
            session.is_current = session.id in current
            sessions.append(session)
        return sessions

    def _waiting(self) -> list[str]:
        """The session of each turn that is stored and not over."""
        return [str(turn["session"]) for turn in self._history.state("turns").values()]


def answer(state: str, method: str, parameters: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The replies to a call, for `run_as_owner`. Raises what the daemon's method does, and MethodNotFound."""
    stored = open_stored(Path(state) / "history")
    try:
        caller = Caller(uid=os.geteuid(), gid=os.getegid(), pid=os.getpid())
        service = StoredService(stored)
        if method == "Events.Subscribe":
            yield from _subscribe(service, caller, parameters)
        elif method in _ANSWERS:
            yield _plain(asyncio.run(_ANSWERS[method](service, caller, parameters)))
        else:
            raise MethodNotFound(f"The store cannot answer {method!r}.", suggestion=_NEEDS_DAEMON)
    finally:
        stored.close()


def _subscribe(service: StoredService, caller: Caller, parameters: dict[str, Any]) -> Iterator[Any]:
    replies = Events(cast(Service, service), caller).Subscribe(**parameters)
    with asyncio.Runner() as runner:
        while (reply := runner.run(_next(replies))) is not None:
            yield _plain(reply)


async def _next(replies: Any) -> dict[str, Any] | None:
    found = await anext(replies, None)
    return None if found is None else dict(found.parameters)


def _plain(value: Any) -> Any:
    """A reply as JSON has it."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value


async def _query(service: StoredService, caller: Caller, parameters: dict[str, Any]) -> Any:
    return (await History(cast(Service, service), caller).Query(**parameters)).parameters


async def _page(service: StoredService, caller: Caller, parameters: dict[str, Any]) -> Any:
    return (await History(cast(Service, service), caller).Page(**parameters)).parameters


async def _sessions(service: StoredService, caller: Caller, parameters: dict[str, Any]) -> Any:
    return {"sessions": await service.list_sessions(caller, parameters.get("agent") or "")}


async def _session(service: StoredService, caller: Caller, parameters: dict[str, Any]) -> Any:
    return {"session": await service.get_session(caller, parameters["session"])}


async def _messages(service: StoredService, caller: Caller, parameters: dict[str, Any]) -> Any:
    limit = parameters.get("limit")
    found = await service.messages(caller, parameters["session"], 100 if limit is None else limit)
    return {"messages": found}


async def _export(service: StoredService, caller: Caller, parameters: dict[str, Any]) -> Any:
    kind = parameters.get("format") or "markdown"
    return {"export": await service.export_session(caller, parameters["session"], kind)}


_Answer = Callable[[StoredService, Caller, dict[str, Any]], Coroutine[Any, Any, Any]]

_ANSWERS: dict[str, _Answer] = {
    "History.Query": _query,
    "History.Page": _page,
    "Sessions.List": _sessions,
    "Sessions.Get": _session,
    "Sessions.Messages": _messages,
    "Sessions.Export": _export,
}
"""What is answered with one reply, by the name of the method without `org.lightagent1.`."""
