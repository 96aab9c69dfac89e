"""The Varlink interfaces of the approver: one for people, one for the daemon alone."""

# No `from __future__ import annotations` here: asyncvarlink reads the annotations of each method.
import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from asyncvarlink import VarlinkInterface, varlinkmethod

from lightagentd.approver.answering import Answering, stop
from lightagentd.approver.requests import Requests
from lightagentd.control.authz import Caller
from lightagentd.errors import LightagentError
from lightagentd.policy.panic import Panic
from lightagentd.varlink.server import error_reply

Status = Callable[[], dict[str, Any]]


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """A block whose errors go to the peer."""
    try:
        yield
    except LightagentError as err:
        raise error_reply(err) from err


class ApproverInterface(VarlinkInterface, name="org.lightagent1.Approver"):
    """The changes that wait for a person's yes, as they are going to run. The answer to one does not pass
    through the agent daemon.
    """

    def __init__(self, answering: Answering, caller: Caller, status: Status) -> None:
        self._answering, self._caller, self._status = answering, caller, status

    @varlinkmethod(return_parameter="requests", allow_foreign=True)
    async def List(self) -> list[Any]:
        """The requests that wait and that the caller may see, oldest first."""
        with _told():
            return await self._answering.listed(self._caller)

    @varlinkmethod(return_parameter="request", allow_foreign=True)
    async def Get(self, *, approval: str) -> Any:
        """One request: the statement, of which digest is the SHA-256, and what the daemon says beside it."""
        with _told():
            return await self._answering.get(self._caller, approval)

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
        for_session: bool | None = None,
        tainted: bool | None = None,
    ) -> Any:
        """Allow the call whose digest was shown, once; with for_session the same call for its session, too,
        for a day and 50 calls at most, and with tainted also when text from outside is there: which session
        that is, and whether such text is there, is the daemon's word. Needs org.lightagent1.approve.
        """
        given: dict[str, Any] = {
            "note": note,
            "confirm_within": confirm_within,
            "check": check,
            "inverse": inverse,
        }
        given |= {"for_session": for_session, "tainted": tainted}
        options = {name: value for name, value in given.items() if value is not None}
        with _told():
            return await self._answering.approve(self._caller, approval, digest, options)

    @varlinkmethod(return_parameter="request", allow_foreign=True)
    async def Deny(self, *, approval: str, note: str | None = None) -> Any:
        """Refuse the call."""
        with _told():
            return await self._answering.deny(self._caller, approval, note=note or "")

    @varlinkmethod(return_parameter="leaves", allow_foreign=True)
    async def Leaves(self) -> list[Any]:
        """What was allowed for sessions and is not over, oldest first."""
        with _told():
            return await self._answering.leaves(self._caller)

    @varlinkmethod(allow_foreign=True)
    async def Withdraw(self, *, leave: str) -> None:
        """Allow a call no longer for its session."""
        with _told():
            await self._answering.withdraw(self._caller, leave)

    @varlinkmethod(return_parameter="panic", allow_foreign=True)
    async def Panic(self, *, reason: str | None = None) -> Any:
        """Sign nothing any more, also after a restart. Needs org.lightagent1.administer."""
        with _told():
            return await self._answering.panic(self._caller, reason or "")

    @varlinkmethod(allow_foreign=True)
    async def EndPanic(self) -> None:
        """Sign again what people allow. Needs org.lightagent1.administer."""
        with _told():
            await self._answering.end_panic(self._caller)

    @varlinkmethod(return_parameter="status", allow_foreign=True)
    async def GetStatus(self) -> Any:
        """{panic, waiting, leaves, public, problems}: the emergency stop or null, numbers, the public key in
        hexadecimal, and what is wrong, as sentences.
        """
        return self._status()


class RequestsInterface(VarlinkInterface, name="org.lightagent1.ApproverRequests"):
    """What the daemon asks of the approver. It can ask, it can stop asking, and it can stop everything."""

    def __init__(self, requests: Requests, panic: Panic) -> None:
        self._requests, self._panic = requests, panic

    @varlinkmethod(return_parameter="digest", allow_foreign=True)
    async def Register(self, *, approval: str, statement: Any, said: Any, expires_us: int) -> str:
        """Register a request, or find that it is registered."""
        with _told():
            return self._requests.add(approval, statement, said, expires_us).digest

    @varlinkmethod(return_parameter="answer", allow_foreign=True)
    async def Wait(self, *, approval: str, now: bool | None = None) -> Any:
        """The answer, once it is there: {state, by, answered_us, note, seat, leave, terms, digest, grant};
        with `now` what is there already, in the state waiting where there is none.
        """
        with _told():
            found = self._requests.get(approval) if now else await self._requests.answered(approval)
        names = ("state", "by", "answered_us", "note", "seat", "leave", "terms", "digest", "grant")
        return {name: getattr(found, name) for name in names}

    @varlinkmethod(allow_foreign=True)
    async def Lapse(self, *, approval: str) -> None:
        """The call will not run."""
        with _told():
            self._requests.lapse(approval)

    @varlinkmethod(return_parameter="panic", allow_foreign=True)
    async def Panic(self, *, reason: str | None = None) -> Any:
        """Sign nothing any more, until a person ends that at the approver itself."""
        return await stop(self._panic, None, reason or "")
