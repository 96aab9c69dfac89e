"""`lactl doctor`: checks whether the promises hold, and finds problems.

The daemon checks from the inside, and this process from the outside, as the user who runs it: each can see
what the other may not. Without a daemon, or without the right to ask it, only the checks from here remain.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from lightagentd import __version__
from lightagentd.cli.asynchronous import run as run_async
from lightagentd.cli.options import AGENT, Command, Settings
from lightagentd.cli.output import print_json, say
from lightagentd.cli.terminal import BOLD, DIM, GREEN, MAGENTA, RED, style
from lightagentd.client.blocking import SYSTEM_SOCKET, socket_path
from lightagentd.errors import AgentNotFound, LightagentError, PermissionDenied

if TYPE_CHECKING:
    from lightagentd.api import Finding
    from lightagentd.host.paths import Paths

PATIENCE_S = 600.0
STATUS_S = 10.0
"""How long it waits to hear of a daemon: behind a socket unit one that cannot start is waited for."""
BAD = ("not_held", "wrong")
_WORDS = {"ok": "ok", "not_held": "NOT HELD", "wrong": "WRONG", "not_tried": "not tried", "note": "note"}
_COLOURS = {"ok": GREEN, "not_held": RED, "wrong": RED, "not_tried": MAGENTA, "note": DIM}
_WIDTH = 28
_STATUS_WIDTH = max(len(word) for word in _WORDS.values())
_FIELDS = ("group", "name", "status", "detail", "remedy")


@click.command("doctor", cls=Command)
@click.argument("agent", required=False, **AGENT)
@click.option("--models", is_flag=True, help="Try whether the models' endpoints can be reached, too.")
@click.option("-v", "--verbose", is_flag=True, help="Show every check, and notes.")
@click.pass_context
def command(context: click.Context, agent: str | None, models: bool, verbose: bool) -> int:
    """Look for what is wrong, and try whether the sandboxes hold.

    It looks at the daemon, its socket, the bus, polkit, the approver, the units, the agents and their models,
    the history, the journal, the disk, the clock, files and their modes, missing programs and the machine.
    Then, for each agent (or AGENT alone) and each effect that it has, the worker tries what the effect may
    not do: write files, reach the network, read secrets, touch other processes, gain rights. What is shown is
    what came of it, not what is configured. No model is asked.

    The first line is the verdict; what is wrong follows, with what to do. Notes are what may be on purpose.

    Without a running daemon, or where you may not ask it, the rest is looked at. What your user may not see
    is 'not tried'; root sees most.

    The exit status is 0 when all that is promised holds and nothing is wrong, and 1 when not.
    """
    settings = context.ensure_object(Settings)
    found = _found(settings, agent, reach=models)
    if settings.json:
        print_json(found)
    else:
        _show(found, verbose=verbose)
    return 0 if found["ok"] else 1


def _found(settings: Settings, agent: str | None, *, reach: bool) -> dict[str, Any]:
    """The daemon's diagnosis, extended by the checks from here. Raises AgentNotFound."""
    from pathlib import Path

    from lightagentd.doctor import Running, look
    from lightagentd.doctor.finding import merged, not_tried

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
    outside = _daemon(status, refused)
    if settings.host:
        there = f"Run it there: ssh {settings.host} lactl doctor"
        outside.append(not_tried("daemon", "what is seen from outside", "it is another machine", there))
    else:
        socket = settings.socket or socket_path()
        outside += run_async(look(_paths(socket), running, socket=Path(socket), reach=reach))
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
        return settings.call("Manager.GetStatus", timeout_s=STATUS_S), None
    except LightagentError as err:
        return None, err


def _daemon(status: dict[str, Any] | None, refused: LightagentError | None) -> list[Finding]:
    from lightagentd.doctor.finding import not_tried, ok, where_logs_are, wrong

    if status is None:
        assert refused is not None
        remedy = refused.suggestion or f"Look at: {where_logs_are()}"
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


def _show(found: dict[str, Any], *, verbose: bool) -> None:
    """The verdict, then what is wrong and what to do; every check only on request."""
    bad = [one for one in _named(found) if one["status"] in BAD]
    bad.sort(key=lambda one: BAD.index(one["status"]))
    findings = [*found["checks"], *_of_workers(found)]
    untried = [one for one in findings if one["status"] == "not_tried"]
    if bad:
        word = "problem" if len(bad) == 1 else "problems"
        say(style(f"{len(bad)} {word}, the worst: {bad[0]['name']}.", RED))
    elif untried:
        say(style("Nothing is wrong, but not everything could be tried.", MAGENTA))
    else:
        say(style("All that is promised holds.", GREEN))
    if verbose:
        _show_all(found)
        return
    for one in bad:
        say(
            style(f"{_WORDS[one['status']]:<{_STATUS_WIDTH}}", RED), f" {one['name']}: {_line(one['detail'])}"
        )
        if one["remedy"]:
            say(style(f"{'':<{_STATUS_WIDTH}} → {_line(one['remedy'])}", DIM))
    if untried:
        names = ", ".join(dict.fromkeys(one["name"] for one in untried))
        say(f"Not tried: {names}.", style(f" → {_line(untried[0]['remedy'])}", DIM))
    notes = sum(one["status"] == "note" for one in findings)
    if notes:
        say(style(f"{notes} {'note' if notes == 1 else 'notes'}: lactl doctor -v", DIM))


def _named(found: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The findings, those of a sandbox with its name. One that enforces nothing is a single finding."""
    yield from found["checks"]
    for worker in found["workers"]:
        sandbox = f"sandbox of {worker['agent']}, {worker['effect']}"
        failed = [one["name"] for one in worker["findings"] if one["status"] in BAD]
        if failed and not worker["enforced"]:
            detail = f"it enforces nothing: {', '.join(failed)}"
            yield {"status": "not_held", "name": sandbox, "detail": detail, "remedy": worker["reason"]}
        else:
            yield from ({**one, "name": f"{one['name']}, {sandbox}"} for one in worker["findings"])


def _show_all(found: dict[str, Any]) -> None:
    group = None
    for finding in found["checks"]:
        if finding["group"] != group:
            group = finding["group"]
            say(style(group or "the rest", BOLD))
        _row(finding)
    for worker in found["workers"]:
        held = "" if worker["enforced"] or worker["effect"] == "change" else ", which enforces nothing"
        say(style(f"sandbox of {worker['agent']}, {worker['effect']}", BOLD), f": {worker['backend']}{held}")
        if worker["reason"]:
            say(f"  {worker['reason']}")
        for finding in worker["findings"]:
            _row(finding)


def _row(finding: dict[str, Any]) -> None:
    status = finding["status"]
    word = _WORDS.get(status, status)
    say(
        f"  {finding['name']:<{_WIDTH}} ",
        style(f"{word:<{_STATUS_WIDTH}}", _COLOURS.get(status, DIM)),
        f" {_line(finding['detail'])}",
    )
    if remedy := _line(finding.get("remedy") or ""):
        say(f"  {'':<{_WIDTH}} ", style(f"{'':<{_STATUS_WIDTH}} → {remedy}", DIM))


def _line(text: str) -> str:
    return " ".join(text.split())
