"""The Varlink interface `org.lightagent1.Approvals`; its events come through `Events.Subscribe`."""

# No `from __future__ import annotations` here: asyncvarlink reads the annotations of each method.
from asyncvarlink import VarlinkInterface, varlinkmethod

from lightagentd import api
from lightagentd.control.varlink.adapter import Adapter


class Approvals(Adapter, VarlinkInterface, name="org.lightagent1.Approvals"):
    """Questions about calls that policy lets run only when a person allows them. Each counts for one call,
    once. Subscribe to the topic approval to hear of them.
    """

    @varlinkmethod(return_parameter="approvals", allow_foreign=True)
    async def List(self, *, all: bool = False) -> list[api.Approval]:  # noqa: A002 - the parameter's name
        """The open questions that the caller may see, oldest first; with all, also those that are over."""
        return await self.service.list_approvals(self.caller, every=all)

    @varlinkmethod(return_parameter="approval", allow_foreign=True)
    async def Get(self, *, approval: str) -> api.Approval:
        """One question, with what the call would do."""
        return await self.service.get_approval(self.caller, approval)

    @varlinkmethod(return_parameter="approval", allow_foreign=True)
    async def Approve(self, *, approval: str, note: str | None = None) -> api.Approval:
        """Allow the call, once. Needs org.lightagent1.approve, also for the caller's own session."""
        return await self.service.approve(self.caller, approval, note or "")

    @varlinkmethod(return_parameter="approval", allow_foreign=True)
    async def Deny(self, *, approval: str, note: str | None = None) -> api.Approval:
        """Refuse the call; the model reads the note. The owner of the session may do this, too."""
        return await self.service.deny(self.caller, approval, note or "")
