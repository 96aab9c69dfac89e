"""Checks the ways to the daemon and who may use them: the control socket, the bus and polkit."""

from __future__ import annotations

import asyncio
import contextlib
import grp
import os
import socket as _socket
import stat
import struct
from pathlib import Path

from lightagentd import errors
from lightagentd.api import Finding
from lightagentd.bus.address import bus_of
from lightagentd.bus.connection import Bus, connect
from lightagentd.client.blocking import SYSTEM_SOCKET
from lightagentd.config import configuration
from lightagentd.doctor.finding import not_tried, note, ok, where_logs_are, wrong
from lightagentd.errors import LightagentError
from lightagentd.host.paths import Paths
from lightagentd.host.systemd import BOOTED
from lightagentd.policy.operation import Operation

NAME = "org.lightagent1"
POLKIT = "org.freedesktop.PolicyKit1"
RULES = Path("/usr/share/polkit-1/rules.d/50-lightagentd.rules")
BUS_POLICY = Path("/usr/share/dbus-1/system.d/org.lightagent1.conf")
UNIT_FILE = Path("/usr/lib/systemd/system/lightagentd.service")
_BUS, _BUS_PATH = "org.freedesktop.DBus", "/org/freedesktop/DBus"
_CALL_S = 10.0
_MODE = stat.S_IRUSR | stat.S_IWUSR | stat.S_IRGRP | stat.S_IWGRP
_REINSTALL = "Install the package again: apt install --reinstall lightagentd"


def control_socket(path: Path) -> Finding:
    """Check the socket's file: it exists, is a socket, and is open only to its intended users."""
    name = "control socket"
    try:
        info = path.stat()
    except FileNotFoundError:
        return wrong("socket", name, f"{path} is not there", "Start the daemon: systemctl start lightagentd")
    except OSError as err:
        return not_tried("socket", name, f"{path}: {err.strerror}")
    if not stat.S_ISSOCK(info.st_mode):
        remedy = f"Remove it, and start the daemon again: rm {path}; systemctl restart lightagentd"
        return wrong("socket", name, f"{path} is no socket", remedy)
    mode = stat.S_IMODE(info.st_mode)
    if mode & ~_MODE:
        remedy = f"Close it: chmod {mode & _MODE:04o} {path}"
        return wrong("socket", name, f"{path} has the mode {mode:04o}, so anybody can connect", remedy)
    if str(path) == SYSTEM_SOCKET and mode != _MODE:
        remedy = f"Open it to the group: chmod {_MODE:04o} {path}"
        return wrong("socket", name, f"{path} has the mode {mode:04o}, so the group cannot connect", remedy)
    group = str(info.st_gid)
    with contextlib.suppress(KeyError):
        group = grp.getgrgid(info.st_gid).gr_name
    return ok("socket", name, f"{path}, {mode:04o}, group {group}")


async def bus(paths: Paths, pid: int | None) -> list[Finding]:
    """Check the daemon's bus and the owner of its name there; `pid` is the running daemon's, if any."""
    try:
        setting = configuration.load(paths.config)[0].daemon.bus
    except (LightagentError, OSError):
        setting = "auto"  # that the configuration cannot be read is told elsewhere
    of_the_system = setting == "auto" and str(paths.socket) == SYSTEM_SOCKET  # whoever asks
    kind = "system" if of_the_system else bus_of(setting)
    if not kind:
        return [
            note("bus", "bus", "the configuration turns it off", 'Turn it on with [daemon] bus = "auto".')
        ]
    try:
        async with connect(kind, timeout_s=_CALL_S) as found:
            return [
                ok("bus", "bus", f"the {kind} bus answers"),
                await _name(found, pid, paths.socket),
                *_bus_policy(kind),
            ]
    except LightagentError as err:
        if not BOOTED.is_dir() and isinstance(err, errors.Unavailable):
            remedy = "Where systemd runs, the package dbus brings one; without it lactl works all the same."
            return [note("bus", "bus", f"there is no {kind} bus here", remedy)]
        return [
            wrong("bus", "bus", err.message, err.suggestion or "systemctl start dbus.socket dbus.service")
        ]


async def _name(found: Bus, pid: int | None, socket: Path) -> Finding:
    name = "bus name"
    ask = (_BUS, _BUS_PATH, _BUS)
    [has] = await found.call(*ask, "NameHasOwner", "s", [NAME], _CALL_S)
    if not has:
        if pid is None:
            remedy = "It comes with the daemon: systemctl start lightagentd"
            return not_tried("bus", name, "no daemon runs", remedy)
        detail = f"the daemon runs, and nobody has the name {NAME}"
        return wrong("bus", name, detail, f"Look at: {where_logs_are()}; then: systemctl restart lightagentd")
    [owner] = await found.call(*ask, "GetConnectionUnixProcessID", "s", [NAME], _CALL_S)
    if pid is None:
        serves, why = await asyncio.to_thread(_who_serves, socket)
        if why:
            return not_tried("bus", name, f"{why}, so it is not known whether {owner} is the daemon")
        if serves is None:
            detail = f"{NAME} belongs to the process {owner}, and nobody serves the control socket {socket}"
            return wrong("bus", name, detail, f"See what it is: ps -fp {owner}")
        pid = serves
    if owner != pid:
        detail = f"{NAME} belongs to the process {owner}, and the daemon is {pid}"
        remedy = f"See what it is (ps -fp {owner}), end it, then: systemctl restart lightagentd"
        return wrong("bus", name, detail, remedy)
    return ok("bus", name, f"{NAME} belongs to the daemon")


def _who_serves(socket: Path) -> tuple[int | None, str]:
    """The process that listens on the control socket, found without a request; None if there is none.

    Also gives the reason if it is unknown: the user may not connect, or systemd listens for the daemon.
    SO_PEERCRED of unix(7) names the process that called listen(2), even while the daemon does not answer.
    """
    with _socket.socket(_socket.AF_UNIX) as client:
        client.setblocking(False)
        try:
            client.connect(os.fspath(socket))
        except BlockingIOError:
            return None, "so many wait for the daemon that one more cannot"
        except (FileNotFoundError, ConnectionRefusedError):
            return None, ""
        except OSError as err:
            return None, f"the control socket {socket} cannot be asked ({err.strerror})"
        peer = client.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, struct.calcsize("3i"))
    pid = int(struct.unpack("3i", peer)[0])
    if pid <= 1:
        return None, "systemd listens for the daemon, which did not answer"
    return pid, ""


def _bus_policy(kind: str) -> list[Finding]:
    if kind != "system" or not UNIT_FILE.exists():
        return []
    if BUS_POLICY.exists():
        return [ok("bus", "bus policy", str(BUS_POLICY))]
    return [wrong("bus", "bus policy", f"{BUS_POLICY} is not there", f"{_REINSTALL}; systemctl reload dbus")]


async def polkit() -> list[Finding]:
    """Check whether polkit works and knows the daemon's actions."""
    try:
        async with connect("system", timeout_s=_CALL_S) as found:
            return await _polkit(found)
    except LightagentError as err:
        if not BOOTED.is_dir():
            return [_without_polkit("there is no system bus here")]
        return [not_tried("polkit", "polkit", err.message, "Have the bus work first.")]


async def _polkit(found: Bus) -> list[Finding]:
    ask = (_BUS, _BUS_PATH, _BUS)
    [running] = await found.call(*ask, "ListNames", timeout_s=_CALL_S)
    [startable] = await found.call(*ask, "ListActivatableNames", timeout_s=_CALL_S)
    if POLKIT not in (*running, *startable):
        return [_without_polkit("it is not installed")]
    authority = (POLKIT, "/org/freedesktop/PolicyKit1/Authority", f"{POLKIT}.Authority")
    try:
        [actions] = await found.call(*authority, "EnumerateActions", "s", [""], _CALL_S)
    except LightagentError as err:
        remedy = "Look at: systemctl status polkit; until it answers, only root may administer."
        return [wrong("polkit", "polkit", f"it does not answer: {err.message}", remedy)]
    findings = [ok("polkit", "polkit", "answers")]
    if not UNIT_FILE.exists():
        return findings
    owners = {row[0]: row[9].get("org.freedesktop.policykit.owner", "") for row in actions}
    wanted = [f"{NAME}.{operation}" for operation in Operation]
    missing = [action for action in wanted if action not in owners]
    not_ours = [action for action in wanted if owners.get(action) == ""]
    if missing:
        findings.append(wrong("polkit", "actions", f"it does not know {', '.join(missing)}", _REINSTALL))
    elif not_ours:
        detail = f"the daemon may not ask about {', '.join(not_ours)}: they have no owner"
        findings.append(wrong("polkit", "actions", detail, _REINSTALL))
    else:
        findings.append(ok("polkit", "actions", f"{len(wanted)} are registered"))
    return [*findings, _rules()]


def _without_polkit(why: str) -> Finding:
    detail = f"{why}: root alone may administer, and members of the socket's group inspect and prompt"
    return note("polkit", "polkit", detail, "To let others do more: apt install polkitd")


def _rules() -> Finding:
    try:
        RULES.stat()
    except FileNotFoundError:
        return wrong("polkit", "rules", f"{RULES} is not there, so no worker can be started", _REINSTALL)
    except OSError as err:
        return not_tried("polkit", "rules", f"{RULES}: {err.strerror}")
    return ok("polkit", "rules", str(RULES))
