"""The Varlink interface `org.lightagent1.Plans`; a plan's progress comes through `Sessions.Watch`."""

# No `from __future__ import annotations` here: asyncvarlink reads the annotations of each method.
from typing import Any

from asyncvarlink import VarlinkInterface, varlinkmethod

from lightagentd import api
from lightagentd.control.varlink.adapter import Adapter


class Plans(Adapter, VarlinkInterface, name="org.lightagent1.Plans"):
    """Plan mode: the plan of a session is drafted, looked at, and then applied task by task. While it is
    drafted or ready nothing runs in the session but what observes.
    """

    @varlinkmethod(return_parameter="plan")
    async def Get(self, *, session: str) -> api.Plan:
        """The session's plan; its phase is off where there is none."""
        return await self.service.get_plan(self.caller, session)

    @varlinkmethod(return_parameter="plan")
    async def Begin(self, *, session: str) -> api.Plan:
        """Begin to draft a plan: prompts of the session draft and revise it from now on. A plan that is
        drafted or ready stays. A call that runs already is not stopped.
        """
        return await self.service.begin_plan(self.caller, session)

    @varlinkmethod(return_parameter="plan", allow_foreign=True)
    async def Set(self, *, session: str, plan: Any) -> api.Plan:
        """Replace the plan by an object with title and tasks, a list of objects with text and, where there
        are any, id and check. Plan mode begins with it. Not while a plan is applied.
        """
        return await self.service.set_plan(self.caller, session, plan)

    @varlinkmethod(return_parameter="plan")
    async def Apply(self, *, session: str, choice: str | None = None, digest: str | None = None) -> api.Plan:
        """Begin to apply a plan that is ready, or go on after a task that failed: choice is then retry, skip
        or abort. Gives the plan as it is then and does not wait; Sessions.Watch tells how it goes. Prompts
        that come meanwhile go before the next task. Not while a prompt is worked on that may revise the plan.
        With digest, that of the plan which was read, another one is not applied.
        """
        return await self.service.apply_plan(self.caller, session, choice or "", digest or "")

    @varlinkmethod(return_parameter="plan")
    async def End(self, *, session: str) -> api.Plan:
        """Leave plan mode: what is not applied yet is dropped, and a task that runs is cancelled."""
        return await self.service.end_plan(self.caller, session)
