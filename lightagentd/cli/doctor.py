"""`lactl doctor`: checks whether the promises hold, and finds problems.

The daemon checks from the inside, and this process from the outside, as the user who runs it: each can see
what the other may not. Without a daemon, or without the right to ask it, only the checks from here remain.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from lightagentd import __version__
from lightagentd.cli.options import Command, Settings, agent_names
from lightagentd.cli.output import print_json, say, warn
from lightagentd.cli.terminal import BOLD, DIM, GREEN, MAGENTA, RED, style
from lightagentd.client.blocking import SYSTEM_SOCKET, socket_path
from lightagentd.errors import AgentNotFound, LightagentError, PermissionDenied

if TYPE_CHECKING:
    from lightagentd.api import Finding
    from lightagentd.host.paths import Paths

PATIENCE_S = 600.0
BAD = ("not_held", "wrong")
_WORDS = {"ok": "ok", "not_held": "NOT HELD", "wrong": "WRONG", "not_tried": "not tried", "note": "note"}
_COLOURS = {"ok": GREEN, "not_held": RED, "wrong": RED, "not_tried": MAGENTA, "note": DIM}
_WIDTH = 28
_STATUS_WIDTH = max(len(word) for word in _WORDS.values())
_FIELDS = ("group", "name", "status", "detail", "remedy")


@click.command("doctor", cls=Command)
@click.argument("agent", required=False, shell_complete=agent_names)
@click.option("--models", is_flag=True, help="Try whether the models' endpoints can be reached, too.")
@click.option("--bad", "only_bad", is_flag=True, help="Show only what is not ok.")
@click.pass_context
def command(context: click.Context, agent: str | None, models: bool, only_bad: bool) -> int:
    """Look for what is wrong, and try whether the sandboxes hold.

    It looks at the daemon, its socket, the bus, polkit, the units, the agents and their models, the history,
    the journal, the disk, the clock, files and their modes, missing programs and the machine. Then, for each
    agent (or AGENT alone) and each effect that it has, the worker tries what the effect may not do: write
    files, reach the network, read secrets, touch other processes, gain rights. What is shown is what came of
    it, not what is configured. No model is asked. What is not ok says what to do.

    Without a running daemon, or where you may not ask it, the rest is looked at. What your user may not see
    is 'not tried'; root sees most.

    The exit status is 0 when all that is promised holds and nothing is wrong, and 1 when not.
    """
    settings = context.ensure_object(Settings)
    found = _found(settings, agent, reach=models)
    if settings.json:
        print_json(found)
    else:
        _show(found, only_bad=only_bad)
    return 0 if found["ok"] else 1


def _found(settings: Settings, agent: str | None, *, reach: bool) -> dict[str, Any]:
    """The daemon's diagnosis, extended by the checks from here. Raises AgentNotFound."""
    import asyncio
    from pathlib import Path

    from lightagentd.doctor import Running, look
    from lightagentd.doctor.finding import merged

    status, problem = _status(settings)
    inside: dict[str, Any] = {"workers": [], "checks": []}
    refused: LightagentError | None = problem
    if status is not None:
        try:
            parameters = {"agent": agent, "models": reach or None}
            inside = settings.call("Manager.Diagnose", timeout_s=PATIENCE_S, **parameters)
        except AgentNotFound:
            raise
        except LightagentError as err:
            refused = err
    elif agent is not None and problem is not None:
        raise problem  # its sandboxes are what was asked for
    running = None if status is None else Running(pid=status["pid"], seq=status["history"]["events"])
    socket = settings.socket or socket_path()
    outside = [
        *_daemon(status, refused),
        *asyncio.run(look(_paths(socket), running, socket=Path(socket), reach=reach)),
    ]
    known = [_finding(each) for each in inside["checks"]]
    checks = merged(known, outside)
    findings = [*(asdict(each) for each in checks), *_of_workers(inside)]
    return {
        "ok": not any(each["status"] in BAD for each in findings),
        "workers": inside["workers"],
        "checks": [asdict(each) for each in checks],
    }


def _status(settings: Settings) -> tuple[dict[str, Any] | None, LightagentError | None]:
    """The daemon's status, or the reason why there is none."""
    try:
        return settings.call("Manager.GetStatus"), None
    except LightagentError as err:
        return None, err


def _daemon(status: dict[str, Any] | None, refused: LightagentError | None) -> list[Finding]:
    from lightagentd.doctor.finding import not_tried, ok, wrong

    if status is None:
        assert refused is not None
        remedy = refused.suggestion or "Look at: journalctl -u lightagentd"
        tell = not_tried if isinstance(refused, PermissionDenied) else wrong
        return [tell("daemon", "daemon", refused.message, remedy)]
    found = [ok("daemon", "daemon", f"process {status['pid']}, {status['state']}")]
    if status["version"] != __version__:
        detail = f"the daemon that runs is {status['version']}, and {__version__} is installed"
        found.append(wrong("daemon", "version", detail, "systemctl restart lightagentd"))
    if refused is not None:
        found.append(not_tried("daemon", "what the daemon knows", refused.message, refused.suggestion))
    return found


def _paths(socket: str) -> Paths:
    """The folders of the daemon that is asked: an ordinary user may ask the system's daemon."""
    from pathlib import Path

    from lightagentd.host.paths import Paths, default_paths

    own = default_paths()
    if socket != SYSTEM_SOCKET or socket == str(own.socket):
        return own
    runtime = Path(socket).parent
    return Paths(config=Path("/etc/lightagentd"), state=Path("/var/lib/lightagentd"), runtime=runtime)


def _finding(found: dict[str, Any]) -> Finding:
    from lightagentd.api import Finding

    return Finding(**{name: found.get(name, "") for name in _FIELDS})


def _of_workers(found: dict[str, Any]) -> list[dict[str, Any]]:
    return [finding for worker in found["workers"] for finding in worker["findings"]]


def _show(found: dict[str, Any], *, only_bad: bool) -> None:
    group = None
    for finding in found["checks"]:
        if only_bad and finding["status"] == "ok":
            continue
        if finding["group"] != group:
            group = finding["group"]
            say(style(group or "the rest", BOLD))
        _line(finding)
    for worker in found["workers"]:
        shown = [each for each in worker["findings"] if not (only_bad and each["status"] == "ok")]
        if not shown and worker["enforced"]:
            continue
        held = "" if worker["enforced"] or worker["effect"] == "change" else ", which enforces nothing"
        say(style(f"sandbox of {worker['agent']}, {worker['effect']}", BOLD), f": {worker['backend']}{held}")
        if worker["reason"]:
            say(f"  {worker['reason']}")
        for finding in shown:
            _line(finding)
    _sum_up([*found["checks"], *_of_workers(found)])


def _sum_up(findings: list[dict[str, Any]]) -> None:
    bad = [finding for finding in findings if finding["status"] in BAD]
    untried = [finding for finding in findings if finding["status"] == "not_tried"]
    say()
    if bad:
        plural = "thing is" if len(bad) == 1 else "things are"
        names = ", ".join(finding["name"] for finding in bad[:5]) + (", …" if len(bad) > 5 else "")
        warn(f"{len(bad)} {plural} not as promised: {names}.", "Look for NOT HELD and WRONG above.")
    elif untried:
        say(style("Nothing is wrong, but not everything could be tried.", MAGENTA))
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
    if remedy := " ".join((finding.get("remedy") or "").split()):
        say(f"  {'':<{_WIDTH}} ", style(f"{'':<{_STATUS_WIDTH}} → {remedy}", DIM))
