"""What clients need for an approval that the approver has: they show and answer what it will let run.

The daemon lists such approvals as others, with the field `approver`; but it is not trusted with what they
say. So a client takes the question from the approver, compares it with what the daemon says, and answers it
there, by the digest that it has worked out from what it shows.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightagentd.errors import ApprovalMismatch, LightagentError
from lightagentd.signed.statement import Statement

if TYPE_CHECKING:
    from lightagentd.client.remote import Remote

SOCKET = "/run/lightagent-approver/approve.sock"
UNIT_FILE = Path("/usr/lib/systemd/system/lightagent-approver.service")
HIDDEN = "[removed: write-only]"
TERMS = ("confirm_within", "check", "inverse")
"""Parameters of Approve, beside the note and those of a leave."""
_SAME = ("agent", "tool", "action", "effect", "call_id", "confirm_within_s", "check", "inverse")


class Question(dict[str, Any]):
    """An approval (`api.Approval`), or a turn event that asks for one, as the approver has it; `request` is
    all that is there. Only the class says so: a daemon could send a `request` of its own.
    """

    def __or__(self, other: Any) -> Question:  # type: ignore[override]  # it stays one
        return Question({**self, **other})


def socket_path() -> str:
    """The approver's socket on this machine: `$LIGHTAGENT_APPROVER_SOCKET`, else the usual one."""
    return os.environ.get("LIGHTAGENT_APPROVER_SOCKET") or SOCKET


def beside(daemon: str | os.PathLike[str] | Remote | None) -> str | Remote:
    """Where the approver is of the machine whose daemon is there, as clients take it."""
    if daemon is None or isinstance(daemon, str | os.PathLike):
        return socket_path()
    from dataclasses import replace

    return replace(daemon, socket=SOCKET)


def approval_id(found: Mapping[str, Any]) -> str:
    """The id of an `api.Approval`, or of the approval that a turn event asks for."""
    return str(found.get("id") or found["approval"])


def asks_approver(found: Mapping[str, Any]) -> bool:
    """Whether the question still has to be had from the approver."""
    waits = found.get("state", "waiting") == "waiting"
    return bool(found.get("approver")) and waits and not isinstance(found, Question)


def denies_approver(found: Mapping[str, Any]) -> bool:
    """Whether the daemon says of a change that waits that the approver has nothing to do with it."""
    waits = found.get("state", "waiting") == "waiting"
    return waits and found["effect"] == "change" and not found.get("approver")


def mismatch(found: Mapping[str, Any], what: str) -> ApprovalMismatch:
    """The daemon says something else than what would run, in these points."""
    return ApprovalMismatch(
        f"The daemon says of {approval_id(found)} something else than what would run ({what}). Nothing was"
        " answered.",
        suggestion="Somebody may have taken over the daemon: lactl panic; then look at the journal.",
    )


def without_request(found: Mapping[str, Any]) -> dict[str, Any]:
    """What the daemon says, without what it may not say."""
    return {name: one for name, one in found.items() if name not in ("request", "problem")}


def question_of(found: Mapping[str, Any], request: Mapping[str, Any]) -> Question:
    """What the daemon asks, as its request at the approver says it. Raises ApprovalMismatch where the daemon
    says something else, or the digest is not that of the statement.
    """
    statement, said = Statement.of(request["statement"]), request["said"]
    stated = statement.to_dict()
    differs = [name for name in _SAME if name in found and found[name] != stated[name]]
    if not _same_args(found.get("args", statement.args), statement.args, said.get("hidden", [])):
        differs.append("args")
    if approval_id(found) != request["id"]:
        differs.append("id")
    if "id" in found and found["session"] != statement.session:  # an event may be told in one above it
        differs.append("session")
    if {request["digest"], found.get("approver", statement.digest)} != {statement.digest}:
        differs.append("digest")
    if differs:
        raise mismatch(found, ", ".join(differs))
    asked = {name: stated[name] for name in _SAME if name in found}
    asked |= {"args": statement.args, "cwd": str(statement.args.get("cwd", ""))}
    asked |= {"preview": str(said.get("preview", "")), "expires_us": request["expires_us"]}
    return Question({**found, **asked, "digest": statement.digest, "request": dict(request)})


def unanswerable(found: Mapping[str, Any], err: LightagentError) -> dict[str, Any]:
    """The same where the approver's question cannot be had: nobody can answer it here, and `problem` says
    why.
    """
    said = f"{err.message} {err.suggestion}".strip()
    return {**without_request(found), "may_answer": False, "must_authenticate": False, "problem": said}


def approve_parameters(found: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Of Approver.Approve for a question (`question_of`); `given` may have what Approvals.Approve takes."""
    taken = {name: given.get(name) for name in ("note", *TERMS, "for_session", "tainted")}
    return {**taken, "approval": approval_id(found), "digest": found["digest"]}


def answered(found: Mapping[str, Any], request: Mapping[str, Any]) -> dict[str, Any]:
    """The approval as it is after the approver's answer."""
    terms = ("confirm_within_s", "check", "inverse")
    now = {name: request["statement"][name] for name in terms}
    note = {"note": request["note"], "answered_by": request["by"], "answered_us": request["answered_us"]}
    return {**found, **now, **note, "state": request["state"]}


def _same_args(said: Any, stated: Mapping[str, Any], hidden: Any) -> bool:
    """Whether the daemon says of the arguments what they are, but for those that it never shows."""
    if not isinstance(said, dict) or said.keys() != stated.keys():
        return False
    return all(
        said[name] == value or (name in hidden and said[name] == HIDDEN) for name, value in stated.items()
    )
