"""The operations on what a session's model is sent: how full its window is, and compacting."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightagentd import api
from lightagentd.agents.sessions.context import compact, context_of
from lightagentd.control.authz import Caller
from lightagentd.control.operations.access import Access
from lightagentd.control.operations.declared import Operations, method
from lightagentd.policy.operation import Operation

if TYPE_CHECKING:
    from lightagentd.daemon.runtime import Runtime


class Contexts(Operations, interface="org.lightagent1.Sessions"):
    """What models are sent in sessions."""

    def __init__(self, access: Access, runtime: Runtime) -> None:
        self._access, self._panic = access, runtime.panic

    @method("Context", returns="context")
    async def context(self, caller: Caller, session: str) -> api.SessionContext:
        """What the next request of a session would have, in tokens."""
        caller, agent, found = await self._access.admit_to(caller, Operation.INSPECT, session)
        return await context_of(found, agent.running_parts())

    @method("Compact", returns="compacted")
    async def compact(self, caller: Caller, session: str) -> api.SessionCompacted:
        """Have a summary stand for the older messages in what the model is sent; the newest turn stays as it
        is, and so does the history. The model writes the summary, which counts as use. Fails while a turn
        runs or waits. Nothing is removed where there is no older turn.
        """
        caller, agent, found = await self._access.admit_to(caller, Operation.PROMPT, session)
        await self._access.check_open(caller)
        self._panic.check()
        done = await compact(found, agent, caller.uid)
        return api.SessionCompacted(**done.fields())
