"""What clients need for an approval that the approver has: they show and answer what it will let run.

The daemon lists such approvals as others, with the field `approver`; but it is not trusted with what they
say. So a client takes the question from the approver, compares it with what the daemon says, and answers it
there, by the digest that it has worked out from what it shows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lightagentd.errors import ApprovalMismatch
from lightagentd.signed.statement import Statement

SOCKET = "/run/lightagent-approver/approve.sock"
HIDDEN = "[removed: write-only]"
_SAME = ("agent", "tool", "action", "effect", "session", "confirm_within_s", "check", "inverse")


def question_of(found: Mapping[str, Any], request: Mapping[str, Any]) -> dict[str, Any]:
    """The approval (`api.Approval`) as its request at the approver says it. Raises ApprovalMismatch where the
    daemon says something else, or the digest is not that of the statement.
    """
    statement = Statement.of(request["statement"])
    said = request["said"]
    hidden = [name for name in said.get("hidden", []) if name in statement.args]
    args = statement.args | dict.fromkeys(hidden, HIDDEN)
    asked = {**statement.to_dict(), "args": args}
    differs = [name for name in _SAME if found[name] != asked[name]]
    if differs or found["args"] != args or found["id"] != request["id"]:
        raise ApprovalMismatch(
            f"The daemon says of {request['id']} something else than what would run"
            f" ({', '.join(differs or ['args'])}). Nothing was allowed.",
            suggestion="Somebody may have taken over the daemon: lactl panic; then look at the journal.",
        )
    return {**found, "digest": statement.digest, "preview": str(said.get("preview", "")), "args": args}
