"""`lactl approvals`, `approve` and `deny`: the questions about calls that need a person's approval."""

from __future__ import annotations

from typing import Any

import click

from lightagentd.cli.confirm import confirming
from lightagentd.cli.options import Command, Listing, Settings, lists, names_of
from lightagentd.cli.output import Columns, as_json, dump, listing, say, told, warn
from lightagentd.cli.question import (
    how_to_answer,
    is_allowed,
    may_type,
    question_lines,
    visible,
)
from lightagentd.cli.redrawn import watch_option, watchable
from lightagentd.cli.rules import write_rule
from lightagentd.cli.short_id import Ids
from lightagentd.cli.terminal import BOLD, is_terminal, style
from lightagentd.cli.when import ago, moment
from lightagentd.client.approver import Question, denies_approver, question_of, without_request
from lightagentd.config.terms import words as confirm_words
from lightagentd.errors import (
    ApprovalMismatch,
    ApprovalNotFound,
    ConfirmationRequired,
    LightagentError,
)
from lightagentd.host.users import called

_IDS = Ids(
    prefix="apr_",
    noun="approval",
    nouns="approvals",
    missing=ApprovalNotFound,
    method="Approvals.List",
    hint="lactl approvals",
)
approval_ids = names_of(_IDS.method, "id")


@click.group("approvals", cls=Listing)
@watch_option
@click.pass_context
def command(context: click.Context, watch: bool) -> None:
    """List and show the calls that wait for a yes.

    Answer with 'lactl approve ID' or 'lactl deny ID'.
    """
    if lists(context):
        context.invoke(list_approvals, every=False, watch=watch)


@command.command("list")
@click.option("--all", "every", is_flag=True, help="Those that are over, too.")
@watchable("approval")
@click.pass_obj
def list_approvals(settings: Settings, every: bool) -> None:
    """List the questions that wait for an answer, oldest first.

    The columns: id, state, agent, call, effect, the time until which it can be answered, arguments. A change
    of which the daemon says something else than the approver, which alone lets it run, has the state DIFFERS.
    """
    found = _compared(settings, settings.call("Approvals.List", all=every or None))
    listing(
        settings, found, _COLUMNS, spare=("UNTIL", "EFFECT", "AGENT"), empty="Nothing waits for an answer."
    )


def _compared(settings: Settings, found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The approvals as the approver has them, or with the `problem` of those of which it says otherwise."""
    waits = [one for one in found if one["state"] == "waiting"]
    if not waits or not (settings.has_approver or any(one["approver"] for one in waits)):
        return found
    try:
        requests = {one["id"]: one for one in settings.approver.call("Approver.List")}
    except LightagentError as err:
        warn(f"The list is the daemon's word alone. {err.message}", err.suggestion)
        return found
    listed = [_compared_one(settings, one, requests.pop(one["id"], None)) for one in found]
    if differ := [one["id"] for one in listed if one.get("problem")]:
        warn(
            f"The daemon says of {visible(', '.join(differ))} something else than the approver.",
            "Somebody may have taken over the daemon: lactl panic; then look at the journal.",
        )
    if requests:
        warn(f"The approver has questions that the daemon does not list: {visible(', '.join(requests))}.")
    return listed


def _compared_one(
    settings: Settings, found: dict[str, Any], request: dict[str, Any] | None
) -> dict[str, Any]:
    if denies_approver(found):
        return {**found, "problem": "A change is the approver's."}
    if not found["approver"] or found["state"] != "waiting":
        return found
    if request is None:  # it is answered by now, or not for everybody who sees the daemon's list
        try:
            settings.approver.call("Approver.Get", approval=found["id"])
        except ApprovalNotFound as err:
            return {**found, "problem": err.message}
        except LightagentError:
            pass
        return found
    left_out = {} if found["args"] else {"args": request["statement"]["args"]}
    try:
        question = question_of({**without_request(found), **left_out}, request)
    except ApprovalMismatch as err:
        return {**found, "problem": err.message}
    return {name: one for name, one in question.items() if name != "request"}


def _short_state(found: dict[str, Any]) -> str:
    if found.get("problem"):
        return f"{found['state']}, DIFFERS"
    memory = found["volatile"] and found["state"] == "waiting"
    return f"{found['state']} (in memory)" if memory else str(found["state"])


_COLUMNS: Columns = {
    "ID": "id",
    "STATE": _short_state,
    "AGENT": "agent",
    "CALL": lambda each: f"{each['tool']}.{each['action']}",
    "EFFECT": "effect",
    "UNTIL": lambda each: ago(each["expires_us"]),
    "ARGUMENTS": lambda each: visible(dump(each["args"])) if each["args"] else "",
}


@command.command("show")
@click.argument("approval", metavar="ID", shell_complete=approval_ids)
@click.option("--whole", is_flag=True, help="Fold nothing.")
@click.pass_obj
def show(settings: Settings, approval: str, whole: bool) -> None:
    """Show one question: everything that would run, and what it would change.

    A change is shown as the approver has it, which alone lets it run; what only the daemon says is marked as
    its word. Parts of it that are long are folded and counted, and --whole shows them.

    ID may be cut short as long as it is the only one that begins so. Control characters are shown as escapes.
    """
    found = settings.approval(_IDS.whole_question(settings, approval, every=True))
    if as_json(settings, found):
        return
    say(style(found["id"], BOLD), f"  {visible(found['agent'])}  {_state(found)}")
    for line in question_lines(found, folded=isinstance(found, Question) and not whole):
        say(line)
    if found["state"] == "waiting" and is_terminal():
        say(how_to_answer(found))


_LEAVES: Columns = {
    "ID": "id",
    "AGENT": lambda each: visible(each["statement"]["agent"]),
    "CALL": lambda each: visible(f"{each['statement']['tool']}.{each['statement']['action']}"),
    "BY": lambda each: called(each["by"]),
    "TAINTED": lambda each: "also then" if each["tainted"] else "not then",
    "LEFT": "left",
    "UNTIL": lambda each: ago(each["until_us"]),
    "SESSION": lambda each: visible(each["statement"]["session"]),
    "ARGUMENTS": lambda each: visible(dump(each["statement"]["args"])),
}


@command.command("leaves")
@click.pass_obj
def list_leaves(settings: Settings) -> None:
    """List the changes that were allowed for a session at the approver, oldest first.

    The columns: id, agent, call, who allowed it, whether it counts when text from outside is in the session,
    for how many calls more, until when, session, arguments.
    """
    spare = ("UNTIL", "SESSION", "TAINTED")
    none = "No change is allowed for a session."
    listing(settings, settings.approver.call("Approver.Leaves"), _LEAVES, spare=spare, empty=none)


@command.command("withdraw")
@click.argument("leave", metavar="LEAVE")
@click.pass_obj
def withdraw(settings: Settings, leave: str) -> None:
    """Ask about a change again that was allowed for a session at the approver."""
    settings.approver.call("Approver.Withdraw", leave=leave)
    told(settings, {"leave": leave}, f"Withdrawn: {visible(leave)}.", leave)


def _state(found: dict[str, Any]) -> str:
    words = [found["state"]]
    if found["answered_by"] is not None:
        words.append(f"by {called(found['answered_by'])} at {moment(found['answered_us'])}")
    if found["note"]:
        words.append(f"({visible(found['note'])})")
    return " ".join(words)


@click.command("approve", cls=Command)
@click.argument("approval", metavar="ID", shell_complete=approval_ids)
@click.option("--note", metavar="TEXT", help="Kept with the answer.")
@confirming
@click.option("--session", "for_session", is_flag=True, help="Allow this call for the whole session.")
@click.option("--rule", is_flag=True, help="Propose a rule that allows exactly this call from now on.")
@click.option("--tainted", is_flag=True, help="With these two: also when text from outside is there.")
@click.option("--yes", is_flag=True, help="Without being asked.")
@click.pass_obj
def approve(
    settings: Settings,
    /,
    approval: str,
    note: str | None,
    for_session: bool,
    rule: bool,
    tainted: bool,
    yes: bool,
    **given: str | None,
) -> None:
    """Allow the call that ID asks about, once.

    What runs is exactly what 'lactl approvals show ID' shows, or nothing.

    With --confirm-within the change is taken back after that time, such as 90s, 5m or 2h, unless 'lactl
    confirm' or the command of --check keeps it: also after a restart, and when nobody can reach the machine
    any more. Files get their content back and units their state; for other calls name what takes them back
    with --inverse. A call that cannot be taken back is refused.

    With --session exactly this call is allowed for as long as its session is there. With --rule the daemon
    proposes a rule for exactly this call, shows which past calls it would have allowed, and writes it into
    policy.d after an administrator's yes; a call that still waits is allowed too.

    On a terminal a change is shown as the approver has it, and you are asked, unless --yes says that you know
    it. ID may be cut short there: then every question is shown.

    \b
      lactl approve ID --confirm-within 5m --check 'curl -sf localhost'
      lactl approve ID --rule
    """
    if tainted and not (rule or for_session):
        raise click.UsageError("--tainted goes with --session and --rule.")
    if rule and any(given.values()):
        raise click.UsageError("With --rule, how a change is taken back is written into the rule by hand.")
    terms: dict[str, Any] = {**given}
    terms |= {"for_session": for_session or None, "tainted": (for_session and tainted) or None}
    if rule:
        _approve_by_rule(settings, approval, note, tainted=tainted, yes=yes)
        return
    is_short, asks = _IDS.is_short(approval), not settings.json and may_type() and not yes
    whole = _IDS.whole_question(settings, approval, every=False) if is_short else approval
    if is_short and not asks:
        raise ConfirmationRequired(
            f"Only its whole id says that {whole} is meant.",
            suggestion=f"Read it with: lactl approvals show {whole}; then: lactl approve {whole}",
        )
    found = settings.approval(whole)
    is_there = isinstance(found, Question)
    if not is_short and not (asks and is_there):
        shown = found if is_there else None
        _answer(settings, "Approvals.Approve", whole, note, shown=shown, **terms)
        return
    within = given.pop("confirm_within") or ""
    if is_allowed(found | {name: one for name, one in given.items() if one}, within=within):
        _answer(settings, "Approvals.Approve", whole, note, shown=found, **terms)
    else:
        say(f"It goes on waiting. {how_to_answer(found)}")


def _approve_by_rule(
    settings: Settings, approval: str, note: str | None, *, tainted: bool, yes: bool
) -> None:
    """Write the rule, then allow the call if it still waits."""
    whole = _IDS.whole_question(settings, approval, every=True)
    found = settings.approval(whole)
    if not settings.json:
        for line in question_lines(found, folded=True):
            say(line)
    path = write_rule(settings, found, tainted=tainted, yes=yes)
    if not path:
        say("No rule is written, and nothing is allowed.")
    elif found["state"] == "waiting":
        if not settings.json:
            say(f"Written: {path}")
        _answer(settings, "Approvals.Approve", whole, note, shown=found)
    else:
        told(settings, {"path": path}, f"Written: {path}", path)


@click.command("deny", cls=Command)
@click.argument("approval", metavar="ID", shell_complete=approval_ids)
@click.option("--note", metavar="TEXT", help="The agent reads it, too.")
@click.pass_obj
def deny(settings: Settings, approval: str, note: str | None) -> None:
    """Refuse the call that ID asks about; the agent goes on without it.

    ID may be cut short as long as it is the only one that begins so.
    """
    _answer(settings, "Approvals.Deny", approval, note)


def _answer(
    settings: Settings,
    method: str,
    approval: str,
    note: str | None,
    shown: dict[str, Any] | None = None,
    **more: Any,
) -> None:
    """Answer a question, the one that was `shown` if any was, and report the result."""
    digest = {"digest": shown["digest"]} if shown is not None else {}
    asked = shown
    if asked is None:
        whole = _IDS.whole_question(settings, approval, every=False)
        asked = settings.call("Approvals.Get", approval=whole)
    found = settings.answer(method, asked, note=note, **digest, **more)
    word = "Allowed, once" if found["state"] == "granted" else "Refused"
    word = "Allowed for this session" if more.get("for_session") else word
    call = f"{visible(found['tool'])}.{visible(found['action'])}"
    said = f"{word}: {call} for {visible(found['agent'])}."
    if found["state"] == "granted" and found.get("confirm_within_s"):
        said += f" {confirm_words(found)} Keep it with: lactl confirm {visible(found['call_id'])}"
    told(settings, found, said, found["id"], found["state"])
