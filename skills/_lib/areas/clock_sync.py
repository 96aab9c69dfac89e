"""Whether the clock is synchronised, by which service, and since when. See timedatectl(1), chronyc(1)."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import clock
from checks import WARNING, CannotSee, Finding, check
from commands import journal, message, read, run, stamp
from report import span
from unit_states import Unit, units

SERVICES = ("systemd-timesyncd", "chrony", "chronyd", "ntp", "ntpd", "ntpsec", "openntpd", "ntpd-rs")
_PATIENCE_S = 600.0
"""How long a service may take after its start until the clock is synchronised."""
ASK = "is the clock synchronised"
_NEWS = re.compile(
    r"Selected source|System clock wrong|no selectable|Can't synchronise|Contacted time server|"
    r"Initial (?:clock )?synchronization|Timed out waiting for reply|clock.*step|No response|unreachable",
    re.I,
)
_BAD_NEWS = re.compile(r"no selectable|Can't synchronise|Timed out waiting for reply|unreachable", re.I)


@dataclass
class Sync:
    """What is known of the clock; `synchronised` is None where nobody says."""

    synchronised: bool | None = None
    timezone: str = ""
    services: list[Unit] = field(default_factory=list)
    is_container: bool = False
    problem: str = ""

    @property
    def service(self) -> Unit | None:
        """The service that sets the clock: one that runs, else one that should."""
        ranked = sorted(
            (one for one in self.services if one.is_running or one.is_wanted),
            key=lambda one: not one.is_running,
        )
        return ranked[0] if ranked else None


def virtualization() -> str:
    """The name of the container that this is, or an empty string."""
    answer = run("systemd-detect-virt", "--container", timeout_s=2)
    return answer.stdout.strip() if answer.status == 0 else ""


def look() -> Sync:
    zone = os.path.realpath("/etc/localtime").partition("zoneinfo/")[2]
    found = Sync(is_container=bool(virtualization()), timezone=zone or (read("/etc/timezone") or "").strip())
    try:
        found.services = units(*(f"{name}.service" for name in SERVICES))
    except CannotSee as err:
        found.problem = str(err)
    if found.is_container and found.service is None:
        return found  # the host sets its clock, and whether that is synchronised is told there
    answer = run("timedatectl", "show", timeout_s=3)
    pairs = dict(line.split("=", 1) for line in answer.stdout.splitlines() if "=" in line)
    found.timezone = pairs.get("Timezone", "") or found.timezone
    if "NTPSynchronized" in pairs:
        found.synchronised = pairs["NTPSynchronized"] == "yes"
    else:
        found.problem = (
            found.problem or answer.problem or "timedatectl does not say whether the clock is synchronised."
        )
    return found


def news(service: str) -> list[tuple[float, str]]:
    """What the service said of its servers, oldest first."""
    entries, _ = journal("--since=-2d", f"--unit={service}", limit=500, timeout_s=5)
    return [(stamp(one), message(one)) for one in entries if _NEWS.search(message(one))]


def offset() -> str:
    """The offset as chronyc or ntpq says it, or an empty string: both ask a socket that may be closed."""
    if shutil.which("chronyc"):
        match = re.search(r"System time\s*:\s*(.+)", run("chronyc", "-n", "tracking", timeout_s=3).stdout)
        return match[1].strip() if match else ""
    match = re.search(r"offset=([-\d.]+)", run("ntpq", "-c", "rv", timeout_s=3).stdout)
    return f"{match[1]} ms" if match else ""


def faults(found: Sync, said: list[tuple[float, str]]) -> Iterator[Finding]:
    service = found.service
    if service is not None and not service.is_running:
        if service.has_met_conditions and (service.active == "failed" or not found.is_container):
            since = f" since {clock.show(service.since)}" if service.since else ""
            state = "failed" if service.active == "failed" else f"is {service.active}"
            yield Finding(
                f"Nothing sets the clock: {service.name} {state}{since}.",
                f"why is {service.name} down",
                since=service.since,
            )
        return
    if found.is_container or found.synchronised is not False:
        return
    if service is None:
        there = ", ".join(one.name for one in found.services)
        why = f"{there} is installed but switched off" if there else "no NTP service is installed"
        yield Finding(f"Nothing sets the clock: {why}.", ASK, severity=WARNING)
    elif service.since is None or time.time() - service.since > _PATIENCE_S:
        bad = [text for _, text in said if _BAD_NEWS.search(text)]
        ran = f", which runs for {span(time.time() - service.since)}" if service.since else ""
        yield Finding(
            f"The clock is not synchronised by {service.name}{ran}"
            + (f": {bad[-1].rstrip('.')}." if bad else "."),
            ASK,
            since=service.since,
            severity=WARNING,
        )


@check("time.sync", "the clock and what sets it")
def sync() -> Iterator[Finding]:
    found = look()
    if found.problem and not found.is_container and found.service is None:
        raise CannotSee(found.problem)
    said = news(found.service.name) if found.service and found.synchronised is False else []
    yield from faults(found, said)
