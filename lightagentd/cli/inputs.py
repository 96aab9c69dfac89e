"""`lactl inputs` and `answer`: what agents ask people."""

from __future__ import annotations

import sys
from typing import Any

import click

from lightagentd.cli.options import Command, Listing, Settings, lists, names_of
from lightagentd.cli.output import Columns, as_json, listing, say, told
from lightagentd.cli.question import how_to_answer, question_lines, visible
from lightagentd.cli.redrawn import watch_option, watchable
from lightagentd.cli.short_id import Ids
from lightagentd.cli.terminal import BOLD, is_terminal, style
from lightagentd.cli.when import ago, moment
from lightagentd.errors import InputNotFound, InvalidArgument
from lightagentd.host.users import called

_MAX_BYTES = 16 << 10
"""The longest answer that the daemon takes; more than that is not read."""
_IDS = Ids(
    prefix="inp_",
    noun="input",
    nouns="inputs",
    missing=InputNotFound,
    method="Inputs.List",
    hint="lactl inputs",
)
_COLUMNS: Columns = {
    "ID": "id",
    "STATE": "state",
    "AGENT": "agent",
    "UNTIL": lambda each: ago(each["expires_us"]),
    "QUESTION": lambda each: visible(each["question"]),
    "CHOICES": lambda each: " | ".join(visible(choice) for choice in each["choices"]),
    "ANSWER": lambda each: visible(each["answer"]),
}
input_ids = names_of(_IDS.method, "id")


@click.group("inputs", cls=Listing)
@click.option("--all", "every", is_flag=True, help="Those that are over, too.")
@watch_option
@click.pass_context
def command(context: click.Context, every: bool, watch: bool) -> None:
    """List and show what agents ask you.

    Answer with 'lactl answer ID TEXT'. The turn that asked waits until then, or until its time is over.
    """
    if lists(context):
        context.invoke(list_inputs, every=every, watch=watch)


@command.command("list")
@click.option("--all", "every", is_flag=True, help="Those that are over, too.")
@watchable("input")
@click.pass_obj
def list_inputs(settings: Settings, every: bool) -> None:
    """List the questions that wait for an answer, oldest first.

    The columns: id, state, agent, the time until which it can be answered, question, choices, answer.
    """
    found = settings.call("Inputs.List", all=every or None)
    listing(
        settings,
        found,
        _COLUMNS,
        spare=("UNTIL", "CHOICES", "AGENT", "ANSWER"),
        empty="No agent asks anything.",
    )


@command.command("show")
@click.argument("name", metavar="ID", shell_complete=input_ids)
@click.pass_obj
def show(settings: Settings, name: str) -> None:
    """Show one question, and its answer.

    ID may be cut short as long as it is the only one that begins so.
    """
    found = settings.call("Inputs.Get", input=_IDS.whole_question(settings, name, every=True))
    if as_json(settings, found):
        return
    say(style(found["id"], BOLD), f"  {visible(found['agent'])}  {_state(found)}")
    for line in question_lines(found):
        say(line)
    if found["answer"]:
        for answer_line in visible(found["answer"]).split("\n"):
            say("> ", answer_line)
    elif found["state"] == "waiting" and is_terminal():
        say(how_to_answer(found))


def _state(found: dict[str, Any]) -> str:
    if found["answered_by"] is None:
        return str(found["state"])
    return f"{found['state']} by {called(found['answered_by'])} at {moment(found['answered_us'])}"


@click.command("answer", cls=Command)
@click.argument("name", metavar="ID", shell_complete=input_ids)
@click.argument("text", metavar="[TEXT]...", nargs=-1)
@click.pass_obj
def answer(settings: Settings, name: str, text: tuple[str, ...]) -> None:
    """Answer the question ID of an agent, with TEXT or with what comes on standard input.

    Several words are one answer. Without TEXT, and with '-', the answer is read from standard input, up to
    16 KiB; one line feed at its end is no part of it. Where the question has choices the answer is one of
    them, or its number. The first answer counts.

    ID may be cut short as long as it is the only one that begins so; 'lactl inputs' lists the questions.
    """
    said = " ".join(text)
    if said in ("", "-"):
        said = _standard_input()
    whole = _IDS.whole_question(settings, name, every=False)
    found = settings.call("Inputs.Answer", input=whole, text=said)
    sentence = f"Answered {visible(found['agent'])}: {visible(found['answer'])}"
    told(settings, found, sentence, found["id"], found["state"])


def _standard_input() -> str:
    """Raises InvalidArgument."""
    if sys.stdin is None:
        raise click.UsageError("There is no TEXT, and standard input is closed.")
    data = sys.stdin.buffer.read(_MAX_BYTES + 2)
    try:
        return data.decode().removesuffix("\n")
    except UnicodeDecodeError as err:
        if len(data) > _MAX_BYTES:
            return data.decode(errors="replace")  # too long, whatever it is: the daemon says so
        raise InvalidArgument(
            "The answer on standard input is not UTF-8.", field="text", suggestion="Answer with text."
        ) from err
