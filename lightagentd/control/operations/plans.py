"""The operations on plans. A caller who may prompt a session may plan in it."""

from __future__ import annotations

from typing import Any

from lightagentd import api
from lightagentd.agents.planning import plans
from lightagentd.agents.planning.plan import shown
from lightagentd.control.authz import Caller
from lightagentd.control.operations.access import Access
from lightagentd.control.operations.declared import Operations, method
from lightagentd.policy.operation import Operation


class Plans(Operations, interface="org.lightagent1.Plans"):
    """Plan mode: the plan of a session is drafted, looked at, and then applied task by task. While it is
    drafted or ready nothing runs in the session but what observes.
    """

    def __init__(self, access: Access, kept: plans.Plans) -> None:
        self._access, self._plans = access, kept

    @method("Get", returns="plan")
    async def get(self, caller: Caller, session: str) -> api.Plan:
        """The session's plan; its phase is off where there is none."""
        _, _, found = await self._access.admit_to(caller, Operation.INSPECT, session)
        return shown(session, found.plan)

    @method("Begin", returns="plan")
    async def begin(self, caller: Caller, session: str) -> api.Plan:
        """Begin to draft a plan: prompts of the session draft and revise it from now on. A plan that is
        drafted or ready stays. A call that runs already is not stopped.
        """
        caller, _, found = await self._access.admit_to(caller, Operation.PROMPT, session)
        await self._access.check_open(caller)
        return shown(session, await self._plans.begin(found, by=caller.uid))

    @method("Set", returns="plan")
    async def set(self, caller: Caller, session: str, plan: Any) -> api.Plan:
        """Replace the plan by an object with title and tasks, a list of objects with text and, where there
        are any, id and check. Plan mode begins with it. Not while a plan is applied.
        """
        caller, _, found = await self._access.admit_to(caller, Operation.PROMPT, session)
        await self._access.check_open(caller)
        return shown(session, await self._plans.set(found, plan, by=caller.uid))

    @method("Apply", returns="plan")
    async def apply(self, caller: Caller, session: str, choice: str = "", digest: str = "") -> api.Plan:
        """Begin to apply a plan that is ready, or go on after a task that failed: choice is then retry, skip
        or abort. Gives the plan as it is then and does not wait; Sessions.Watch tells how it goes. Prompts
        that come meanwhile go before the next task. Not while a prompt is worked on that may revise the plan.
        With digest, that of the plan which was read, another one is not applied.
        """
        caller, agent, found = await self._access.admit_to(caller, Operation.PROMPT, session)
        await self._access.check_open(caller)
        return shown(session, await self._plans.apply(agent, found, choice, by=caller.uid, digest=digest))

    @method("End", returns="plan")
    async def end(self, caller: Caller, session: str) -> api.Plan:
        """Leave plan mode: what is not applied yet is dropped, and a task that runs is cancelled."""
        caller, agent, found = await self._access.admit_to(caller, Operation.PROMPT, session)
        await self._plans.end(agent, found, by=caller.uid)
        return shown(session, None)
