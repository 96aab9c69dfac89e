"""`lactl sessions export` and `import`: a conversation as a file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from lightagentd.cli.options import Command, Settings, agent_names
from lightagentd.cli.output import cell, print_json, say, told
from lightagentd.cli.session_name import session_argument, whole_session
from lightagentd.cli.stored import stored_option
from lightagentd.cli.terminal import is_terminal
from lightagentd.client.blocking import MAX_MESSAGE_BYTES
from lightagentd.errors import (
    Conflict,
    ImportInvalid,
    InvalidArgument,
    MessageTooLarge,
    NotFound,
    StorageError,
)
from lightagentd.host.atomic_file import write_whole

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
        _write(Path(output), found["text"].encode("utf-8", "replace"), force=force)
        found = {**found, "file": output, "text": None}
    if settings.json:
        print_json({name: value for name, value in found.items() if value is not None})
    elif output is None:
        say(found["text"].removesuffix("\n"))
    elif is_terminal():
        say(f"{whole} is in {output}.")


def _write(path: Path, data: bytes, *, force: bool) -> None:
    """Write a file whole or not at all. Raises Conflict, InvalidArgument, StorageError."""
    if path.is_dir():
        raise InvalidArgument(f"{path} is a folder.", suggestion="Name the file in it, too.", field="output")
    try:
        write_whole(path, data, replace=force)
    except FileExistsError as err:
        raise Conflict(
            f"{path} exists.", suggestion="Name another file, or replace it with --force.", field="output"
        ) from err
    except OSError as err:
        raise StorageError(
            f"{path} cannot be written: {err.strerror}.",
            suggestion="Check the folder and the space on its disk.",
            field="output",
        ) from err


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
    """The text of a file. Raises NotFound, InvalidArgument, MessageTooLarge, ImportInvalid."""
    shown = "Standard input" if name == "-" else name
    try:
        if name == "-":
            data = sys.stdin.buffer.read(MAX_MESSAGE_BYTES + 1) if sys.stdin is not None else b""
        else:
            with Path(name).open("rb") as file:
                data = file.read(MAX_MESSAGE_BYTES + 1)
    except FileNotFoundError as err:
        raise NotFound(f"There is no file {name}.", suggestion="Check the path.", field="file") from err
    except OSError as err:
        raise InvalidArgument(
            f"{name} cannot be read: {err.strerror}.", suggestion="Check that it is a file.", field="file"
        ) from err
    if len(data) > MAX_MESSAGE_BYTES:
        raise MessageTooLarge(
            f"{shown} is larger than {MAX_MESSAGE_BYTES} bytes.",
            suggestion="Export less of the conversation: fork it with --up-to, then export that.",
            field="file",
        )
    try:
        return data.decode()
    except UnicodeDecodeError as err:
        raise ImportInvalid(
            f"{shown} is not UTF-8 at byte {err.start}, so it is no export.",
            suggestion="Export the session again: lactl sessions export --format jsonl -o FILE SESSION",
            field="file",
        ) from err
