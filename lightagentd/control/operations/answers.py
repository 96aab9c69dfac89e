"""Answers to approvals by people who are away: what the links of notifications stand for.

A token is a keyed digest of the approval, of the call, of the destination, of its user and of the decision.
So none is stored, none answers anything else, and it ends with its approval. It only narrows: the decision is
made in the name of the destination's user, with what they may do at that moment without a password, and when
the configuration lists it then. The gateway passes tokens on, and can make none.
"""

from __future__ import annotations

import hmac
import os
import pwd
from collections.abc import Iterable, Iterator
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from lightagentd import api
from lightagentd.config.notify import Destination, Notify
from lightagentd.control.authz import Caller
from lightagentd.control.grants import Grant
from lightagentd.control.operations.access import Access
from lightagentd.control.operations.approvals import Approvals
from lightagentd.control.operations.declared import Operations, method
from lightagentd.errors import ApprovalMismatch, NotFound
from lightagentd.policy.operation import Operation
from lightagentd.policy.questions.approval import Approval
from lightagentd.policy.questions.question import State

if TYPE_CHECKING:
    from lightagentd.daemon.runtime import Runtime

DENY, APPROVE = "deny", "approve"


class Answers(Operations, interface="org.lightagent1.Approvals"):
    """Answers by the links of notifications."""

    def __init__(self, access: Access, runtime: Runtime, approvals: Approvals) -> None:
        self._access, self._now, self._tokens = access, runtime.now, runtime.tokens
        self._approvals, self._kept = approvals, runtime.registry.shared.asked.approvals

    @method("MakeAnswers", returns="answers", over_bus=False)
    async def make(
        self, caller: Caller, approval: str, *, digest: str, destination: str
    ) -> list[api.AnswerToken]:
        """The tokens that answer an approval in the name of a destination's user, for the decisions that the
        configuration lists; none where answers are off. digest is that of the call that the message shows.
        For the service that sends notifications, and root.
        """
        await self._access.admit_owner(caller, Operation.ADMINISTER)
        found = await self._kept.questions.answerable(approval)
        if not hmac.compare_digest(digest.encode(), found.digest.encode()):
            raise ApprovalMismatch(f"The approval {found.id} asks about something else.")
        return [
            api.AnswerToken(decision=decision, token=token)
            for _, name, _, decision, token in self._tokens_of([found])
            if name == destination
        ]

    @method("AnswerFromAway", returns="answer", over_bus=False)
    async def answer(self, caller: Caller, token: str, *, decide: bool = False) -> api.AwayAnswer:
        """What a token of a notification answers; with decide it is answered so, in the name of the person
        whom the notification was for. For the gateway, which needs no token of its own for this, and root.
        """
        if not caller.is_gateway:
            await self._access.admit_owner(caller, Operation.ADMINISTER)
        name, destination, decision, found = self._meant(token)
        person = _person(caller, name, destination)
        if decide and decision == APPROVE:
            said = await self._approvals.approve(person, found.id, digest=found.digest)
        elif decide:
            said = await self._approvals.deny(person, found.id, note="Refused by a notification's link.")
        else:
            said = await self._approvals.get(person, found.id)
        return api.AwayAnswer(decision=decision, user=destination.user, approval=said)

    def _meant(self, token: str) -> tuple[str, Destination, str, Approval]:
        """What a token stands for. Each is compared, whichever it is. Raises NotFound."""
        meant = None
        waiting = [one for one in self._kept.questions.open_ones() if one.state is State.WAITING]
        for approval, name, destination, decision, known in self._tokens_of(waiting):
            if hmac.compare_digest(known.encode(), token.encode("utf-8", "replace")):
                meant = name, destination, decision, approval
        if meant is None:
            self._tokens.refused_answer()
            raise NotFound(
                "This link answers nothing: the call was decided, its time is over, or there was none.",
                suggestion="On the machine: lactl approvals",
            )
        return meant

    def _tokens_of(
        self, approvals: Iterable[Approval]
    ) -> Iterator[tuple[Approval, str, Destination, str, str]]:
        """Each token that answers one of them, by the present configuration."""
        notify = self._now.config.notify
        users = {name: _uid(one.user) for name, one in notify.to.items() if one.user and notify.answers.on}
        for approval in approvals:
            for decision in _decisions(notify, approval) if users else ():
                for name, uid in users.items():
                    if uid is not None:
                        token = self._kept.answer_token(approval, name, uid, decision)
                        yield approval, name, notify.to[name], decision, token


def _uid(user: str) -> int | None:
    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError:
        return None


def _decisions(notify: Notify, approval: Approval) -> list[str]:
    """What the configuration lets be decided from away; a link allows nothing that the approver has to."""
    answers = notify.answers
    listed = any(fnmatchcase(approval.name, pattern) for pattern in answers.approve)
    for_agent = not answers.agents or approval.agent in answers.agents
    here = not (approval.volatile or approval.approver)
    return [DENY, *([APPROVE] if listed and for_agent and here else [])]


def _person(caller: Caller, name: str, destination: Destination) -> Caller:
    """The user of a destination, as far as an answer needs them. Root sees what belongs to others."""
    user = pwd.getpwnam(destination.user)
    groups = frozenset(os.getgrouplist(user.pw_name, user.pw_gid))
    sees_all = True if user.pw_uid == 0 else None
    grant = Grant(name=name, way="notify")
    who = replace(caller, uid=user.pw_uid, gid=user.pw_gid, groups=groups, grant=grant)
    return replace(who, sees_all=sees_all, connection=None)
