"""Which firewall is here, whether it runs, and whom fail2ban keeps out.

The rules themselves need root, so what is judged are units and the files that everybody may read.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass

import clock
from checks import Finding, check
from commands import journal, message, read, stamp
from unit_states import Unit, units

_UNITS = (
    "nftables",
    "firewalld",
    "ufw",
    "netfilter-persistent",
    "iptables",
    "shorewall",
    "fail2ban",
    "crowdsec",
)
FIREWALLS = tuple(f"{name}.service" for name in _UNITS)
_BAN = re.compile(r"\[([\w.-]+)\]\s+(?:Restore )?(Ban|Unban)\s+([0-9A-Fa-f:.]+)")
_LOG_BYTES = 2 << 20


@dataclass(frozen=True)
class Ban:
    jail: str
    address: str
    when: float


def known() -> list[Unit]:
    """The units of firewalls that are installed."""
    return units(*FIREWALLS)


def is_ufw_on(text: str | None = None) -> bool | None:
    """Whether ufw is switched on in its file, or None where it is not installed or not readable."""
    text = read("/etc/ufw/ufw.conf") if text is None else text
    match = re.search(r"^\s*ENABLED\s*=\s*\"?(\w+)", text or "", re.M)
    return match[1].lower() == "yes" if match else None


def bans_in(rows: list[tuple[float, str]]) -> list[Ban]:
    """Who is banned after these lines of fail2ban, oldest first."""
    found: dict[tuple[str, str], Ban] = {}
    for when, text in rows:
        match = _BAN.search(text)
        if match and match[2] == "Ban":
            found[(match[1], match[3])] = Ban(match[1], match[3], when)
        elif match:
            found.pop((match[1], match[3]), None)
    return list(found.values())


def bans() -> tuple[list[Ban], str]:
    """Whom fail2ban bans, by its log or its journal, and what could not be read."""
    rows = []
    text = read("/var/log/fail2ban.log")
    if text is not None:
        for line in text[-_LOG_BYTES:].splitlines():
            try:
                rows.append((time.mktime(time.strptime(line[:19], "%Y-%m-%d %H:%M:%S")), line))
            except (ValueError, OverflowError):
                continue
        return bans_in(rows), ""
    entries, problem = journal("--since=-7d", "--unit=fail2ban.service", limit=2000, timeout_s=5)
    return bans_in([(stamp(entry), message(entry)) for entry in entries]), problem


def faults(found: list[Unit], ufw_is_on: bool | None) -> Iterator[Finding]:
    """Firewalls that should run and do not."""
    for one in found:
        should = one.is_wanted and one.has_met_conditions
        if one.name == "ufw.service":
            should = bool(ufw_is_on)
        if should and not one.is_running:
            since = f" since {clock.show(one.since)}" if one.since else ""
            what = "its bans" if one.name in ("fail2ban.service", "crowdsec.service") else "its rules"
            state = f"is enabled but {one.active}"
            if one.active == "failed":
                state = "failed"
            elif one.name == "ufw.service":
                state = f"is switched on in /etc/ufw/ufw.conf but {one.active}"
            yield Finding(
                f"{one.name} {state}{since}: {what} are not in force.",
                f"why is {one.name} down",
                since=one.since,
            )


@check("firewall.state", "firewalls that should run")
def state() -> Iterator[Finding]:
    yield from faults(known(), is_ufw_on())
