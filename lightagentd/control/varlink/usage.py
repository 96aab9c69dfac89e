"""The Varlink interface `org.lightagent1.Usage`."""

# No `from __future__ import annotations` here: asyncvarlink reads the annotations of each method.
from asyncvarlink import VarlinkInterface, varlinkmethod

from lightagentd import api
from lightagentd.control.varlink.adapter import Adapter


class Usage(Adapter, VarlinkInterface, name="org.lightagent1.Usage"):
    """What turns used: tokens, steps, calls, time and money. What others used, an administrator may see."""

    @varlinkmethod(return_parameter="usage")
    async def Get(self, *, scope: str, name: str | None = None) -> list[api.Usage]:
        """What was used in a scope: turn, session, agent, owner, owner_day, day or all. Without name, of all
        of that kind that the caller may see, the newest or largest first, at most 1000. The name of a turn is
        its trace id, or a session's id for all turns of that; that of an owner is a uid, of a day YYYY-MM-DD,
        of an owner's day YYYY-MM-DD/UID.
        """
        return await self.service.usage(self.caller, scope, name or "")

    @varlinkmethod(return_parameter="budgets")
    async def Budgets(self, *, session: str | None = None) -> list[api.BudgetState]:
        """The limits that apply to the caller, or to a session, and how much of each is used. Those of each
        turn, and without a session those of each session, have an empty name, and nothing is used.
        """
        return await self.service.budgets(self.caller, session or "")
