"""The operations on plans, a part of `Service`: whoever may prompt a session may plan in it."""

from __future__ import annotations

from typing import Any

from lightagentd import api
from lightagentd.agents.planning.plan import shown
from lightagentd.control.authz import Caller, Operation
from lightagentd.control.operations.sessions import SessionOperations


class PlanOperations(SessionOperations):
    """Draft, look at and apply plans."""

    async def get_plan(self, caller: Caller, session: str) -> api.Plan:
        _, _, found = await self._admit_to(caller, Operation.INSPECT, session)
        return shown(session, found.plan)

    async def begin_plan(self, caller: Caller, session: str) -> api.Plan:
        caller, _, found = await self._admit_to(caller, Operation.PROMPT, session)
        self._check_open()
        return shown(session, await self._registry.plans.begin(found, by=caller.uid))

    async def set_plan(self, caller: Caller, session: str, plan: Any) -> api.Plan:
        caller, _, found = await self._admit_to(caller, Operation.PROMPT, session)
        self._check_open()
        return shown(session, await self._registry.plans.set(found, plan, by=caller.uid))

    async def apply_plan(self, caller: Caller, session: str, choice: str, digest: str) -> api.Plan:
        caller, agent, found = await self._admit_to(caller, Operation.PROMPT, session)
        self._check_open()
        applied = await self._registry.plans.apply(agent, found, choice, by=caller.uid, digest=digest)
        return shown(session, applied)

    async def end_plan(self, caller: Caller, session: str) -> api.Plan:
        caller, agent, found = await self._admit_to(caller, Operation.PROMPT, session)
        await self._registry.plans.end(agent, found, by=caller.uid)
        return shown(session, None)
