"""The operations on usage and budgets, a part of `Service`.

What a user's own sessions and turns took, he may see, and what he took in all. What an agent took goes to
whoever may look at that agent; what others took, and everybody together, to whoever sees all sessions.
"""

from __future__ import annotations

from lightagentd import api
from lightagentd.agents.model_calls.metering.ledger import SCOPES, Ledger, Row, Whose, today
from lightagentd.agents.model_calls.metering.meter import used_of
from lightagentd.control.authz import Caller, Operation
from lightagentd.control.operations.checks import MAX_LIMIT
from lightagentd.control.operations.sessions import SessionOperations
from lightagentd.errors import InvalidArgument, NotFound, PermissionDenied

_LARGEST_FIRST = ("agent", "owner")
"""The scopes whose rows have no order in time that means something."""


class UsageOperations(SessionOperations):
    """What was used, and what may be."""

    async def usage(self, caller: Caller, scope: str, name: str) -> list[api.Usage]:
        if scope not in SCOPES:
            raise InvalidArgument(
                f"There is no scope {scope[:60]!r}.",
                field="scope",
                suggestion=f"The scopes are: {', '.join(SCOPES)}.",
            )
        if scope == "session" and name:
            await self._admit_to(caller, Operation.INSPECT, name)
            return [_info(self._ledger.row(f"session/{name}"))]
        if scope == "agent" and name:
            await self._admit(caller, Operation.INSPECT, agent=name)
            return [_info(self._ledger.row(f"agent/{self._registry.get(name).name}"))]
        caller = await self._admit(caller, Operation.INSPECT)
        if scope in ("day", "all"):
            _check_sees_all(caller, scope)
        if scope == "owner_day" and name and "/" not in name:
            name = f"{name}/{caller.uid}"
        found = [row for row in await self._ledger.rows(scope) if _fits(row, scope, name)]
        found = await self._visible_rows(caller, scope, found)
        if name and not found:
            own = {f"{caller.uid}", f"{today()}/{caller.uid}", today(), "all"}
            if scope in ("turn", "session") or name not in own:
                raise NotFound(
                    f"There is no usage of the {scope} {name[:60]!r}.",
                    field="name",
                    suggestion="Run: lactl usage",
                )
            found = [Row(key=f"{scope}/{name}")]
        newest = [row.counters.total_tokens if scope in _LARGEST_FIRST else row.updated_us for row in found]
        order = sorted(range(len(found)), key=lambda index: -newest[index])
        return [_info(found[index]) for index in order[:MAX_LIMIT]]

    async def budgets(self, caller: Caller, session: str) -> list[api.BudgetState]:
        """Those of the caller; with a session, its own, and those of its owner."""
        if session:
            caller, agent, found = await self._admit_to(caller, Operation.INSPECT, session)
            running = found.running
            turn = running.trace_id if running and not running.over.is_set() else ""
            whose = Whose(agent=agent.name, owner=found.record.owner, session=session, trace_id=turn)
        else:
            caller = await self._admit(caller, Operation.INSPECT)
            whose = Whose(agent="", owner=caller.uid)
        return [
            api.BudgetState(
                scope=limit.scope, name=name, what=limit.what, used=round(used, 6), limit=limit.most
            )
            for limit, name, used in used_of(self._ledger, whose)
            if limit.scope != "day" or caller.viewer is None
        ]

    async def _visible_rows(self, caller: Caller, scope: str, rows: list[Row]) -> list[Row]:
        """Those that the caller may see; sessions and agents that are gone are left out."""
        viewer = caller.viewer
        if scope in ("session", "agent", "turn"):
            seen = await self._inspectable(caller, self._registry.agents)
            if scope == "agent":
                return [row for row in rows if row.name in seen]
            if scope == "session":
                agents = [one for one in self._registry.agents.values() if one.name in seen]
                own = {session.id for agent in agents for session in self._visible(caller, agent)}
                return [row for row in rows if row.name in own]
            return [
                row
                for row in rows
                if viewer in (None, row.whose.get("owner"))
                and (row.whose.get("agent") in seen or caller.is_administrator)
            ]
        if scope in ("owner", "owner_day") and viewer is not None:
            return [row for row in rows if row.name.rpartition("/")[2] == str(viewer)]
        return rows

    @property
    def _ledger(self) -> Ledger:
        return self._registry.ledger


def _fits(row: Row, scope: str, name: str) -> bool:
    """Whether a row is one that was asked for: by its name, or of turns by that of their session."""
    return not name or row.name == name or (scope == "turn" and row.whose.get("session") == name)


def _check_sees_all(caller: Caller, scope: str) -> None:
    if caller.viewer is not None:
        raise PermissionDenied(
            f"What everybody used together (the scope {scope}) is for administrators.",
            suggestion="Your own: lactl usage --by owner, or --by owner_day.",
        )


def _info(row: Row) -> api.Usage:
    used = row.counters
    return api.Usage(
        scope=row.key.partition("/")[0],
        name=row.name,
        turns=used.turns,
        steps=used.steps,
        steps_without_usage=used.steps_without_usage,
        steps_without_price=used.steps_without_price,
        calls=used.calls,
        prompt_tokens=used.prompt_tokens,
        completion_tokens=used.completion_tokens,
        cached_tokens=used.cached_tokens,
        total_tokens=used.total_tokens,
        cost=round(used.cost, 9),
        wall_ms=used.wall_ms,
    )
