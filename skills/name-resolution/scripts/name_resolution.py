"""Checks the files of name resolution, and with a host each name server (that needs the network)."""

from __future__ import annotations

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "_lib"))

from areas import names
from checks import PROBLEM, CannotSee, Finding
from commands import read
from dns_query import ask_server, resolve
from headline import tell
from report import Report, options, refuse, run

_WAIT_S = 9.0
_HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,252}[A-Za-z0-9_.])?(:\d{1,5})?")


def in_hosts(name: str) -> list[str]:
    """The lines of /etc/hosts that have this name."""
    rows = enumerate((read("/etc/hosts") or "").splitlines(), start=1)
    return [
        f"line {number}: {line.strip()}"
        for number, line in rows
        if name.lower() in line.partition("#")[0].lower().split()[1:]
    ]


def about_host(name: str, servers: list[str], report: Report) -> tuple[bool, str]:
    """Whether a name resolves, and the sentence about it."""
    found, problem = resolve(name, _WAIT_S)
    report.lines("In /etc/hosts", in_hosts(name))
    rows = [(server, *ask_server(server, name)) for server in servers[:6]]
    report.table("Name servers", ("Server", "Answer"), [(server, words) for server, _, words in rows])
    if found:
        by = " by /etc/hosts" if in_hosts(name) else ""
        silent = [server for server, _, words in rows if words.startswith(("no answer", "refused"))]
        rest = f"; but {' and '.join(silent)} did not answer" if silent and len(silent) < len(rows) else ""
        return True, f"{name} resolves to {', '.join(found[:4])}{by}{rest}."
    if not servers:
        return False, f"{name} does not resolve: {problem}; no name server is configured."
    said = "; ".join(f"{server}: {words}" for server, _, words in rows[:3])
    return False, f"{name} does not resolve: {problem}" + (f" ({said})." if said else ".")


def faults() -> tuple[list[Finding], str]:
    found, problem = list(names.told(names.file_faults())), ""
    try:
        found += names.resolver()
    except CannotSee as err:
        problem = str(err)
    return found, problem


def make(report: Report) -> None:
    asked = options(str(__doc__), host="a name to resolve; each name server is asked for it")
    if asked.host is not None and not _HOST.fullmatch(asked.host):
        refuse(f"--host={asked.host} is not a host name.")
    found, problem = faults()
    report.note(problem)
    text = read("/etc/resolv.conf")
    servers = names.servers(text or "")
    if text is None and names.is_hidden():
        servers = names.servers(read("/run/systemd/resolve/resolv.conf") or "")
        report.note(f"/etc/resolv.conf leads to {names.lead()}, which cannot be seen from here.")
    good = "/etc/hosts, /etc/resolv.conf and /etc/nsswitch.conf have no fault"
    good += (
        f"; the name servers are {', '.join(servers[:3])}." if servers else "; no name server is configured."
    )
    tell(report, found, good, look="cat /etc/hosts /etc/resolv.conf /etc/nsswitch.conf", own=names.ASK)
    if asked.host is not None:
        name = re.sub(r":\d+$", "", asked.host)
        resolved, sentence = about_host(name, servers, report)
        if found or not resolved:
            report.text("The configuration here", report.finding)
        causes = [one.text.rstrip(".") for one in found if one.severity == PROBLEM]
        if causes and not resolved:
            sentence = f"{causes[0]}; {sentence}"
        report.finding = sentence
        if resolved:
            report.next = ""
    else:
        report.note("Whether the name servers answer: that needs the network. Name a host to ask each.")
    for file in ("/etc/resolv.conf", "/etc/nsswitch.conf", "/etc/hosts"):
        wanted = r"^\s*hosts:" if file.endswith("nsswitch.conf") else r"^\s*[^#\s]"
        lines = [line for line in (read(file) or "").splitlines() if re.match(wanted, line)]
        report.lines(file, lines[:12])


run(make)
