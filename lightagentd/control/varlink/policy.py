"""The Varlink interface `org.lightagent1.Policy`."""

# No `from __future__ import annotations` here: asyncvarlink reads the annotations of each method.
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from asyncvarlink import LastResult, VarlinkInterface, varlinkmethod

from lightagentd import api
from lightagentd.control.varlink.adapter import Adapter


class Policy(Adapter, VarlinkInterface, name="org.lightagent1.Policy"):
    """The rules that say which calls run, which are asked for and which are refused. They come from policy.d
    alone: no method changes them.
    """

    @varlinkmethod(return_parameter="rules", allow_foreign=True)
    async def List(self) -> list[api.PolicyRule]:
        """The rules in force, in the order of their files."""
        return await self.service.list_rules(self.caller)

    @varlinkmethod(return_parameter="explanation", allow_foreign=True)
    async def Explain(
        self,
        *,
        agent: str,
        tool: str,
        action: str,
        args: Any,
        trigger: str | None = None,
        tainted: bool = False,
        caller: int | None = None,
        plan: str | None = None,
    ) -> api.PolicyExplanation:
        """What policy would say to a call, and which rule decides. args is an object, trigger is person
        unless another is named, caller the uid that owns the session, by default that of the peer. plan is
        observe or none, what may run while a plan is drafted; without it none is. Nothing is called.
        """
        return await self.service.explain_policy(
            self.caller,
            agent=agent,
            tool=tool,
            action=action,
            args=args,
            trigger="person" if trigger is None else trigger,
            tainted=tainted,
            uid=caller,
            plan=plan or "",
        )

    @varlinkmethod(return_parameter="replay", delay_generator=False, allow_foreign=True)
    async def Replay(
        self, *, files: Any, agent: str | None = None, since_us: int | None = None
    ) -> AsyncIterator[api.PolicyReplay]:
        """Judge the stored calls that the caller may see by the rules in files, an object of names and texts,
        and stream those whose decision would change. The last reply has no change, and the counts of all.
        """
        answers = self.service.replay_policy(
            self.caller, files=files, agent=agent or "", since_us=since_us or 0
        )
        async with aclosing(answers) as stream:
            async for one in stream:
                if one.change is None:
                    raise LastResult(one)
                yield one
