"""Leaves: calls that a person allowed for as long as a session is there.

A leave is for one exact call, and is kept in the record of the session, with who gave it. It stands in for
an approval and never for more: what policy denies stays denied, a tainted session needs a leave that says so,
and it counts in turns that a person began. A change on terms is on the same terms each time, and a command
runs in the same folder, with the same content of the files that others can write.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lightagentd.agents.tool_calls.calls import Ready
from lightagentd.agents.tool_calls.origin import Origin
from lightagentd.config.terms import Terms
from lightagentd.errors import Conflict
from lightagentd.events.model import new_id
from lightagentd.policy.call import PERSON, Decision, Ruling
from lightagentd.policy.decide import SHELLS
from lightagentd.policy.questions.approval import Approval

RULE = "session-leave"
MOST = 50
ARGS_CHARS = 8 << 10
_NOT_NOW = "What was allowed for this session does not count now: text from outside is in it."


def leave_of(approval: Approval, *, tainted: bool, by: int, now_us: int) -> dict[str, Any]:
    """The leave for the call of an approval. Raises Conflict for one that has to be asked about each time."""
    if not approval.session:
        raise Conflict(f"The approval {approval.id} belongs to no session.")
    if approval.volatile or approval.hidden or len(json.dumps(approval.args)) > ARGS_CHARS:
        raise Conflict(
            "A call that holds a secret, or is very long, is not allowed for a session.",
            suggestion="Allow it once.",
        )
    return {
        "id": new_id("leave"),
        "agent": approval.agent,
        "tool": approval.tool,
        "action": approval.action,
        "effect": approval.effect,
        "args": approval.args,
        "tainted": tainted,
        **(terms.fields() if (terms := approval.terms) is not None else {}),
        **({"expected": approval.expected} if (approval.tool, approval.action) in SHELLS else {}),
        "approval": approval.id,
        "given_by": by,
        "given_us": now_us,
    }


def with_leave(ruling: Ruling, ready: Ready, origin: Origin) -> Ruling:
    """The ruling on a call, which a leave of its session allows where a person would be asked; or why one
    that is there does not count.
    """
    session = origin.session
    if ruling.decision is not Decision.ASK or session is None or origin.needs_approval:
        return ruling
    there = [one for one in reversed(session.record.leaves) if _is_for(one, ready, origin)]
    if origin.trigger != PERSON or not there:
        return ruling
    found = next((one for one in there if one.get("tainted") is True or not origin.tainted), None)
    if found is None:
        return replace(ruling, reason=f"{_NOT_NOW} {ruling.reason}".strip())
    terms = Terms.of(found) or ruling.terms
    given: dict[str, Any] = {"terms": terms, "expected": found.get("expected") or {}}
    return replace(ruling, decision=Decision.ALLOW, rule=RULE, reason="", error=None, **given)


def _is_for(leave: Mapping[str, Any], ready: Ready, origin: Origin) -> bool:
    """Whether a leave is for this call."""
    call = (origin.agent.name, ready.action.tool, ready.action.name, ready.effect.value)
    try:
        return call == tuple(leave.get(name) for name in ("agent", "tool", "action", "effect")) and (
            json.dumps(leave.get("args"), sort_keys=True) == json.dumps(ready.args, sort_keys=True)
        )
    except (ValueError, TypeError, RecursionError):
        return False
