"""`lactl answer`: answer what an agent asks."""

from __future__ import annotations

import sys

import click

from lightagentd.cli.inputs import input_ids, whole_id
from lightagentd.cli.options import Command, Settings
from lightagentd.cli.output import print_json, say
from lightagentd.cli.question import visible
from lightagentd.cli.terminal import is_terminal
from lightagentd.errors import InvalidArgument

_MAX_BYTES = 16 << 10
"""The longest answer that the daemon takes; more than that is not read."""


@click.command("answer", cls=Command)
@click.argument("name", metavar="ID", shell_complete=input_ids)
@click.argument("text", metavar="[TEXT]...", nargs=-1)
@click.pass_obj
def command(settings: Settings, name: str, text: tuple[str, ...]) -> None:
    """Answer the question ID of an agent, with TEXT or with what comes on standard input.

    Several words are one answer. Without TEXT, and with '-', the answer is read from standard input, up to
    16 KiB; one line feed at its end is no part of it. Where the question has choices the answer is one of
    them, or its number. The first answer counts.

    ID may be cut short as long as it is the only one that begins so; 'lactl inputs' lists the questions.
    """
    answer = " ".join(text)
    if answer in ("", "-"):
        answer = _standard_input()
    found = settings.call("Inputs.Answer", input=whole_id(settings, name, every=False), text=answer)
    if settings.json:
        print_json(found)
    elif is_terminal():
        say(f"Answered {visible(found['agent'])}: {visible(found['answer'])}")
    else:
        say(f"{found['id']}\t{found['state']}")


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
