"""Says which ports something listens on, whose they are and who can reach them. Only observes."""

from __future__ import annotations

import socket
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "_lib"))

import procfs
from areas import ports
from checks import prompt
from clock import show
from procfs import Socket
from report import Report, options, plural, refuse, run, shorten, span

_ROWS = 60


def service(port: int, protocol: str = "tcp") -> str:
    try:
        return socket.getservbyport(port, protocol[:3])
    except OSError:
        return ""


def about(
    port: int,
    rows: list[Socket],
    owners: dict[int, list[int]],
    conflicts: list[ports.Conflict],
    report: Report,
) -> None:
    conflict = next((each for each in conflicts if each.port == port), None)
    if rows:
        held = " and ".join(dict.fromkeys(ports.owner(row, owners) for row in rows))
        report.finding = f"Port {port} is open: {held} listens; {ports.reach(rows)}."
        if conflict is not None and conflict.name not in held and ports.state(conflict.unit) != "active":
            report.finding = f"{ports.sentence(conflict, held)[:-1]}; {ports.reach(rows)}."
        pids = owners.get(rows[0].inode, [])
        report.next = prompt(f"status of {unit}") if pids and (unit := procfs.unit_of(pids[0])) else ""
    else:
        report.finding = f"Nothing listens on port {port}"
        if name := service(port):
            report.finding += f" ({name})"
        if conflict is not None:
            ago = span(time.time() - conflict.when)
            report.finding += f"; {conflict.name} tried to {ago} ago and could not"
        report.finding += f"{near(port)}."
        report.found_nothing = True
        report.next = prompt("which ports are open")


def near(port: int) -> str:
    """The nearest ports on which something listens, in case another one was meant."""
    rows = {row.port: row for row in ports.listening() if row.protocol.startswith("tcp")}
    close = sorted((number for number in rows if abs(number - port) <= 100), key=lambda one: abs(one - port))
    if not close:
        return ""
    owners, _ = procfs.socket_owners()
    return f"; the nearest: {', '.join(f'{each} ({ports.owner(rows[each], owners)})' for each in close[:2])}"


def overview(rows: list[Socket], conflicts: list[ports.Conflict], report: Report) -> None:
    if not rows:
        report.finding = "Nothing listens on any TCP or UDP port."
        return
    outside = sorted({row.port for row in rows if not row.is_local and row.protocol.startswith("tcp")})
    inside = sorted({row.port for row in rows if row.protocol.startswith("tcp")} - set(outside))
    can = f"other machines can reach {plural(len(outside), 'TCP port')}, if no firewall stops them"
    report.finding = can[:1].upper() + can[1:] + (f": {', '.join(map(str, outside[:15]))}" if outside else "")
    if inside:
        report.finding += f"; only this machine reaches {', '.join(map(str, inside[:10]))}"
    report.finding += "."
    fights = [each for each in conflicts if ports.state(each.unit) in ("failed", "activating")]
    if fights:
        held = ports.holder(fights[0].port) if fights[0].port else ""
        report.finding = ports.sentence(fights[0], held)
        report.next = prompt(f"why is {fights[0].unit} down")


def make(report: Report) -> None:
    asked = options(str(__doc__), port="only this port").port or ""
    if asked and not (asked.isdigit() and 0 < int(asked) < 65536):
        refuse(f"--port={asked} is not a port from 1 to 65535.")
    rows = ports.listening(int(asked or 0))
    owners, _ = procfs.socket_owners()
    unseen = procfs.sockets_are_whole()
    conflicts, unread = ports.conflicts()
    report.note(unread)
    if asked:
        about(int(asked), rows, owners, conflicts, report)
    else:
        overview(rows, conflicts, report)
    if unseen and not rows:
        report.finding = "No listening port is visible from here, which does not mean that there is none."
    report.table(
        "Listening sockets",
        ("Port", "Protocol", "Address", "Process", "Unit", "User"),
        [
            (
                f"{row.port} {service(row.port, row.protocol)}".strip(),
                row.protocol,
                row.address,
                ", ".join(f"{procfs.name(pid)} ({pid})" for pid in owners.get(row.inode, [])[:3])
                or "not visible",
                ", ".join(sorted({procfs.unit_of(pid) for pid in owners.get(row.inode, [])} - {""})),
                procfs.user(row.uid),
            )
            for row in rows[:_ROWS]
        ],
    )
    report.table(
        "Addresses in use, from the journal of a day",
        ("When", "Who", "What"),
        [
            (show(each.when), each.name, shorten(each.line, 90))
            for each in conflicts
            if not asked or each.port == int(asked)
        ],
    )
    if any(row.inode not in owners for row in rows):
        report.note(procfs.hidden_processes())
    report.note(unseen)


run(make)
