"""`lactl doctor`: does what is promised hold?"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from lightagentd.cli.options import Command, Settings, agent_names
from lightagentd.cli.output import print_json, say, warn
from lightagentd.cli.terminal import BOLD, DIM, GREEN, RED, YELLOW, style
from lightagentd.errors import DaemonUnreachable

PATIENCE_S = 600.0
BAD = ("not_held", "wrong")
_WORDS = {"ok": "ok", "not_held": "NOT HELD", "wrong": "WRONG", "not_tried": "not tried", "note": "note"}
_COLOURS = {"ok": GREEN, "not_held": RED, "wrong": RED, "not_tried": YELLOW, "note": DIM}
_WIDTH = 28
_STATUS_WIDTH = max(len(word) for word in _WORDS.values())


@click.command("doctor", cls=Command)
@click.argument("agent", required=False, shell_complete=agent_names)
@click.pass_context
def command(context: click.Context, agent: str | None) -> int:
    """Try whether the sandboxes hold, and look for what is wrong.

    For each agent (or AGENT alone) and each effect that it has, the worker tries what the effect may not do:
    write files, reach the network, read secrets, touch other processes, gain rights. What is shown is what
    came of it, not what is configured. Then come the history, files and their modes, and the machine. No
    model is asked. Without a running daemon only the files and the machine are looked at.

    The exit status is 0 when all that is promised holds and nothing is wrong, and 1 when not.
    """
    settings = context.ensure_object(Settings)
    try:
        found = settings.call("Manager.Diagnose", timeout_s=PATIENCE_S, agent=agent)
    except DaemonUnreachable as err:
        if agent is not None:
            raise
        found = _without_daemon(err)
    if settings.json:
        print_json(found)
    else:
        _show(found)
    return 0 if found["ok"] else 1


def _without_daemon(err: DaemonUnreachable) -> dict[str, Any]:
    from lightagentd.checkup import local_checks, wrong
    from lightagentd.paths import default_paths

    down = wrong("daemon", f"{err.message} {err.suggestion}".strip())
    checks = [asdict(finding) for finding in (down, *local_checks(default_paths()))]
    return {"ok": False, "workers": [], "checks": checks}


def _show(found: dict[str, Any]) -> None:
    for worker in found["workers"]:
        held = "" if worker["enforced"] or worker["effect"] == "change" else ", which enforces nothing"
        say(style(f"{worker['agent']}, {worker['effect']}", BOLD), f": {worker['backend']}{held}")
        if worker["reason"]:
            say(f"  {worker['reason']}")
        for finding in worker["findings"]:
            _line(finding)
    if found["workers"]:
        say()
    say(style("the rest", BOLD))
    for finding in found["checks"]:
        _line(finding)
    findings = [*found["checks"], *(each for worker in found["workers"] for each in worker["findings"])]
    bad = [finding for finding in findings if finding["status"] in BAD]
    untried = [finding for finding in findings if finding["status"] == "not_tried"]
    if bad:
        plural = "thing is" if len(bad) == 1 else "things are"
        warn(f"{len(bad)} {plural} not as promised.", "Look for NOT HELD and WRONG above.")
    elif untried:
        say(style("Nothing is wrong, but not everything could be tried.", YELLOW))
    else:
        say(style("All that is promised holds.", GREEN))


def _line(finding: dict[str, Any]) -> None:
    status = finding["status"]
    word = _WORDS.get(status, status)
    say(
        f"  {finding['name']:<{_WIDTH}} ",
        style(f"{word:<{_STATUS_WIDTH}}", _COLOURS.get(status, DIM)),
        f" {' '.join(finding['detail'].split())}",
    )
