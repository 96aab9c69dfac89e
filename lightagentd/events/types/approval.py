"""What becomes of approvals. Each event commits with the change of the approval that it tells of."""

from __future__ import annotations

from lightagentd.events.types.event_type import Kind, Object, Text


class _Approval(Kind):
    approval: Text
    call_id: Text
    tool: Text
    action: Text
    effect: Text


class ApprovalRequested(_Approval, topic="approval.requested", type="requested"):
    """Somebody is asked whether a call may run."""

    args: Object
    """Without those that nobody gets to see."""
    cwd: Text
    digest: Text
    """Keyed; of exactly what will run."""
    rule: Text
    reason: Text
    expires_us: int
    volatile: bool
    """Whether it is whole in memory alone, because it holds a secret."""
    note: Text = ""


class ApprovalChanged(_Approval):
    """What the ends of an approval have in common."""

    answered_by: int | None = None
    """The uid of who answered; absent when nobody did."""
    note: Text = ""
    """What that person said, or why it lapsed."""


class ApprovalGranted(ApprovalChanged, topic="approval.granted", type="granted"):
    """A person said yes."""


class ApprovalDenied(ApprovalChanged, topic="approval.denied", type="denied"):
    """A person said no."""


class ApprovalExpired(ApprovalChanged, topic="approval.expired", type="expired"):
    """Nobody answered in time, or the answer was not used in time."""


class ApprovalUsed(ApprovalChanged, topic="approval.used", type="used"):
    """The call begins; stored together with its intent."""


class ApprovalLapsed(ApprovalChanged, topic="approval.lapsed", type="lapsed"):
    """The call will not run."""
