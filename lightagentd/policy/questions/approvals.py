"""Stores all approvals: requested, granted or denied, and used once with the intent of their call.

The use of an approval commits together with the intent of its call. So after a crash it is known whether a
call had begun. A volatile approval has its arguments only in memory, and lapses when the daemon ends. An
approval is granted only by `answer`, or by a call of a person who may approve it.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import secrets
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from lightagentd.config.terms import Terms
from lightagentd.errors import (
    ApprovalDenied,
    ApprovalMismatch,
    ApprovalNotFound,
    ApprovalRequired,
    LimitExceeded,
)
from lightagentd.events.history import Change, History, NewEvent
from lightagentd.events.model import dump_json
from lightagentd.host.kept_key import KEY_BYTES, kept_key
from lightagentd.host.seat import Seat
from lightagentd.host.users import called
from lightagentd.policy.questions.approval import Approval, Bound
from lightagentd.policy.questions.question import State, now_us
from lightagentd.policy.questions.questions import OPEN_OF_OWNER, Questions

ARGS_CHARS = 256 << 10
"""The longest arguments, as JSON, that a person is asked about: nobody can judge more."""
PREVIEW_CHARS = 64 << 10
"""A preview is cut there, and says so; the arguments are never cut."""

_ANSWER_DOMAIN = b"lightagentd answer 1\0"
_NOWHERE = Seat()
Stored = tuple[Sequence[NewEvent], Sequence[Change]]


class Approvals:
    """The store of approvals. Begin with `load()` when the history is open; there is nothing to close."""

    def __init__(
        self, history: History, *, timeout_s: float, open_of_owner: int = OPEN_OF_OWNER, key_file: Path
    ) -> None:
        self.questions = Questions(history, Approval, timeout_s=timeout_s, open_of_owner=open_of_owner)
        self._redactor = history.redactor
        self._key_file = key_file
        self._key = b""
        self._volatile_key = secrets.token_bytes(KEY_BYTES)

    async def load(self) -> None:
        """As `Questions.load`, and read the key of the digests."""
        self._key = await asyncio.to_thread(kept_key, self._key_file)
        await self.questions.load()

    def new(
        self,
        bound: Bound,
        *,
        owner: int,
        trace_id: str,
        call_id: str,
        preview: str,
        expected: dict[str, Any],
        rule: str,
        reason: str,
        hidden: Sequence[str] = (),
        granted: bool = False,
    ) -> Approval:
        """A new approval, not stored yet. `hidden` are the arguments that nobody may see.

        With `granted` nobody has to read it, because its maker may approve it. Raises LimitExceeded when it
        is too large to show, or too many others are open.
        """
        if not granted and len(json.dumps(bound.args)) > ARGS_CHARS:
            raise LimitExceeded(
                f"The arguments of {bound.tool}.{bound.action} are longer than {ARGS_CHARS} characters: more"
                " than a person can be asked about.",
                suggestion="Ask for less at once.",
            )
        begun = self.questions.begun(owner, shown=not granted)
        if len(preview) > PREVIEW_CHARS:
            left = len(preview) - PREVIEW_CHARS
            preview = f"{preview[:PREVIEW_CHARS]}\n({left} more characters of this preview are left out)\n"
        secret = {"args": bound.args, "cwd": bound.cwd, "preview": preview, "expected": expected}
        secret |= {"check": bound.check, "inverse": bound.inverse}
        volatile = bool(hidden) or not self._storable(secret)
        return Approval(
            **begun,
            **{name: getattr(bound, name) for name in Bound.__dataclass_fields__},
            trace_id=trace_id,
            call_id=call_id,
            digest=bound.digest(self._key_of(volatile)),
            preview=preview,
            expected=expected,
            rule=rule,
            reason=reason,
            volatile=volatile,
            hidden=tuple(hidden),
        )

    async def request(
        self,
        approval: Approval,
        *before: NewEvent,
        changes: Sequence[Change] = (),
        granted_from: Seat | None = None,
        answered: Approval | None = None,
    ) -> Approval:
        """As `Questions.ask`. With the seat of its owner, who may approve the call, it is granted at once,
        unless the approver has to be asked.
        """
        if granted_from is not None and not approval.approver:
            answered = _answered(approval, State.GRANTED, approval.owner, "", granted_from)
        return await self.questions.ask(approval, *before, changes=changes, answered=answered)

    async def answer(
        self,
        approval_id: str,
        *,
        grant: bool,
        uid: int,
        note: str = "",
        seat: Seat = _NOWHERE,
        terms: Terms | None = None,
        with_it: Stored = ((), ()),
    ) -> Approval:
        """Grant or deny for the person with this uid at this seat, who must be authorized, on their `terms`.
        `with_it` is stored too. Gives the new approval.

        Raises ApprovalNotFound; ApprovalClosed when it is already answered, used or expired; StorageError.
        """
        approval = await self.questions.answerable(approval_id)
        answered = self.answered(approval, grant=grant, uid=uid, note=note, seat=seat, terms=terms)
        return await self.questions.change(approval, answered, *with_it[0], changes=with_it[1])

    def answered(
        self, approval: Approval, *, grant: bool, uid: int, note: str, seat: Seat, terms: Terms | None
    ) -> Approval:
        """An approval with an answer, which is not stored yet."""
        state = State.GRANTED if grant else State.DENIED
        found = _answered(approval, state, uid, self._redactor.text(note), seat)
        return found if terms is None else found.with_terms(terms, self._key_of(approval.volatile))

    async def use(
        self, approval_id: str, bound: Bound, call_id: str, *events: NewEvent, changes: Sequence[Change] = ()
    ) -> None:
        """Store the events that begin a call and the use of its approval in one transaction.

        `bound` is the call about to run. It and the stored record must match the request. Raises
        ApprovalMismatch, ApprovalRequired when it is not granted (any more), ApprovalDenied when it expired,
        StorageError.
        """
        approval = self.questions.current(approval_id)
        if approval.state is not State.GRANTED or not self.questions.is_stored(approval_id):
            raise ApprovalRequired(f"The approval {approval_id} is {approval.state}: it cannot be used.")
        if approval.overdue():
            await self.questions.expire_one(approval)
            raise _over(approval)
        try:
            stored = self.questions.records.get(approval_id)
        except ApprovalNotFound as err:
            raise ApprovalMismatch(f"The stored record of the approval {approval_id} is broken.") from err
        key = self._key_of(approval.volatile)
        digests = [bound.digest(key), stored.digest, approval.digest, approval.bound.digest(key)]
        if not approval.volatile:
            digests.append(stored.bound.digest(key))
        if len(set(digests)) != 1 or approval.call_id != call_id or stored.state is not State.GRANTED:
            raise ApprovalMismatch(
                f"What is about to run is not what the approval {approval_id} was given for.",
                suggestion="Nothing was run. Ask for the call again.",
            )
        await self.questions.change(approval, replace(approval, state=State.USED), *events, changes=changes)

    def used_by(self, approval_id: str, bound: Bound, call_id: str) -> Approval:
        """The approval that this very call has used already, and that lets it go on after a question.

        Raises ApprovalRequired.
        """
        found = self.questions.find(approval_id)
        if (
            found is None
            or found.state is not State.USED
            or found.call_id != call_id
            or found.digest != found.on_terms_of(bound).digest(self._key_of(found.volatile))
        ):
            raise ApprovalRequired(
                f"{bound.tool}.{bound.action} needs an approval to go on, and this call was given none.",
                suggestion="It has stopped in the middle. Look at what it did, and ask for it again.",
            )
        return found

    def answer_token(self, approval: Approval, destination: str, uid: int, decision: str) -> str:
        """What answers this very call, as this person, with this decision and no other one. It is kept
        nowhere: it is made again to compare it.
        """
        bound = json.dumps([approval.id, approval.digest, destination, uid, decision])
        return f"la_{hmac.new(self._key, _ANSWER_DOMAIN + bound.encode(), hashlib.sha256).hexdigest()}"

    def _key_of(self, volatile: bool) -> bytes:
        return self._volatile_key if volatile else self._key

    def _storable(self, value: dict[str, Any]) -> bool:
        """Whether the history stores this unchanged, without removing secrets."""
        try:
            return bool(json.loads(dump_json(self._redactor.value(value))) == value)
        except (TypeError, ValueError, RecursionError):
            return False


not_found = Approval.not_found


def _answered(approval: Approval, state: State, uid: int, note: str, seat: Seat) -> Approval:
    from_ = asdict(seat) if state is State.GRANTED else {}
    return replace(approval, state=state, answered_by=uid, answered_us=now_us(), note=note, **from_)


def granted(approval: Approval) -> Approval:
    """The answered approval, if it is granted. Raises ApprovalDenied, also when it expired; ApprovalRequired
    when it lapsed.
    """
    if approval.state is State.GRANTED:
        return approval
    if approval.state is State.EXPIRED:
        raise _over(approval)
    if approval.state is State.DENIED:
        said = f" and said: {approval.note}" if approval.note else "."
        raise ApprovalDenied(
            f"{called(approval.answered_by or 0)} did not allow {approval.name}{said}",
            suggestion="Do not ask for the same call again; say what you would have done.",
        )
    why = f" {approval.note}" if approval.note else ""
    raise ApprovalRequired(
        f"The approval of {approval.name} is {approval.state}.{why}",
        suggestion="The call was not run; ask for it again if it is still wanted.",
    )


def _over(approval: Approval) -> ApprovalDenied:
    return ApprovalDenied(
        f"The time to allow {approval.name} is over, which counts as no.",
        suggestion="Say what you would have done, and let the user ask again.",
    )
