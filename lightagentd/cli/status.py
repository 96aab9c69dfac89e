"""`lactl status`: is the daemon well?"""

from __future__ import annotations

from typing import Any

import click

from lightagentd.cli.options import Command, Settings
from lightagentd.cli.output import fields, print_json
from lightagentd.cli.redrawn import watchable
from lightagentd.cli.terminal import is_terminal
from lightagentd.cli.when import duration, local, size
from lightagentd.errors import LightagentError
from lightagentd.host.users import called

_APPROVER_S = 5.0


@click.command("status", cls=Command)
@watchable()
@click.pass_obj
def command(settings: Settings) -> int:
    """Show how the daemon is, and what is wrong.

    With --hosts of several machines: a table of host, 'done' or why not, seconds, and the daemon in short.
    """
    if settings.hosts:
        from lightagentd.cli import several  # only here: it imports asyncio

        return several.status(settings)
    status = settings.call("Manager.GetStatus")
    if settings.has_approver and not settings.host:
        status |= _approver(settings)
    if settings.json:
        print_json(status)
    else:
        problems = [("problem", text) for text in status["problems"]]
        fields([*_panic(status), *_daemon(status), *_approver_line(status), *_workers(status), *problems])
    return 0


def _approver(settings: Settings) -> dict[str, Any]:
    """The approver's own status beside the daemon's; null, with its problem in `approver_problem`, where it
    does not answer.
    """
    try:
        return {"approver": settings.approver.call("Approver.GetStatus", timeout_s=_APPROVER_S)}
    except LightagentError as err:
        return {"approver": None, "approver_problem": f"{err.message} {err.suggestion}".strip()}


def _approver_line(status: dict[str, Any]) -> list[tuple[str, object]]:
    if "approver" not in status:
        return []
    if (found := status["approver"]) is None:
        return [("approver", f"does not answer, so no change can be allowed: {status['approver_problem']}")]
    if (panic := found["panic"]) is not None:
        text = f"signs nothing since {local(panic['since_us'])}; it ends with: lactl panic --off"
    else:
        text = f"running, {found['waiting']} waiting for a person, key {found['public'][:16]}"
    return [("approver", text), *(("problem", one) for one in found["problems"])]


def _panic(status: dict[str, Any]) -> list[tuple[str, object]]:
    """The emergency stop, which comes before everything else."""
    panic = status["panic"]
    if panic is None:
        return []
    who = "a signal" if panic["by"] is None else called(panic["by"])
    why = f": {panic['reason']}" if panic["reason"] else ""
    text = f"everything is stopped since {local(panic['since_us'])} by {who}{why}"
    return [("panic", f"{text}; it ends with: lactl panic --off")]


def _daemon(status: dict[str, Any]) -> list[tuple[str, object]]:
    history = status["history"]
    dropped = status["journal_dropped"]
    journal = "yes" if status["journal"] else "no"
    return [
        ("daemon", f"lightagentd {status['version']}, {status['state']}, pid {status['pid']}"),
        ("since", f"{local(status['started_us'])} ({duration(status['uptime_s'] * 1000)})"),
        ("agents", f"{status['agents_running']} of {status['agents_total']} running"),
        ("model", _model(status["model"])),
        ("sessions", status["sessions"]),
        (
            "turns",
            f"{status['turns_running']} running, {status['turns_queued']} queued, "
            f"{status['turns_waiting']} waiting for a person",
        ),
        ("sandbox", status["sandbox"]),
        ("history", f"{history['events']} events, {size(history['size_bytes'])}, {history['path']}"),
        ("examined", local(history["examined_us"]) if history["examined_us"] else "not yet"),
        ("disk", "low: changes are refused" if history["disk_low"] else "ok"),
        ("journal", f"{journal}, {dropped} entries dropped" if dropped else journal),
    ]


def _model(model: str) -> str:
    """The default model; a person is told what that without a network can do."""
    if model != "runbook" or not is_terminal():
        return model
    return "runbook: answers what 'lactl skills list' shows; for a language model: lactl setup"


def _workers(status: dict[str, Any]) -> list[tuple[str, object]]:
    return [
        (
            "worker",
            f"{worker['agent']}/{worker['effect']}".lstrip("/") + f" for {called(worker['owner'])}: "
            f"{worker['unit'] or worker['backend']}, pid {worker['pid']}, "
            f"{'busy' if worker['busy'] else 'idle'}{'' if worker['enforced'] else ', not enforced'}",
        )
        for worker in status["workers"]
    ]
