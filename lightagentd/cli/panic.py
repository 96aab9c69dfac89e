"""`lactl panic`: stop everything, now."""

from __future__ import annotations

import click

from lightagentd.cli.options import Command, Settings
from lightagentd.cli.output import as_json, print_json, say, warn
from lightagentd.cli.terminal import GREEN, RED, style
from lightagentd.errors import LimitExceeded, TimedOut

PATIENCE_S = 15.0
SIGNAL = "systemctl kill --kill-whom=main --signal=SIGUSR1 lightagentd"


@click.command("panic", cls=Command)
@click.option("--off", is_flag=True, help="Allow turns and workers again.")
@click.option("--reason", metavar="TEXT", help="Why; everybody who is refused gets to read it.")
@click.pass_obj
def command(settings: Settings, off: bool, reason: str | None) -> None:
    """Stop every turn and every worker at once.

    Running turns and tool calls end, what waits in a queue is dropped, approvals that wait lapse, and the
    workers are killed with all that they run. Until 'lactl panic --off' nothing new runs, also after a
    restart of the daemon; everything that only looks goes on working. What a call had changed until then
    stays changed.

    When the daemon does not answer, root stops everything with a signal:

    \b
      systemctl kill --kill-whom=main --signal=SIGUSR1 lightagentd
      kill -USR1 PID                              without systemd
    """
    if off and reason is not None:
        raise click.UsageError("--reason goes with a stop, not with --off.")
    if off:
        settings.call("Manager.EndPanic")
        if settings.json:
            print_json({"panic": None})
        else:
            say(style("Turns and workers may run again.", GREEN), " What was stopped is not taken up.")
        return
    try:
        found = settings.call("Manager.Panic", timeout_s=PATIENCE_S, reason=reason)
    except (LimitExceeded, TimedOut) as err:
        err.suggestion = f"Stop it with a signal, as root: {SIGNAL}"
        raise
    if as_json(settings, found):
        return
    turns, workers = found["turns"], found["workers"]
    say(
        style("Everything is stopped:", RED),
        f" {turns} turn{'' if turns == 1 else 's'} ended,"
        f" {workers} worker{'' if workers == 1 else 's'} killed.",
    )
    say("Nothing new runs until: lactl panic --off")
    for problem in found["problems"]:
        warn(problem)
