"""What becomes of approvals. Each event commits with the change of the approval that it tells of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightagentd.events.types.event_type import NOTICE, WARNING, AboutCall, Object, Text


class _Approval(AboutCall):
    approval: Text
    call_id: Text
    tool: Text
    action: Text
    effect: Text

    @classmethod
    def subject(cls, data: Mapping[str, Any]) -> str:
        return f"approval {data.get('approval', '')}: {super().subject(data)}"


class ApprovalRequested(_Approval, topic="approval.requested", type="requested"):
    """Somebody is asked whether a call may run."""

    priority = NOTICE
    catalog = """@AGENT@ asks for an approval: @TOOL@.@ACTION@
    The call runs only when a person allows it, and the turn waits until then. An approval counts for exactly
    this call, once, and is not needed any more when its time is over.
    > To see what it would do and to answer: lactl approvals; then lactl approve or lactl deny with its id.
    Root, and whoever polkit lets approve, may allow it; the owner of the session may refuse it."""
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
    """Somebody said yes."""

    unit: Text = ""
    """The unit of the system that the yes came from; absent where there is none."""
    tty: Text = ""
    login_uid: int | None = None
    """Who logged in there (proc_pid_loginuid(5)); absent where nobody did, as for a service or a timer."""
    login_session: int | None = None
    confirm_within_s: int = 0
    """How long its change stands without a confirmation; absent where it needs none."""
    check: Text = ""
    inverse: Text = ""

    catalog = """A call of @AGENT@ was allowed: @TOOL@.@ACTION@
    The user with uid @CALLER_UID@ allowed the call, once. It runs now, if it still is what was shown; an
    entry 'used' follows.
    > What came of it: lactl trace show @TRACE_ID@"""


class ApprovalDenied(ApprovalChanged, topic="approval.denied", type="denied"):
    """A person said no."""

    priority = WARNING
    catalog = """A call of @AGENT@ was refused by a person: @TOOL@.@ACTION@
    The user with uid @CALLER_UID@ refused the call. It does not run, and the model reads the note, if there
    is one.
    > What the agent did instead: lactl trace show @TRACE_ID@"""


class ApprovalExpired(ApprovalChanged, topic="approval.expired", type="expired"):
    """Nobody answered in time, or the answer was not used in time."""

    priority = WARNING
    catalog = """Nobody answered in time: @TOOL@.@ACTION@
    The question of the agent @AGENT@ counts as refused, and the call does not run.
    > How long questions wait: approval_timeout_s in lightagentd.toml(5). Prompts that run when nobody is
    there are better made with --unattended, and rules in policy.d say what they may do."""


class ApprovalUsed(ApprovalChanged, topic="approval.used", type="used"):
    """The call begins; stored together with its intent."""

    catalog = """An approval was used: @TOOL@.@ACTION@
    The call that was allowed is what runs now; what it was bound to was compared. The approval counts for
    nothing else.
    > What came of it: lactl trace show @TRACE_ID@"""


class ApprovalLapsed(ApprovalChanged, topic="approval.lapsed", type="lapsed"):
    """The call will not run."""

    priority = WARNING
    catalog = """A question of @AGENT@ is void: @TOOL@.@ACTION@
    Its turn ended before anybody answered: it was cancelled, the agent was stopped or deleted, everything was
    stopped, or the question held a secret and the daemon was restarted. The call does not run.
    > Why: lactl trace show @TRACE_ID@. Prompt again if it is still wanted."""
