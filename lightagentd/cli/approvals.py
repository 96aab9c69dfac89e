"""`lactl approvals`: the questions about calls that need a person's yes."""

from __future__ import annotations

from typing import Any

import click

from lightagentd.cli.options import Listing, Settings, lists
from lightagentd.cli.output import dump, print_json, say, table
from lightagentd.cli.question import how_to_answer, show_question, visible
from lightagentd.cli.short_id import only_id
from lightagentd.cli.terminal import BOLD, is_terminal, style
from lightagentd.cli.when import local
from lightagentd.errors import ApprovalNotFound, LightagentError

_ID_CHARS = len("apr_") + 16


@click.group("approvals", cls=Listing)
@click.pass_context
def command(context: click.Context) -> None:
    """List and show the calls that wait for a yes.

    Answer with 'lactl approve ID' or 'lactl deny ID'.
    """
    if lists(context):
        context.invoke(list_approvals, every=False)


@command.command("list")
@click.option("--all", "every", is_flag=True, help="Those that are over, too.")
@click.pass_obj
def list_approvals(settings: Settings, every: bool) -> None:
    """List the questions that wait for an answer, oldest first.

    The columns: id, state, agent, call, effect, the time until which it can be answered, arguments.
    """
    found = settings.call("Approvals.List", all=every or None)
    if settings.json:
        print_json(found)
        return
    table(
        ("ID", "STATE", "AGENT", "CALL", "EFFECT", "UNTIL", "ARGUMENTS"),
        (
            (
                each["id"],
                _short_state(each),
                each["agent"],
                f"{each['tool']}.{each['action']}",
                each["effect"],
                local(each["expires_us"]),
                visible(dump(each["args"])),
            )
            for each in found
        ),
        empty="Nothing waits for an answer.",
    )


def _short_state(found: dict[str, Any]) -> str:
    memory = found["volatile"] and found["state"] == "waiting"
    return f"{found['state']} (in memory)" if memory else str(found["state"])


def approval_ids(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001
    """The ids of the open questions, for the completion of a shell."""
    try:
        found = context.ensure_object(Settings).call("Approvals.List", timeout_s=1.0)
    except LightagentError:
        return []
    return [each["id"] for each in found if each["id"].startswith(incomplete)]


@command.command("show")
@click.argument("approval", metavar="ID", shell_complete=approval_ids)
@click.pass_obj
def show(settings: Settings, approval: str) -> None:
    """Show one question: everything that would run, and what it would change.

    ID may be cut short as long as it is the only one that begins so. Control characters are shown as escapes.
    """
    found = settings.call("Approvals.Get", approval=whole_id(settings, approval, every=True))
    if settings.json:
        print_json(found)
        return
    say(style(found["id"], BOLD), f"  {visible(found['agent'])}  {_state(found)}")
    show_question(found)
    if found["state"] == "waiting" and is_terminal():
        say(how_to_answer(found["id"]))


def _state(found: dict[str, Any]) -> str:
    words = [found["state"]]
    if found["answered_by"] is not None:
        words.append(f"by uid {found['answered_by']} at {local(found['answered_us'])}")
    if found["note"]:
        words.append(f"({visible(found['note'])})")
    return " ".join(words)


def whole_id(settings: Settings, approval: str, *, every: bool) -> str:
    """The id that begins as a person wrote it. Raises ApprovalNotFound, InvalidArgument."""
    if len(approval) >= _ID_CHARS:
        return approval
    found = settings.call("Approvals.List", all=every or None)
    missing = ApprovalNotFound(
        f"No approval {'' if every else 'that waits '}begins with {approval!r}.",
        suggestion="Run: lactl approvals",
        field="approval",
    )
    ids = [str(each["id"]) for each in found]
    return only_id(ids, approval, prefix="apr_", noun="approval", missing=missing)


def answer(settings: Settings, method: str, approval: str, note: str | None) -> None:
    """Answer a question, and say what came of it."""
    found = settings.call(method, approval=whole_id(settings, approval, every=False), note=note)
    if settings.json:
        print_json(found)
    elif is_terminal():
        word = "Allowed, once" if found["state"] == "granted" else "Refused"
        say(f"{word}: {visible(found['tool'])}.{visible(found['action'])} for {visible(found['agent'])}.")
    else:
        say(f"{found['id']}\t{found['state']}")
