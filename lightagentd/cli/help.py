"""`lactl help`: the help of any command, and the table of exit statuses."""

from __future__ import annotations

import click

from lightagentd import errors
from lightagentd.cli.mistakes import NoCommand
from lightagentd.cli.options import Command, Settings
from lightagentd.cli.output import print_json, say, table
from lightagentd.cli.terminal import columns, is_terminal

EXIT_CODES = "exit-codes"
NOTHING_FOUND = 4
TRIALS_FAILED = 82
HOSTS_FAILED = 83
OWN_STATUSES = (
    (0, "ok", "All went well."),
    (NOTHING_FOUND, "nothing_found", "The answer is that what was asked about by name is not there."),
    (TRIALS_FAILED, "trials_failed", "Not all trials of an assessment passed."),
    (HOSTS_FAILED, "hosts_failed", "Not all hosts of --hosts did what was asked."),
    (2, "usage", "The command line is wrong; nothing was done."),
)
"""Exit statuses that are no errors of the daemon's: status, code, meaning."""


def _commands(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001
    words = context.params.get("words") or ()
    found: click.Command | None = context.find_root().command
    for word in words:
        found = found.get_command(context, word) if isinstance(found, click.Group) else None
    names = found.list_commands(context) if isinstance(found, click.Group) else []
    return [name for name in (*names, *(() if words else (EXIT_CODES,))) if name.startswith(incomplete)]


@click.command("help", cls=Command)
@click.argument("words", metavar=f"[COMMAND...|{EXIT_CODES}]", nargs=-1, shell_complete=_commands)
@click.pass_context
def command(context: click.Context, words: tuple[str, ...]) -> None:
    """Show the help of a command.

    'lactl help exit-codes' lists what each exit status means.
    """
    if words == (EXIT_CODES,):
        _exit_codes(context.ensure_object(Settings))
        return
    found, name = context.find_root(), ""
    for word in words:
        group, name = found.command, word
        inner = group.get_command(found, word) if isinstance(group, click.Group) else None
        if inner is None:
            known = group.list_commands(found) if isinstance(group, click.Group) else []
            raise NoCommand(found, word, [*known, EXIT_CODES], verb="help")
        found = click.Context(inner, info_name=name, parent=found)
    say(found.get_help())
    say(f"\nThe manual: man {'-'.join(('lactl', *words[:1]))}")


def _exit_codes(settings: Settings) -> None:
    rows = [*OWN_STATUSES, *((row.exit_status, row.code, _meaning(row.cls)) for row in errors.table())]
    rows.sort(key=lambda row: row[0])
    if settings.json:
        print_json([{"exit_status": status, "code": code, "meaning": text} for status, code, text in rows])
    elif is_terminal():
        width = max(len(code) for _, code, _ in rows)
        for status, code, text in rows:
            say(click.wrap_text(text, columns(), f"{status:<4} {code:<{width}}  ", " " * (width + 7)))
    else:
        table((), rows)


def _meaning(cls: type[errors.LightagentError]) -> str:
    return (cls.__doc__ or "").strip().partition("\n")[0]
