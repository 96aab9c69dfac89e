"""Who may read and answer requests: people, whom polkit knows, and nobody of the daemon's own.

The kernel or the bus says who asks. A program in one of our units, or of one of our users, is refused
whatever polkit says: the daemon would answer its own questions.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from lightagentd.approver.request import Request
from lightagentd.approver.requests import Requests
from lightagentd.config.terms import Terms, terms_of
from lightagentd.control.authz import Authority, Caller
from lightagentd.control.seats import Seats
from lightagentd.errors import ApprovalMismatch, InvalidArgument, PermissionDenied
from lightagentd.host.seat import Seat
from lightagentd.host.users import user_name
from lightagentd.policy.operation import Operation
from lightagentd.policy.panic import Panic

NOTE_CHARS = 1000
OWN = "lightagent"
"""So the names of the users and units begin that the packages make."""
OPTIONS = {
    "note": str,
    "confirm_within": str,
    "check": str,
    "inverse": str,
    "for_session": bool,
    "tainted": bool,
}
"""What a yes may come with."""
_MARK_S = 5.0


class Answering:
    """What people may ask of the approver."""

    def __init__(self, requests: Requests, authority: Authority, seats: Seats, panic: Panic) -> None:
        self._requests, self._authority, self._seats, self._panic = requests, authority, seats, panic

    async def listed(self, caller: Caller) -> list[dict[str, Any]]:
        """The requests that wait and that the caller may see, oldest first."""
        await self._person(caller)
        waiting = self._requests.waiting()
        may = await self._may_see(caller, {one.statement.agent for one in waiting})
        return [
            one.to_dict()
            for one in waiting
            if one.statement.owner == caller.uid or one.statement.agent in may
        ]

    async def get(self, caller: Caller, request_id: str) -> dict[str, Any]:
        """One request, whole."""
        await self._person(caller)
        return (await self._found(caller, request_id)).to_dict()

    async def approve(
        self, caller: Caller, request_id: str, digest: str, options: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Allow the call whose digest was shown, once, on these terms (`config.terms.terms_of`); with
        `for_session` the same call for its session, too, with `tainted` also when text from outside is there.
        The use of a key its owner may allow, too.
        """
        seat = await self._person(caller)
        given = _options(options)
        found = await self._found(caller, request_id)
        if not (found.statement.uses_key and caller.uid == found.statement.owner):
            caller = await self._authority.admit(caller, Operation.APPROVE, agent=found.statement.agent)
        if not hmac.compare_digest(digest.encode("utf-8", "replace"), found.digest.encode()):
            raise ApprovalMismatch(
                f"{found.id} asks about something else than what was shown. Nothing was allowed.",
                suggestion=f"Look at it again: lactl approvals show {found.id}",
            )
        answered = self._requests.answer(
            found,
            grant=True,
            by=caller.uid,
            note=given["note"],
            seat=asdict(seat),
            terms=_terms(found, given),
            leave_tainted=given["tainted"] if given["for_session"] else None,
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

    async def leaves(self, caller: Caller) -> list[dict[str, Any]]:
        """What was allowed for sessions, as far as the caller may see it, oldest first."""
        await self._person(caller)
        there = self._requests.leaves()
        may = await self._may_see(caller, {one.statement.agent for one in there})
        return [
            one.to_dict()
            for one in there
            if caller.uid in (one.statement.owner, one.by) or one.statement.agent in may
        ]

    async def withdraw(self, caller: Caller, leave_id: str) -> None:
        """Take a leave back. Who gave it and the owner of its session may, too."""
        await self._person(caller)
        found = self._requests.leave(leave_id)
        if caller.uid not in (found.statement.owner, found.by):
            await self._authority.admit(caller, Operation.APPROVE, agent=found.statement.agent)
        self._requests.withdraw(leave_id)

    async def panic(self, caller: Caller, reason: str) -> dict[str, Any]:
        """Sign nothing any more, also after a restart."""
        await self._person(caller)
        await self._authority.admit(caller, Operation.ADMINISTER)
        return await stop(self._panic, caller.uid, reason)

    async def end_panic(self, caller: Caller) -> None:
        """Sign again what people allow."""
        await self._person(caller)
        await self._authority.admit(caller, Operation.ADMINISTER)
        self._panic.end()

    async def _person(self, caller: Caller) -> Seat:
        """Where the caller's program runs. Raises PermissionDenied for one of our own."""
        if user_name(caller.uid).startswith(OWN):
            raise PermissionDenied(f"{user_name(caller.uid)} is no person, and the approver answers people.")
        seat = await self._seats.person(caller)
        login = "" if seat.login_uid is None else user_name(seat.login_uid)
        if seat.unit.startswith(OWN) or login.startswith(OWN):
            raise PermissionDenied(f"{seat.unit} is no place for a person, and the approver answers people.")
        return seat

    async def _found(self, caller: Caller, request_id: str) -> Request:
        found = self._requests.get(request_id)
        agent = found.statement.agent
        if caller.uid != found.statement.owner and agent not in await self._may_see(caller, {agent}):
            await self._authority.admit(caller, Operation.APPROVE, agent=agent)
        return found

    async def _may_see(self, caller: Caller, agents: set[str]) -> set[str]:
        """The agents for which the caller may approve. Nobody is asked for a password."""
        may = {one: await self._authority.may(caller, Operation.APPROVE, agent=one) for one in agents}
        return {one for one, allowed in may.items() if allowed}


async def stop(panic: Panic, by: int | None, reason: str) -> dict[str, Any]:
    """Begin a panic; it is on the disk when this returns. Gives {since_us, by, reason, stored}."""
    begun = panic.begin(by, reason)
    await panic.store(_MARK_S)
    return {**asdict(begun), "stored": panic.marked}


def _options(given: Mapping[str, Any]) -> dict[str, Any]:
    """All options, those that are not given empty. Raises InvalidArgument."""
    for name, value in given.items():
        if name not in OPTIONS or type(value) is not OPTIONS[name]:
            raise InvalidArgument(f"There is no option {name[:40]!r} of that type.", field=name[:40])
    found = {name: given.get(name, kind()) for name, kind in OPTIONS.items()}
    _checked(found["note"])
    if found["tainted"] and not found["for_session"]:
        raise InvalidArgument("tainted goes with for_session.", field="tainted")
    return found


def _terms(found: Request, given: Mapping[str, Any]) -> Terms | None:
    """Those of the person, completed by those of the request; None where they say nothing."""
    if not (given["confirm_within"] or given["check"] or given["inverse"]):
        return None
    has = found.statement
    within = given["confirm_within"] or (f"{has.confirm_within_s}s" if has.confirm_within_s else "")
    try:
        return terms_of(within, given["check"] or has.check, given["inverse"] or has.inverse)
    except ValueError as err:
        raise InvalidArgument(f"{err}.", field="confirm_within") from None


def _checked(note: str) -> str:
    if len(note) > NOTE_CHARS or "\0" in note:
        raise InvalidArgument(
            f"The note holds a NUL byte or more than {NOTE_CHARS} characters.", field="note"
        )
    return note
