"""The common start of every operation: the caller, their permission, and what they may see.

The `Service` owns one `Access`, which all classes of operations share; it lives as long as the daemon.
"""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, TypeVar

from lightagentd import api
from lightagentd.agents.agent import Agent
from lightagentd.agents.model_calls.metering.ledger import Ledger
from lightagentd.agents.registry import Registry
from lightagentd.agents.sessions.session import Session, session_not_found
from lightagentd.api.turn_events import ApprovalRequested
from lightagentd.control.authz import Authority, Caller
from lightagentd.control.owners import Owners
from lightagentd.control.seats import Seats
from lightagentd.control.sight import Sight
from lightagentd.errors import (
    AgentNotFound,
    BudgetExceeded,
    InvalidArgument,
    LightagentError,
    LimitExceeded,
    PermissionDenied,
    ShuttingDown,
    ToolNotFound,
)
from lightagentd.events.context import act_for
from lightagentd.events.filter import Filter
from lightagentd.events.history import History
from lightagentd.events.types.registry import all_types
from lightagentd.host.seat import Seat
from lightagentd.policy.operation import Operation

if TYPE_CHECKING:
    from lightagentd.daemon.runtime import Now

T = TypeVar("T")

MAX_LIMIT = 1000
"""The most events or messages that one answer holds; a stream has no such limit."""
LISTED_CHARS, SHORT_CHARS = 1 << 20, 1 << 10
"""How long the texts of a list may be in all, and those that are in it in any case."""


class Access:
    """Asks the authority, and looks up named objects among those that the caller may see."""

    def __init__(
        self,
        authority: Authority,
        seats: Seats,
        registry: Registry,
        history: History,
        now: Now,
        owners: Owners,
    ) -> None:
        self._authority, self._registry, self._history, self._now = authority, registry, history, now
        self._seats, self._owners = seats, owners

    async def admit(
        self, caller: Caller, operation: Operation, *, agent: str = "", viewing: bool = False
    ) -> Caller:
        """The caller; `viewing` for an answer that may show what belongs to others. The running task acts on
        their behalf from here on.

        Raises PermissionDenied; LimitExceeded for one who asks for too many changes.
        """
        if caller.grant is not None and caller.grant.agents and not (agent or viewing):
            raise PermissionDenied(
                f"The token {caller.grant.name} is for certain agents.", suggestion="Name one of them."
            )
        admitted = await self._authority.admit(caller, operation, agent=agent)
        if operation is not Operation.INSPECT:
            await self._hold(admitted, lambda: self._owners.change(caller.uid))
        grant = caller.grant
        act_for(caller.uid, *((grant.origin, grant.id) if grant is not None else ()))
        return await self._authority.viewing(admitted) if viewing else admitted

    async def admit_to(
        self, caller: Caller, operation: Operation, session: str
    ) -> tuple[Caller, Agent, Session]:
        """Like `admit`, for a session that the caller may see. Raises SessionNotFound."""

        def find(caller: Caller) -> tuple[str, tuple[Agent, Session]]:
            agent, found = self.session(caller, session)
            return found.record.agent, (agent, found)

        caller, (running, found) = await self.admit_to_own(caller, operation, find, seeing=operation)
        return caller, running, found

    async def admit_to_own(
        self,
        caller: Caller,
        operation: Operation,
        find: Callable[[Caller], tuple[str, T]],
        *,
        seeing: Operation = Operation.INSPECT,
    ) -> tuple[Caller, T]:
        """Like `admit`, for something that belongs to a uid and an agent: `find` gives the agent's name and
        the thing, and raises its NotFound where there is none that the caller may see.

        It is found before the permission where it is the caller's own, and then the one question is whether
        they may do this. Others need `seeing` first, so that they learn nothing without it.
        """
        try:
            agent, found = find(caller)
        except LightagentError:
            caller = await self.admit(caller, seeing, viewing=True)
            agent, found = find(caller)
        return await self.admit(caller, operation, agent=agent), found

    async def viewing(self, caller: Caller) -> Caller:
        """An admitted caller, as `Authority.viewing`."""
        return await self._authority.viewing(caller)

    def session(self, caller: Caller, session: str) -> tuple[Agent, Session]:
        """The session, for an admitted caller. Raises SessionNotFound."""
        agent, found = self._registry.session(session)
        if not sees(caller, found.record.owner):
            raise session_not_found(session)
        return agent, found

    async def inspectable(self, caller: Caller, agents: Iterable[str]) -> frozenset[str]:
        """The agents that an answer to an admitted caller may contain."""
        return await self._authority.inspectable(caller, agents)

    async def readable(self, caller: Caller, agent: str = "") -> frozenset[str] | None:
        """The agents whose events an answer may contain, for `Filter`. None when nothing has to be left out:
        root sees everything, and a caller who asks about one agent was admitted to inspect it.
        """
        if caller.is_administrator or agent:
            return None
        return await self.inspectable(caller, await asyncio.to_thread(self._history.queries.agents))

    async def check_known(self, wanted: Filter, *, later: bool = False) -> None:
        """Raises AgentNotFound, ToolNotFound, InvalidArgument for an agent, a tool or a type of event that is
        neither known nor in any stored event. `later`: events to come are wanted, of an agent to come, too.
        """
        agents, tools = self._defined()
        types = {kind for _, kind in all_types()}
        rows: tuple[tuple[Filter, str, Collection[str], type[LightagentError], str, str], ...] = (
            (
                Filter(agent=wanted.agent),
                "agent",
                agents,
                AgentNotFound,
                "about an agent",
                "lactl agents list",
            ),
            (Filter(tool=wanted.tool), "tool", tools, ToolNotFound, "about a tool", "lactl tools list"),
            (Filter(type=wanted.type), "type", types, InvalidArgument, "of a type", "lactl events schema"),
        )
        for only, field, known, missing, said, listing in rows:
            name = getattr(only, field)
            if not name or name in known or (later and field == "agent"):
                continue
            if not await asyncio.to_thread(self._history.queries.newest, only, 1):
                near = difflib.get_close_matches(name, sorted(known), 1)
                meant = f"Did you mean {near[0]}? " if near else ""
                raise missing(
                    f"No event is {said} {name[:60]!r}.", suggestion=f"{meant}Run: {listing}", field=field
                )

    def _defined(self) -> tuple[Collection[str], Collection[str]]:
        """The names of agents and of tools."""
        content = self._registry.shared.content
        return content.definitions.paths, content.toolbox.tools

    async def may_each(self, caller: Caller, operation: Operation, agents: Iterable[str]) -> frozenset[str]:
        """The agents for which the caller may do this. Nobody is asked for a password."""
        return await self._authority.may_each(caller, operation, agents)

    async def answering(self, caller: Caller, agents: Iterable[str]) -> Mapping[str, bool | None]:
        """Whether the caller may answer yes to what these agents ask; None when they must authenticate first.
        Nobody is asked for a password.
        """
        verdicts = await self._authority.verdicts(caller, Operation.APPROVE, agents)
        asked = any(verdict is not False for verdict in verdicts.values())
        return verdicts if not asked or await self._seat(caller) else dict.fromkeys(verdicts, False)

    async def admit_person(
        self, caller: Caller, operation: Operation, *, agent: str = ""
    ) -> tuple[Caller, Seat]:
        """As `admit`, for what no command of an agent may do; also where the caller's process runs."""
        caller = await self.admit(caller, operation, agent=agent)
        return caller, await self.person(caller)

    async def person(self, caller: Caller) -> Seat:
        """Where an admitted caller's process runs. Raises PermissionDenied for an agent's command."""
        return await self._seats.person(caller)

    def check_owner(self, caller: Caller) -> None:
        """Raises PermissionDenied for a token, and for a client of the gateway."""
        if caller.grant is not None:
            raise PermissionDenied(
                "This is not done with a token, nor through the gateway.",
                suggestion="Run lactl as the user themselves.",
            )

    async def admit_owner(
        self, caller: Caller, operation: Operation, *, agent: str = "", viewing: bool = False
    ) -> Caller:
        """As `admit`, for what no token may do, such as what would outlive it. Raises PermissionDenied."""
        self.check_owner(caller)
        return await self.admit(caller, operation, agent=agent, viewing=viewing)

    async def approver(self, caller: Caller, agent: str) -> Seat | None:
        """Where a caller's process runs who may answer yes to what this agent asks, without being asked
        themselves; None for other callers.
        """
        may = await self._authority.may(caller, Operation.APPROVE, agent=agent)
        return await self._seat(caller) if may else None

    async def _seat(self, caller: Caller) -> Seat | None:
        """As `person`; None for an agent's command."""
        try:
            return await self._seats.person(caller)
        except PermissionDenied:
            return None

    async def for_caller(self, event: api.TurnEvent, caller: Caller, agent: str) -> api.TurnEvent:
        """A turn event for this caller: a question says whether they may answer it. Nobody is asked."""
        if event["type"] != ApprovalRequested.type:
            return event
        verdict = (await self.answering(caller, [agent]))[agent]
        return {**event, "may_answer": verdict is True, "must_authenticate": verdict is None}

    def sight(self, caller: Caller, agent: str) -> Sight:
        """The caller's permissions during a stream, about one agent or all."""
        return Sight(self._authority, caller, agent)

    def visible(self, caller: Caller, agent: Agent) -> list[Session]:
        """The agent's sessions that the caller may see."""
        return [one for one in seen_of(caller, agent) if not (one.deleted or one.record.parent)]

    async def check_open(self, caller: Caller) -> None:
        """Raises ShuttingDown when the daemon accepts no new work, LimitExceeded when it accepts none of this
        admitted caller, BudgetExceeded when their token has used what models may use for it today.
        """
        if self._now.draining:
            raise ShuttingDown("The daemon is stopping and takes no new work.", suggestion="Try again later.")
        _check_day(caller, self._now.config.gateway.tokens_per_day, self._registry.shared.ledger)
        await self._hold(caller, lambda: self._owners.check_stored(caller.uid))

    async def check_new_session(self, caller: Caller) -> None:
        """As `check_open`; LimitExceeded also for an admitted caller with too many sessions."""
        await self.check_open(caller)
        agents = self._registry.agents.values()
        all_sessions = (one for agent in agents for one in agent.sessions.values())
        own = [one for one in all_sessions if one.record.owner == caller.uid and not one.record.parent]
        used = sum(not one.deleted for one in own)
        more = "Delete some: lactl sessions delete"
        await self._hold(caller, lambda: self._owners.check(caller.uid, "sessions", used, more))

    async def _hold(self, caller: Caller, check: Callable[[], None]) -> None:
        """Raises LimitExceeded when an admitted caller has reached a limit of owners, which hold no
        administrator: who else is one is asked only then.
        """
        if caller.is_administrator or caller.sees_all:
            return
        try:
            check()
        except LimitExceeded:
            if not (await self._authority.viewing(caller)).sees_all:
                raise


def _check_day(caller: Caller, most_of_any: int, ledger: Ledger) -> None:
    """Raises BudgetExceeded when a token has used what models may use for it today."""
    if (grant := caller.grant) is None:
        return
    most = min((limit for limit in (grant.tokens_per_day, most_of_any) if limit), default=0)
    if most and (used := ledger.tokens_today(grant.id)) >= most:
        whose = f"The token {grant.name}" if grant.name else "This user"
        raise BudgetExceeded(
            f"{whose} has used {used:,} tokens of models today, of {most:,}.",
            field="tokens_per_day",
            suggestion="Go on after midnight UTC, or take a token that may use more.",
        )


def sees(caller: Caller, owner: int) -> bool:
    """Whether an admitted caller may see what belongs to a uid."""
    return caller.viewer in (None, owner)


def seen_of(caller: Caller, agent: Agent) -> list[Session]:
    """As `Access.visible`, with those that are in no list, such as children."""
    return [one for one in agent.sessions.values() if sees(caller, one.record.owner)]


def correlation(caller: Caller, given: str) -> str:
    """What the events of a turn have as their correlation: what the caller gives, and before it the name of
    their token, which they can neither leave out nor change. Raises InvalidArgument.
    """
    if len(given) > 256:
        raise InvalidArgument("The correlation id is longer than 256 characters.", field="correlation_id")
    origin = caller.grant.origin if caller.grant is not None else ""
    return f"{origin} {given}".strip() if origin else given


def check_limit(limit: int) -> None:
    """Raises InvalidArgument."""
    if not 1 <= limit <= MAX_LIMIT:
        raise InvalidArgument(f"limit must be from 1 to {MAX_LIMIT}.", field="limit")


def is_last_event(event: api.TurnEvent) -> bool:
    """Whether a turn event ends its stream."""
    return event["type"] in api.LAST_EVENTS


def leave_out_long(sizes: list[int]) -> list[int]:
    """The places in a list of questions whose long texts are left out, so that the list holds every question.

    `sizes` are the numbers of characters. Short texts stay whole, and so do others as far as there is room.
    """
    room, left_out = LISTED_CHARS, []
    for at, size in enumerate(sizes):
        if size > SHORT_CHARS and size > room:
            left_out.append(at)
        else:
            room -= size
    return left_out
