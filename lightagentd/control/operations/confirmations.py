"""The operations on changes that take themselves back unless they are confirmed.

Whoever may approve a call may confirm its change, and nobody else: no command of an agent either.
"""

from __future__ import annotations

import json

from lightagentd import api
from lightagentd.agents.confirming.confirmations import Confirmations as Kept
from lightagentd.agents.confirming.confirmations import not_found
from lightagentd.agents.confirming.records import Confirmation
from lightagentd.control.authz import Caller
from lightagentd.control.operations.access import Access, sees
from lightagentd.control.operations.declared import Operations, method
from lightagentd.control.presentation import shown
from lightagentd.policy.operation import Operation


class Confirmations(Operations, interface="org.lightagent1.Confirmations"):
    """Changes that are taken back unless they are confirmed in time, as network gear's commit confirmed.
    Subscribe to the topic confirmation to hear of them.
    """

    def __init__(self, access: Access, kept: Kept) -> None:
        self._access, self._kept = access, kept

    @method("List", returns="confirmations")
    async def listed(self, caller: Caller, *, all_: bool = False) -> list[api.Confirmation]:
        """The changes that wait to be confirmed, or could not be taken back, oldest first; with all, also
        those that are over.
        """
        caller = await self._access.admit(caller, Operation.INSPECT, viewing=True)
        await self._kept.settle()
        found = [one for one in self._kept.listed() if all_ or one.open or one.state == "failed"]
        found = [one for one in found if sees(caller, one.owner)]
        agents = await self._access.inspectable(caller, {one.agent for one in found})
        may = await self._access.answering(caller, agents)
        return [_info(one, may[one.agent]) for one in found if one.agent in agents]

    @method("Confirm", returns="confirmation")
    async def confirm(self, caller: Caller, call_id: str) -> api.Confirmation:
        """Keep the change of a call. Needs org.lightagent1.approve. After its time the error says what became
        of it.
        """

        def find(caller: Caller) -> tuple[str, Confirmation]:
            found = self._kept.get(call_id)
            if not sees(caller, found.owner):
                raise not_found(call_id)
            return found.agent, found

        caller, _ = await self._access.admit_to_own(caller, Operation.APPROVE, find)
        await self._access.person(caller)
        return _info(await self._kept.confirm(call_id, caller.uid), False)


def _info(found: Confirmation, may: bool | None) -> api.Confirmation:
    back = found.back
    text = f"{back['tool']}.{back['action']} {json.dumps(back['args'], ensure_ascii=False)}" if back else ""
    may = may if found.state in ("waiting", "failed") else False
    return shown(api.Confirmation, found, back=text, may_confirm=may is True, must_authenticate=may is None)
