"""Says which firewall is here, whether it runs, what it lets in, and whom fail2ban bans. Only observes."""

from __future__ import annotations

import os
import re
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "_lib"))

import clock
import procfs
from areas import firewall
from checks import CannotSee
from commands import run as run_command
from headline import tell
from report import Report, options, plural, refuse, run, span
from unit_states import Unit

_FILES = (
    "/etc/nftables.conf",
    "/etc/nftables/*.nft",
    "/etc/sysconfig/nftables.conf",
    "/etc/iptables/rules.v4",
    "/etc/iptables/rules.v6",
    "/etc/sysconfig/iptables",
    "/etc/ufw/user.rules",
    "/etc/ufw/user6.rules",
    "/etc/firewalld/zones/*.xml",
)
_COMMANDS = (("nft", "list", "ruleset"), ("iptables", "-S"))
_NAMES = {22: "ssh", 25: "smtp", 53: "domain", 80: "http", 443: "https", 5432: "postgresql", 3306: "mysql"}


def rules(report: Report) -> tuple[list[tuple[str, str]], bool]:
    """Each rule with where it stands, and whether they are those in force."""
    for command in _COMMANDS:
        answer = run_command(*command, timeout_s=5)
        if not answer.problem:
            name = " ".join(command)
            return [(name, line.strip()) for line in answer.stdout.splitlines() if line.strip()], True
    report.note(
        "The rules in force, which only root can list (`nft list ruleset`); files may say something else."
    )
    for folder in sorted({str(Path(glob).parent) for glob in _FILES}):
        if Path(folder).exists() and not os.access(folder, os.R_OK | os.X_OK):
            report.note(f"{folder} cannot be read: Permission denied.")
    found = []
    for glob in _FILES:
        for file in sorted(Path("/").glob(glob[1:])):
            try:
                lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
            except OSError as err:
                report.note(f"{file} cannot be read: {err.strerror}.")
                continue
            found += [
                (str(file), line.strip())
                for line in lines
                if line.strip() and not line.lstrip().startswith("#")
            ]
    return found, False


def about_port(port: int, known: list[tuple[str, str]], in_force: bool) -> tuple[str, list[tuple[str, str]]]:
    """What the rules say of a port, and these rules."""
    words = "|".join(filter(None, (str(port), _NAMES.get(port, ""))))
    pattern = re.compile(rf"(?:dport|dports|port=|--dport|tuple ###.*?|[{{,]\s*)[^;]*?\b(?:{words})\b")
    found = [(where, line) for where, line in known if pattern.search(line)]
    listening = [one for one in procfs.sockets() if one.is_listening and one.port == port]
    local = all(one.is_local for one in listening)
    heard = (
        "nothing listens on it"
        if not listening
        else "only this machine reaches it"
        if local
        else "something listens on it"
    )
    if not found:
        drops = [
            line
            for _, line in known
            if re.search(r"hook input.*policy drop|^-P INPUT DROP|^:INPUT DROP", line)
        ]
        where = "The rules in force" if in_force else "The files of rules that can be read"
        default = ", and the policy of input is drop" if drops else ""
        if not known:
            return f"No rule can be read, so it cannot be said whether port {port} is let in; {heard}.", found
        return f"{where} do not name port {port}{default}; {heard}.", found
    refuses = re.compile(r"\b(drop|reject|DROP|REJECT|deny)\b")
    verdict = "is kept out" if refuses.search(found[0][1]) else "is let in"
    where = "the rules in force" if in_force else found[0][0]
    return f"Port {port} {verdict} by {where}: {found[0][1]}; {heard}.", found


def state(found: list[Unit], is_on: bool | None, known: list[tuple[str, str]], in_force: bool) -> str:
    running = [
        one.name for one in found if one.is_running and not one.name.startswith(("fail2ban", "crowdsec"))
    ]
    if "ufw.service" in running and not is_on:
        running.remove("ufw.service")
    if running:
        return f"The firewall runs: {', '.join(running)}."
    if in_force:
        return (
            f"{plural(len(known), 'line')} of rules are in force."
            if known
            else "No firewall rule is in force."
        )
    there = [one.name for one in found if not one.name.startswith(("fail2ban", "crowdsec"))]
    if there:
        are = "is" if len(there) == 1 else "are"
        return f"No firewall service runs; {' and '.join(there)} {are} installed but off."
    return "No firewall service is installed here; whether the kernel has rules only root can see."


def bans(report: Report) -> str:
    """Who is banned, as a sentence, with the table added; empty where fail2ban is not here."""
    found, problem = firewall.bans()
    report.note(problem)
    if not found:
        return ""
    jails = Counter(one.jail for one in found)
    report.table(
        "Banned by fail2ban",
        ("Address", "Jail", "Since"),
        [(one.address, one.jail, clock.show(one.when)) for one in reversed(found[-30:])],
    )
    last = found[-1]
    where = ", ".join(f"{count} in {jail}" for jail, count in jails.most_common(3))
    ago = span(time.time() - last.when)
    return f" {plural(len(found), 'address')} banned ({where}), the last {last.address} {ago} ago."


def make(report: Report) -> None:
    asked = options(str(__doc__), port="whether this port is let in")
    if asked.port is not None and not (asked.port.isdigit() and 0 < int(asked.port) < 65536):
        refuse(f"--port={asked.port} is not a port.")
    found: list[Unit] = []
    try:
        found = firewall.known()
    except CannotSee as err:
        report.note(f"The services: {err}")
    known, in_force = rules(report)
    is_on = firewall.is_ufw_on()
    tell(report, firewall.faults(found, is_on), state(found, is_on, known, in_force), look="nft list ruleset")
    if asked.port:
        sentence, lines = about_port(int(asked.port), known, in_force)
        report.text("The firewall", report.finding)
        report.finding = sentence
        report.lines(f"Rules that name port {asked.port}", [f"{where}: {line}" for where, line in lines])
    if any(one.name == "fail2ban.service" for one in found) or Path("/var/log/fail2ban.log").exists():
        report.finding += bans(report) or " No address is banned by fail2ban."
    report.table(
        "Services",
        ("Unit", "State", "Since", "At boot"),
        [
            (one.name, one.active, clock.show(one.since) if one.since else "-", one.file_state)
            for one in found
        ],
    )
    if is_on is not None:
        report.text("ufw", f"ufw is switched {'on' if is_on else 'off'} in /etc/ufw/ufw.conf.")
    if not asked.port:
        report.lines("Rules", [f"{where}: {line}" for where, line in known])


run(make)
