"""The event of each change of an approval, whoever makes the change."""

from __future__ import annotations

from typing import Any

from lightagentd.events.model import NewEvent, within
from lightagentd.events.types import approval as kinds
from lightagentd.events.types.event_type import EventType
from lightagentd.policy.questions.approval import Approval, State

_ENDED: dict[State, type[kinds.ApprovalChanged]] = {
    State.GRANTED: kinds.ApprovalGranted,
    State.DENIED: kinds.ApprovalDenied,
    State.EXPIRED: kinds.ApprovalExpired,
    State.USED: kinds.ApprovalUsed,
    State.LAPSED: kinds.ApprovalLapsed,
}


def requested(approval: Approval) -> NewEvent:
    """Somebody is asked."""
    asked = kinds.ApprovalRequested(
        approval=approval.id,
        call_id=approval.call_id,
        tool=approval.tool,
        action=approval.action,
        effect=approval.effect,
        args=approval.shown,
        cwd=approval.cwd,
        digest=approval.digest,
        rule=approval.rule,
        reason=approval.reason,
        expires_us=approval.expires_us,
        volatile=approval.volatile,
        **({"note": approval.note} if approval.note else {}),
    )
    return _about(approval, asked)


def changed(approval: Approval) -> NewEvent:
    """It is in another state than waiting now."""
    said: dict[str, Any] = {"note": approval.note} if approval.note else {}
    if approval.answered_by is not None:
        said["answered_by"] = approval.answered_by
    kind = _ENDED[approval.state](
        approval=approval.id,
        call_id=approval.call_id,
        tool=approval.tool,
        action=approval.action,
        effect=approval.effect,
        **said,
    )
    return _about(approval, kind)


def _about(approval: Approval, kind: EventType) -> NewEvent:
    who: dict[str, Any] = {
        "agent": approval.agent,
        "session": approval.session,
        "owner": approval.owner,
        "trace_id": approval.trace_id,
    }
    if approval.state is State.EXPIRED:
        who["caller"] = None  # nobody's word, whoever happened to notice
    with within(**who):
        return kind.event()
