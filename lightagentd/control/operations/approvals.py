"""The operations on approvals.

A caller who may see a session may see its approvals. Approving needs `Operation.APPROVE` in any session: a
call from one's own session is not approved for that reason. The owner may deny without it.
"""

from __future__ import annotations

import hmac
import json
from dataclasses import replace

from lightagentd import api
from lightagentd.control.authz import Caller
from lightagentd.control.operations.access import Access, leave_out_long, sees
from lightagentd.control.operations.declared import Operations, method
from lightagentd.control.presentation import shown
from lightagentd.errors import ApprovalMismatch, InvalidArgument
from lightagentd.host.seat import Seat
from lightagentd.policy.operation import Operation
from lightagentd.policy.panic import Panic
from lightagentd.policy.questions import approval as policy
from lightagentd.policy.questions import approvals as store
from lightagentd.policy.questions.question import State

NOTE_MAX_CHARS = 1000
_LEFT_OUT = "(Left out of this list; lactl approvals show has it.)"


class Approvals(Operations, interface="org.lightagent1.Approvals"):
    """Questions about calls that policy lets run only when a person allows them. Each counts for one call,
    once. Subscribe to the topic approval to hear of them.
    """

    def __init__(self, access: Access, kept: store.Approvals, panic: Panic) -> None:
        self._access, self._kept, self._panic = access, kept, panic

    @method("List", returns="approvals")
    async def listed(self, caller: Caller, *, all_: bool = False) -> list[api.Approval]:
        """The open questions that the caller may see, oldest first; with all, also those that are over."""
        caller = await self._access.admit(caller, Operation.INSPECT, viewing=True)
        found = await self._kept.questions.listed(closed=all_)
        found = [one for one in found if sees(caller, one.owner)]
        agents = await self._access.inspectable(caller, {one.agent for one in found})
        may = await self._access.may_each(caller, Operation.APPROVE, agents)
        listed = [_info(one, may_approve=one.agent in may) for one in found if one.agent in agents]
        for at in leave_out_long([len(one.preview) + len(json.dumps(one.args)) for one in listed]):
            listed[at] = replace(listed[at], args={}, preview=_LEFT_OUT)
        return listed

    @method("Get", returns="approval")
    async def get(self, caller: Caller, approval: str) -> api.Approval:
        """One question, with what the call would do."""
        caller, found = await self._admit_to(caller, Operation.INSPECT, approval)
        return _info(found, may_approve=await self._access.may_approve(caller, found.agent))

    @method("Approve", returns="approval")
    async def approve(self, caller: Caller, approval: str, note: str = "", digest: str = "") -> api.Approval:
        """Allow the call, once. Needs org.lightagent1.approve, also for the caller's own session. digest is
        that of the question that was shown: the answer counts for no other.
        """
        caller, found = await self._admit_to(caller, Operation.APPROVE, approval)
        seat = await self._access.person(caller)
        if digest and not hmac.compare_digest(digest.encode(), found.digest.encode()):
            raise ApprovalMismatch(
                f"The approval {found.id} asks about something else than what was shown.",
                suggestion=f"Nothing was allowed. Look at it again: lactl approvals show {found.id}",
            )
        self._panic.check()
        return await self._answer(caller, approval, note, seat)

    @method("Deny", returns="approval")
    async def deny(self, caller: Caller, approval: str, note: str = "") -> api.Approval:
        """Refuse the call; the model reads the note. The owner of the session may do this, too, also with
        a token for prompts.
        """
        found = self._kept.questions.find(approval)
        own = found is not None and found.owner == caller.uid
        may = Operation.INSPECT if caller.grant is None else Operation.PROMPT
        operation = may if own else Operation.APPROVE
        caller, _ = await self._admit_to(caller, operation, approval)
        return await self._answer(caller, approval, note)

    async def _answer(
        self, caller: Caller, approval: str, note: str, seat: Seat | None = None
    ) -> api.Approval:
        """Grant it from a seat, or deny it."""
        if len(note) > NOTE_MAX_CHARS or "\0" in note:
            raise InvalidArgument(
                f"The note holds a NUL byte or more than {NOTE_MAX_CHARS} characters.", field="note"
            )
        answered = await self._kept.answer(
            approval, grant=seat is not None, uid=caller.uid, note=note, seat=seat or Seat()
        )
        return _info(answered, may_approve=False)

    async def _admit_to(
        self, caller: Caller, operation: Operation, approval: str
    ) -> tuple[Caller, policy.Approval]:
        """The approval, if the caller may see it. Raises ApprovalNotFound, PermissionDenied."""

        def find(caller: Caller) -> tuple[str, policy.Approval]:
            found = self._kept.questions.get(approval)
            if not sees(caller, found.owner):
                raise store.not_found(approval)
            return found.agent, found

        return await self._access.admit_to_own(caller, operation, find)


def _info(approval: policy.Approval, *, may_approve: bool) -> api.Approval:
    may_answer = approval.state is State.WAITING and may_approve
    return shown(api.Approval, approval, args=approval.shown, may_answer=may_answer)
