"""`lactl inputs`: what agents ask people, and asking it on a terminal."""

from __future__ import annotations

import sys
from typing import Any

import click

from lightagentd.cli.options import Listing, Settings, lists
from lightagentd.cli.output import print_json, say, table, warn
from lightagentd.cli.question import forget_what_was_typed, how_to_answer_input, input_lines, visible
from lightagentd.cli.short_id import only_id
from lightagentd.cli.terminal import BOLD, is_terminal, style
from lightagentd.cli.when import local
from lightagentd.client.blocking import Client
from lightagentd.errors import InputNotFound, InvalidArgument, LightagentError

_ID_CHARS = len("inp_") + 16


@click.group("inputs", cls=Listing)
@click.option("--all", "every", is_flag=True, help="Those that are over, too.")
@click.pass_context
def command(context: click.Context, every: bool) -> None:
    """List and show what agents ask you.

    Answer with 'lactl answer ID TEXT'. The turn that asked waits until then, or until its time is over.
    """
    if lists(context):
        context.invoke(list_inputs, every=every)


@command.command("list")
@click.option("--all", "every", is_flag=True, help="Those that are over, too.")
@click.pass_obj
def list_inputs(settings: Settings, every: bool) -> None:
    """List the questions that wait for an answer, oldest first.

    The columns: id, state, agent, the time until which it can be answered, question, choices, answer.
    """
    found = settings.call("Inputs.List", all=every or None)
    if settings.json:
        print_json(found)
        return
    table(
        ("ID", "STATE", "AGENT", "UNTIL", "QUESTION", "CHOICES", "ANSWER"),
        (
            (
                each["id"],
                each["state"],
                each["agent"],
                local(each["expires_us"]),
                visible(each["question"]),
                " | ".join(visible(choice) for choice in each["choices"]),
                visible(each["answer"]),
            )
            for each in found
        ),
        empty="No agent asks anything.",
    )


def input_ids(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001
    """The ids of the questions that wait, for the completion of a shell."""
    try:
        found = context.ensure_object(Settings).call("Inputs.List", timeout_s=1.0)
    except LightagentError:
        return []
    return [each["id"] for each in found if each["id"].startswith(incomplete)]


@command.command("show")
@click.argument("name", metavar="ID", shell_complete=input_ids)
@click.pass_obj
def show(settings: Settings, name: str) -> None:
    """Show one question, and its answer.

    ID may be cut short as long as it is the only one that begins so.
    """
    found = settings.call("Inputs.Get", input=whole_id(settings, name, every=True))
    if settings.json:
        print_json(found)
        return
    say(style(found["id"], BOLD), f"  {visible(found['agent'])}  {_state(found)}")
    for line in input_lines(found):
        say(line)
    if found["answer"]:
        for answer_line in visible(found["answer"]).split("\n"):
            say("> ", answer_line)
    elif found["state"] == "waiting" and is_terminal():
        say(how_to_answer_input(found["id"]))


def _state(found: dict[str, Any]) -> str:
    if found["answered_by"] is None:
        return str(found["state"])
    return f"{found['state']} by uid {found['answered_by']} at {local(found['answered_us'])}"


def whole_id(settings: Settings, name: str, *, every: bool) -> str:
    """The id that begins as a person wrote it. Raises InputNotFound, InvalidArgument."""
    if len(name) >= _ID_CHARS:
        return name
    found = settings.call("Inputs.List", all=every or None)
    missing = InputNotFound(
        f"No input {'' if every else 'that waits '}begins with {name!r}.",
        suggestion="Run: lactl inputs",
        field="input",
    )
    ids = [str(each["id"]) for each in found]
    return only_id(ids, name, prefix="inp_", noun="input", missing=missing)


def ask_input(settings: Settings, client: Client, event: dict[str, Any]) -> None:
    """Ask for the answer to a question that is on the screen, unless the daemon says something before, such
    as another's answer. What is none of the choices is asked for again.
    """
    forget_what_was_typed()
    while True:
        say("Number or text: " if event["choices"] else "Answer: ", end="")
        sys.stdout.flush()
        if not client.quiet_until(sys.stdin.fileno()):
            say()
            return
        answer = sys.stdin.readline()
        if not answer:
            say()
            warn("The turn goes on waiting.", how_to_answer_input(event["input"]))
            return
        if not answer.strip():
            continue
        try:
            settings.call("Inputs.Answer", input=event["input"], text=answer.removesuffix("\n"))
        except LightagentError as err:
            warn(err.message, err.suggestion)
            if isinstance(err, InvalidArgument):
                continue
        return
