"""`lactl sessions export` and `import`: a conversation as a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from lightagentd.cli.named_file import read_file, shown
from lightagentd.cli.options import Command, Settings, agent_names
from lightagentd.cli.output import cell, print_json, say, told
from lightagentd.cli.session_name import session_argument, whole_session
from lightagentd.cli.stored import stored_option
from lightagentd.cli.terminal import is_terminal
from lightagentd.cli.whole_file import new_file
from lightagentd.errors import ImportInvalid

_EXPORT_TIMEOUT_S = 120.0


@click.command("export", cls=Command)
@session_argument
@stored_option
@click.option(
    "--format",
    "kind",
    type=click.Choice(["markdown", "jsonl"]),
    default="markdown",
    show_default=True,
    help="Markdown has the same JSON lines at its end.",
)
@click.option("--output", "-o", metavar="FILE", type=click.Path(), help="Write a file instead of printing.")
@click.option("--force", is_flag=True, help="Replace FILE when there is one.")
@click.pass_obj
def export_session(settings: Settings, session: str, kind: str, output: str | None, force: bool) -> None:
    """Print SESSION as Markdown or as JSON lines; both can be imported again.

    A FILE can be read by you alone (mode 0600).
    """
    whole = whole_session(settings, session)
    found = settings.call("Sessions.Export", timeout_s=_EXPORT_TIMEOUT_S, session=whole, format=kind)
    if output is not None:
        with new_file(Path(output), force=force) as fd, open(fd, "wb", closefd=False) as file:
            file.write(found["text"].encode("utf-8", "replace"))
        found = {**found, "file": output, "text": None}
    if settings.json:
        print_json({name: value for name, value in found.items() if value is not None})
    elif output is None:
        say(found["text"].removesuffix("\n"))
    elif is_terminal():
        say(f"{whole} is in {output}.")


@click.command("import", cls=Command)
@click.argument("file", type=click.Path())
@click.option("--agent", metavar="NAME", required=True, shell_complete=agent_names, help="With this agent.")
@click.option("--title", metavar="TEXT", help="Its title, instead of the one that it had.")
@click.pass_obj
def import_session(settings: Settings, file: str, agent: str, title: str | None) -> None:
    """Begin a session with an exported conversation.

    'lactl sessions export' made FILE, which may be - for standard input. What is imported is text from
    outside: the session asks before it changes anything or goes to a new host. It is your current one then,
    and its id is printed.
    """
    text = _read(file)
    found: dict[str, Any] = settings.call(
        "Sessions.Import", timeout_s=_EXPORT_TIMEOUT_S, agent=agent, text=text, title=title
    )
    sentence = f"Imported as {found['id']} with {found['agent']}: {cell(found['title'])}"
    told(settings, found, sentence, found["id"])


def _read(name: str) -> str:
    """The text of a file. Raises the errors of `read_file`, and ImportInvalid."""
    less = "Export less of the conversation: fork it with --up-to, then export that."
    data = read_file(name, too_large=less)
    try:
        return data.decode()
    except UnicodeDecodeError as err:
        raise ImportInvalid(
            f"{shown(name)} is not UTF-8 at byte {err.start + 1}, so it is no export.",
            suggestion="Export the session again: lactl sessions export --format jsonl -o FILE SESSION",
            field="file",
        ) from err
