"""The entry point of lactl: finds the command, runs it, turns every error into a sentence and a status."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

import click

from lightagentd import __version__
from lightagentd.cli.options import (
    NOT_UNDERSTOOD,
    STORED_INSTEAD,
    USAGE_STATUS,
    Group,
    Settings,
    not_understood,
)
from lightagentd.cli.output import dump, warn
from lightagentd.errors import (
    AuthorizationRequired,
    DaemonUnreachable,
    InvalidArgument,
    LightagentError,
    StorageError,
)
from lightagentd.host import users

INTERRUPTED_STATUS = 130

GROUPS = {
    "Ask": "prompt chat shell acp event wait cancel sessions messages plan",
    "Decide": "approvals approve deny confirm inputs answer policy change undo panic",
    "Look back": "events history trace audit usage",
    "Assess": "eval rate",
    "Agents and models": "agents kits triggers webhooks flows hooks models tools mcp skills memory",
    "Machine": "setup top health changes snapshot status doctor config reload bridge tokens notify help",
}
"""The commands, as the help lists them."""
_IN_ANOTHER = {
    "cancel": "sessions:cancel_session",
    "eval": "evals:command",
    "approve": "approvals:approve",
    "deny": "approvals:deny",
    "answer": "inputs:answer",
    "changes": "health:changes",
    "snapshot": "health:snapshot",
}
COMMANDS = {name: _IN_ANOTHER.get(name, f"{name}:command") for name in " ".join(GROUPS.values()).split()}
"""Every command, and its module and name there."""


class Lactl(Group):
    """The command itself. It imports a module only when its command is used, or listed."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name].partition(":")
        command = getattr(importlib.import_module(f"lightagentd.cli.{module}"), name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Words that are no command are a prompt to the default agent. A single word never is: it may be a
        mistyped command, and so may be the first of several that is like one.
        """
        first, *more = args
        if ctx.resilient_parsing or first[:1] == "-" or first in COMMANDS:
            return super().resolve_command(ctx, args)
        words = [word for word in more if word[:1] != "-"]
        if len(first.split()) < 2:
            from lightagentd.cli.mistakes import NoCommand

            mistake = NoCommand(ctx, first, COMMANDS, words=" ".join(words))
            if mistake.meant or not words:
                raise mistake
        ctx.ensure_object(Settings).asks_default = True
        return "prompt", self.get_command(ctx, "prompt"), ["", *args]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """In their groups, one below the other."""
        for title, names in GROUPS.items():
            with formatter.section(title):
                self.write_commands(ctx, formatter, names.split())


@click.group(cls=Lactl, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="lactl", message="%(prog)s %(version)s")
def lactl() -> None:
    """Talk to the AI agents that lightagentd runs on this machine.

    \b
      lactl "check disk"                          ask your default agent
      lactl prompt ops "check disk"               ask the agent ops
      lactl chat ops                              talk with it
      dmesg | lactl prompt ops "explain"          (needs a language model)
      lactl status                                is the daemon well?
      lactl agents list                           which agents are there?
      lactl events --follow                       what do they do just now?

    Every command takes --json, --socket, and --host for the daemon of another machine. In a pipe the output
    is one line for each thing, with tabs between the columns. 'lactl help exit-codes' lists the exit
    statuses.

    Without a language model agents answer what 'lactl skills list' shows; 'lactl models' is about models.
    """


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return the exit status. Errors are reported on standard error."""
    settings = Settings()
    users.tell_numbers(False)
    if "_LACTL_COMPLETE" in os.environ:  # a shell asks for completions
        importlib.import_module("lightagentd.cli.completion")
        settings.ask_password = False
    try:
        status = lactl.main(list(arguments), prog_name="lactl", standalone_mode=False, obj=settings)
        sys.stdout.flush()
    except click.ClickException as err:
        settings.json = settings.json or "--json" in arguments  # it may stand behind what was not understood
        mistakes = importlib.import_module("lightagentd.cli.mistakes")
        _report(InvalidArgument(mistakes.sentence(err), suggestion=mistakes.hint(err)), settings)
        return USAGE_STATUS
    except click.exceptions.Abort:
        return INTERRUPTED_STATUS
    except LightagentError as err:
        if isinstance(err, DaemonUnreachable) and settings.may_be_stored and not settings.host:
            err.suggestion = f"{err.suggestion}\n{STORED_INSTEAD}".strip()
        err.suggestion = settings.there(err.suggestion)
        _report(err, settings)
        return err.exit_status
    except OSError as err:
        failed = StorageError(f"The output cannot be written: {err.strerror or err}.")
        _report(failed, settings)
        return failed.exit_status
    except NOT_UNDERSTOOD as err:
        if not settings.host:
            raise
        strange = not_understood(settings.host, err)
        _report(strange, settings)
        return strange.exit_status
    return status if isinstance(status, int) else 0


def _report(err: LightagentError, settings: Settings) -> None:
    if settings.host and isinstance(err, AuthorizationRequired):
        err.suggestion = f"A password can only be asked for on that machine: ssh -t {settings.host} lactl …"
    if settings.json:
        sys.stderr.write(dump({"error": err.to_dict()}) + "\n")
    else:
        warn(err.message, err.suggestion)


def main() -> Any:
    """The program: as `run`, with the standard streams and signals of a command."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # end quietly when the reader of a pipe leaves
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller, as in `lactl status >&-`: output is an error
            way = os.O_RDONLY if name == "stdout" else os.O_WRONLY
            setattr(sys, name, os.fdopen(os.open(os.devnull, way), "w"))
        getattr(sys, name).reconfigure(errors="replace")
    try:
        status = run(sys.argv[1:])
    except KeyboardInterrupt:
        status = INTERRUPTED_STATUS
    try:
        sys.stdout.flush()
    except OSError:  # reported already; the rest of the buffer would fail again when Python exits
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(status)


if __name__ == "__main__":
    main()
