"""Ports: what listens and whose it is, who can reach it, and who could not have the port that it wanted."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

import procfs
from checks import PROBLEM, CannotSee, Finding, check
from commands import journal, message, run, stamp
from procfs import Socket
from report import shorten

_IN_USE = "Address already in use|EADDRINUSE"
_PORT = re.compile(
    r"(?:[\]\d*: ]|localhost):(\d{2,5})\b|\bport[ =:#]+(\d{2,5})\b|\bPORT[ =:]+(\d{2,5})\b", re.I
)


@dataclass(frozen=True)
class Conflict:
    """Who could not listen since the port was taken."""

    unit: str
    who: str
    port: int
    line: str
    when: float

    @property
    def name(self) -> str:
        return self.unit or self.who


def listening(port: int = 0) -> list[Socket]:
    """The sockets that listen, or those on one port."""
    rows = [row for row in procfs.sockets() if row.is_listening and (not port or row.port == port)]
    return sorted(rows, key=lambda row: (row.protocol[:3], row.port, row.address))


def owner(row: Socket, owners: dict[int, list[int]]) -> str:
    """`nginx (pid 812) of nginx.service`; the user where the process cannot be seen."""
    pids = owners.get(row.inode, [])
    if not pids:
        return f"a process of the user {procfs.user(row.uid)} that cannot be seen from here"
    first = min(pids, key=lambda pid: (pid == 1, pid))  # systemd holds the sockets of its services, too
    if first == 1:
        return "systemd (pid 1), which starts a service when somebody connects"
    return procfs.who(first)


def holder(port: int) -> str:
    """Who listens on a port, or an empty string."""
    rows = listening(port)
    return owner(rows[0], procfs.socket_owners()[0]) if rows else ""


def reach(rows: list[Socket]) -> str:
    """Who can reach a port, by the addresses that it is bound to."""
    if all(row.is_local for row in rows):
        return "only this machine can reach it (it is bound to the loopback address)"
    bound = sorted({row.address for row in rows if not row.is_local})
    if any(address.strip("0.:") == "" for address in bound):
        return "other machines can reach it, if no firewall stops them"
    return f"other machines can reach it at {', '.join(bound[:3])}, if no firewall stops them"


def port_of(line: str) -> int:
    """The port that a line of a log is about, or 0."""
    found = _PORT.search(line)
    return int(next(group for group in found.groups() if group)) if found else 0


def conflicts() -> tuple[list[Conflict], str]:
    """The last conflict of each unit or program in a day, the newest first, and why this may not be all."""
    entries, problem = journal("--since=-1d", f"--grep={_IN_USE}", limit=200, timeout_s=3)
    found: dict[str, Conflict] = {}
    for entry in entries:
        unit = str(entry.get("UNIT") or entry.get("_SYSTEMD_UNIT") or "")
        if unit.startswith("lightagent"):
            continue
        who = str(entry.get("SYSLOG_IDENTIFIER") or entry.get("_COMM") or "a program")
        line = message(entry)
        port = port_of(line) or (found[unit or who].port if (unit or who) in found else 0)
        found[unit or who] = Conflict(unit, who, port, line, stamp(entry))
    whole = [each if each.port else replace(each, port=_port_in(each.unit)) for each in found.values()]
    return sorted(whole, key=lambda each: -each.when), problem


def _port_in(unit: str) -> int:
    """The port that a unit's command names and that somebody has, where its log does not say which; or 0."""
    command = run("systemctl", "show", "--value", "--property=ExecStart", "--", unit, timeout_s=3).stdout
    taken = {str(row.port) for row in listening()}
    return next(
        (int(word) for word in re.findall(r"\d{2,5}", command.partition("argv[]=")[2]) if word in taken), 0
    )


def state(unit: str) -> str:
    return run(
        "systemctl", "show", "--value", "--property=ActiveState", "--", unit, timeout_s=3
    ).stdout.strip()


def active_since(unit: str) -> float:
    """Since when it runs, in seconds since 1970; infinite where it does not."""
    wanted = ("--value", "--timestamp=unix", "--property=ActiveEnterTimestamp")
    if not unit or state(unit) != "active":
        return float("inf")
    when = run("systemctl", "show", *wanted, "--", unit, timeout_s=3).stdout.strip().lstrip("@")
    return float(when) if when.isdigit() else 0.0


@check("ports.conflict", "services that run without a port that somebody else has")
def conflict() -> Iterator[Finding]:
    """The check of units tells of those that do not run."""
    found, problem = conflicts()
    for each in found:
        held = holder(each.port) if each.port else ""
        if held and each.name not in held and each.when >= active_since(each.unit) - 5:
            ask = f"who uses port {each.port}"
            yield Finding(sentence(each, held), ask, since=each.when, severity=PROBLEM)
    if problem:
        raise CannotSee(problem)


def sentence(each: Conflict, held: str) -> str:
    if not each.port:
        return f"{each.name} could not listen: {shorten(each.line)}"
    now = f"{held} holds it" if held else "nobody holds it any more"
    return f"{each.name} could not listen on port {each.port}, the address was in use: {now}."
