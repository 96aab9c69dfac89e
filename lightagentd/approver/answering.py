"""Who may read and answer requests: people, whom polkit knows, and nobody of the daemon's own.

The kernel or the bus says who asks. A program in one of our units, or of one of our users, is refused
whatever polkit says: the daemon would answer its own questions.
"""

from __future__ import annotations

import hmac
from dataclasses import asdict
from typing import Any

from lightagentd.approver.requests import Request, Requests
from lightagentd.config.terms import Terms, terms_of
from lightagentd.control.authz import Authority, Caller
from lightagentd.control.seats import Seats
from lightagentd.errors import ApprovalMismatch, InvalidArgument, PermissionDenied
from lightagentd.host.seat import Seat
from lightagentd.host.users import user_name
from lightagentd.policy.operation import Operation

NOTE_CHARS = 1000
OWN_USERS = "lightagent"
"""So the names of the users begin whom the packages make."""


class Answering:
    """What people may ask of the approver."""

    def __init__(self, requests: Requests, authority: Authority, seats: Seats) -> None:
        self._requests, self._authority, self._seats = requests, authority, seats

    async def listed(self, caller: Caller) -> list[dict[str, Any]]:
        """The requests that wait and that the caller may see, oldest first."""
        await self._person(caller)
        return [one.to_dict() for one in self._requests.waiting() if await self._sees(caller, one)]

    async def get(self, caller: Caller, request_id: str) -> dict[str, Any]:
        """One request, whole."""
        await self._person(caller)
        return (await self._found(caller, request_id)).to_dict()

    async def approve(
        self,
        caller: Caller,
        request_id: str,
        digest: str,
        *,
        note: str = "",
        confirm_within: str = "",
        check: str = "",
        inverse: str = "",
    ) -> dict[str, Any]:
        """Allow the call whose digest was shown, once, on these terms (`config.terms.terms_of`)."""
        seat = await self._person(caller)
        found = await self._found(caller, request_id)
        caller = await self._authority.admit(caller, Operation.APPROVE, agent=found.statement.agent)
        if not hmac.compare_digest(digest.encode("utf-8", "replace"), found.digest.encode()):
            raise ApprovalMismatch(
                f"{found.id} asks about something else than what was shown. Nothing was allowed.",
                suggestion=f"Look at it again: lactl approvals show {found.id}",
            )
        terms = _terms(found, confirm_within, check, inverse)
        answered = self._requests.answer(
            found, grant=True, by=caller.uid, note=_checked(note), seat=asdict(seat), terms=terms
        )
        return answered.to_dict()

    async def deny(self, caller: Caller, request_id: str, *, note: str = "") -> dict[str, Any]:
        """Refuse the call; the owner of its session may, too."""
        seat = await self._person(caller)
        found = await self._found(caller, request_id)
        if caller.uid != found.statement.owner:
            caller = await self._authority.admit(caller, Operation.APPROVE, agent=found.statement.agent)
        answered = self._requests.answer(
            found, grant=False, by=caller.uid, note=_checked(note), seat=asdict(seat)
        )
        return answered.to_dict()

    async def _person(self, caller: Caller) -> Seat:
        """Where the caller's program runs. Raises PermissionDenied for one of our own."""
        if user_name(caller.uid).startswith(OWN_USERS):
            raise PermissionDenied(f"{user_name(caller.uid)} is no person, and the approver answers people.")
        return await self._seats.person(caller)

    async def _found(self, caller: Caller, request_id: str) -> Request:
        found = self._requests.get(request_id)
        if not await self._sees(caller, found):
            await self._authority.admit(caller, Operation.APPROVE, agent=found.statement.agent)
        return found

    async def _sees(self, caller: Caller, found: Request) -> bool:
        if caller.uid == found.statement.owner:
            return True
        return await self._authority.may(caller, Operation.APPROVE, agent=found.statement.agent)


def _terms(found: Request, within: str, check: str, inverse: str) -> Terms | None:
    """Those of the person, completed by those of the request; None where they say nothing."""
    if not (within or check or inverse):
        return None
    has = found.statement
    within = within or (f"{has.confirm_within_s}s" if has.confirm_within_s else "")
    try:
        return terms_of(within, check or has.check, inverse or has.inverse)
    except ValueError as err:
        raise InvalidArgument(f"{err}.", field="confirm_within") from None


def _checked(note: str) -> str:
    if len(note) > NOTE_CHARS or "\0" in note:
        raise InvalidArgument(
            f"The note holds a NUL byte or more than {NOTE_CHARS} characters.", field="note"
        )
    return note
