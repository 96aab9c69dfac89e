"""`lactl panic`: stop everything, now. Where the socket is busy, over D-Bus; else by a signal."""

from __future__ import annotations

import os
import time
from typing import Any

import click

from lightagentd.cli.asynchronous import run as run_async
from lightagentd.cli.options import Command, Settings
from lightagentd.cli.output import as_json, print_json, say, warn
from lightagentd.cli.terminal import GREEN, RED, style
from lightagentd.client.blocking import SYSTEM_SOCKET, private_socket, socket_path
from lightagentd.errors import DaemonUnreachable, LightagentError, LimitExceeded, PermissionDenied, TimedOut

PATIENCE_S = 15.0
BUS_PATIENCE_S = 5.0
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
    stays changed. The approver signs nothing meanwhile, and the workers for change run nothing, whatever the
    daemon says; only a person ends that, with --off.

    When the daemon does not answer on its socket, this asks over D-Bus, and then sends it SIGUSR1. By hand:

    \b
      systemctl kill --kill-whom=main --signal=SIGUSR1 lightagentd
      kill -USR1 PID                              without systemd
    """
    if off and reason is not None:
        raise click.UsageError("--reason goes with a stop, not with --off.")
    problem = _tell_approver(settings, "EndPanic" if off else "Panic", reason)
    if off:
        settings.call("Manager.EndPanic")
        if problem:
            warn(problem)
        if settings.json:
            print_json({"panic": None})
        else:
            say(style("Turns and workers may run again.", GREEN), " What was stopped is not taken up.")
        return
    try:
        found = settings.call("Manager.Panic", timeout_s=PATIENCE_S, reason=reason)
    except (LimitExceeded, TimedOut) as err:
        found = _otherwise(settings, err, reason)
    found["problems"] = [*found["problems"], *([problem] if problem else [])]
    if as_json(settings, found):
        return
    turns, workers = found["turns"], found["workers"]
    if turns is None:
        say(style("Everything is stopped", RED), " by a signal.")
    else:
        say(
            style("Everything is stopped:", RED),
            f" {turns} turn{'' if turns == 1 else 's'} ended,"
            f" {workers} worker{'' if workers == 1 else 's'} killed.",
        )
    say("Nothing new runs until: lactl panic --off")
    for problem in found["problems"]:
        warn(problem)


def _tell_approver(settings: Settings, method: str, reason: str | None) -> str:
    """Tell the approver, before the daemon; gives what went wrong. Raises PermissionDenied for the end of a
    stop.
    """
    if not settings.has_approver:
        return ""
    given = {"reason": reason} if method == "Panic" else {}
    try:
        settings.approver.call(f"Approver.{method}", timeout_s=PATIENCE_S, **given)
    except PermissionDenied as err:
        if method == "EndPanic":
            raise
        return f"The approver was not told: {err.message}"
    except DaemonUnreachable as err:
        return "" if settings.host else f"The approver was not told: {err.message} {err.suggestion}"
    except LightagentError as err:
        return f"The approver was not told: {err.message}"
    return ""


def _otherwise(settings: Settings, busy: LightagentError, reason: str | None) -> dict[str, Any]:
    """Stop a daemon that does not answer on its socket, and say how. The counts are None after a signal.
    Raises the error of the socket when no other way leads to the daemon, TimedOut.
    """
    if settings.host:
        busy.suggestion = f"Stop it there, as root: ssh {settings.host} {SIGNAL}"
        raise busy
    path = settings.socket or socket_path()
    try:
        if kind := _bus_of(path):
            warn(f"{busy.message} Asking over D-Bus.")
            return _over_bus(kind, reason)
    except LightagentError as err:
        warn(err.message)
    try:
        pid = _signal(path)
    except OSError:
        busy.suggestion = f"Stop it with a signal, as root: {SIGNAL}"
        raise busy from None
    warn(f"The daemon, process {pid}, got SIGUSR1{'' if reason is None else ', which tells no reason'}.")
    return {"panic": _stopped(settings, pid), "turns": None, "workers": None, "problems": []}


def _bus_of(path: str) -> str:
    """The bus of the daemon with this socket; empty if it is not known."""
    if path == SYSTEM_SOCKET:
        return "system"
    own = os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.geteuid()}"
    return "session" if path == f"{own}/lightagentd/control.sock" else ""


def _over_bus(kind: str, reason: str | None) -> dict[str, Any]:
    """What the daemon answers over D-Bus. Raises its errors, Unavailable, TimedOut."""
    from lightagentd.bus.connection import Variant, connect

    async def call() -> dict[str, Any]:
        async with connect(kind, timeout_s=BUS_PATIENCE_S) as bus:
            options = {} if reason is None else {"reason": Variant("s", reason)}
            where = ("org.lightagent1", "/org/lightagent1", "org.lightagent1.Manager")
            [found] = await bus.call(*where, "Panic", "a{sv}", [options], timeout_s=BUS_PATIENCE_S)
            return dict(found)

    return run_async(call())


def _signal(path: str) -> int:
    """Send SIGUSR1 to whoever listens on the private socket, which systemd never does. Raises OSError."""
    import signal
    import socket

    from lightagentd.host.peer import Peer

    with socket.socket(socket.AF_UNIX) as sock:
        sock.setblocking(False)
        sock.connect(private_socket(path))
        daemon = Peer.of(sock)
        assert daemon.process is not None
        pidfd = daemon.process.open_pidfd()
        try:
            signal.pidfd_send_signal(pidfd, signal.SIGUSR1)
        finally:
            os.close(pidfd)
            daemon.process.close()
    return daemon.pid


def _stopped(settings: Settings, pid: int) -> dict[str, Any]:
    """The stop as the status shows it, as soon as it does. Raises TimedOut."""
    deadline = time.monotonic() + PATIENCE_S
    while (left_s := deadline - time.monotonic()) > 0:
        try:
            panic = settings.call("Manager.GetStatus", timeout_s=left_s)["panic"]
        except (LimitExceeded, TimedOut):
            panic = None
        if panic is not None:
            return dict(panic)
        time.sleep(0.1)
    raise TimedOut(
        f"The daemon, process {pid}, got SIGUSR1, and it is not known whether it stopped everything.",
        suggestion=f"Look with 'lactl status'. If it hangs, end it: kill -KILL {pid}",
    )
