"""The operations on approvals.

A caller who may see a session may see its approvals. Approving needs `Operation.APPROVE` in any session: a
call from one's own session is not approved for that reason. The owner may deny without it.
"""

from __future__ import annotations

import hmac
import json
from dataclasses import replace

from lightagentd import api
from lightagentd.agents.confirming import ways
from lightagentd.agents.registry import Registry
from lightagentd.agents.sessions.session import Session
from lightagentd.agents.tool_calls import leaves
from lightagentd.config.terms import Terms, terms_of
from lightagentd.control.authz import Caller
from lightagentd.control.operations.access import Access, leave_out_long, sees
from lightagentd.control.operations.declared import Operations, method
from lightagentd.control.presentation import shown
from lightagentd.errors import ApprovalMismatch, ApproverAnswers, Conflict, InvalidArgument, LightagentError
from lightagentd.events.history import Change, NewEvent
from lightagentd.events.types.session import LeaveGiven
from lightagentd.host.seat import Seat
from lightagentd.policy.operation import Operation
from lightagentd.policy.questions import approval as policy
from lightagentd.policy.questions import approvals as store
from lightagentd.policy.questions.question import State, now_us
from lightagentd.redaction import Redactor

NOTE_MAX_CHARS = 1000
_LEFT_OUT = "(Left out of this list; lactl approvals show has it.)"


class Approvals(Operations, interface="org.lightagent1.Approvals"):
    """Questions about calls that policy lets run only when a person allows them. Each counts for one call,
    once. Subscribe to the topic approval to hear of them.
    """

    def __init__(self, access: Access, registry: Registry) -> None:
        shared = registry.shared
        self._access, self._kept, self._panic = access, shared.asked.approvals, shared.panic
        self._redactor, self._toolbox = shared.history.redactor, shared.content.toolbox_of
        self._registry = registry

    @method("List", returns="approvals")
    async def listed(self, caller: Caller, *, all_: bool = False) -> list[api.Approval]:
        """The open questions that the caller may see, oldest first; with all, also those that are over."""
        caller = await self._access.admit(caller, Operation.INSPECT, viewing=True)
        found = await self._kept.questions.listed(closed=all_)
        found = [one for one in found if sees(caller, one.owner)]
        agents = await self._access.inspectable(caller, {one.agent for one in found})
        may = await self._access.answering(caller, agents)
        listed = [_info(one, may[one.agent]) for one in found if one.agent in agents]
        for at in leave_out_long([len(one.preview) + len(json.dumps(one.args)) for one in listed]):
            listed[at] = replace(listed[at], args={}, preview=_LEFT_OUT)
        return listed

    @method("Get", returns="approval")
    async def get(self, caller: Caller, approval: str) -> api.Approval:
        """One question, with what the call would do."""
        caller, found = await self._admit_to(caller, Operation.INSPECT, approval)
        return _info(found, (await self._access.answering(caller, [found.agent]))[found.agent])

    @method("Approve", returns="approval")
    async def approve(
        self,
        caller: Caller,
        approval: str,
        note: str = "",
        digest: str = "",
        confirm_within: str = "",
        check: str = "",
        inverse: str = "",
        *,
        for_session: bool = False,
        tainted: bool = False,
    ) -> api.Approval:
        """Allow the call, once. Needs org.lightagent1.approve, also for the caller's own session. digest is
        that of the question that was shown: the answer counts for no other.

        With confirm_within, such as 5m, the change is taken back after that time, also after a restart,
        unless Confirmations.Confirm comes, or the shell command check ends with 0. Files get their content
        back and units their state; other calls need inverse, a shell command or TOOL.ACTION {ARGUMENTS}.

        With for_session exactly this call is allowed for as long as the session is there; with tainted also
        while text from outside is in it.
        """
        caller, found = await self._admit_to(caller, Operation.APPROVE, approval)
        if found.approver:
            raise ApproverAnswers(
                f"A change is not allowed by the daemon: {found.id} waits at the approver.",
                suggestion=f"Run: lactl approve {found.id}",
            )
        seat = await self._access.person(caller)
        if digest and not hmac.compare_digest(digest.encode(), found.digest.encode()):
            raise ApprovalMismatch(
                f"The approval {found.id} asks about something else than what was shown.",
                suggestion=f"Nothing was allowed. Look at it again: lactl approvals show {found.id}",
            )
        self._panic.check()
        terms = self._terms(found, confirm_within, check, inverse)
        on = found if terms is None else replace(found, **terms.fields())
        leave = self._leave(on, caller.uid, tainted=tainted) if for_session else None
        try:
            return await self._answer(caller, approval, note, seat, terms, leave)
        except LightagentError:
            if leave is not None:
                _drop_leave(*leave)
            raise

    def _leave(self, found: policy.Approval, by: int, *, tainted: bool) -> tuple[Session, str]:
        """Give a leave, which is stored with the answer; gives its session and its id. Raises Conflict."""
        _, session = self._registry.session(found.session)
        record = session.record
        if record.tainted and not tainted:
            raise Conflict(
                "Text from outside is in this session, and a leave does not count then.",
                suggestion="Allow it once; or say that this is meant: --session --tainted",
            )
        if len(record.leaves) >= leaves.MOST:
            raise Conflict(f"The session has {leaves.MOST} leaves already.", suggestion="Withdraw some.")
        leave = leaves.leave_of(found, tainted=tainted, by=by, now_us=now_us())
        session.record = replace(record, leaves=(*record.leaves, leave))
        return session, str(leave["id"])

    def _terms(self, found: policy.Approval, within: str, check: str, inverse: str) -> Terms | None:
        """Those of the person, and where they leave something out, those that the question has. Raises
        InvalidArgument; Conflict for a call that cannot be taken back.
        """
        if not (within or check or inverse):
            return None
        asked = within or (f"{found.confirm_within_s}s" if found.confirm_within_s else "")
        terms = given_terms(self._redactor, asked, check or found.check, inverse or found.inverse)
        assert terms is not None
        ways.check(terms, self._toolbox(found.agent), found.tool, found.action, found.effect, found.expected)
        return terms

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
        self,
        caller: Caller,
        approval: str,
        note: str,
        seat: Seat | None = None,
        terms: Terms | None = None,
        leave: tuple[Session, str] | None = None,
    ) -> api.Approval:
        """Grant it from a seat, or deny it."""
        if len(note) > NOTE_MAX_CHARS or "\0" in note:
            raise InvalidArgument(
                f"The note holds a NUL byte or more than {NOTE_MAX_CHARS} characters.", field="note"
            )
        answered = await self._kept.answer(
            approval,
            grant=seat is not None,
            uid=caller.uid,
            note=note,
            seat=seat or Seat(),
            terms=terms,
            with_it=((), ()) if leave is None else _stored_leave(*leave),
        )
        return _info(answered, False)

    async def _admit_to(
        self, caller: Caller, operation: Operation, approval: str
    ) -> tuple[Caller, policy.Approval]:
        return await admit_to(self._access, self._kept, caller, operation, approval)


async def admit_to(
    access: Access, kept: store.Approvals, caller: Caller, operation: Operation, approval: str
) -> tuple[Caller, policy.Approval]:
    """The approval, if the caller may see it. Raises ApprovalNotFound, PermissionDenied."""

    def find(caller: Caller) -> tuple[str, policy.Approval]:
        found = kept.questions.get(approval)
        if not sees(caller, found.owner):
            raise store.not_found(approval)
        return found.agent, found

    return await access.admit_to_own(caller, operation, find)


def given_terms(redactor: Redactor, within: str, check: str, inverse: str) -> Terms | None:
    """The terms that a caller gave; None for none. Raises InvalidArgument."""
    try:
        terms = terms_of(within, check, inverse)
    except ValueError as err:
        raise InvalidArgument(f"{err}.", field="confirm_within") from None
    if any(redactor.text(text) != text for text in (check, inverse)):
        raise InvalidArgument("check and inverse cannot be stored: they hold a secret.", field="inverse")
    return terms


def _info(approval: policy.Approval, may: bool | None) -> api.Approval:
    """`may`: whether the caller may approve it; None when they must authenticate first."""
    may = may if approval.state is State.WAITING else False
    kind, args = api.Approval, approval.shown
    return shown(kind, approval, args=args, may_answer=may is True, must_authenticate=may is None)


def _stored_leave(session: Session, leave_id: str) -> tuple[list[NewEvent], list[Change]]:
    leave = next(one for one in session.record.leaves if one["id"] == leave_id)
    about = {name: leave[name] for name in ("approval", "tool", "action", "effect", "args", "tainted")}
    with session.context():
        given = LeaveGiven(leave=leave_id, by=leave["given_by"], **about).event()
    return [given], [session.record.change()]


def _drop_leave(session: Session, leave_id: str) -> None:
    kept = tuple(one for one in session.record.leaves if one["id"] != leave_id)
    session.record = replace(session.record, leaves=kept)
