"""The objects on D-Bus, each as one caller may see it.

Every kind of object is a class of `api`, or `Turn` here; its fields become properties. The operations of the
`Service` make the views, and check what the caller may do and see; this module checks nothing. A view is a
value: it shows the state at the time it was made.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import NamedTuple

from lightagentd import api
from lightagentd.agents.ended_turns import EndedTurn
from lightagentd.agents.registry import Registry
from lightagentd.agents.sessions.session import Session as RunningSession
from lightagentd.agents.turn import Turn as RunningTurn
from lightagentd.control.authz import Caller
from lightagentd.control.dbus.types import ROOT, object_name, object_path
from lightagentd.control.operations.service import Service
from lightagentd.errors import AgentBroken, NotFound

LISTED_SESSIONS = 500
"""How many sessions at rest are in a list of objects, the newest: each costs 0.1 ms of the daemon's time. The
older ones are objects like the others."""
LISTED_RUNS = 100
"""How many runs of flows are in a list of objects, the newest."""
OPEN_STATES = ("waiting", "granted")
"""An approval in another state is over, and no object any more."""


@dataclass(frozen=True, kw_only=True)
class Turn:
    """A turn that waits in its session's queue, runs, or ended less than a minute ago. `state`: queued,
    running, waiting (for `approval`, which is the id of an input where it waits for that), done with an
    `answer`, or failed with the code `error`, which `message` explains. Of one owner the 16 turns that ended
    last are there.
    """

    id: str
    agent: str
    session: str
    owner: int
    state: str
    approval: str = ""
    answer: str = ""
    error: str = ""
    message: str = ""


View = api.Status | api.Agent | api.Session | api.Approval | api.FlowRun | Turn


@dataclass(frozen=True, kw_only=True, eq=False)
class Kind:
    """One kind of object. `folder` is in its path, and empty for the daemon as a whole.

    `counts` are the fields that count sessions: they depend on who asks. No signal tells of a change of those
    that are `silent`, since they change all the time.
    """

    folder: str
    interface: str
    view: type[View]
    counts: frozenset[str] = frozenset()
    silent: frozenset[str] = frozenset()


class Key(NamedTuple):
    """One object, whether it exists or not."""

    kind: Kind
    name: str

    @property
    def path(self) -> str:
        return object_path(self.kind.folder, self.name) if self.kind.folder else ROOT


MANAGER_KIND = Kind(
    folder="",
    interface="org.lightagent1.Manager",
    view=api.Status,
    counts=frozenset({"sessions"}),
    silent=frozenset({"uptime_s", "history", "workers"}),
)
AGENT = Kind(
    folder="agents", interface="org.lightagent1.Agent", view=api.Agent, counts=frozenset({"sessions"})
)
SESSION = Kind(folder="sessions", interface="org.lightagent1.Session", view=api.Session)
APPROVAL = Kind(folder="approvals", interface="org.lightagent1.Approval", view=api.Approval)
TURN = Kind(folder="turns", interface="org.lightagent1.Turn", view=Turn)
RUN = Kind(folder="runs", interface="org.lightagent1.Run", view=api.FlowRun)
KINDS = (AGENT, SESSION, APPROVAL, TURN, RUN)
MANAGER = Key(MANAGER_KIND, "")
_BY_FOLDER = {kind.folder: kind for kind in KINDS}


def key_of(path: str) -> Key | None:
    """The object that a path names; None for a path that can name no object."""
    if path == ROOT:
        return MANAGER
    found = object_name(path)
    kind = _BY_FOLDER.get(found[0]) if found else None
    return Key(kind, found[1]) if found and kind else None


def kind_of_folder(path: str) -> Kind | None:
    """The kind of the objects right below a path such as /org/lightagent1/agents."""
    return next((kind for kind in KINDS if path == f"{ROOT}/{kind.folder}"), None)


def owner_of(view: View) -> int | None:
    """The uid that owns the object; None for an object that belongs to nobody."""
    return view.owner if isinstance(view, api.Session | api.Approval | api.FlowRun | Turn) else None


def agent_of(key: Key, view: View) -> str:
    """The agent that the object belongs to; empty for the daemon as a whole."""
    if key.kind is AGENT:
        return key.name
    return view.agent if isinstance(view, api.Session | api.Approval | api.FlowRun | Turn) else ""


def is_at_rest(view: View | None) -> bool:
    """Whether only stored events can change it."""
    match view:
        case api.Session():
            return view.state == "idle" and not view.queued
        case api.Agent():
            return view.state == "running"
        case api.FlowRun():
            return bool(view.ended_us)
        case api.Approval() | Turn():
            return False
    return True


class Views:
    """Makes views. It owns nothing."""

    def __init__(self, service: Service, registry: Registry) -> None:
        self._service, self._registry = service, registry

    @staticmethod
    def of_all() -> Caller:
        """The daemon itself, which sees everything."""
        return Caller(uid=os.geteuid(), gid=os.getegid(), pid=os.getpid())

    async def everything(self, caller: Caller, *, limit: int | None = LISTED_SESSIONS) -> dict[Key, View]:
        """All objects that the caller sees below the root; of the sessions at rest only the newest, up to a
        limit. Raises PermissionDenied.
        """
        found = await self.of_kind(caller, AGENT) | await self.of_kind(caller, APPROVAL)
        found |= await self.of_kind(caller, RUN)
        sessions = await self._service.sessions.listed(caller)
        return found | _newest(sessions, limit) | self._turns(sessions)

    async def of_kind(self, caller: Caller, kind: Kind) -> dict[Key, View]:
        """Like `everything`, for one kind."""
        service = self._service
        if kind is AGENT:
            return {Key(kind, one.name): one for one in await service.agents.listed(caller)}
        if kind is APPROVAL:
            questions = await service.approvals.listed(caller)
            return {Key(kind, one.id): one for one in questions}
        if kind is RUN:
            return {Key(kind, one.id): one for one in await service.flows.runs(caller, limit=LISTED_RUNS)}
        sessions = await service.sessions.listed(caller)
        return self._turns(sessions) if kind is TURN else _newest(sessions, LISTED_SESSIONS)

    async def get(self, caller: Caller, key: Key) -> View:
        """One object. Raises PermissionDenied; NotFound when the caller can see no such object."""
        service = self._service
        if key.kind is AGENT:
            return await service.agents.get(caller, key.name)
        if key.kind is SESSION:
            return await service.sessions.get(caller, key.name)
        if key.kind is APPROVAL:
            found = await service.approvals.get(caller, key.name)
            if found.state in OPEN_STATES:
                return found
        if key.kind is RUN:
            return await service.flows.get(caller, key.name)
        if key.kind is TURN:
            turn = self._turn(key.name)
            await service.sessions.get(caller, turn.session if turn else "")
            if turn:
                return turn
        if key == MANAGER:
            return await service.manager.status(caller)
        raise NotFound(f"There is no object {key.path}.")

    async def find(self, key: Key) -> View | None:
        """One object as the daemon itself sees it; None if it does not exist."""
        try:
            return await self.get(self.of_all(), key)
        except (NotFound, AgentBroken):
            return None

    @property
    def agent_names(self) -> list[str]:
        """All defined agents."""
        return list(self._registry.shared.content.definitions.paths)

    def _turns(self, sessions: list[api.Session]) -> dict[Key, View]:
        """The turns in sessions that the caller may see, also those that ended lately."""
        turns: list[RunningTurn] = []
        for one in sessions:
            if not is_at_rest(one):
                _, found = self._registry.session(one.id)
                turns += _unfinished(found)
        seen = {one.id for one in sessions}
        ended = [one for one in self._registry.shared.ended_turns.all() if one.session.id in seen]
        views = [*map(_ended, ended), *map(_turn, turns)]
        return {Key(TURN, one.id): one for one in views}

    def _turn(self, trace_id: str) -> Turn | None:
        for agent in self._registry.agents.values():
            for session in agent.sessions.values():
                for one in _unfinished(session):
                    if one.trace_id == trace_id:
                        return _turn(one)
        ended = self._registry.shared.ended_turns.find(trace_id)
        return _ended(ended) if ended is not None else None


def _newest(sessions: list[api.Session], limit: int | None) -> dict[Key, View]:
    """The newest sessions, which go into a list."""
    if limit is not None and len(sessions) > limit:
        sessions = sessions[:limit] + [one for one in sessions[limit:] if not is_at_rest(one)]
    return {Key(SESSION, one.id): one for one in sessions}


def _unfinished(session: RunningSession) -> list[RunningTurn]:
    """The turns of a session that have not told of their end; one that has may still be the running one."""
    return [one for one in (session.running, *session.queue) if one is not None and not one.over.is_set()]


def _turn(turn: RunningTurn) -> Turn:
    record = turn.session.record
    running = turn.session.running is turn
    return Turn(
        id=turn.trace_id,
        agent=record.agent,
        session=record.id,
        owner=record.owner,
        state="waiting" if turn.is_waiting else "running" if running else "queued",
        approval=turn.waits_for if turn.is_waiting else "",
    )


def _ended(turn: EndedTurn) -> Turn:
    record = turn.session.record
    return Turn(
        id=turn.trace_id,
        agent=record.agent,
        session=record.id,
        owner=record.owner,
        state="failed" if turn.error else "done",
        answer=turn.answer,
        error=turn.error,
        message=turn.message,
    )
