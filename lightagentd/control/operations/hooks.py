"""The operations on hooks: which are in force, and what they say to a payload. None changes a file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lightagentd import api
from lightagentd.control.authz import Caller
from lightagentd.control.operations.access import Access
from lightagentd.control.operations.declared import Operations, method
from lightagentd.control.presentation import shown
from lightagentd.errors import InvalidArgument
from lightagentd.policy.operation import Operation
from lightagentd.toolkit.hook import PHASES

if TYPE_CHECKING:
    from lightagentd.daemon.runtime import Runtime


class Hooks(Operations, interface="org.lightagent1.Hooks"):
    """The administrator's hooks around turns and calls. They come from hooks/ of the configuration and of
    kits: no method changes them.
    """

    def __init__(self, access: Access, runtime: Runtime) -> None:
        self._access, self._hooks = access, runtime.registry.shared.hooks
        self._agents = runtime.registry.get

    @method("List", returns="hooks")
    async def listed(self, caller: Caller, *, anew: bool = False) -> list[api.Hook]:
        """The hook files in force, in the order in which they are asked; anew: as they lie there now, which
        are in force after a reload.
        """
        await self._access.admit(caller, Operation.ADMINISTER if anew else Operation.INSPECT)
        return [shown(api.Hook, one) for one in (await self._hooks.look() if anew else self._hooks.files)]

    @method("Test", returns="test")
    async def test(self, caller: Caller, phase: str, payload: Any, *, agent: str = "") -> api.HookTest:
        """Ask the hooks in force about a payload, an object. Nothing is stored. Without an agent, those that
        are asked for all agents.
        """
        await self._access.admit(caller, Operation.ADMINISTER)
        if phase not in PHASES:
            known = f"The phases are: {', '.join(PHASES)}."
            raise InvalidArgument(f"{phase[:60]!r} is not a phase.", field="phase", suggestion=known)
        if not isinstance(payload, dict):
            raise InvalidArgument("The payload must be an object.", field="payload")
        if agent:
            self._agents(agent)
        tried = await self._hooks.attempt(phase, agent, payload)
        return api.HookTest(
            payload=tried.payload, decided=tried.decided, blocked=tried.blocked is not None, asked=tried.asked
        )
