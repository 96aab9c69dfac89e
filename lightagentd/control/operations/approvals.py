"""The operations on approvals, a part of `Service`.

Whoever may see a session may see what is asked in it. Approving needs `Operation.APPROVE`, whoever's session
it is: that a call comes from one's own session is no reason to allow it. Denying is for the owner too.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import TYPE_CHECKING

from lightagentd import api
from lightagentd.control.authz import Caller, Operation
from lightagentd.control.operations.checks import Operations
from lightagentd.errors import InvalidArgument
from lightagentd.policy.questions import approval as policy
from lightagentd.policy.questions.approvals import Approvals, not_found
from lightagentd.policy.questions.question import State

if TYPE_CHECKING:
    from lightagentd.agents.registry import Registry

NOTE_MAX_CHARS = 1000
LISTED_CHARS, SHORT_CHARS = 1 << 20, 1 << 10
"""How long the arguments and previews of a list may be in all, and those that are in it in any case."""


class ApprovalOperations(Operations):
    """List, look at and answer approvals."""

    _registry: Registry

    async def list_approvals(self, caller: Caller, *, every: bool) -> list[api.Approval]:
        """Those that wait or are granted and not used yet; with `every` those that are over, too.

        What is long is left out of a long list, so that no question can keep others from being seen.
        """
        caller = await self._admit(caller, Operation.INSPECT)
        await self._approvals.expire()
        kept = self._approvals
        found = await asyncio.to_thread(kept.all) if every else kept.open_ones()
        found = [one for one in found if _sees(caller, one)]
        agents = await self._inspectable(caller, {one.agent for one in found})
        may = await self._daemon.authority.may_each(caller, Operation.APPROVE, agents)
        listed = [_info(one, may_approve=one.agent in may) for one in found if one.agent in agents]
        room = LISTED_CHARS
        for at, one in enumerate(listed):
            size = len(one.preview) + len(json.dumps(one.args))
            if size > SHORT_CHARS and size > room:
                left_out = "(Left out of this list; lactl approvals show has it.)"
                listed[at] = replace(one, args={}, preview=left_out)
            else:
                room -= size
        return listed

    async def get_approval(self, caller: Caller, approval: str) -> api.Approval:
        caller, found = await self._admit_to_approval(caller, approval)
        return _info(found, may_approve=await self._may_approve(caller, found.agent))

    async def approve(self, caller: Caller, approval: str, note: str) -> api.Approval:
        caller, found = await self._admit_to_approval(caller, approval)
        caller = await self._admit(caller, Operation.APPROVE, agent=found.agent)
        self._registry.panic.check()
        return await self._answer_approval(caller, approval, note, grant=True)

    async def deny(self, caller: Caller, approval: str, note: str) -> api.Approval:
        caller, found = await self._admit_to_approval(caller, approval)
        if found.owner != caller.uid:
            caller = await self._admit(caller, Operation.APPROVE, agent=found.agent)
        return await self._answer_approval(caller, approval, note, grant=False)

    async def _answer_approval(
        self, caller: Caller, approval: str, note: str, *, grant: bool
    ) -> api.Approval:
        if len(note) > NOTE_MAX_CHARS or "\0" in note:
            raise InvalidArgument(
                f"The note holds a NUL byte or more than {NOTE_MAX_CHARS} characters.", field="note"
            )
        answered = await self._approvals.answer(approval, grant=grant, uid=caller.uid, note=note)
        return _info(answered, may_approve=False)

    async def _admit_to_approval(self, caller: Caller, approval: str) -> tuple[Caller, policy.Approval]:
        """For an approval that the caller may look at. Raises ApprovalNotFound, PermissionDenied."""
        caller = await self._admit(caller, Operation.INSPECT)
        found = self._visible_approval(caller, approval)
        return await self._admit(caller, Operation.INSPECT, agent=found.agent), found

    def _visible_approval(self, caller: Caller, approval: str) -> policy.Approval:
        """Raises ApprovalNotFound, also for one that the caller may not know of."""
        found = self._approvals.get(approval)
        if not _sees(caller, found):
            raise not_found(approval)
        return found

    @property
    def _approvals(self) -> Approvals:
        return self._registry.approvals


def _sees(caller: Caller, approval: policy.Approval) -> bool:
    return caller.viewer is None or approval.owner == caller.viewer


def _info(approval: policy.Approval, *, may_approve: bool) -> api.Approval:
    return api.Approval(
        id=approval.id,
        agent=approval.agent,
        session=approval.session,
        owner=approval.owner,
        trace_id=approval.trace_id,
        call_id=approval.call_id,
        tool=approval.tool,
        action=approval.action,
        effect=approval.effect,
        args=approval.shown,
        cwd=approval.cwd,
        digest=approval.digest,
        preview=approval.preview,
        rule=approval.rule,
        reason=approval.reason,
        created_us=approval.created_us,
        expires_us=approval.expires_us,
        state=approval.state.value,
        answered_by=approval.answered_by,
        answered_us=approval.answered_us,
        note=approval.note,
        volatile=approval.volatile,
        may_answer=approval.state is State.WAITING and may_approve,
    )
