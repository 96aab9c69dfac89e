"""`org.lightagent1.Undo`, and the methods of `org.lightagent1.Manager` for bad days, which it takes in."""

# No `from __future__ import annotations` here: asyncvarlink reads the annotations of each method.
from collections.abc import AsyncIterator
from contextlib import aclosing

from asyncvarlink import VarlinkInterface, varlinkmethod

from lightagentd import api
from lightagentd.control.varlink.adapter import Adapter, relay


class SafetyMethods(Adapter):
    """What an administrator needs when something is wrong."""

    @varlinkmethod(return_parameter="stopped")
    async def Panic(self, *, reason: str | None = None) -> api.Stopped:
        """End every turn and kill every worker at once, and refuse new ones until EndPanic, also after a
        restart. Everything that only looks goes on working.
        """
        return await self.service.panic(self.caller, reason or "")

    @varlinkmethod(return_parameter="diagnosis")
    async def Diagnose(self, *, agent: str | None = None, models: bool | None = None) -> api.Diagnosis:
        """Have each worker (of one agent, or of all) try what its effect may not do, and look at the rest of
        the daemon and the machine. With models, try whether the endpoints of models can be reached; nothing
        is asked of them. Changes nothing, and takes some seconds.
        """
        return await self.service.diagnose(self.caller, agent or "", models=bool(models))

    @varlinkmethod
    async def EndPanic(self) -> None:
        """Allow turns and workers again. What was asked for before the stop is not taken up."""
        await self.service.end_panic(self.caller)


class Undo(Adapter, VarlinkInterface, name="org.lightagent1.Undo"):
    """Changes of files that can be taken back."""

    @varlinkmethod(return_parameter="changes")
    async def List(self, *, agent: str | None = None) -> list[api.Change]:
        """The newest changes of files that were kept, newest first."""
        return await self.service.list_undoable(self.caller, agent or "")

    @varlinkmethod(return_parameter="event", delay_generator=False, allow_foreign=True)
    async def Run(
        self, *, call_id: str | None = None, agent: str | None = None
    ) -> AsyncIterator[api.TurnEvent]:
        """Take back what a call changed, or the caller's newest change that still stands. It is a call of its
        own, through policy, and can be taken back in the same way. A file that was changed since is left.
        """
        events = self.service.undo(self.caller, call_id or "", agent or "")
        async with aclosing(relay(events)) as relayed:
            async for event in relayed:
                yield event
