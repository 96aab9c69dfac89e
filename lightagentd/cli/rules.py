"""Writes the rule that the daemon proposes from an approval, after the administrator has read it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightagentd.cli.options import Settings
from lightagentd.cli.output import cell, dump, say
from lightagentd.cli.terminal import may_type
from lightagentd.cli.when import moment
from lightagentd.client.approver import Question, approval_id
from lightagentd.errors import ApprovalMismatch, ConfirmationRequired, Conflict, PermissionDenied
from lightagentd.text.readable import visible


def write_rule(settings: Settings, question: dict[str, Any], *, tainted: bool, yes: bool) -> str:
    """Show the rule for the call that was shown (`Settings.question`), and write it after a yes; gives its
    path, or an empty text after a no.

    Raises ConfirmationRequired where nobody can be asked, ApprovalMismatch for a rule about something else.
    """
    approval = approval_id(question)
    found = settings.call("Approvals.ProposeRule", approval=approval, tainted=tainted or None)
    statement = question["request"]["statement"] if isinstance(question, Question) else question
    check_rule(str(found["text"]), statement, tainted=tainted)
    if not settings.json:
        for line in proposal_lines(found):
            say(line)
    if not yes:
        if settings.json or not may_type():
            raise ConfirmationRequired("Nobody said that this rule is meant.", suggestion="Say --yes.")
        say("Write this rule? [y/N] ", end="")
        sys.stdout.flush()
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            return ""
    given = {"approval": approval, "sha256": found["sha256"], "tainted": tainted or None}
    try:
        return str(settings.call("Approvals.WriteRule", **given))
    except PermissionDenied:
        if os.geteuid() != 0 or settings.host:
            raise
        return _write_here(settings, found)


def check_rule(text: str, statement: Mapping[str, Any], *, tainted: bool) -> None:
    """Raises ApprovalMismatch, ConfigError unless a file of policy.d has one rule, and that allows the call
    of a statement and no other.
    """
    from lightagentd.policy.rulefiles import load_texts
    from lightagentd.policy.rules import without_nulls

    made = load_texts({"the proposed rule": text})
    names = ("agent", "tool", "action", "effect")
    wanted = {name: (statement[name],) for name in names} | {"exactly": without_nulls(statement["args"])}
    rules = [
        {name: tuple(map(str, getattr(one.rule, name) or ())) for name in names}
        | {"exactly": one.rule.exactly}
        for one in made.rules
    ]
    if rules != [wanted] or made.guards or made.rules[0].rule.even_if_tainted not in (False, tainted):
        raise ApprovalMismatch(
            "The daemon proposes a rule for something else than what was shown. Nothing was written.",
            suggestion="Somebody may have taken over the daemon: lactl panic; then look at the journal.",
        )


def proposal_lines(found: dict[str, Any]) -> list[str]:
    """A proposal for a person: what it lets through, its file, and the past calls that it would allow."""
    lines = [
        visible(found["words"]),
        "",
        visible(found["path"]),
        *visible(found["text"]).rstrip().split("\n"),
        "",
    ]
    lines.append(
        f"It would have allowed {found['allowed']} of the last {found['judged']} calls of this tool that were"
        " asked about or refused."
    )
    for one in found["past"]:
        shown = f"  {moment(one['time_us'])}  {one['tool']}.{one['action']}  {dump(one['args'])}"
        lines.append(cell(visible(shown))[:200])
    return lines


def _write_here(settings: Settings, found: dict[str, Any]) -> str:
    """As root, in the place of a daemon that cannot write there: what `check_rule` found right. Raises
    Conflict, PermissionDenied.
    """
    from lightagentd.host.atomic_file import write_whole
    from lightagentd.host.paths import default_paths

    path = Path(found["path"])
    if path.parent != default_paths().config / "policy.d":
        raise PermissionDenied(f"{path} is not in the folder of the rules of this machine.")
    try:
        path.parent.mkdir(mode=0o755, exist_ok=True)
        write_whole(path, str(found["text"]).encode(), mode=0o644, replace=False)
    except FileExistsError as err:
        raise Conflict(f"There is a file {path} already; it is left as it is.") from err
    except OSError as err:
        raise PermissionDenied(f"{path} cannot be written: {err.strerror}.") from err
    settings.call("Manager.Reload")
    return str(path)
