"""Lists the TCP and UDP ports that something listens on, and which process owns each. Only observes."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "_lib"))

import procfs
from report import Report, options, plural, refuse, run


def service(port: int, protocol: str) -> str:
    try:
        return socket.getservbyport(port, protocol[:3])
    except OSError:
        return ""


def owner_words(inode: int, owners: dict[int, list[int]]) -> str:
    return ", ".join(f"{procfs.name(pid)} (pid {pid})" for pid in owners.get(inode, [])[:4]) or "not visible"


def units(inode: int, owners: dict[int, list[int]]) -> str:
    return ", ".join(sorted({procfs.unit_of(pid) for pid in owners.get(inode, [])} - {""}))


def finding(listening: list[procfs.Socket], owners: dict[int, list[int]], port: str) -> str:
    if procfs.sockets_are_whole() and not listening:
        return "No listening port is visible from here, which does not mean that there is none."
    if port:
        if not listening:
            return f"Nothing listens on port {port}."
        names = sorted({owner_words(row.inode, owners) for row in listening} - {"not visible"})
        reach = (
            "only reachable from this machine"
            if all(row.is_local for row in listening)
            else "reachable from other machines"
        )
        who = (
            " and ".join(names)
            if names
            else f"A process of the user {procfs.user(listening[0].uid)} that cannot be seen from here"
        )
        verb = "listen" if len(names) > 1 else "listens"
        return f"{who} {verb} on port {port}; it is {reach}, if no firewall stops it."
    if not listening:
        return "Nothing listens on any TCP or UDP port."
    outside = sorted({row.port for row in listening if not row.is_local and row.protocol.startswith("tcp")})
    words = f": {', '.join(map(str, outside[:20]))}" if outside else ""
    return (
        f"{plural(len(listening), 'socket')} {'listens' if len(listening) == 1 else 'listen'}; "
        f"{plural(len(outside), 'TCP port')} "
        f"can be reached from other machines if no firewall stops it{words}."
    )


def make(report: Report) -> None:
    port = options(str(__doc__), port="only this port").port or ""
    if port and not (port.isdigit() and 0 < int(port) < 65536):
        refuse(f"--port={port} is not a port from 1 to 65535.")
    listening = [row for row in procfs.sockets() if row.is_listening and (not port or row.port == int(port))]
    listening.sort(key=lambda row: (row.protocol[:3], row.port, row.address))
    owners, hidden = procfs.socket_owners()
    report.finding = finding(listening, owners, port)
    report.table(
        "Listening sockets",
        ("Protocol", "Address", "Port", "Service", "User", "Process", "Unit"),
        [
            (
                row.protocol,
                row.address,
                row.port,
                service(row.port, row.protocol),
                procfs.user(row.uid),
                owner_words(row.inode, owners),
                units(row.inode, owners),
            )
            for row in listening
        ],
    )
    unseen = sum(row.inode not in owners for row in listening)
    if unseen:
        why = (
            f"this user may not look into {plural(hidden, 'process')} of other users"
            if hidden
            else "they are not visible from here"
        )
        report.note(f"The owners of {plural(unseen, 'socket')}: {why}.")
    report.note(procfs.sockets_are_whole())


run(make)
