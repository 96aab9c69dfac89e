"""The operations on usage and budgets.

Users may see the usage of their own sessions and turns, and their own total. Of an agent, callers who may
inspect it see what their own sessions used. The usage of others, and the overall total, are for callers who
see all sessions.
"""

from __future__ import annotations

from collections.abc import Set

from lightagentd import api
from lightagentd.agents.model_calls.metering.ledger import SCOPES, Row, Whose, today
from lightagentd.agents.model_calls.metering.meter import used_of
from lightagentd.agents.registry import Registry
from lightagentd.control.authz import Caller
from lightagentd.control.operations.access import MAX_LIMIT, Access
from lightagentd.control.operations.declared import Operations, method
from lightagentd.control.presentation import shown
from lightagentd.errors import InvalidArgument, NotFound, PermissionDenied
from lightagentd.policy.operation import Operation

_LARGEST_FIRST = ("agent", "owner")
"""The scopes whose rows have no order in time that means something."""


class Usage(Operations, interface="org.lightagent1.Usage"):
    """What turns used: tokens, steps, calls, time and money. What others used, an administrator may see."""

    def __init__(self, access: Access, registry: Registry) -> None:
        self._access, self._registry, self._ledger = access, registry, registry.shared.ledger

    @method("Get", returns="usage")
    async def get(self, caller: Caller, scope: str, name: str = "") -> list[api.Usage]:
        """What was used in a scope: turn, session, agent, owner, owner_day, day or all. Without name, of all
        of that kind that the caller may see, the newest or largest first, at most 1000. The name of a turn is
        its trace id, or a session's id for all turns of that; that of an owner is a uid, of a day YYYY-MM-DD,
        of an owner's day YYYY-MM-DD/UID. Of an agent, callers who do not see all sessions get what their own
        used, as far as these still exist.
        """
        if scope not in SCOPES:
            raise InvalidArgument(
                f"There is no scope {scope[:60]!r}.",
                field="scope",
                suggestion=f"The scopes are: {', '.join(SCOPES)}.",
            )
        if scope == "session" and name:
            await self._access.admit_to(caller, Operation.INSPECT, name)
            return [_info(self._ledger.row(f"session/{name}"))]
        if scope == "agent" and name:
            caller = await self._access.admit(caller, Operation.INSPECT, agent=name, viewing=True)
            agent = self._registry.get(name).name
            if caller.viewer is not None:
                return [_info(row) for row in await self._own_of_agents(caller, {agent})]
            return [_info(self._ledger.row(f"agent/{agent}"))]
        caller = await self._access.admit(caller, Operation.INSPECT, viewing=True)
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

    @method("Budgets", returns="budgets")
    async def budgets(self, caller: Caller, session: str = "") -> list[api.BudgetState]:
        """The limits that apply to the caller, or to a session, and how much of each is used. Those of each
        turn, and without a session those of each session, have an empty name, and nothing is used.
        """
        if session:
            caller, agent, found = await self._access.admit_to(caller, Operation.INSPECT, session)
            caller = await self._access.viewing(caller)
            running = found.running
            turn = running.trace_id if running and not running.over.is_set() else ""
            whose = Whose(agent=agent.name, owner=found.record.owner, session=session, trace_id=turn)
        else:
            caller = await self._access.admit(caller, Operation.INSPECT, viewing=True)
            whose = Whose(agent="", owner=caller.uid)
        return [
            api.BudgetState(
                scope=limit.scope, name=name, what=limit.what, used=round(used, 6), limit=limit.most
            )
            for limit, name, used in used_of(self._ledger, whose)
            if limit.scope != "day" or caller.viewer is None
        ]

    async def _visible_rows(self, caller: Caller, scope: str, rows: list[Row]) -> list[Row]:
        """The rows that the caller may see; deleted sessions and removed agents are left out."""
        viewer = caller.viewer
        if scope in ("session", "agent", "turn"):
            seen = await self._access.inspectable(caller, self._registry.agents)
            if scope == "agent":
                if viewer is not None:
                    named = seen & {row.name for row in rows}
                    return await self._own_of_agents(caller, named)
                return [row for row in rows if row.name in seen]
            if scope == "session":
                agents = [one for one in self._registry.agents.values() if one.name in seen]
                own = {session.id for agent in agents for session in self._access.visible(caller, agent)}
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

    async def _own_of_agents(self, caller: Caller, names: Set[str]) -> list[Row]:
        """What the caller's own sessions with these agents used: a row for each agent, by name."""
        used = {row.name: row.counters for row in await self._ledger.rows("session")}
        found = [Row(key=f"agent/{name}") for name in sorted(names)]
        for row in found:
            for session in self._access.visible(caller, self._registry.agents[row.name]):
                if session.id in used:
                    row.counters.add(used[session.id].to_dict())
        return found


def _fits(row: Row, scope: str, name: str) -> bool:
    """Whether a row was asked for: by its name, or for turns by the name of their session."""
    return not name or row.name == name or (scope == "turn" and row.whose.get("session") == name)


def _check_sees_all(caller: Caller, scope: str) -> None:
    if caller.viewer is not None:
        raise PermissionDenied(
            f"What everybody used together (the scope {scope}) is for administrators.",
            suggestion="Your own: lactl usage --by owner, or --by owner_day.",
        )


def _info(row: Row) -> api.Usage:
    used, scope = row.counters, row.key.partition("/")[0]
    return shown(api.Usage, used, scope=scope, name=row.name, cost=round(used.cost, 9))
