"""The Varlink interfaces of the approver: one for people, one for the daemon alone."""

# No `from __future__ import annotations` here: asyncvarlink reads the annotations of each method.
import json
from typing import Any

from asyncvarlink import VarlinkInterface, varlinkmethod

from lightagentd.approver.answering import Answering
from lightagentd.approver.requests import SAID_CHARS, STATEMENT_CHARS, Requests
from lightagentd.control.authz import Caller
from lightagentd.errors import InvalidArgument, LightagentError, MessageTooLarge
from lightagentd.signed.statement import Statement
from lightagentd.varlink.server import error_reply


class ApproverInterface(VarlinkInterface, name="org.lightagent1.Approver"):
    """The changes that wait for a person's yes, as they are going to run. The answer to one does not pass
    through the agent daemon.
    """

    def __init__(self, answering: Answering, caller: Caller) -> None:
        self._answering, self._caller = answering, caller

    @varlinkmethod(return_parameter="requests", allow_foreign=True)
    async def List(self) -> list[Any]:
        """The requests that wait and that the caller may see, oldest first."""
        try:
            return await self._answering.listed(self._caller)
        except LightagentError as err:
            raise error_reply(err) from err

    @varlinkmethod(return_parameter="request", allow_foreign=True)
    async def Get(self, *, approval: str) -> Any:
        """One request: the statement, of which digest is the SHA-256, and what the daemon says beside it."""
        try:
            return await self._answering.get(self._caller, approval)
        except LightagentError as err:
            raise error_reply(err) from err

    @varlinkmethod(return_parameter="request", allow_foreign=True)
    async def Approve(
        self,
        *,
        approval: str,
        digest: str,
        note: str | None = None,
        confirm_within: str | None = None,
        check: str | None = None,
        inverse: str | None = None,
    ) -> Any:
        """Allow the call whose digest was shown, once. Needs org.lightagent1.approve."""
        terms = {"confirm_within": confirm_within or "", "check": check or "", "inverse": inverse or ""}
        try:
            return await self._answering.approve(self._caller, approval, digest, note=note or "", **terms)
        except LightagentError as err:
            raise error_reply(err) from err

    @varlinkmethod(return_parameter="request", allow_foreign=True)
    async def Deny(self, *, approval: str, note: str | None = None) -> Any:
        """Refuse the call."""
        try:
            return await self._answering.deny(self._caller, approval, note=note or "")
        except LightagentError as err:
            raise error_reply(err) from err


class RequestsInterface(VarlinkInterface, name="org.lightagent1.ApproverRequests"):
    """What the daemon asks of the approver. It can ask, and it can stop asking."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests

    @varlinkmethod(return_parameter="digest", allow_foreign=True)
    async def Register(self, *, approval: str, statement: Any, said: Any, expires_us: int) -> str:
        """Register a request, or find that it is registered."""
        try:
            if len(json.dumps(statement)) > STATEMENT_CHARS or len(json.dumps(said)) > SAID_CHARS:
                raise MessageTooLarge("The call is larger than what a person can be asked about.")
            if not isinstance(said, dict) or not approval or len(approval) > 60:
                raise InvalidArgument("It is no request.")
            return self._requests.add(approval, Statement.of(statement), said, expires_us).digest
        except LightagentError as err:
            raise error_reply(err) from err

    @varlinkmethod(return_parameter="answer", allow_foreign=True)
    async def Wait(self, *, approval: str) -> Any:
        """The answer, once it is there: {state, by, answered_us, note, seat, terms, digest, grant}."""
        try:
            found = await self._requests.answered(approval)
        except LightagentError as err:
            raise error_reply(err) from err
        names = ("state", "by", "answered_us", "note", "seat", "grant", "digest")
        terms = {name: getattr(found.statement, name) for name in ("confirm_within_s", "check", "inverse")}
        return {**{name: getattr(found, name) for name in names}, "terms": terms}

    @varlinkmethod(allow_foreign=True)
    async def Lapse(self, *, approval: str) -> None:
        """The call will not run."""
        try:
            self._requests.lapse(approval)
        except LightagentError as err:
            raise error_reply(err) from err
