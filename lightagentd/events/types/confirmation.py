"""What becomes of changes that take themselves back unless they are confirmed in time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightagentd.events.types.event_type import ERROR, NOTICE, WARNING, AboutCall, Text


class _Confirmation(AboutCall):
    call_id: Text
    tool: Text
    action: Text
    message: Text = ""

    @classmethod
    def subject(cls, data: Mapping[str, Any]) -> str:
        return f"{super().subject(data)} (call {data.get('call_id', '')})"


class ChangePending(_Confirmation, topic="confirmation.pending", type="pending"):
    """A change begins that is taken back unless it is confirmed in time; stored together with its intent."""

    priority = NOTICE
    catalog = """A change of @AGENT@ waits to be confirmed: @TOOL@.@ACTION@
    Unless somebody confirms it in time, or its check passes, it is taken back, also after a restart.
    > To keep it: lactl confirm; it lists what waits, with the time that is left."""
    within_s: int
    due_us: int
    check: Text = ""
    inverse: Text = ""
    approval: Text = ""


class ChangeConfirmed(_Confirmation, topic="confirmation.confirmed", type="confirmed"):
    """A person, or its check, confirmed a change: it stays. So does one that had changed nothing."""

    catalog = """A change of @AGENT@ was confirmed: @TOOL@.@ACTION@
    It stays. The user with uid @CALLER_UID@ confirmed it, or its check passed."""
    by: int | None = None
    """The uid of who confirmed it; absent where it was its check."""


class TakingBack(_Confirmation, topic="confirmation.taking_back", type="taking_back"):
    """A change was not confirmed in time, and is being taken back."""

    priority = WARNING
    catalog = """A change of @AGENT@ was not confirmed, and is being taken back: @TOOL@.@ACTION@
    An entry taken_back or failed follows.
    > What does it: lactl trace show @TRACE_ID@"""
    tries: int


class TakenBack(_Confirmation, topic="confirmation.taken_back", type="taken_back"):
    """A change was taken back."""

    priority = WARNING
    catalog = """A change of @AGENT@ was taken back: @TOOL@.@ACTION@
    Nobody confirmed it in time.
    > What was done: lactl trace show @TRACE_ID@"""


class NotTakenBack(_Confirmation, topic="confirmation.failed", type="failed"):
    """A change that was not confirmed could not be taken back."""

    priority = ERROR
    catalog = """A change of @AGENT@ could not be taken back: @TOOL@.@ACTION@
    Nobody confirmed it in time, and what was to take it back failed. It is tried once more when lightagentd
    is started again.
    > Why: lactl trace show @TRACE_ID@. Mend it by hand, then: lactl confirm with the id of the call."""
